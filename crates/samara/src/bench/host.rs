//! The machines of this host that experiments run on, and its clocks.
//!
//! [`Bare`] is memory and threads. Code runs on it as fast as in a kernel, but it has no
//! translations. [`Sim`] has translations, made in software: an access searches the CPU's TLB, and
//! a flush goes through the whole TLB. All implementations that an experiment compares pay for that
//! alike.

use crate::complain;
use machine::{Machine, PageSize, VirtAddr, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use parking_lot::{RawRwLock, RwLock};
use report::Report;
use sim::{Bare, BareGrace, Config, Grace, Sim, threads};
use singlestep::{Region, operation};
use std::fs;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Once};
use std::time::Instant;
use trace::report::messages;
use workloads::{Disturbed, Host, KernelHalf, Lab, Measure, OpCost, Program, Scale, Size, Tick};

/// Steps between two timer interrupts of a CPU: about a millisecond.
const TICK: u64 = 20_000;

/// The amount of measuring, the numbers of CPUs, and the runs in which an operation is counted.
#[derive(Clone, Copy)]
pub(super) struct Effort<'a> {
    pub(super) scale: Scale,
    pub(super) cpus: &'a [usize],
    pub(super) runs: usize,
}

/// Measures on a bare machine.
pub(super) fn on_bare(
    effort: Effort<'_>,
    Size { cpus, frames }: Size,
    measure: Measure<Bare, BareGrace, RawRwLock>,
) -> Result<Report, String> {
    let bare = Bare::new(cpus, frames as u64).ok_or_else(|| no_memory(frames))?;
    let measure_cost =
        |prepare: &mut dyn FnMut(), run: &mut dyn FnMut()| cost(effort.runs, prepare, run);
    let tables = bare.on_cpu(0, || kernel(&bare))?;
    let host = Host {
        machine: &bare,
        run: &|programs| bare.threads(programs),
        quiet: || {
            BareGrace::quiescent_state();
            BareGrace::reclaim(usize::MAX);
        },
    };
    let kernel = KernelHalf { tables: &tables, range: range(), enter: &|| (), ticks: None };
    let result = measure(&Lab {
        interrupts: &|| bare.ipis(),
        flushes: &|| bare.flushes(),
        measure_cost: Some(&measure_cost),
        ..lab(effort, host, kernel)
    });
    bare.on_cpu(0, || drop(tables));
    result.map_err(|error| error.to_string())
}

/// Measures on a machine with translations.
pub(super) fn on_sim(
    effort: Effort<'_>,
    Size { cpus, frames }: Size,
    measure: Measure<Sim, Grace, RawRwLock>,
) -> Result<Report, String> {
    let config = Config { tick: Some(TICK), ..Config::fast(cpus, frames as u64) };
    let sim = Sim::new(config).map_err(|error| error.to_string())?;
    let ticking: Arc<RwLock<Option<Tick>>> = Arc::default();
    let now = Arc::clone(&ticking);
    sim.on_tick(move |_| now.read().iter().for_each(|tick| tick()))
        .map_err(|error| error.to_string())?;
    let tables = sim.on_cpu(0, || kernel(&sim))?;
    // SAFETY: programs there need no mappings but those of the experiments, and there are no other
    // tables with that tag.
    let enter = || unsafe { tables.activate() };
    let ticks = |tick: Option<Tick>| *ticking.write() = tick;
    let host = Host {
        machine: &sim,
        run: &|programs: Vec<Program<'_>>| {
            threads(&sim, programs).unwrap_or_else(|failure| panic!("{failure}"))
        },
        quiet: || {
            Grace::quiescent_state();
            Grace::reclaim(usize::MAX);
        },
    };
    let kernel = KernelHalf { tables: &tables, range: range(), enter: &enter, ticks: Some(&ticks) };
    // Costs would include the work of the machine itself at each step.
    let result = measure(&Lab {
        interrupts: &|| sim.stats().ipis_sent,
        flushes: &|| sim.stats().flushes,
        ..lab(effort, host, kernel)
    });
    sim.on_cpu(0, || drop(tables));
    result.map_err(|error| error.to_string())
}

/// A lab of this host, which counts nothing.
fn lab<'a, M: Machine, G: grace::Concurrent>(
    effort: Effort<'a>,
    host: Host<'a, M>,
    kernel: KernelHalf<'a, M, G>,
) -> Lab<'a, M, G, RawRwLock> {
    Lab {
        host,
        kernel,
        time: processor_time,
        clock,
        disturbed,
        interrupts: &|| 0,
        flushes: &|| 0,
        measure_cost: None,
        progress: &progress,
        scale: effort.scale,
        cpus: effort.cpus,
        at_once: true,
        types: PhantomData,
    }
}

/// Makes the kernel's tables of a machine, on one of its CPUs.
fn kernel<M: Machine, G: grace::Concurrent>(
    machine: &M,
) -> Result<Arc<PageTables<M, X86_64L4, G>>, String> {
    let paging = Paging::try_new(machine.clone(), PageSize::Size1G);
    let paging = paging.map_err(|error| error.to_string())?;
    PageTables::kernel(&paging).map(Arc::new).map_err(|error| error.to_string())
}

/// The size of Linux's range for kernel areas: 32 TiB.
fn range() -> VirtRange {
    let start = VirtAddr::new(0xffff_c900_0000_0000);
    VirtRange::new(start, 1 << 45).expect("it lies in the upper half")
}

fn no_memory(frames: usize) -> String {
    format!("no {frames} frames of memory for a machine: free some")
}

fn progress(what: &str) {
    messages::show(&format!("{what}\n"));
}

/// Processor time of this thread.
fn processor_time() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    // Every thread has this clock.
    time.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// The involuntary context switches of this process, and the steal time of all processors.
fn disturbed() -> Disturbed {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let switches = usage.map_or(0, |usage| usage.involuntary_context_switches());
    // The first line is `cpu`, then user, nice, system, idle, iowait, irq, softirq, steal, in
    // hundredths of a second.
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let stolen = stat.split_whitespace().nth(8).and_then(|word| word.parse::<u64>().ok());
    Disturbed { switches: switches as u64, stolen: stolen.unwrap_or(0) * 10 }
}

fn clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// This thread's stack: the mapping that a local variable lies in. Empty if there is no listing of
/// mappings.
fn frames_of_callers() -> Range<usize> {
    let local = 0u8;
    let here = (&raw const local).addr();
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut mappings = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(address(start)?..address(end)?)
    });
    mappings.find(|mapping| mapping.contains(&here)).unwrap_or_default()
}

/// Steps through some runs of an operation in a child process. Reports once if that is impossible
/// here.
fn cost(runs: usize, prepare: &mut dyn FnMut(), run: &mut dyn FnMut()) -> Option<OpCost> {
    static TOLD: Once = Once::new();
    let counts = operation(|| (), |()| run()).prepare(|()| prepare()).runs(runs);
    // On silicon, the number of the CPU and the interrupt state are in registers.
    let registers = Region::new("registers", Bare::registers());
    // The arguments of the operation are in its callers' frames.
    let callers = Region::new("callers", frames_of_callers());
    let counts = counts.regions(|()| vec![registers, callers]).count();
    let counts = counts.map_err(|error| {
        TOLD.call_once(|| complain(format_args!("nothing is counted: {error}")));
    });
    let counts = counts.ok()?;
    Some(OpCost {
        instructions: counts.instructions.mean,
        atomics: counts.atomics.mean,
        lines: counts.other.lines.mean,
        written: counts.other.written.mean,
    })
}
