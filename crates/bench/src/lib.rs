//! The range tree beside its peers: the same operations on the same ranges.
//!
//! ```text
//! cargo bench -p samara-bench                          the table, and each target met or missed
//! cargo bench -p samara-bench -- --quick --sizes 1000  the same, roughly, and only this size
//! cargo bench -p samara-bench -- --help                sizes, cases, maps, rounds, JSON lines
//! cargo bench -p samara-bench --bench criterion        Criterion, each case and map on its own
//! ```
//!
//! Times are processor time of the thread that works. Maps are built outside of the timing, by insertion in
//! random order, so that their nodes are as full as those of a map in use.
//!
//! The program is a driver and its workers. A worker ([`worker`]) is one build of the maps; the driver
//! ([`rounds`]) asks the workers in turn, so that all builds and all maps are measured side by side.

extern crate alloc;

mod adverse;
mod builds;
mod case;
mod child;
mod cli;
mod clock;
mod criterion;
mod heap;
mod json;
mod maps;
mod peer;
mod published;
mod results;
mod rounds;
mod statistics;
mod subject;
mod table;
mod targets;
#[cfg(test)]
mod tests;
mod worker;
mod workload;

pub use criterion::criterion;

use clap::Parser;
use cli::Options;
use results::{BRIE, BTREE, EACH, OWNED, PORTABLE, SHARED};
use rounds::{Build, Maps};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// What `cargo bench` runs.
pub fn table() -> ExitCode {
    let options = Options::parse();
    if options.worker {
        return serve();
    }
    match options.check().and_then(|()| drive(&options)) {
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
        let answer = worker.answer(&request);
        if writeln!(io::stdout(), "{answer}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn drive(options: &Options) -> Result<(), String> {
    const OURS: &[&str] = &[OWNED, SHARED, EACH];
    let mut builds = Vec::new();
    let this = std::env::current_exe().map_err(|error| format!("this program's place: {error}"))?;
    let start = |program, suffix, maps| {
        Ok::<_, String>(Build {
            process: child::Process::start(program, &["--worker"])?,
            suffix,
            maps,
        })
    };
    let main =
        if options.table { Maps::All } else { Maps::Named(&[BTREE, BRIE, OWNED, SHARED, EACH]) };
    if options.portable {
        builds.push(start(&this, "", main)?);
    } else {
        let native = builds::native()?;
        builds.push(start(&native, "", main)?);
        builds.push(start(&this, PORTABLE, Maps::Named(OURS))?);
    }
    let results = rounds::run(&mut builds, options)?;
    let targets = targets::range_tree(&results, &options.sizes);
    report(options, &results, &targets)
        .map_err(|error| format!("the results cannot be written: {error}"))
}

fn report(
    options: &Options,
    results: &results::Results,
    targets: &[targets::Target],
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if options.portable {
        writeln!(out, "All maps as built for any x86-64 (release profile, no RUSTFLAGS of ours).")?;
        writeln!(
            out,
            "brie_tree is not at its best: it takes vector instructions at compile time only."
        )?;
    } else {
        writeln!(
            out,
            "All maps built with -Ctarget-cpu=native, release profile; those marked{PORTABLE}"
        )?;
        writeln!(
            out,
            "for any x86-64: there our tree chooses its vector instructions at run time."
        )?;
    }
    if options.table {
        table::by_case(&mut out, results, &options.sizes)?;
    } else {
        table::overview(&mut out, results, &options.sizes)?;
    }
    table::spreads(&mut out, results, &options.sizes)?;
    targets::print(&mut out, targets)?;
    if let Some(path) = &options.json {
        let mut file = BufWriter::new(File::create(path)?);
        json::write(&mut file, results, targets)?;
        file.flush()?;
    }
    Ok(())
}
