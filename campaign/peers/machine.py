"""Runs a command on a folder of files as root file system: in our kernel, and in a lean Linux.

Both machines are QEMU's emulated ones with the same processor, memory and files, and pages of
4 KiB. The first program is `start` (start.c), which ends the machine. Where instructions are
counted, a nanosecond of the machine's clock is one instruction, and QEMU's plugin counts.c counts
those of the kernel and those of programs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
QEMU = "qemu-system-x86_64"
PROCESSOR = "max,erms=off,fsrm=off"
# crates/samara/src/boot/programs/linux.rs says why each of them.
LINUX = ("console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off tsc=reliable nowatchdog nokaslr"
         " no5lvl init_on_alloc=0 transparent_hugepage=never rdinit=/start -- --init").split()
# Instructions of a CPU before the next one goes on.
TURN = 5000
OURS, THEIRS = "Samara", "Linux"


# Within the message of a run that failed.
SAID = "the end of what it said"


class Failed(Exception):
    """Something that cannot be measured, with the cure."""


def need(program, package):
    """The path of a program of this host."""
    path = shutil.which(program)
    if not path:
        raise Failed(f"{program} is missing; on Debian, as root: apt-get install {package}")
    return path


def output(*command):
    """The output of a command of the host."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def compile_c(source, result, *options):
    need("gcc", "gcc libc6-dev")
    output("gcc", *options, "-Wall", "-o", str(result), str(source))


