//! The `samara` command.

mod bench;
mod boot;
mod cli;
mod replay;
mod trace_command;

use std::{fmt::Display, process::ExitCode};

use clap::Parser;

/// A comparison failed.
const DIFFERS: u8 = 3;

fn main() -> ExitCode {
    match cli::Arguments::parse().command {
        cli::Command::Trace(options) => trace_command::run(&options),
        cli::Command::Replay(options) => replay::run(&options),
        cli::Command::Bench(options) => bench::run(&options),
        cli::Command::Boot(options) => boot::run(&options),
    }
}

/// Tells of an error on standard error: what happened, and what to do about it.
fn complain(what: impl Display) {
    eprintln!("samara: {what}");
}
