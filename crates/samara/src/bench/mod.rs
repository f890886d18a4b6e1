//! `samara bench`: runs the experiments on threads of this host.

mod host;

use crate::output::{self, Lines};
use crate::{PROGRAM, cli, ending};
use clap::builder::PossibleValue;
use host::{Effort, on_bare, on_sim};
use machine::Machine;
use parking_lot::RawRwLock;
use report::{Clock, Report, Run};
use sim::{Bare, BareGrace, Grace, Sim};
use std::process::ExitCode;
use workloads::{Experiment, Needs, Part, Scale};

/// The machine of `samara bench`.
const MACHINE: &str = "a machine in software, whose CPUs are threads of the host";

/// All experiments, for the machine with translations.
fn all() -> Vec<Experiment<Sim, Grace, RawRwLock>> {
    workloads::all()
}

/// The names of the experiments, with a line of help each, for the command line.
pub(crate) fn names() -> Vec<PossibleValue> {
    all().iter().map(|one| PossibleValue::new(one.name).help(one.help)).collect()
}

/// The experiment of `samara boot bench` that runs programs, instead of the kernel's own code.
pub(crate) const PROGRAMS: &str = "programs";

/// The names of the experiments of `samara boot bench`.
pub(crate) fn boot_names() -> Vec<PossibleValue> {
    let programs =
        PossibleValue::new(PROGRAMS).help("Loops of programs, compared with Linux's: alone");
    names().into_iter().chain([programs]).collect()
}

/// The names of the experiments whose work can be counted together with that of waiting CPUs.
pub(crate) fn with_waiting() -> Vec<&'static str> {
    all().iter().filter(|one| one.work.is_some()).map(|one| one.name).collect()
}

pub(crate) fn run(options: &cli::Bench) -> ExitCode {
    let result = output::open(options.json.as_deref());
    ending(result.and_then(|file| write(&measure(options)?, file)))
}

fn measure(options: &cli::Bench) -> Result<Report, String> {
    let mut cpus: Vec<usize> = options.cpus.iter().map(|cpus| usize::from(*cpus)).collect();
    cpus.sort();
    cpus.dedup();
    let (scale, runs) = match options.effort {
        cli::Effort::Full => (Scale::FULL, 16),
        cli::Effort::Quick => (Scale::QUICK, 4),
        cli::Effort::Least => (Scale::LEAST, 1),
    };
    let effort = Effort { scale, cpus: &cpus, runs };
    let hosted =
        || all().into_iter().filter(|one| !one.needs_emulator()).map(|one| one.name.into());
    let chosen: Vec<String> = match &options.experiments[..] {
        [] => hosted().collect(),
        chosen => chosen.to_vec(),
    };
    let run = Some(Run::here(PROGRAM, MACHINE, Clock::Time));
    let mut report = Report { run, ..Report::default() };
    for name in &chosen {
        report.merge(one(name, effort).map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(report)
}

/// Measures each part of an experiment on the machines that it needs.
fn one(name: &str, effort: Effort<'_>) -> Result<Report, String> {
    let most = effort.cpus.last().copied().unwrap_or(1);
    let on_memory: Vec<Part<Bare, BareGrace, RawRwLock>> = parts(workloads::all(), name)?;
    let translated = parts(all(), name)?;
    let mut report = Report::default();
    for (on_memory, translated) in on_memory.into_iter().zip(translated) {
        match on_memory.needs {
            Needs::Memory(sizes) => {
                for size in sizes(most) {
                    report.merge(on_bare(effort, size, on_memory.run)?);
                }
            }
            Needs::Translations(sizes) => {
                for size in sizes(most) {
                    report.merge(on_sim(effort, size, translated.run)?);
                }
            }
            Needs::Emulator => {
                let why = "its peers were measured in an emulator";
                return Err(format!("{why}: run samara boot bench {name}"));
            }
        }
    }
    Ok(report)
}

/// Writes the tables to standard output, and the JSON lines to their destination.
pub(crate) fn write(report: &Report, lines: Lines<'_>) -> Result<(), String> {
    if !matches!(lines, Lines::Stdout) {
        Lines::Stdout.write(&report.to_string())?;
    }
    lines.write(&report.json_lines())
}

/// The parts of the experiment with this name.
fn parts<M: Machine, G: grace::Concurrent>(
    all: Vec<Experiment<M, G, RawRwLock>>,
    name: &str,
) -> Result<Vec<Part<M, G, RawRwLock>>, String> {
    let found = all.into_iter().find(|one| one.name == name);
    found.map(|one| one.parts).ok_or_else(|| "no experiment has this name".into())
}
