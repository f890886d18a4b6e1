//! The command line of `samara boot`. Options of the machine may stand before or after the kernel's
//! command.

use super::Effort;
use crate::bench::boot_names;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum, value_parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(super) const HELP: &str = "\
Builds the kernel and runs it in QEMU. The kernel's console goes to standard output line by line,
progress to standard error.

The kernel is that of the checkout that this program was built from, or that SAMARA_CHECKOUT names.
Without one, it is lib/samara/kernel next to the folder of this program, or the file of --kernel.

Examples:
  samara boot                                 boot, and print the CPUs and the free memory
  samara boot test                            all trials
  samara boot --cpus 8 test stale --seed 7    one trial, on eight CPUs, with the seed of a failure
  samara boot --machine q35 --memory 4G test  on a PC with firmware tables, in more memory
  samara boot --arch aarch64 --cpus 8 test    on AArch64
  samara boot --accel kvm test                on the host's own MMU, where /dev/kvm works
  samara boot bench gup --effort quick        an experiment on a real page-table walker
  samara boot bench calls                     single calls, and Linux's in the same emulator
  samara boot bench --count --json - vmap     count instructions: the same in each run
  samara boot --cpus 8 bench --count --waiting vmap   work of an operation, waiting CPUs included
  samara boot --cpus 8 bench programs         loops of calls and faults, as processes and threads
  samara boot --cpus 4 run -- ./hello         a Linux program, on the kernel's page tables

Exit code: 0 for success, 1 if a trial failed, 2 if the kernel could not be built or run or does not
know an argument, 101 if it panicked or reset itself, 124 if it was not done within --timeout.
With run it is the program's own.
";

const RUN_HELP: &str = "\
The program's output goes to standard output and standard error, unchanged. The kernel's console and
the statistics go to standard error. The program is not modified. A dynamic program needs its
interpreter and libraries in the files, and a script the program of its first line:
--with-libraries adds them. It runs no program for that, so it does not find files that a program
opens by name later; --add copies such files and folders.

Examples:
  samara boot run -- ./hello World            a file of this host; the program sees it as /hello
  samara boot run --files root -- /bin/sh -c 'ls /'   the root file system is a copy of root
  samara boot run --files . --env HOME=/ -- ./hello   with one variable in its environment
  samara boot --cpus 4 --memory 2G run -- ./hello     on four CPUs
  samara boot run --out new -- ./hello        files that it makes in /out are in new afterwards
  samara boot run --json a.json -- ./hello    the statistics, for a script
  samara boot run --strace -- ./hello 2>calls  a line for each of its system calls
  samara boot --cpus 8 run --unmap grace -- ./hello   munmap sends no interrupts
  echo hello | samara boot run -- ./cat       the program reads the command's standard input
  samara boot run --with-libraries -- /bin/ls -l /    a dynamic program of this host
  samara boot run --with-libraries --add /usr/lib/python3.13 -- /usr/bin/python3 -c 'print(1)'
  samara boot run --with-libraries --add /bin/ls -- /bin/sh -c 'ls /'   with a second program
  samara boot run --with-libraries -- ./script.sh     a script, with the program of its first line
  cc -static -o hello hello.c                 makes such a program, and so does
  cargo build --target x86_64-unknown-linux-musl

The program is looked up in the folder of --files first, then on the host. Its argument 0 is its
path in the root file system: its last name, or with --with-libraries its path on the host. Its
working directory is the root. Its environment has only the variables of --env. Its standard input,
output and error are those of this command, and none is a terminal to it. Input is taken from the
moment at which a program reads or polls it; then more may be taken than it reads.

With --out, the files, folders and links below /out are copied when the last program has ended. A
link that may lead out of DIR is left out, and so is a device. They are copied after a failure of
the program, too. Hard links stay hard links, and zeros become holes. If there is more than
--out-limit, the run ends with exit code 125 and nothing is written to DIR. Until the end, the files
are in a temporary file; TMPDIR names its folder.

Exit code: that of the program, or 128 + the signal that killed it; 101 if the kernel panicked or
reset itself; 124 if the program was not done within --timeout; 125 if the machine could not be run,
or a result could not be written; 126 if the program could not be run; 127 if it was not found.
";

/// Four hours. All experiments on 8 CPUs that share two busy processors take 8 minutes with
/// `--effort quick` and 24 in full. So a host may be ten times slower, and a hung machine still
/// ends.
const LIMIT: &str = "14400";

/// MiB for the kernel's image, its heap and frames (`LEAST_MIB` in `kernel/src/memory.rs`). With a
/// little less, the kernel reports it itself. `./check machines` boots with exactly this much.
pub(crate) const LEAST_MIB: u64 = 16;

