//! The `samara` command.

// A macro that panics when standard error is full would end the program that is followed.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

mod bench;
mod boot;
mod cli;
mod replay;
mod trace_command;

use std::{fmt::Display, process::ExitCode};

use clap::Parser;
use nix::sys::signal::{SigHandler, Signal, signal};
use trace::report::messages;

fn main() -> ExitCode {
    // A file that may not grow any further gives an error, as a pipe without a reader does.
    // SAFETY: it installs no handler, and no other thread runs yet.
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    if let Err(error) = ignored {
        complain(format_args!("a limit on the size of files may end this: {error}"));
    }
    match cli::Arguments::parse().command {
        cli::Command::Trace(options) => trace_command::run(&options),
        cli::Command::Replay(options) => replay::run(&options),
        cli::Command::Bench(options) => bench::run(&options),
        cli::Command::Boot(options) => boot::run(&options),
    }
}

/// Tells of an error on standard error: what happened, and what to do about it.
fn complain(what: impl Display) {
    messages::tell(what);
}
