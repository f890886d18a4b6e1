//! The `vmap` experiment: lazily unmapped kernel areas, compared with a flush on every CPU at each
//! unmap.
//!
//! | part | measures |
//! |---|---|
//! | [`times()`] | the time of short maps of all sizes, of areas of their own, and of areas that other CPUs free |
//! | [`flushes()`](flushes::flushes) | IPIs and flushes at each unmap, on all CPUs of the machine |
//! | [`cost()`](cost::cost) | instructions, locked instructions and cache lines of one operation |
//! | [`work()`](work::work) | instructions of all CPUs for one operation, where an emulator counts them |
//!
//! There are two baselines: Linux's areas before 2008 ([`one_lock`]), and those since 6.9, with
//! nodes and pools of addresses ([`nodes`]).
//!
//! The source is the rewrite of Linux's vmap in 2008. It measured maps of 4 pages that were written
//! to, on eight CPUs (see [`PUBLISHED`]). As there, all CPUs of the machine are running from the
//! start, so the baseline interrupts idle CPUs, too.

mod areas;
pub(crate) mod cost;
pub(crate) mod flushes;
mod frames;
mod lazy;
mod mixed;
mod nodes;
mod one_lock;
mod rig;
#[cfg(test)]
mod testing;
mod times;
pub(crate) mod work;

pub(crate) use areas::Areas;
pub(crate) use lazy::LazyAreas;
pub(crate) use nodes::NodeAreas;
pub(crate) use one_lock::OneLockAreas;
pub(crate) use rig::Rig;

use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::Lab;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Machine, Translated};
use report::Report;

pub(crate) const NAME: &str = "vmap";
pub(crate) const BEFORE: &str = "one lock, a flush each";
pub(crate) const AFTER: &str = "lazy";
/// Linux's areas since 6.9.
pub(crate) const NODES: &str = "nodes and pools";
/// Whether CPUs report quiescent states at their timer interrupts.
const QUIET: &str = "no CPU ticks";
const TICKS: &str = "CPUs tick";

/// Nanoseconds to map, touch and unmap 4 pages on so many CPUs at once, before and after: Piggin's
/// rewrite of vmap, 2008.
const PUBLISHED: [(usize, f64, f64); 4] = [
    (1, 14_700.0, 2_900.0),
    (2, 33_600.0, 3_000.0),
    (4, 49_500.0, 2_800.0),
    (8, 70_631.0, 2_900.0),
];

/// The number of operations for the baseline, or for anything else that interrupts all CPUs: it
/// takes longer for each CPU that flushes, and for each that waits for its turn.
pub(crate) fn fewer(times: usize, cpus: usize) -> usize {
    (times / (4 * cpus * cpus)).max(1)
}

/// The three implementations, each in addresses of its own.
pub(crate) struct Implementations<M: Machine, G: Concurrent> {
    old: OneLockAreas<M, G>,
    nodes: NodeAreas<M, G>,
    new: LazyAreas<M, G>,
}

/// Runs a block for each of the three, in the order in which they are measured, with its number and
/// name. A macro, because the block is compiled for each: calls through a table of functions would
/// count as work of the operations.
macro_rules! for_each_areas {
    ($all:expr, |$number:pat_param, $name:ident, $areas:ident| $block:block) => {{
        {
            let ($number, $name, $areas) = (0, $crate::vmap::BEFORE, &$all.old);
            $block
        }
        {
            let ($number, $name, $areas) = (1, $crate::vmap::NODES, &$all.nodes);
            $block
        }
        {
            let ($number, $name, $areas) = (2, $crate::vmap::AFTER, &$all.new);
            $block
        }
    }};
}
use for_each_areas;

impl<M: Machine, G: Concurrent> Implementations<M, G> {
    /// Calls `f` with all three. Unless it fails, nothing is left afterwards.
    fn with<R: Sync>(
        rig: &Rig<'_, '_, M, G, R>,
        f: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let old = OneLockAreas::new(Arc::clone(rig.lab.kernel.tables), rig.part(0)?);
        let nodes = NodeAreas::new(Arc::clone(rig.lab.kernel.tables), rig.part(2)?);
        let all = Implementations { old, nodes, new: LazyAreas::new(rig, 1)? };
        let result = f(&all);
        rig.settle(&all.nodes);
        all.new.end(rig);
        result
    }
}

/// CPUs of the machines on which flushes are counted.
const MACHINES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Frames of a machine for areas and tables, and frames for each CPU's allocations.
const FRAMES: usize = 1 << 14;
const FRAMES_EACH: usize = 3072;

pub(crate) fn experiment<M, G, R>() -> Experiment<M, G, R>
where
    M: Machine + Translated,
    G: Concurrent,
    R: Sync,
{
    let timed = |most| Vec::from([Size { cpus: most, frames: FRAMES + most * FRAMES_EACH }]);
    let flushed = |_| MACHINES.map(|cpus| Size { cpus, frames: FRAMES }).into();
    let single = |_| Vec::from([Size { cpus: 1, frames: FRAMES }]);
    Experiment {
        name: NAME,
        help: "Lazily unmapped kernel areas, compared with a flush on every CPU at each unmap",
        parts: Vec::from([
            Part { needs: Needs::Translations(timed), run: times },
            Part { needs: Needs::Translations(flushed), run: flushes::flushes },
            Part { needs: Needs::Memory(single), run: cost::cost },
        ]),
        work: Some(work::work),
    }
}

/// Measures times.
///
/// # Errors
/// The machine has too little memory: it takes 4096 frames to map, 2500 for each CPU, and some
/// thousand for tables.
pub(crate) fn times<M: Machine + Translated, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_rig(lab, times::LARGEST, |rig, report| {
        Implementations::with(rig, |all| {
            times::short_maps(rig, all, report)?;
            times::own_areas(rig, all, report)?;
            mixed::measure(rig, all, report)
        })
    })
}

/// Makes a rig for an experiment, and ends it afterwards.
pub(crate) fn with_rig<M: Machine, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
    frames: usize,
    experiment: impl FnOnce(&Rig<'_, '_, M, G, R>, &mut Report) -> Result<(), Error>,
) -> Result<Report, Error> {
    let rig = Rig::new(lab, frames)?;
    let mut report = Report::default();
    let result = experiment(&rig, &mut report);
    let ended = rig.end();
    result.and(ended).map(|()| report)
}
