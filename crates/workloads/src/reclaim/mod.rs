//! The `reclaim` experiment: which pages leave memory when a program uses more than there is.
//!
//! A space whose group has a limit uses its pages in an order that is the same for all policies.
//! When the limit is reached, it reclaims a batch. The baselines are policies on the same order,
//! without pages. So faults that read a page back are counted, and depend on no clock; the first
//! touch of a page is none of them. The time of a reclaim is our own.

mod pattern;
mod policies;
mod store;

use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::Lab;
use crate::timing::Timer;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Asid, Machine, PageSize, VirtAddr};
use mm::{Access, AddressSpace, FaultError, FrameGroup, Layout, MapFlags, Profile};
use paging::{Paging, X86_64L4};
use pattern::{PAGES, Pattern};
use policies::Policy;
use report::{Report, Row, Target, median};
use store::Store;

const NAME: &str = "reclaim";
/// The pages of memory.
const MEMORY: usize = 1024;
/// The pages that a reclaim takes.
const BATCH: usize = 32;
/// Accesses for each batch of the lab's scale.
const ACCESSES: usize = 1 << 11;
const PAGE: usize = PageSize::Size4K.bytes() as usize;

pub(crate) fn experiment<M: Machine, G: Concurrent, R>() -> Experiment<M, G, R> {
    // The pages, those of swap excepted; tables; and frames that CPUs keep.
    let sizes = |_| Vec::from([Size { cpus: 1, frames: 4 * MEMORY }]);
    Experiment {
        name: NAME,
        help: "Pages that leave memory for swap, compared with FIFO and LRU",
        parts: Vec::from([Part { needs: Needs::Memory(sizes), run: reclaim }]),
        work: None,
    }
}

pub(crate) fn reclaim<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    for pattern in Pattern::ALL {
        (lab.progress)(&format!("{NAME}: {}", pattern.name()));
        let accesses = pattern.accesses(ACCESSES * lab.scale.batches, MEMORY);
        let row = |name: &str| Row::new(NAME, pattern.name(), name, 1, MEMORY);
        let told = |row: &Row, read_back: usize| {
            let rate = read_back as f64 * 1000.0 / accesses.len() as f64;
            row.with("read back for 1000 accesses", rate, "")
        };
        let ours = lab.on_first(|| ours::<M, G, R>(lab, &accesses))?;
        report.rows.push(told(&row("ours"), ours.read_back));
        report.rows.push(row("ours").with("time of a page", ours.time, "ns"));
        for (policy, bound) in Policy::ALL.into_iter().zip([1.0, 1.2]) {
            let read_back = policy.read_back(&accesses, MEMORY);
            report.rows.push(told(&row(policy.name()), read_back));
            let target = format!("read back, of {}: {}", policy.name(), pattern.name());
            let ratio = ours.read_back as f64 / read_back as f64;
            report.targets.push(Target::at_most(NAME, target, ratio, bound));
        }
    }
    Ok(report)
}

/// The results of our space.
struct Ours {
    read_back: usize,
    /// Nanoseconds for each page that has gone.
    time: f64,
}

/// Carries the accesses out in a space of ours.
fn ours<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    accesses: &[usize],
) -> Result<Ours, Error> {
    let machine = lab.host.machine;
    let store = Arc::new(Store::new(PAGES));
    let swap = Some(Arc::clone(&store) as Arc<dyn mm::Swap>);
    let paging = Paging::<M, X86_64L4>::try_with_swap(machine.clone(), PageSize::Size1G, swap);
    let paging = paging.map_err(|_| machine::FrameError::OutOfFrames { order: 0 })?;
    let group = FrameGroup::try_new(machine, MEMORY, Box::new(()))?;
    let layout = Layout { mmap_base: 0x7000_0000_0000, ..Layout::default() };
    let profile = Profile::LINUX_6_18;
    let mut space =
        AddressSpace::<M, X86_64L4, G>::try_new(&paging, Asid(1), None, profile, layout)?;
    space.set_group(&group)?;
    space.enter();
    let used = use_pages(lab, &space, accesses);
    // SAFETY: no CPU translates by the space.
    unsafe { space.leave() };
    drop(space);
    drop(group);
    lab.host.quiesce();
    paging.quick().drain();
    used.map(|time| Ours { read_back: store.reads(), time })
}

/// Returns the time of a page that goes.
fn use_pages<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    space: &AddressSpace<M, X86_64L4, G>,
    accesses: &[usize],
) -> Result<f64, Error> {
    let start = space.mmap(0, PAGES * PAGE, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    let timer = Timer::new(lab.time);
    let mut times = Vec::new();
    for page in accesses {
        let at = VirtAddr::new((start + page * PAGE) as u64);
        // As a processor does.
        while !space.mark_accessed(at) {
            match space.handle_fault(at, Access::Write) {
                Ok(_) => {}
                Err(FaultError::GroupLimit) => {
                    let mut taken = Ok(0);
                    let time = timer.each(1, || {
                        taken = space.reclaim(BATCH).map(|done| done.taken());
                    });
                    times.push(time / taken? as f64);
                    (lab.host.quiet)();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    space.munmap(start, PAGES * PAGE)?;
    Ok(median(&times))
}
