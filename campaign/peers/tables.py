#!/usr/bin/env python3
"""Copies tables of figures to standard output, and writes them as lines of JSON to FILE.

    PROGRAM | tables.py EXPERIMENT FILE COMMAND

The head of a table names what is measured and its unit, and then sizes, or figures and sizes:

    | load, ns | 100 | 1,000 |
    | 3 readers and a writer, operations a microsecond | loads, 1,000 | writes, 1,000 |
"""

import json
import re
import sys
from pathlib import Path

from machine import Report


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(text):
    return float(text.replace(",", ""))


def figures(lines):
    """Case, implementation, CPUs, size, value and unit of each figure."""
    head = None
    for line in lines:
        row = cells(line)
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = row
        elif not set(row[0]) <= {"-", ":", " "}:
            what, _, unit = head[0].rpartition(", ")
            readers = re.match(r"(\d+) reader", what)
            cpus = int(readers.group(1)) + 1 if readers else 1
            for column, value in zip(head[1:], row[1:]):
                figure, _, size = column.rpartition(", ")
                case = f"{figure} of {what}" if figure else what
                yield case, row[0], cpus, int(number(size)), number(value), unit


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip())
    experiment, file, command = sys.argv[1:]
    lines = []
    for line in sys.stdin:
        print(line, end="", flush=True)
        lines.append(line)
    report = Report(experiment, [command], 1, False, None)
    # The C library runs on the host itself.
    report.head["machine"] = ""
    for case, implementation, cpus, size, value, unit in figures(lines):
        metric, unit = ("time", "ns/op") if unit == "ns" else ("rate", unit)
        report.rows.append({"experiment": experiment, "case": case,
                            "implementation": implementation, "cpus": cpus, "size": size,
                            "metric": metric, "value": value, "unit": unit})
    if not report.rows:
        sys.exit(f"{file} is not written: the program printed no figures")
    report.write(file)
    print(json.dumps({"rows": len(report.rows), "file": str(Path(file))}), file=sys.stderr)


if __name__ == "__main__":
    main()