#[derive(Args, Clone, Debug)]
pub(crate) struct Boot {
    /// Virtual CPUs
    #[arg(long, global = true, value_name = "N", default_value_t = 2,
        value_parser = value_parser!(u8).range(1..=64))]
    pub(crate) cpus: u8,

    /// Memory of the machine: 512M, 2G; 16M at least
    #[arg(long, global = true, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub(crate) memory: String,

    /// The processors of the machine
    #[arg(long, global = true, value_enum, default_value_t = Arch::X86_64)]
    pub(crate) arch: Arch,

    /// The machine that QEMU emulates [default: microvm; with aarch64 always virt]
    #[arg(long, global = true, value_enum)]
    pub(crate) machine: Option<Machine>,

    /// The executor of the machine's instructions: QEMU, or the host's CPUs by KVM
    #[arg(long, global = true, value_enum, default_value_t = Accel::Tcg)]
    pub(crate) accel: Accel,

    /// End the run after this many seconds; 0 or none: no limit
    #[arg(long, global = true, value_name = "SECONDS", default_value = LIMIT, value_parser = limit)]
    pub(crate) timeout: Limit,

    /// More words for the kernel's command line
    #[arg(long, global = true, hide = true, value_name = "WORDS")]
    pub(crate) append: Option<String>,

    /// Boot this ELF file instead of building the kernel of the checkout
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

/// The time limit of a run, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

/// The task of the kernel after it has booted.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Run trials of the kernel's memory on this machine
    Test(Trials),
    /// Run the experiments of `samara bench` on this machine
    #[command(after_help = "\
With --count, QEMU runs one CPU at a time, and each instruction takes a nanosecond. So times are
numbers of instructions of all CPUs, and the same in each run. A CPU that waits yields its turn, so
waiting costs almost nothing, unlike on real processors. The costs of concurrent CPUs are
then not targets.

With --waiting as well, turns are short and a CPU that waits keeps its turn. The counts are then the
work of as many real processors: of vmap, with turns of three lengths, and of programs.

programs is not among the experiments by default. It runs the loops of programs/loops.c as processes
and as threads, with as many workers as CPUs, on a machine for each number of CPUs. It runs them on
a kernel of Linux, too, in the same emulator, if --linux names one. Then it prints each loop with
the median and the spread of all rounds of both, and the verdict: ahead, behind, or a tie if the
spreads together are larger than the lead, or the lead is less than 1 %. A distribution's kernel has
hardening, which this one does not have. In a checkout, this builds one without:
  campaign/lean-linux DIR        25 minutes of one processor; prints the path of the image
  samara boot --cpus 2 bench programs --linux DIR/linux-source-6.12/arch/x86/boot/bzImage
  samara boot --cpus 1 bench programs --count --linux ...    instructions of an operation
Figures are kept when a later loop fails: the report names the loop, and the exit code is not 0.
")]
    Bench(BootBench),
    /// Write numbers to standard output: measures the way of a program's output
    #[command(hide = true)]
    Write(WriteNumbers),
    /// Run an x86-64 Linux program on this machine
    #[command(after_help = RUN_HELP)]
    Run(Run),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Trials {
    /// The trials to run [default: all]
    #[arg(value_name = "TRIAL", value_parser = word)]
    pub(crate) names: Vec<String>,

    /// The seed of random choices
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// The rounds of each trial
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct BootBench {
    /// The experiments to run [default: all]
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(boot_names()))]
    pub(crate) experiments: Vec<String>,

    /// The effort of the measurement
    #[arg(long, value_enum, default_value_t = Effort::Full)]
    pub(crate) effort: Effort,

    /// The numbers of CPUs that take part [default: powers of two up to --cpus]
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = value_parser!(u8).range(1..=64))]
    pub(crate) cpu_counts: Vec<u8>,

    /// Write figures and targets to FILE as JSON lines; - for standard output, all else to standard
    /// error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Count instructions instead of time
    #[arg(long)]
    pub(crate) count: bool,

    /// Count the instructions of waiting CPUs, too (vmap and programs only)
    #[arg(long, requires = "count")]
    pub(crate) waiting: bool,

    /// With programs: run this kernel of Linux, a bzImage, as well
    #[arg(long, value_name = "VMLINUZ")]
    pub(crate) linux: Option<PathBuf>,

    /// With programs: only these loops [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = word)]
    pub(crate) loops: Vec<String>,

    /// With programs: the rounds of each loop, 5 at least [default: 5, or 1 with --effort least]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(5..=99))]
    pub(crate) rounds: Option<u32>,

    /// With programs: huge pages, in both kernels [default: in none]
    #[arg(long)]
    pub(crate) huge: bool,
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Run {
    /// The root file system: the files, folders and links in DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) files: Option<PathBuf>,

    /// Write the contents of the machine's folder /out at the end to DIR, a new or empty folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// The most that --out takes: 512M, 8G. A hard link counts once, a hole as its size
    #[arg(long, value_name = "SIZE", default_value = "4G", requires = "out", value_parser = size)]
    pub(crate) out_limit: String,

    /// Copy this file or folder of the host to the same path, with the links that lead there
    #[arg(long, value_name = "PATH")]
    pub(crate) add: Vec<PathBuf>,

    /// Add the interpreter and the libraries that the program and the files of --add name. A
    /// program of the host keeps its path
    #[arg(long)]
    pub(crate) with_libraries: bool,

    /// A variable of the program's environment
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<String>,

    /// Write a line for each system call to standard error, when it ends: the time in seconds, the
    /// CPU, the thread, the call with its arguments, the result, and the time that it took
    #[arg(long)]
    pub(crate) strace: bool,

    /// With --strace: each line is a JSON object
    #[arg(long, requires = "strace")]
    pub(crate) json_lines: bool,

    /// The time at which munmap of private anonymous memory flushes the TLBs of other CPUs
    #[arg(long, value_enum, default_value_t = Unmap::Immediate)]
    pub(crate) unmap: Unmap,

    /// The memory for which the program gets pages of 2 MiB
    #[arg(long, value_enum, default_value_t = Huge::Madvise)]
    pub(crate) huge: Huge,

    /// Count instructions: each takes a nanosecond of the machine's time, and CPUs take turns
    #[arg(long)]
    pub(crate) count: bool,

    /// With --count: turns are short, and a CPU that waits keeps its turn. An instruction takes 16
    /// nanoseconds
    #[arg(long, requires = "count")]
    pub(crate) waiting: bool,

    /// Write the exit code and the statistics to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub(crate) command: Vec<OsString>,
}

