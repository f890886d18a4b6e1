//! Fixtures of the tests: runs a trial on a machine in software.
#![allow(dead_code, reason = "each test uses some of it")]

mod arch;
pub(crate) mod lax;

pub(crate) use arch::OnSim;

use grace::Concurrent;
use machine::{Machine, Memory, PageSize, Translated, VirtAddr, VirtRange};
use paging::{Format, Geometry, PageTables, Paging, QUICK_ROOT};
use sim::{Config, Failure, Grace, Sim, seeded, threads};
use std::mem::{ManuallyDrop, forget};
use std::sync::{Arc, Mutex, OnceLock};
use trials::{Environment, Host, Program, Trial, all, of_tables, unit};
use vmap::TlbGrace;

/// The parameters of a run.
#[derive(Clone, Copy)]
pub(crate) struct RunConfig {
    pub(crate) config: Config,
    /// CPUs that take part.
    pub(crate) cpus: usize,
    /// Whether the CPUs' timer interrupts tick the TLB grace periods.
    pub(crate) ticking: bool,
    /// Whether the deterministic driver runs it, or threads.
    pub(crate) seeded: bool,
    pub(crate) seed: u64,
}

impl RunConfig {
    /// With so many CPUs, on threads.
    pub(crate) fn threads(cpus: usize, ticking: bool) -> RunConfig {
        let config = Config {
            cpus,
            frames: 6144,
            tick: Some(if ticking { 300 } else { 5000 }),
            ..Config::default()
        };
        RunConfig { config, cpus, ticking, seeded: false, seed: 1 }
    }

    /// With so many CPUs, under the deterministic driver.
    pub(crate) fn seeded(cpus: usize, seed: u64) -> RunConfig {
        let config = Config { speculation: 60, ..RunConfig::threads(cpus, true).config };
        RunConfig {
            config,
            seeded: true,
            seed,
            ticking: seed.is_multiple_of(2),
            ..RunConfig::threads(cpus, true)
        }
    }
}

/// An error that was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// By the trial.
    Told(String),
    /// By a checker of the machine, or as a panic of a program.
    Machine(Failure),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Told(text) => write!(f, "the trial has seen: {text}"),
            Found::Machine(failure) => write!(f, "the machine has seen: {failure}"),
        }
    }
}

/// The trial of this name.
pub(crate) fn trial<M: Machine + Translated, F: Format, G: Concurrent>(
    name: &str,
) -> Trial<M, F, G> {
    all().into_iter().find(|trial| trial.name == name).expect("there is such a trial")
}

/// The trial of this name, of those that need no areas.
pub(crate) fn trial_of_tables<M: Machine + Translated, F: Format, G: Concurrent>(
    name: &str,
) -> Trial<M, F, G> {
    of_tables().into_iter().find(|trial| trial.name == name).expect("there is such a trial")
}

/// Kernel addresses for trials: not the first ones, except where there are few.
fn kernel_range<F: Format>() -> VirtAddr {
    let skipped = if F::LOWER_BITS >= 47 { 0x4900_0000_0000 } else { 1 << 30 };
    F::upper_half().checked_add(skipped).unwrap()
}

