//! Compares the range tree with its peers, by the same operations on the same ranges.
//!
//! ```text
//! cargo bench -p samara-bench                          the table, and each target met or missed
//! cargo bench -p samara-bench -- --quick --sizes 1000  a rough run of this size
//! cargo bench -p samara-bench -- --help                sizes, cases, maps, rounds, JSON lines
//! ```
//!
//! Times are processor time of the thread that works. Maps are built outside of the timing, by
//! insertion in random order, so that their nodes are as full as those of a map in use.
//!
//! The program is a driver and its workers. A worker is one build of the maps. The driver asks the
//! workers in turn, so that all builds and all maps are measured side by side.
//!
//! ```text
//!   cli --> driver --> table, json: tables and JSON lines; targets (published): their bounds
//!             |
//!      .------+--------.-----------------.
//!   rounds         callgrind      pairs: two threads        builds: a program for each build
//!      |  results      |                 |
//!      '---------> process <-------------'                  the driver's side of a pipe
//!  ------------------- | ------------------------------------------------------------------
//!                   worker                                  the worker's side
//!                      |
//!                   subject (clock, heap)                   times batches of a case
//!                   /       \
//!                maps     workload (layouts, adverse)       the maps; their ranges and keys
//!                  |
//!               peer, case                                  the interface of a map; the cases
//! ```

extern crate alloc;

mod adverse;
mod builds;
mod callgrind;
mod case;
mod cli;
mod clock;
mod cpus;
mod driver;
mod heap;
mod json;
mod layouts;
mod maps;
mod pairs;
mod peer;
mod process;
mod published;
mod results;
mod rounds;
mod subject;
mod table;
mod targets;
#[cfg(test)]
mod tests;
mod worker;
mod workload;

use clap::Parser;
use cli::Options;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the program: the driver, or a worker.
pub fn table() -> ExitCode {
    let options = Options::parse();
    if options.worker {
        return serve();
    }
    match options.check().and_then(|()| driver::drive(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("error: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests until there are no more.
fn serve() -> ExitCode {
    let mut worker = worker::Worker::new(maps::all);
    for request in io::stdin().lines() {
        let Ok(request) = request else { return ExitCode::FAILURE };
        let answer = pairs::answer(&request).unwrap_or_else(|| worker.answer(&request));
        if writeln!(io::stdout(), "{answer}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