/// Words of 8 bytes, little-endian, that count from 0.
#[derive(Args, Clone, Debug)]
pub(crate) struct WriteNumbers {
    /// The amount, in MiB
    #[arg(value_name = "MIB")]
    pub(crate) mib: u32,
}

/// The time of a munmap's flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unmap {
    /// Before it returns, by interrupts, as on Linux
    #[default]
    Immediate,
    /// At the end of a TLB grace period, without an interrupt: until then, a thread that reads
    /// memory that another has unmapped may not fault
    Grace,
}

/// The memory for which a program gets huge pages: the words of Linux's `transparent_hugepage=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Huge {
    /// Wherever one fits
    Always,
    /// Where it asks for them by madvise(2)
    #[default]
    Madvise,
    /// Nowhere
    Never,
}

/// The processors of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    /// Trials, experiments, and programs
    #[value(name = "x86_64")]
    X86_64,
    /// Trials, on QEMU's machine virt with a GICv3
    Aarch64,
}

/// A machine that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Machine {
    /// A minimal machine that boots fastest
    Microvm,
    /// A PC with firmware and its tables
    Q35,
}

/// The engine that executes the machine's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Accel {
    /// QEMU's own emulation
    Tcg,
    /// The host's processors: a real MMU, real interrupts, real time. x86_64 alone, without --count
    Kvm,
    /// KVM if the kernel boots by it within two seconds, else tcg
    Auto,
}

/// Parses whole seconds, or `none`.
fn limit(text: &str) -> Result<Limit, String> {
    let seconds = if text == "none" { Ok(0) } else { text.parse::<u32>() };
    match seconds {
        Ok(0) => Ok(Limit(None)),
        Ok(seconds) => Ok(Limit(Some(Duration::from_secs(seconds.into())))),
        Err(_) => Err("expected a number of seconds, or none".into()),
    }
}

/// The MiB of an argument of `--memory` or `--out-limit`.
pub(crate) fn mib(text: &str) -> Option<u64> {
    let unit = if text.ends_with('G') { 1024 } else { 1 };
    let number = text.strip_suffix(['M', 'G'])?.parse::<u32>().ok()?;
    Some(u64::from(number) * unit)
}

/// Parses a size, with its unit.
fn size(text: &str) -> Result<String, String> {
    match mib(text) {
        Some(1..) => Ok(text.into()),
        _ => Err("expected a number of megabytes or gigabytes, such as 512M or 2G".into()),
    }
}

/// Parses a variable of the environment.
fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.into()),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// The argument of QEMU's `-m`, with its unit.
fn memory(text: &str) -> Result<String, String> {
    match mib(text) {
        Some(LEAST_MIB..) => Ok(text.into()),
        Some(_) => Err(format!("the kernel needs {LEAST_MIB}M at least")),
        None => Err("expected a number of megabytes or gigabytes, such as 512M or 2G".into()),
    }
}

/// The kernel's command line is words between spaces; a word with `=` is a setting.
fn word(text: &str) -> Result<String, String> {
    match text.contains(|c: char| !(c.is_ascii_graphic()) || c == '=') || text.is_empty() {
        false => Ok(text.into()),
        true => Err("expected a name without spaces".into()),
    }
}
