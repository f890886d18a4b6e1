//! The command line, and the help that teaches it.

#[cfg(not(feature = "full"))]
mod absent;
#[cfg(feature = "full")]
mod boot;
#[cfg(feature = "full")]
mod full;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::what_if::Rule;
#[cfg(not(feature = "full"))]
use absent::{
    Absent as Bench, Absent as Boot, Absent as Report, Absent as Completions, Absent as Man,
    Absent as Top,
};
#[cfg(feature = "full")]
pub(crate) use boot::{
    Accel, Arch, Boot, BootBench, Huge, LEAST_MIB, Machine, Run, Task, Trials, Unmap, mib,
};
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
#[cfg(feature = "full")]
pub(crate) use full::{Bench, Completions, Effort, Man, Report, Top};
use trace::record::Op;

/// Shows the maps and resident pages of real programs (not what malloc does within its maps), and
/// compares each memory call with the Linux kernel.
#[derive(Debug, Parser)]
#[command(
    name = "samara",
    version,
    after_help = "\
Examples:
  samara trace -- ls -lR /usr/share/doc       follow a program
  samara trace --stacks -- python3 a.py       show the call sites that own its peak of memory
  samara trace --record a.vmtrace -- make     keep a recording
  samara replay a.vmtrace                     run the recording again
  samara bench gup quicklist                  measure, compared with the code that was replaced
  samara report bench.jsonl -o report.html    one page with the results
  samara boot test                            run the trials of the kernel, in QEMU
"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Follow the memory calls of a program, its threads and its children: maps, not malloc
    #[command(
        override_usage = "\
samara trace [OPTIONS] [--] COMMAND [ARGUMENT]...
       samara trace [OPTIONS] -p PID",
        after_help = "\
Reports go to standard error, apart from the program's output.

Examples:
  samara trace -- bash -c 'seq 9 | sort -r'   compare after every memory call, around the change
  samara trace --verify -- bash -c 'seq 9'    compare the whole listing each time
  samara trace --json a.json -- java Main     the counts, for a script
  samara trace -q --json - -- ls | jq .calls  nothing but the counts, after the program's output
  samara trace --json-lines calls.jsonl -- ls each call as it happens: time, thread, result, size
  samara trace -e mmap,munmap -- ls           only these calls in the table
  samara trace --follow none -- make          the program without its children
  samara trace -o report.txt -- make          the report in a file
  samara trace --record a.vmtrace -- git log  a recording, for samara replay
  samara trace -p 4711                        a program that runs already, until Ctrl-C
  samara trace -p 4711 --for 10               the same for ten seconds
  samara trace --stacks -- ./a.out            which functions own the peak of resident memory
  samara trace --flame a.svg --flame-of at-peak -- ./a.out
                                              a flame graph of the peak

A call site of --stacks is the function that called malloc, mmap or another allocator. Unwind tables
and names are those of the program's files; without a symbol table, a place is file+address. A stack
costs about 8 us, and the names some tenths of a second when the program has ended. The functions of
CPython 3.11, 3.12 and 3.13 are shown with their lines, instead of the interpreter's, and those of a
just-in-time compiler by /tmp/perf-PID.map, if it writes one.

The peak is the moment in which one address space had most resident memory. The table of memory, the
picture and the call sites are of this moment. With --at-end, the tables have the end, too: right
before the program's first process exits. Then the maps of all processes count.

A difference is uncertain if it may come from a race between threads, in which the order of a write
and a map cannot be known.

Ctrl-C is the program's, as often as it comes, and so are other signals that ask to end; samara ends
with the program. kill -9 of samara ends both.

Exit code: the exit code of the program, or 128 + the signal that killed it; 122 if our listing and
the kernel's differed; 125 if the program could not be followed to its end, or a result could not be
written; 126 if it could not be run; 127 if it was not found; 2 if the options are wrong.
"
    )]
    Trace(Trace),
    /// Run recordings again, without privilege or the kernel that made them
    #[command(after_help = "\
Every listing, flag and address in the recording is checked.

