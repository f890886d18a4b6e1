//! `samara boot`: a kernel on Samara, built from this checkout, on a machine that QEMU makes.
//!
//! In order: what is not installed is told before anything is built ([`needs`]); the kernel is
//! built ([`kernel`]); QEMU gets its command line ([`qemu`]) and runs ([`run`](mod@run)); what
//! comes from the serial port goes where it belongs, line for line ([`console`]), addresses with
//! the names of their functions ([`backtrace`]); the way it ended is the exit code ([`ending`]).

mod backtrace;
mod console;
mod ending;
mod kernel;
mod needs;
mod qemu;
mod run;

use crate::bench::output;
use crate::cli::{self, Task};
use crate::complain;
use console::Console;
use ending::Failure;
use std::process::ExitCode;
use trace::report::messages;

pub(crate) fn run(options: &cli::Boot) -> ExitCode {
    match boot(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, what }) => {
            complain(what);
            code.into()
        }
    }
}

fn boot(options: &cli::Boot) -> Result<(), Failure> {
    let words = qemu::words(options)?;
    let json = match &options.task {
        Some(Task::Bench(bench)) => bench.json.as_deref(),
        _ => None,
    };
    // Before the build: that takes long, and a result that has nowhere to go is not worth waiting
    // for.
    let json = output::open(json)?;
    needs::check(options.kernel.is_none())?;
    let elf = match &options.kernel {
        Some(file) => file.clone(),
        None => kernel::build()?,
    };
    let command = qemu::command(options, &elf, &words);
    messages::show(&format!("booting: {}\n", qemu::shown(&command)));
    let mut console = Console::new(json, &elf);
    let limit = options.timeout.0;
    let ended = run::run(command, limit, |line| console.line(line))?;
    ending::judge(ended, limit)
}
