//! `samara bench`: the experiments, on threads of this host.

use crate::cli::{self, Effort, Experiment};
use crate::complain;
use count::operation;
use report::Report;
use sim::{Bare, BareGrace};
use std::fs::File;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{LazyLock, Once};
use std::time::Instant;
use workloads::{Counted, Lab, Scale};

/// Something could not be measured, or its result not be written.
const FAILED: u8 = 2;
/// Frames of memory: what each CPU pins, and what the tables of a program take.
const FRAMES_EACH: usize = 600;
const FRAMES: usize = 2048;

type HostLab<'a> = Lab<'a, Bare, BareGrace, parking_lot::RawRwLock>;

pub(crate) fn run(options: &cli::Bench) -> ExitCode {
    match open(options.json.as_deref()).and_then(|file| write(&measure(options)?, file)) {
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
    let most = cpus.last().copied().unwrap_or(1);
    let frames = FRAMES + (most + 1) * FRAMES_EACH;
    let bare = Bare::new(most + 1, frames as u64)
        .ok_or_else(|| format!("no {frames} frames of memory for a machine: free some"))?;
    let (scale, runs) = match options.effort {
        Effort::Full => (Scale::FULL, 16),
        Effort::Quick => (Scale::QUICK, 4),
        Effort::Least => (Scale::LEAST, 1),
    };
    let count = |prepare: &mut dyn FnMut(), run: &mut dyn FnMut()| counted(runs, prepare, run);
    let lab = HostLab {
        machine: &bare,
        time: processor_time,
        clock,
        run: &|programs| bare.threads(programs),
        quiet: || {
            BareGrace::announce();
            BareGrace::reclaim(usize::MAX);
        },
        interrupts: &|| bare.ipis(),
        count: Some(&count),
        progress: &|what| eprintln!("{what}"),
        scale,
        cpus: &cpus,
        types: PhantomData,
    };
    let mut report = Report::default();
    for experiment in [Experiment::Quicklist, Experiment::Gup] {
        if options.experiments.is_empty() || options.experiments.contains(&experiment) {
            let found = match experiment {
                Experiment::Gup => workloads::gup(&lab),
                Experiment::Quicklist => workloads::quicklist(&lab),
            };
            report.merge(found.map_err(|error| format!("{experiment:?}: {error}"))?);
        }
    }
    Ok(report)
}

/// Processor time of this thread.
fn processor_time() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    // Each thread has the clock.
    time.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Steps through some runs of an operation, in a child; told once if that cannot be done here.
fn counted(runs: usize, prepare: &mut dyn FnMut(), run: &mut dyn FnMut()) -> Option<Counted> {
    static TOLD: Once = Once::new();
    let counts = operation(|| (), |()| run()).prepare(|()| prepare()).runs(runs);
    // Which CPU a thread is, and whether interrupts are off, is in registers on silicon.
    let registers = count::Region::new("registers", Bare::registers());
    let counts = counts.regions(|()| vec![registers]).count();
    let counts = counts.map_err(|error| {
        TOLD.call_once(|| complain(format_args!("nothing is counted: {error}")));
    });
    let counts = counts.ok()?;
    Some(Counted {
        instructions: counts.instructions.mean,
        atomics: counts.atomics.mean,
        lines: counts.other.lines.mean,
        written: counts.other.written.mean,
    })
}

/// Where the JSON lines go.
enum Lines<'a> {
    Nowhere,
    Stdout,
    File(File, &'a Path),
}

/// Before anything is measured: that takes minutes.
fn open(json: Option<&Path>) -> Result<Lines<'_>, String> {
    match json {
        None => Ok(Lines::Nowhere),
        Some(path) if path == Path::new("-") => Ok(Lines::Stdout),
        Some(path) => match File::create(path) {
            Ok(file) => Ok(Lines::File(file, path)),
            Err(error) => Err(format!("cannot write {}: {error}", path.display())),
        },
    }
}

fn write(report: &Report, lines: Lines<'_>) -> Result<(), String> {
    let text = match lines {
        Lines::Stdout => report.json_lines(),
        _ => report.to_string(),
    };
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write to standard output: {error}"))?;
    if let Lines::File(mut file, path) = lines {
        let written = file.write_all(report.json_lines().as_bytes());
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
