//! The `samara` command.

// These macros panic when standard error is full, which would end the traced program.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

mod bench;
mod boot;
mod cli;
mod diff;
mod flame;
mod manual;
mod pages;
mod replay;
mod report_command;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace_command;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "trace_unsupported.rs"]
mod trace_command;
mod what_if;

use std::{fmt::Display, process::ExitCode};

use clap::Parser;
use nix::sys::signal::{SigHandler, Signal, signal};
use trace::report::messages;

fn main() -> ExitCode {
    // Then a write beyond the file size limit returns an error, like one to a pipe without a
    // reader. SAFETY: it installs no handler, and no other thread runs yet.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    if let Err(error) = ignored {
        complain(format_args!("a limit on the size of files may end this: {error}"));
    }
    match cli::Arguments::parse().command {
        cli::Command::Trace(options) => trace_command::run(&options),
        cli::Command::Replay(options) => replay::run(&options),
        cli::Command::Bench(options) => bench::run(&options),
        cli::Command::Boot(options) => boot::run(&options),
        cli::Command::Diff(options) => diff::run(&options),
        cli::Command::Report(options) => report_command::run(&options),
        cli::Command::Completions(options) => manual::completions(&options),
        cli::Command::Man(options) => manual::man(&options),
    }
}

/// The exit code of a command that only succeeds or fails with 2.
fn ending(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            complain(what);
            ExitCode::from(2)
        }
    }
}

/// Prints an error to standard error: the cause, and the cure.
fn complain(what: impl Display) {
    messages::tell(what);
}
