//! The `mm` experiment: address spaces with pages, compared with those of Linux 5.10 and 6.4.
//!
//! The baselines have the same page tables, frames and grace periods as ours, and no more rules
//! than the loops need. So a difference is that of the protocol, and of the rules.

mod areas;
mod contention;
mod context;
mod counted;
mod counts;
mod forks;
mod locked;
mod loops;
mod memory;
mod ours;
mod pages;
mod rates;
mod targets;
#[cfg(test)]
mod tests;
mod waits;

use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::{Lab, Scale};
use alloc::sync::Arc;
use alloc::vec::Vec;
use context::SpaceContext;
use counted::Counted;
use counts::count;
use forks::frames_for;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use locked::Locked;
use loops::{CORTEN, FILE, WILL_IT_SCALE};
use machine::Machine;
use memory::SharedMemory;
use ours::Ours;
use rates::{Sharing, measure};
use report::Report;

const NAME: &str = "mm";

/// An implementation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpaceKind {
    Locked,
    Counted,
    Ours,
}

impl SpaceKind {
    const ALL: [SpaceKind; 3] = [SpaceKind::Locked, SpaceKind::Counted, SpaceKind::Ours];

    fn name(self) -> &'static str {
        match self {
            SpaceKind::Locked => "one lock",
            SpaceKind::Counted => "counted VMAs",
            SpaceKind::Ours => "ours",
        }
    }

    fn make<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
        self,
        context: &Arc<SpaceContext<M>>,
    ) -> Result<SharedMemory, Error> {
        match self {
            SpaceKind::Locked => Locked::<M, G, R>::make(context),
            SpaceKind::Counted => Counted::<M, G, R>::make(context),
            SpaceKind::Ours => Ours::<M, G>::make(context),
        }
    }
}

pub(crate) fn experiment<M, G, R>() -> Experiment<M, G, R>
where
    M: Machine,
    G: Concurrent,
    R: RawRwLockFair + Send + Sync + 'static,
{
    // A CPU that has no processor for a while delays the frees of the others: their tables wait.
    let sizes = |most| Vec::from([Size { cpus: most + 1, frames: 131_072 + 4096 * most }]);
    // A GiB, and its tables.
    let fork_sizes = |_| Vec::from([Size { cpus: 1, frames: frames_for(usize::MAX) }]);
    Experiment {
        name: NAME,
        help: "Address spaces with pages, compared with one lock and with counted VMAs",
        parts: Vec::from([
            Part { needs: Needs::Memory(sizes), run: loops },
            Part { needs: Needs::Memory(fork_sizes), run: forks },
        ]),
        work: None,
    }
}

/// All loops, and their counts.
fn loops<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_world(lab, |context, report| {
        let (mut medians, mut counts) = (Vec::new(), Vec::new());
        for which in &WILL_IT_SCALE {
            medians.extend(measure(lab, context, (which, Sharing::Processes), report)?);
            if which.threads {
                medians.extend(measure(lab, context, (which, Sharing::Threads), report)?);
            }
        }
        for which in &CORTEN {
            medians.extend(measure(lab, context, (which, Sharing::Threads), report)?);
        }
        // Single-stepping a fork with its ends takes minutes; `forks` counts the fork alone.
        let single = WILL_IT_SCALE.iter().chain(&CORTEN);
        let single = single.filter(|which| which.operations == 1 && which.batch >= 128);
        let least = lab.scale == Scale::LEAST;
        let single = single.filter(|which| !least || which.name == "fault 1 page");
        for which in single {
            counts.extend(count(lab, context, which, report)?);
        }
        contention::measure(lab, context, report)?;
        waits::measure(lab, context, report)?;
        report.targets.extend(targets::of_rates(&medians, lab.at_once));
        report.targets.extend(targets::of_counts(&counts));
        Ok(())
    })
}

/// Forks of all sizes that fit into memory.
fn forks<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_world(lab, |context, report| {
        let medians = forks::measure(lab, context, report)?;
        report.targets.extend(targets::of_forks(&medians));
        Ok(())
    })
}

/// Measures with what all spaces share.
fn with_world<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    run: impl FnOnce(&Arc<SpaceContext<M>>, &mut Report) -> Result<(), Error>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    let paging = lab.paging()?;
    let context = lab.on_first(|| SpaceContext::new(paging, FILE))?;
    let done = run(&context, &mut report);
    // Also after an error: frames are given back on a CPU.
    lab.on_first(|| drop(context));
    done.map(|()| report)
}
