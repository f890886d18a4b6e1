//! `samara boot`: builds the kernel of this checkout and runs it on a machine of QEMU.
//!
//! ```text
//!    arch, accel      refuse options that do not fit; accel tries KVM
//!        ▼
//!    kernel ──► needs, missing programs            program     checks the program and its files:
//!        │ the kernel is built                        ├──► archive, the kernel's files
//!        ▼                                            │       └──► host, copies of its files
//!    qemu             QEMU's command line             │              └──► walk, along links
//!        ▼                                            └──► libraries ──► elf, cache
//!    run ◄──────────────────────────────────────── channel    output and input of the program
//!        │ lines                                      └──► out ──► spool, files that it leaves
//!        ▼
//!    console ──► backtrace, names of functions
//!        ▼
//!    ending, the exit code; outcome, the end of a program
//! ```
//!
//! Programs are for `samara boot run` only. [`programs`] measures them, on this kernel and on
//! Linux.

mod accel;
mod arch;
mod archive;
mod backtrace;
mod cache;
mod channel;
mod console;
mod elf;
mod ending;
mod host;
mod kernel;
mod libraries;
mod needs;
mod out;
mod outcome;
mod program;
mod programs;
mod qemu;
mod run;
mod spool;
mod walk;

use crate::bench::PROGRAMS;
use crate::cli::{self, Accel, Task};
use crate::output::{self, Lines};
use crate::{PROGRAM, complain, exit_code};
use channel::{Channel, Output};
use console::Console;
use ending::Failure;
use out::Out;
use outcome::Outcome;
use report::{Clock, Run};
use serde_json::Value;
use spool::Spool;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use trace::report::messages;

pub(crate) fn run(options: &cli::Boot) -> ExitCode {
    let refused = arch::check(options).and_then(|()| accel::check(options)).map_err(|what| {
        match options.task {
            Some(Task::Run(_)) => Failure::no_machine(what),
            _ => what.into(),
        }
    });
    let ended = refused.and_then(|()| match &options.task {
        Some(Task::Run(run)) => run_program(options, run),
        Some(Task::Bench(bench)) if bench.experiments.iter().any(|one| one == PROGRAMS) => {
            bench_programs(options, bench).map(|()| 0)
        }
        Some(Task::Write(_)) => {
            let (out, err) = (Box::new(io::stdout()), Box::new(io::stderr()));
            with_channel(options, None, (out, None), err).map(|_| 0)
        }
        _ => boot(options).map(|()| 0),
    });
    exit_code(ended.map_err(|Failure { code, what }| (code, what)))
}

fn bench_programs(options: &cli::Boot, bench: &cli::BootBench) -> Result<(), Failure> {
    if bench.experiments.len() > 1 {
        let why = "it runs machines of its own";
        return Err(format!("{PROGRAMS} is measured alone: {why}").into());
    }
    programs::bench(options, bench)
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
    let elf = kernel::find(options.kernel.as_deref(), options.arch)?;
    let options = &accel::choose(options, &elf);
    let command = qemu::command(options, &elf, &words);
    messages::show(&format!("booting: {}\n", qemu::shown(&command)));
    let mut console = Console::new(json, &elf);
    console.run(&described(options))?;
    let limit = options.timeout.0;
    let ended = run::run(command, limit, None, |line| console.line(line))?;
    ending::judge(ended, limit)
}

/// The run, as the first line of a result.
fn described(options: &cli::Boot) -> Run {
    let (count, waiting) = match &options.task {
        Some(Task::Bench(bench)) => (bench.count, bench.waiting),
        _ => (false, false),
    };
    let cpus = options.cpus;
    let how = match (cpus, count, waiting) {
        (1, ..) => "one CPU".into(),
        (_, false, _) => format!("{cpus} CPUs"),
        (_, true, false) => format!("{cpus} CPUs of which one runs at a time"),
        (_, true, true) => format!("{cpus} CPUs that take short turns, and waiting counts"),
    };
    let by = if options.accel == Accel::Kvm { "by KVM" } else { "without hardware virtualization" };
    let machine = format!("QEMU {by}, with {how}");
    let clock = if count { Clock::Instructions } else { Clock::Time };
    Run::here(PROGRAM, &machine, clock)
}

/// Runs a program in the machine, and returns its exit code.
fn run_program(options: &cli::Boot, run: &cli::Run) -> Result<u8, Failure> {
    let json = match output::open(run.json.as_deref()).map_err(Failure::no_machine)? {
        Lines::Stdout => {
            let why = "standard output belongs to the program";
            return Err(Failure::no_machine(format!("--json needs a file: {why}")));
        }
        Lines::File(file, path) => Some((file, path)),
        Lines::Nowhere => None,
    };
    let outcome = execute(options, run, Box::new(io::stdout()), Box::new(io::stderr()))?;
    messages::show(&outcome.table());
    if let Some((mut file, path)) = json {
        let written = file.write_all(outcome.json().as_bytes());
        written.map_err(|error| {
            Failure::no_machine(format!("cannot write {}: {error}", path.display()))
        })?;
    }
    Ok(outcome.code())
}

/// Runs a program in the machine. Its output goes to `output`; QEMU's command, and the lines of the
/// kernel's console, to `people`.
fn execute<'a>(
    options: &cli::Boot,
    run: &cli::Run,
    output: Output,
    people: Box<dyn Write + 'a>,
) -> Result<Outcome, Failure> {
    let out = run
        .out
        .as_deref()
        .map(|folder| Out::open(folder, &run.out_limit))
        .transpose()
        .map_err(Failure::no_machine)?;
    let archive = program::archive(run, &options.memory)?;
    let files = out.as_ref().map(Out::archive).transpose().map_err(Failure::no_machine)?;
    let outcome = Outcome::of(with_channel(options, Some(&archive), (output, files), people)?)?;
    tell_left_out(out.map_or(Ok(Vec::new()), Out::write).map_err(Failure::no_machine)?);
    Ok(outcome)
}

/// Tells of files that are not copied, each with the reason.
fn tell_left_out(left_out: Vec<(PathBuf, impl Display)>) {
    for (path, reason) in left_out {
        complain(format_args!("left out, because {reason}: {}", path.display()));
    }
}

/// Runs the machine with a channel, and returns the kernel's last record.
fn with_channel<'a>(
    options: &cli::Boot,
    archive: Option<&File>,
    (output, files): (Output, Option<Spool>),
    people: Box<dyn Write + 'a>,
) -> Result<Option<Value>, Failure> {
    let words = qemu::words(options).map_err(Failure::no_machine)?;
    let elf = kernel::find(options.kernel.as_deref(), options.arch).map_err(Failure::no_machine)?;
    let options = &accel::choose(options, &elf);
    let mut command = qemu::command(options, &elf, &words);
    if let Some(archive) = archive {
        channel::inherit(archive).map_err(Failure::no_machine)?;
        command.args(["-initrd", &format!("/dev/fd/{}", archive.as_raw_fd())]);
    }
    let channel =
        Channel::connect(options, &mut command, output, files).map_err(Failure::no_machine)?;
    let mut console = Console::of_program(&elf, people);
    let booting = format!("booting: {}", qemu::shown(&command));
    console.line(booting.as_bytes()).map_err(Failure::no_machine)?;
    let limit = options.timeout.0;
    let ended = run::run(command, limit, Some(channel), |line| console.line(line));
    ending::judge_run(ended.map_err(Failure::no_machine)?, limit)?;
    Ok(console.record())
}