Examples:
  samara replay a.vmtrace b.vmtrace             check two recordings
  samara replay --json - a.vmtrace | jq .calls  the counts, for a script
  samara replay --repeat 20 a.vmtrace           measure our operations
  samara replay --pages a.vmtrace               the calls with pages, on a machine in software
  samara replay --what-if max_map_count=1000 a.vmtrace   which calls would have failed
  samara replay --flame a.svg a.vmtrace         a flame graph, if trace --stacks made the recording

With --pages, each call also changes pages: it faults them in, copies, moves and frees them. The
machine checks page tables, TLBs and frames, and at the end nothing may be left.

Exit code: 0 if all agrees, 3 if something differs, 2 if a file cannot be read or is malformed, or
a result cannot be written; 1 if with --pages a checker finds a violation, an address space with
pages differs, or something is left.
")]
    Replay(Replay),
    /// Measure Samara and the code that it replaces, in one run
    #[command(after_help = "\
Tables go to standard output, progress to standard error. Times are processor time, so other load on
the machine disturbs them little. Instructions and cache lines are counted by single-stepping.

Examples:
  samara bench                                all experiments, some minutes
  samara bench --effort quick quicklist       a first look at one
  samara bench --json gup.jsonl gup           figures and targets, one JSON object a line, to a file
  samara bench --json - gup | jq .target      the same to standard output, without the tables
  samara bench --cpus 1,2 gup                 on one and on two CPUs
  samara bench vmap vmallocinfo               kernel areas: the cost of unmapping, and of readers

Exit code: 0 if all was measured, whether or not targets are met; 2 if not.
")]
    Bench(Bench),
    /// Boot a small kernel on Samara in QEMU: test and measure it on real page tables
    #[cfg_attr(feature = "full", command(after_help = boot::HELP))]
    Boot(Boot),
    /// Show the counts of two runs side by side: recordings, or results of trace --json
    #[command(after_help = "\
Examples:
  samara diff before.vmtrace after.vmtrace    calls, address spaces, peaks, and cost of each call
  samara diff --json - a.json b.json | jq     the same, for a script

Numbers of single address spaces are left out. The times of a recording are those of our operations
in its replay.

Exit code: 0 if both could be read; 2 if not, or if the result cannot be written.
")]
    Diff(Diff),
    /// Make one page of results: cards of the five sources, plots, missed targets, and traces
    #[command(after_help = "\
The page is one file that loads nothing. It is for screens, phones, print and the dark.

