//! The command line, and the help that teaches it.

use std::{ffi::OsString, num::NonZeroU32, path::PathBuf};

use clap::{Args, Parser, Subcommand};

/// Runs real programs on Samara's own address spaces, and compares every step with the Linux kernel.
#[derive(Debug, Parser)]
#[command(
    name = "samara",
    version,
    after_help = "\
Examples:
  samara trace -- ls -lR /usr/share/doc       follow a program
  samara trace --record a.vmtrace -- make     and keep a recording
  samara replay a.vmtrace                     run the recording again
"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Follow a program, its threads and its children, and mirror their memory calls
    #[command(after_help = "\
The program's output stays its own: reports go to standard error.

Examples:
  samara trace -- bash -c 'seq 9 | sort -r'   compare after every memory call
  samara trace --every 100 -- cargo build     after every hundredth: faster
  samara trace --json a.json -- java Main     the counts, for a script
  samara trace --record a.vmtrace -- git log  a recording, for samara replay

Exit code: the program's own, 128 + the signal if one killed it; 3 if our listing and the
kernel's differed; 125 if the program could not be followed or a result not be written, 126 if it could not be run, 127 if
it was not found.
")]
    Trace(Trace),
    /// Run recordings again, without privilege or the kernel that made them
    #[command(after_help = "\
Every listing, flag and address in the recording is checked.

Examples:
  samara replay a.vmtrace b.vmtrace           check two recordings
  samara replay --json a.vmtrace | jq .calls  the counts, for a script
  samara replay --repeat 20 a.vmtrace         measure our operations

Exit code: 0 if all agrees, 3 if something differs, 2 if a file cannot be read or is malformed.
")]
    Replay(Replay),
}

#[derive(Args, Debug)]
pub(crate) struct Trace {
    /// Compare after every Nth memory call of an address space; its last listing always
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) every: NonZeroU32,

    /// Write a recording to FILE, in the vmtrace format
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// Write the counts to FILE, as one JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// Print the counts to standard output, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// Then run each recording N times without comparisons, to measure our operations
    #[arg(long, value_name = "N")]
    pub(crate) repeat: Option<NonZeroU32>,

    /// Recordings
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
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
        assert_eq!((trace.every.get(), trace.json), (7, None));
        assert_eq!(trace.command, ["ls", "--json", "-l"]);
        assert!(Arguments::try_parse_from(["samara", "trace"]).is_err());
        assert!(Arguments::try_parse_from(["samara", "trace", "--every", "0", "ls"]).is_err());
        assert!(Arguments::try_parse_from(["samara", "replay"]).is_err());
    }
}
