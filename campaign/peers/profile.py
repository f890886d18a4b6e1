#!/usr/bin/env python3
"""Shows in which functions a kernel ran most instructions.

    campaign/peers/profile.py COUNTS SYMBOLS

COUNTS is a file that --profile of campaign/kernbench or campaign/snapshot wrote. SYMBOLS is the
kernel's ELF file, vmlinux for Linux, or a System.map. An inlined function counts for its caller;
with --inlined, which needs an ELF file with lines, it counts for itself.
"""

import argparse
import subprocess
import sys
from bisect import bisect_right
from collections import Counter


def symbols(path):
    """The functions of an ELF file or a System.map: addresses in order, and names."""
    with open(path, "rb") as file:
        is_elf = file.read(4) == b"\x7fELF"
    if is_elf:
        text = subprocess.run(["nm", "-C", path], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
    else:
        text = open(path).read()
    rows = (line.split(" ", 2) for line in text.splitlines())
    found = sorted((int(row[0], 16), row[2]) for row in rows if row[0] and row[1] in "tTwW")
    return [row[0] for row in found], [row[1] for row in found]


def by_function(blocks, path):
    addresses, names = symbols(path)
    for address, count in blocks:
        at = bisect_right(addresses, address) - 1
        yield names[at] if at >= 0 else "?", count


def inlined(blocks, path):
    text = "".join(f"{address:#x}\n" for address, _ in blocks)
    lines = subprocess.run(["addr2line", "-C", "-f", "-e", path], input=text, check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for (_, count), name in zip(blocks, lines[::2]):
        yield name, count


def main():
    options = argparse.ArgumentParser(description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("counts")
    options.add_argument("symbols")
    options.add_argument("--inlined", action="store_true")
    options.add_argument("--lines", type=int, default=40)
    options = options.parse_args()
    with open(options.counts) as file:
        blocks = [(int(line.split()[0], 16), int(line.split()[1])) for line in file]
    way = inlined if options.inlined else by_function
    counts = Counter()
    for name, count in way(blocks, options.symbols):
        counts[name] += count
    total = sum(counts.values())
    for name, count in counts.most_common(options.lines):
        print(f"{count:>14,} {100 * count / total:5.1f} % {name}")
    print(f"{total:>14,} in all")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, subprocess.CalledProcessError) as failure:
        sys.exit(f"profile: {failure}")