Examples:
  samara report bench.jsonl -o report.html    what samara bench --json bench.jsonl measured
  samara report docs/results/*.jsonl -o all.html   several runs; the page says which is where
  samara report trace.json -o trace.html      what samara trace --json trace.json counted
  samara report calls.jsonl -o trace.html     what samara trace --json-lines calls.jsonl wrote
  samara report a.jsonl -o - | gzip > a.gz    to standard output

The files are those of samara bench, samara boot bench, samara trace and samara replay with --json,
of samara trace --json-lines, and of cargo bench -p samara-bench -- --json. For results that they
lack, the page names the command.

Exit code: 0 if the page was written; 2 if a file cannot be read or is no result, or the page cannot
be written.
")]
    Report(Report),
    /// Show the maps of a running process: VMAs, resident memory, faults, calls, and their owners
    #[command(after_help = "\
The process is followed as by samara trace -p, and runs on when this ends: by q, Ctrl-C, or --for.
Each of its system calls costs it four context switches meanwhile. An owner is the function that
called malloc, mmap or another allocator; names appear after some seconds. samara top sees maps, not
what malloc does within them.

Examples:
  samara top -p 4711
  samara top -p 4711 --for 60

Exit code: 0; 1 if the process cannot be followed, or there is no terminal.
")]
    Top(Top),
    /// Write completions for a shell to standard output
    #[command(after_help = "\
Examples:
  samara completions bash > ~/.local/share/bash-completion/completions/samara
  samara completions zsh > _samara            into a directory of $fpath
  samara completions fish > ~/.config/fish/completions/samara.fish
")]
    Completions(Completions),
    /// Write a manual page of each command to a directory
    #[command(after_help = "\
Example:
  samara man ~/.local/share/man/man1 && man samara-trace
")]
    Man(Man),
}

#[cfg(not(feature = "full"))]
impl Command {
    /// The command, as the user calls it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Trace(_) => "samara trace",
            Command::Replay(_) => "samara replay",
            Command::Diff(_) => "samara diff",
            Command::Bench(_) => "samara bench",
            Command::Boot(_) => "samara boot",
            Command::Report(_) => "samara report",
            Command::Top(_) => "samara top",
            Command::Completions(_) => "samara completions",
            Command::Man(_) => "samara man",
        }
    }
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("stacked").multiple(true).args(["stacks", "flame", "folded", "speedscope"])))]
pub(crate) struct Trace {
    /// Compare whole listings after every Nth memory call of an address space, and at its end; else
    /// the VMAs around each change [default: 1000; with --record 1, or so seldom that a
    /// call costs 2 lines of listings, if there are more than 256 VMAs]
    #[arg(long, value_name = "N", conflicts_with = "verify",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: Option<u32>,

    /// Compare whole listings after every memory call: slow with many VMAs
    #[arg(long)]
    pub(crate) verify: bool,

    /// Exit with 122 also for uncertain differences, and with 125 if a process was not followed
    #[arg(long)]
    pub(crate) strict: bool,

    /// Write a recording to FILE, in the vmtrace format
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Write the counts to FILE, as one JSON object; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write each call to FILE as it happens, as one JSON object a line; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json_lines: Option<PathBuf>,

    /// Show only these calls in the tables and in --json-lines, such as mmap,munmap; all calls are
    /// mirrored and compared
    #[arg(short = 'e', value_name = "CALLS", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(Op::ALL.iter().map(|op| op.name())),
        hide_possible_values = true)]
    pub(crate) calls: Vec<String>,

    /// Record the call stack of each memory call, and show a table of call sites, with the bytes of
    /// each that were resident at the peak, and all that it has mapped; --flame, --folded
    /// and --speedscope imply it
    #[arg(long)]
    pub(crate) stacks: bool,

    /// The most frames of a call stack, the innermost ones
    #[arg(long, value_name = "N", default_value_t = 128, requires = "stacked",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) stack_depth: u16,

    #[command(flatten)]
    pub(crate) flame: Flame,

    /// The processes to follow; the program's threads are always followed
    #[arg(long, value_enum, default_value_t = Follow::All)]
    pub(crate) follow: Follow,

    /// Show resident memory, and the bytes that each call site has mapped, at the end, too
    #[arg(long)]
    pub(crate) at_end: bool,

    /// Show the whole picture, and every address space, however many there are
    #[arg(long)]
    pub(crate) full: bool,

    /// Write the report to FILE instead of standard error
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Write nothing to standard error but mismatches, and processes that could not be followed;
    /// with -o, the report goes to its file
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Show a line of progress, although the program may write to the same terminal; without this,
    /// the line is shown with -p if the process has another terminal
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) progress: bool,

    /// Leave the process of -p after this time
    #[arg(long = "for", value_name = "SECONDS", conflicts_with = "command",
        value_parser = seconds)]
    pub(crate) time: Option<Duration>,

    /// Leave the process of -p after so many memory calls, or soon after
    #[arg(long, value_name = "N", conflicts_with = "command",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_calls: Option<u64>,

    /// Follow the running process PID with its threads instead, until Ctrl-C; it runs on
    #[arg(short = 'p', long = "attach", value_name = "PID", conflicts_with = "command",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attach: Option<u32>,

    /// The program and its arguments; after --, if it begins with a hyphen
    #[arg(required_unless_present = "attach", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// A time in seconds, such as 0.5.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    let time = Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("it is no time".into()) } else { Ok(time) }
}

/// Files that show call stacks.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("drawn").multiple(true).args(["flame", "folded", "speedscope"])))]
pub(crate) struct Flame {
    /// Write a flame graph of the call stacks to FILE, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) flame: Option<PathBuf>,

    /// Write the call stacks to FILE as folded lines, for other tools; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) folded: Option<PathBuf>,

    /// Write the call stacks to FILE for speedscope.app, as JSON; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) speedscope: Option<PathBuf>,

    /// The measure of the flame graph and the folded lines, and the first one of speedscope
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Measure::Mapped,
        requires = "drawn")]
    pub(crate) flame_of: Measure,
}

impl Flame {
    /// Each option of a file, with its name.
    pub(crate) fn files(&self) -> [(&'static str, Option<&Path>); 3] {
        [
            ("--flame", self.flame.as_deref()),
            ("--folded", self.folded.as_deref()),
            ("--speedscope", self.speedscope.as_deref()),
        ]
    }
}

/// The measure of a flame graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Measure {
    /// The bytes that calls have mapped
    Mapped,
    /// The number of calls
    Calls,
    /// The bytes resident at the peak; a recording does not have them
    AtPeak,
    /// The bytes still mapped right before the program ends
    AtEnd,
}

/// The processes to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Follow {
    /// The program and its children
    All,
    /// The program alone; its children run unobserved
    None,
}

#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// Write the counts to FILE, as one JSON object; - for standard output, instead of the report
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Exit with 3 also for uncertain differences
    #[arg(long)]
    pub(crate) strict: bool,

    /// Show the whole picture, and every address space, however many there are
    #[arg(long)]
    pub(crate) full: bool,

    /// After the check, run each recording N times without comparisons, and measure the operations
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: Option<u32>,

    /// Give each address space its pages, on a machine in software with all its checkers on
    #[arg(long, conflicts_with = "repeat")]
    pub(crate) pages: bool,

    /// Count the calls that other rules would have refused, placed elsewhere, or merged otherwise:
    /// kernel=6.1, max_map_count=N, huge_align=on|off, stack_guard_gap=PAGES, mmap_min_addr=BYTES,
    /// overcommit=0|1|2
    #[arg(long, value_name = "RULE=VALUE", value_delimiter = ',',
        conflicts_with_all = ["repeat", "pages"])]
    pub(crate) what_if: Vec<Rule>,

    #[command(flatten)]
    pub(crate) flame: Flame,

    /// Recordings
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Diff {
    /// Write the numbers to FILE, as one JSON object; - for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The first run
    pub(crate) a: PathBuf,

    /// The second run
    pub(crate) b: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn everything_after_the_command_is_its_own() {
        let line = ["samara", "trace", "--every", "7", "--", "ls", "--json", "-l"];
        let Command::Trace(trace) = Arguments::try_parse_from(line).unwrap().command else {
            panic!("not a trace")
        };
        assert_eq!((trace.every, trace.json), (Some(7), None));
        assert_eq!(trace.command, ["ls", "--json", "-l"]);
        assert!(Arguments::try_parse_from(["samara", "trace"]).is_err());
        for line in [&["--jsno", "a", "ls"][..], &["-x", "ls"], &["--for", "1", "ls"]] {
            let line = ["samara", "trace"].iter().chain(line);
            assert!(Arguments::try_parse_from(line).is_err());
        }
        for wrong in ["0", "-1", "x", "1e300", "nan"] {
            let line = ["samara", "trace", "-p", "7", "--for", wrong];
            assert!(Arguments::try_parse_from(line).is_err(), "{wrong}");
        }
        for line in [&["ls", "--json", "-q"][..], &["--", "-x", "-q"]] {
            let line = ["samara", "trace"].iter().chain(line);
            let Command::Trace(trace) = Arguments::try_parse_from(line).unwrap().command else {
                panic!("not a trace")
            };
            assert!(!trace.quiet && trace.json.is_none());
        }
        assert!(Arguments::try_parse_from(["samara", "trace", "--every", "0", "ls"]).is_err());
        assert!(Arguments::try_parse_from(["samara", "replay"]).is_err());
    }
}