class Files:
    """A folder that becomes a root file system."""

    def __init__(self, folder):
        self.folder = Path(folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        compile_c(HERE / "start.c", self.folder / "start", "-O1", "-static")

    def copy(self, path, to=None):
        """Copies a file of the host to the same path, or to `to`. A link becomes a file."""
        target = self.folder / str(to or path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(os.path.realpath(path), target)
            target.chmod(0o755)

    def program(self, path, to=None):
        """Copies a program, and the libraries that it names."""
        self.copy(path, to)
        listed = subprocess.run(["ldd", str(path)], stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True).stdout
        for line in listed.splitlines():
            for word in line.split():
                if word.startswith("/"):
                    self.copy(word)

    def archive(self, file):
        """Writes the folder as cpio's "newc", which Linux unpacks."""
        paths = sorted(self.folder.rglob("*"))
        with open(file, "wb") as out:
            for number, path in enumerate(paths, 1):
                data = b"" if path.is_dir() else path.read_bytes()
                name = str(path.relative_to(self.folder))
                entry(out, number, name, path.stat().st_mode, data)
            entry(out, 0, "TRAILER!!!", 0, b"")


def entry(out, number, name, mode, data):
    name = name.encode() + b"\0"
    fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
    out.write(b"070701" + b"".join(b"%08x" % field for field in fields))
    for part, ahead in ((name, 110), (data, 0)):
        out.write(part + b"\0" * (-(ahead + len(part)) % 4))


class Machine:
    """A system on which commands run. `work` is a folder for built and written files."""

    def __init__(self, work, samara, kernel, cpus=1, memory="1G", count=True, timeout=1800):
        self.work, self.cpus, self.memory = Path(work), cpus, memory
        self.count, self.timeout = count, timeout
        self.samara, self.kernel = samara, kernel
        need(QEMU, "qemu-system-x86")
        if not os.access(samara, os.X_OK):
            raise Failed(f"{samara} is missing: cargo build --release -p samara --features full,"
                         " or name another one by SAMARA")
        self.plugin = self.work / "counts.so"
        compile_c(HERE / "counts.c", self.plugin, "-O2", "-shared", "-fPIC")

    def run(self, system, files, command, image=None, profile=None):
        """The lines of JSON of a run, and the instructions between the marks by user and kernel."""
        marks = self.work / "marks"
        marks.unlink(missing_ok=True)
        plugin = [f"{self.plugin},out={marks}" + (f",profile={profile}" if profile else "")
                  + (f",turn={TURN}" if self.cpus > 1 else "")]
        plugin = ["-plugin", plugin[0]] if self.count or profile else []
        run = self.ours if system == OURS else self.linux
        with tempfile.TemporaryDirectory(dir=self.work) as scratch:
            text = run(files, command, image, plugin, Path(scratch))
        (self.work / f"{system}.log").write_text(text)
        lines = list(json_lines(text))
        status = next((line["status"] for line in lines if "status" in line), None)
        if status != 0:
            tail = "\n".join(text.splitlines()[-25:])
            how = "did not end by itself" if status is None else f"ended with status {status}"
            raise Failed(f"{' '.join(command)} on {system} {how}; {SAID}:\n{tail}")
        return lines, counted(marks) if plugin else None

    def ours(self, files, command, _image, plugin, scratch):
        # samara finds QEMU by PATH, so this one adds the plugin.
        qemu = scratch / QEMU
        words = " ".join(f"'{word}'" for word in [shutil.which(QEMU), *plugin])
        qemu.write_text(f"#!/bin/sh\nexec {words} \"$@\"\n")
        qemu.chmod(0o755)
        line = [self.samara, "boot", "--cpus", str(self.cpus), "--memory", self.memory,
                "--timeout", str(self.timeout)]
        line += ["--kernel", self.kernel] if self.kernel else []
        line += ["run", "--huge", "never", "--files", str(files.folder)]
        line += ["--count"] if self.count else []
        line += ["--", "/start", *command]
        return said(line, self.timeout + 60, PATH=f"{scratch}:{os.environ['PATH']}")

    def linux(self, files, command, image, plugin, scratch):
        files.archive(scratch / "cpio")
        line = [QEMU, *plugin, "-M", "q35", "-cpu", PROCESSOR]
        if self.count:
            line += ["-icount", "shift=0,sleep=off", "-accel", "tcg,thread=single"]
        else:
            line += ["-accel", "tcg,thread=multi"]
        line += ["-smp", str(self.cpus), "-m", self.memory, "-nodefaults", "-no-user-config",
                 "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", image,
                 "-initrd", str(scratch / "cpio"), "-append", " ".join([*LINUX, *command])]
        return said(line, self.timeout)


def said(line, timeout, **variables):
    """All that a command says. It ends with us, and at the time limit."""
    environment = dict(os.environ, **variables)
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"{line[0]} was not done in {timeout} s: --timeout gives it more") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return text.decode(errors="replace").replace("\r", "")


def json_lines(text):
    """The objects of JSON: a line of the console may have other words before its brace."""
    for line in text.splitlines():
        start = line.find("{")
        if start >= 0:
            try:
                yield json.loads(line[start:])
            except ValueError:
                continue


def counted(marks):
    lines = [json.loads(line) for line in marks.read_text().splitlines()] if marks.exists() else []
    if [line["mark"] for line in lines] != [0, 1]:
        raise Failed(f"QEMU's plugin saw marks {[line['mark'] for line in lines]}, not 0 and 1: "
                     "does this QEMU have plugins (--enable-plugins)?")
    return {kind: lines[1][kind] - lines[0][kind] for kind in ("user", "kernel")}


def version_of(image):
    """The version in the head of a bzImage (crates/samara/src/boot/programs/linux.rs)."""
    cure = "--linux takes a bzImage: campaign/lean-linux DIR builds one"
    try:
        head = Path(image).read_bytes()[:1 << 16]
    except OSError as error:
        raise Failed(f"cannot read {image}: {error.strerror}; {cure}") from None
    at = int.from_bytes(head[0x20e:0x210], "little") + 0x200
    if head[0x202:0x206] != b"HdrS" or at >= len(head):
        raise Failed(f"{image} is no bzImage; {cure}")
    return head[at:].split(b"\0")[0].split(b" ")[0].decode(errors="replace")


def spread(values):
    """Half of the distance between the least and the most, in per cent of the median."""
    middle = median(values)
    return 50 * (max(values) - min(values)) / middle if middle else 0.0


class Report:
    """Rows and targets, as lines of JSON in the form of docs/results."""

    def __init__(self, name, words, cpus, count, linux):
        processor = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo")
                          if line.startswith("model name")), "unknown")
        against = f"; Linux {linux}, both kernels without huge pages" if linux else ""
        self.name, self.rows, self.targets = name, [], []
        self.head = {"run": " ".join(words), "version": "0.1.0",
                     "machine": f"QEMU without hardware virtualization, with "
                                f"{'one CPU' if cpus == 1 else f'{cpus} CPUs'}{against}",
                     "processor": processor, "processors": os.cpu_count(),
                     "system": f"Linux {os.uname().release}",
                     "clock": "instructions" if count else "time",
                     "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
                     "load": os.getloadavg()[0]}
        self.cpus = cpus

    def row(self, case, system, metric, values, unit, size=0):
        """The median of the rounds; returns it."""
        head = {"experiment": self.name, "case": case, "implementation": system,
                "cpus": self.cpus, "size": size}
        for name, value, of in ((metric, median(values), unit),
                                (f"spread of {metric}", spread(values), "%")):
            self.rows.append({**head, "metric": name, "value": value, "unit": of})
        return median(values)

    def target(self, what, value, bound, at_least):
        self.targets.append({"experiment": self.name, "target": what, "value": value,
                             "bound": bound, "at_least": at_least})
        met = value >= bound if at_least else value <= bound
        sign = "at least" if at_least else "at most"
        print(f"{'met   ' if met else 'MISSED'} {what}: {value:.3f}, {sign} {bound}")

    def write(self, file):
        if file:
            lines = [self.head, *self.rows, *self.targets]
            Path(file).write_text("".join(json.dumps(line) + "\n" for line in lines))


def table(rows):
    """Shows rows of text in columns: the first one is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def progress(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
