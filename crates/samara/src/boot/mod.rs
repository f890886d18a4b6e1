//! `samara boot`: builds the kernel of this checkout and runs it on a machine of QEMU.
//!
//! The order: [`needs`] reports missing packages before anything is built; [`kernel`] builds the
//! kernel; [`qemu`] makes QEMU's command line and [`run`](mod@run) runs it; [`console`] sends each
//! line of the serial port to its destination, and [`backtrace`] adds the names of functions;
//! [`ending`] makes the exit code.

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
    // Opened before the build, which takes long: an output file that cannot be written is reported
    // first.
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
