//! The command line of `samara boot`. Options of the machine may stand before or after the kernel's
//! command.

use super::Effort;
use crate::bench::names;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum, value_parser};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

pub(super) const HELP: &str = "\
Builds the kernel from this checkout and runs it in QEMU. The kernel's console goes to standard
output line by line, progress to standard error.

Examples:
  samara boot                                 boot, and print what the kernel finds
  samara boot test                            all trials
  samara boot --cpus 8 test stale --seed 7    one trial, on eight CPUs, with the seed of a failure
  samara boot --machine q35 --memory 4G test  on a PC with firmware tables, in more memory
  samara boot bench gup --effort quick        an experiment on a real page-table walker
  samara boot bench calls                     single calls, beside Linux's in the same emulator
  samara boot bench --count --json - vmap     count instructions: the same in each run
  samara boot --cpus 8 bench --count --waiting vmap   work of an operation, waiting CPUs included

Exit code: 0 for success, 1 if a trial failed, 2 if the kernel could not be built or run or does not
know an argument, 101 if it panicked or reset itself, 124 if it was not done within --timeout.
";

/// Four hours. All experiments on 8 CPUs that share two busy processors take 8 minutes with
/// `--effort quick` and 24 in full. So a host may be ten times slower, and a hung machine still
/// ends.
const LIMIT: &str = "14400";

/// MiB for the kernel's image, its heap and frames (`LEAST_MIB` in `kernel/src/memory.rs`). With a
/// little less, the kernel reports it itself. `./check boot` boots with exactly this much.
const LEAST_MIB: u64 = 16;

#[derive(Args, Debug)]
pub(crate) struct Boot {
    /// Virtual CPUs
    #[arg(long, global = true, value_name = "N", default_value_t = 2,
        value_parser = value_parser!(u8).range(1..=64))]
    pub(crate) cpus: u8,

    /// Memory of the machine: 512M, 2G; 16M at least
    #[arg(long, global = true, value_name = "SIZE", default_value = "1G", value_parser = memory)]
    pub(crate) memory: String,

    /// The machine that QEMU emulates
    #[arg(long, global = true, value_enum, default_value_t = Machine::Microvm)]
    pub(crate) machine: Machine,

    /// End the run after this many seconds; 0 or none: no limit
    #[arg(long, global = true, value_name = "SECONDS", default_value = LIMIT, value_parser = limit)]
    pub(crate) timeout: Limit,

    /// More words for the kernel's command line
    #[arg(long, global = true, hide = true, value_name = "WORDS")]
    pub(crate) append: Option<String>,

    /// Boot this ELF file instead of building the kernel
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

/// The time limit of a run, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

/// The task of the kernel after it has booted.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Run trials of the kernel's memory on this machine
    Test(Trials),
    /// Run the experiments of `samara bench` on this machine
    #[command(after_help = "\
With --count, QEMU runs one CPU at a time, and each instruction takes a nanosecond. So times are
numbers of instructions of all CPUs, and the same in each run. A CPU that waits yields its turn, so
waiting costs almost nothing, unlike on real processors. The costs of CPUs beside each other are
then not targets.

With --waiting as well, turns are short and a CPU that waits keeps its turn. The counts are then the
work of as many real processors, for vmap, with turns of three lengths.
")]
    Bench(BootBench),
}

#[derive(Args, Debug)]
pub(crate) struct Trials {
    /// The trials to run [default: all]
    #[arg(value_name = "TRIAL", value_parser = word)]
    pub(crate) names: Vec<String>,

    /// The seed of random choices
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// The rounds of each trial
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<NonZeroU64>,
}

#[derive(Args, Debug)]
pub(crate) struct BootBench {
    /// The experiments to run [default: all]
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(names()))]
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

    /// Count the instructions of waiting CPUs, too (vmap only)
    #[arg(long, requires = "count")]
    pub(crate) waiting: bool,
}

/// A machine that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Machine {
    /// A minimal machine that boots fastest
    Microvm,
    /// A PC with firmware and its tables
    Q35,
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

/// The argument of QEMU's `-m`, with its unit.
fn memory(text: &str) -> Result<String, String> {
    let unit = if text.ends_with('G') { 1024 } else { 1 };
    let number = text.strip_suffix(['M', 'G']).and_then(|number| number.parse::<u32>().ok());
    match number.map(|number| u64::from(number) * unit) {
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