/// Runs a trial on a machine that `make` makes from one in software, and checks that all frames are
/// given back.
pub(crate) fn run<M: Machine + Translated, F: OnSim>(
    way: RunConfig,
    make: impl FnOnce(Sim) -> M,
    trial: Trial<M, F, Grace>,
) -> Result<(), Found> {
    // AArch64 broadcasts flushes.
    let broadcast = F::BREAK_BEFORE_MAKE;
    let frames = way.config.frames * F::PAGE.frames();
    let config = Config { arch: F::ARCH, levels: F::LEVELS, broadcast, frames, ..way.config };
    let sim = Sim::new(config).unwrap();
    let machine = make(sim.clone());
    let paging = Paging::<M, F>::try_new(machine.clone(), PageSize::Size1G).unwrap();
    let tlb_grace = TlbGrace::try_new(machine.clone()).unwrap();
    // The machine owns the handler, so the handler must not keep the machine alive.
    let ticks = Arc::downgrade(&tlb_grace);
    sim.on_tick(move |_| {
        if way.ticking {
            ticks.upgrade().iter().for_each(|tlb_grace| tlb_grace.tick());
        }
    })
    .unwrap();
    let range = VirtRange::new(kernel_range::<F>(), 128 * unit::<F>()).unwrap();
    let tables = sim.on_cpu(0, || {
        let tables = Arc::new(PageTables::<M, F, Grace>::kernel(&paging).unwrap());
        tables.reserve(range).unwrap();
        // SAFETY: a table.
        let entries = unsafe { sim.entries_in(tables.root(), F::PAGE.order()) }.unwrap();
        let word = |index| entries.get(index).unwrap().load();
        let words: Vec<u64> = (0..F::ENTRIES)
            .map(|index| if index < F::ENTRIES / 2 { 0 } else { word(index) })
            .collect();
        sim.constructed(QUICK_ROOT, move |index| words[index]);
        tables
    });
    // After a failure they are leaked: there may be no CPU on which they could be dropped.
    let tables = ManuallyDrop::new(tables);
    let failed = OnceLock::new();
    let seed = Mutex::new(way.seed << 32);
    let run = |programs: Vec<Program<'_>>| {
        if failed.get().is_some() {
            // The machine has halted, and nothing of it can be dropped.
            return forget(programs);
        }
        let (tlb_grace, tables) = (&tlb_grace, &tables);
        let programs = programs.into_iter().map(|program| {
            Box::new(move || {
                tlb_grace.idle_exit();
                // SAFETY: the tests need no mappings but their own, and no other tables have the
                // tag.
                unsafe { tables.activate() };
                program();
                // SAFETY: the program has ended.
                unsafe { tlb_grace.idle_enter() };
            }) as Program<'_>
        });
        let programs = programs.collect();
        let done = if way.seeded {
            let mut next = seed.lock().unwrap();
            *next += 1;
            seeded(&sim, *next, programs).map(drop)
        } else {
            threads(&sim, programs)
        };
        done.unwrap_or_else(|failure| drop(failed.set(failure)));
    };
    let env = Environment {
        host: Host {
            machine: &machine,
            run: &run,
            quiet: || {
                Grace::quiescent_state();
                Grace::reclaim(usize::MAX);
            },
        },
        tables: &tables,
        range,
        tlb_grace: &tlb_grace,
        cpus: way.cpus,
        seed: way.seed,
        rounds: 1,
    };
    let told = (trial.run)(&env);
    if let Some(failure) = failed.into_inner() {
        return Err(Found::Machine(failure));
    }
    told.map_err(Found::Told)?;
    sim.on_cpu(0, || drop(ManuallyDrop::into_inner(tables)));
    for cpu in 0..way.config.cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            paging.quick().drain();
        });
    }
    sim.check_leaks().map_err(|report| Found::Machine(report.into()))
}

/// Runs the trial of this name in all runs. It must find no error.
pub(crate) fn passes<F: OnSim>(name: &str, runs: impl IntoIterator<Item = RunConfig>) {
    passes_as::<F>(trial(name), runs);
}

/// As [`passes`], of the trials that need no areas.
pub(crate) fn passes_of_tables<F: OnSim>(name: &str, runs: impl IntoIterator<Item = RunConfig>) {
    passes_as::<F>(trial_of_tables(name), runs);
}

fn passes_as<F: OnSim>(trial: Trial<Sim, F, Grace>, runs: impl IntoIterator<Item = RunConfig>) {
    for way in runs {
        if let Err(found) = run::<_, F>(way, |sim| sim, trial) {
            panic!("{} with {} CPUs, seed {}: {found}", trial.name, way.cpus, way.seed);
        }
    }
}
