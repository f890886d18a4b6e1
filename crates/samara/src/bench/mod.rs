//! `samara bench`: the experiments, on threads of this host.

mod host;
pub(crate) mod output;

use crate::cli::{self, Experiment};
use crate::complain;
use host::{Effort, on_bare, on_sim, with_bare_half};
use report::Report;
use std::process::ExitCode;
use workloads::Scale;

/// Something could not be measured, or its result not be written.
const FAILED: u8 = 2;
/// Frames of memory for `gup`: what each CPU pins, and what the tables of a program take.
const FRAMES_EACH: usize = 600;
const FRAMES: usize = 2048;
/// For areas: what is mapped and what tables take; and what each CPU allocates.
const AREA_FRAMES: usize = 1 << 14;
const AREA_FRAMES_EACH: usize = 3072;
/// CPUs that count what unmaps cost each other, whatever is timed.
const MANY: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// A writer of areas, and readers.
const READERS: usize = 5;

pub(crate) fn run(options: &cli::Bench) -> ExitCode {
    let result = output::open(options.json.as_deref());
    match result.and_then(|file| output::write(&measure(options)?, file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            complain(cause);
            FAILED.into()
        }
    }
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
    let all = [Experiment::Quicklist, Experiment::Gup, Experiment::Vmap, Experiment::Vmallocinfo];
    let mut report = Report::default();
    let chosen = match &options.experiments[..] {
        [] => &all,
        chosen => chosen,
    };
    for experiment in chosen {
        let found = one(*experiment, effort);
        report.merge(found.map_err(|error| format!("{experiment:?}: {error}"))?);
    }
    Ok(report)
}

fn one(experiment: Experiment, effort: Effort<'_>) -> Result<Report, String> {
    let most = effort.cpus.last().copied().unwrap_or(1);
    let frames = FRAMES + (most + 1) * FRAMES_EACH;
    let on_both = |result: Result<Report, paging::Error>| result.map_err(|error| error.to_string());
    match experiment {
        Experiment::Calls => {
            Err("Linux was measured in an emulator: run samara boot bench calls".into())
        }
        Experiment::Quicklist => {
            on_bare(effort, most + 1, frames, |lab| on_both(workloads::quicklist(lab)))?
        }
        Experiment::Gup => on_bare(effort, most + 1, frames, |lab| on_both(workloads::gup(lab)))?,
        Experiment::Vmap => areas(effort, most),
        Experiment::Vmallocinfo => on_sim(effort, READERS, AREA_FRAMES, workloads::vmallocinfo),
    }
}

/// Times on a machine with as many CPUs as are wanted at most; flushes on machines up to the
/// largest; and counts.
fn areas(effort: Effort<'_>, most: usize) -> Result<Report, String> {
    let mut report = on_sim(effort, most, AREA_FRAMES + most * AREA_FRAMES_EACH, workloads::vmap)?;
    for cpus in MANY {
        report.merge(on_sim(effort, cpus, AREA_FRAMES, workloads::vmap_flushes)?);
    }
    let counts = on_bare(effort, 1, AREA_FRAMES, |lab| {
        with_bare_half(lab, |half| workloads::vmap_counts(lab, half))
    });
    report.merge(counts??);
    Ok(report)
}
