//! Instructions, locked instructions and cache lines of single operations, on one CPU.

use super::loops::{Cpu, Loop};
use super::memory::populate;
use super::{NAME, SpaceContext, SpaceKind};
use crate::error::Error;
use crate::lab::{Lab, OpCost};
use alloc::format;
use alloc::sync::Arc;
use core::cell::Cell;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::Machine;
use report::{Report, Row};

/// The counts of an operation, in the order of [`SpaceKind::ALL`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopCounts {
    pub(super) name: &'static str,
    pub(super) cost: [OpCost; 3],
}

/// The counts of one run of a loop; `None` if the lab cannot count.
pub(super) fn count<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    which: &Loop,
    report: &mut Report,
) -> Result<Option<LoopCounts>, Error> {
    if lab.measure_cost.is_none() {
        return Ok(None);
    }
    (lab.progress)(&format!("mm: counting {}", which.name));
    let mut all = [OpCost::default(); 3];
    for (way, counts) in SpaceKind::ALL.into_iter().zip(&mut all) {
        let row = Row::new(NAME, which.name, way.name(), 1, 1);
        let found = lab.on_first(|| {
            let space = way.make::<M, G, R>(context)?;
            populate(&*space)?;
            space.enter();
            let cpu = Cpu::new(0);
            let (run, failed) = (Cell::new(0), Cell::new(None));
            let mut prepare = || {
                if run.get() % which.batch == 0 {
                    failed.set(failed.get().or((which.begin)(&*space, &cpu, 0).err()));
                    // The first run of a batch makes tables.
                    failed.set(failed.get().or((which.once)(&*space, &cpu, 0).err()));
                    run.set(1);
                }
                (lab.host.quiet)();
            };
            let mut once = || {
                let done = (which.once)(&*space, &cpu, run.get());
                run.set(run.get() + 1);
                failed.set(failed.get().or(done.err()));
            };
            // Once, to report an error: the runs that count are in a process of their own.
            prepare();
            once();
            let cost = lab.cost(&mut report.rows, &row, &mut prepare, &mut once);
            space.leave();
            failed.get().map_or(Ok(cost), Err)
        })?;
        lab.settle(&context.paging);
        let Some(cost) = found else { return Ok(None) };
        *counts = cost;
    }
    Ok(Some(LoopCounts { name: which.name, cost: all }))
}
