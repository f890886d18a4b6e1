//! The `samara` command.
//!
//! | module | contents |
//! |---|---|
//! | `cli` | the command line, and its help |
//! | `trace_command`, `top`, `flame` | `samara trace`, `samara top`, the files that show stacks |
//! | `replay`, `pages`, `what_if`, `diff` | recordings: replayed, with pages, under other rules, compared |
//! | `bench`, `report_command` | the experiments on this host; pages of results |
//! | `boot` | the kernel: built, run in QEMU, and read |
//! | `manual`, `output` | manual pages and completions; where results go |

// These macros panic when standard error is full, which would end the traced program.
#![deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)]

#[cfg(feature = "full")]
mod bench;
#[cfg(feature = "full")]
mod boot;
mod cli;
mod diff;
mod flame;
#[cfg(feature = "full")]
mod manual;
mod output;
#[cfg(feature = "full")]
mod pages;
#[cfg(not(feature = "full"))]
#[path = "no_pages.rs"]
mod pages;
mod replay;
#[cfg(feature = "full")]
mod report_command;
#[cfg(all(feature = "full", target_os = "linux", target_arch = "x86_64"))]
mod top;
#[cfg(all(feature = "full", not(all(target_os = "linux", target_arch = "x86_64"))))]
#[path = "top_unsupported.rs"]
mod top;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trace_command;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[path = "trace_unsupported.rs"]
mod trace_command;
mod what_if;

use std::{fmt::Display, process::ExitCode};

use clap::Parser;
use trace::report::messages;

/// The name of this program, in the command line of a run.
const PROGRAM: &str = "samara";

fn main() -> ExitCode {
    // Then a write beyond the file size limit returns an error, like one to a pipe without a
    // reader. SAFETY: it installs no handler, and no other thread runs yet.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR {
        let error = std::io::Error::last_os_error();
        complain(format_args!("a limit on the size of files may end this: {error}"));
    }
    match cli::Arguments::parse().command {
        cli::Command::Trace(options) => trace_command::run(&options),
        cli::Command::Replay(options) => replay::run(&options),
        cli::Command::Diff(options) => diff::run(&options),
        #[cfg(feature = "full")]
        cli::Command::Bench(options) => bench::run(&options),
        #[cfg(feature = "full")]
        cli::Command::Boot(options) => boot::run(&options),
        #[cfg(feature = "full")]
        cli::Command::Report(options) => report_command::run(&options),
        #[cfg(feature = "full")]
        cli::Command::Top(options) => top::run(&options),
        #[cfg(feature = "full")]
        cli::Command::Completions(options) => manual::completions(&options),
        #[cfg(feature = "full")]
        cli::Command::Man(options) => manual::man(&options),
        #[cfg(not(feature = "full"))]
        absent => ending(Err(not_built(absent.name()))),
    }
}

/// The cause and the cure, if this build lacks the command.
#[cfg(not(feature = "full"))]
fn not_built(what: &str) -> String {
    format!(
        "{what} is not in this build, which traces, replays and compares only: in the checkout run \
         `cargo run --release --features full -- ...`, or install all of the command by \
         `cargo install --path crates/samara --features full`"
    )
}

/// The exit code of a command that only succeeds or fails with 2.
fn ending(done: Result<(), String>) -> ExitCode {
    exit_code(done.map(|()| 0).map_err(|what| (2, what)))
}

/// The exit code of a command, or of its failure, which is printed.
fn exit_code(done: Result<u8, (u8, String)>) -> ExitCode {
    let code = done.unwrap_or_else(|(code, what)| {
        complain(what);
        code
    });
    code.into()
}

/// Prints an error to standard error: the cause, and the cure.
fn complain(what: impl Display) {
    messages::tell(what);
}
