//! Shared by the tests: a machine, and page tables on it.
#![allow(dead_code, reason = "each test uses some of it")]

mod arch;
mod own;
#[allow(unused_imports, reason = "each test uses some of it")]
pub(crate) use arch::{OnSim, Sev};
pub(crate) use own::Own;

use grace::{Concurrent, Reclaim};
use machine::*;
use paging::*;
use sim::{Failure, Grace, Report, Sim, explore};
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) type Space<G = Grace> = PageTables<Sim, X86_64L4, G>;
pub(crate) type Shared = Arc<Paging<Sim, X86_64L4>>;

pub(crate) fn virt(at: u64) -> VirtAddr {
    VirtAddr::new(at)
}

/// A range of `pages` pages from an address on.
pub(crate) fn pages(at: u64, pages: u64) -> VirtRange {
    VirtRange::new(virt(at), pages << 12).unwrap()
}

/// A range of `count` smallest pages of a format, from an address on.
pub(crate) fn pages_of<F: Format>(at: u64, count: u64) -> VirtRange {
    VirtRange::new(virt(at), count << F::PAGE.shift()).unwrap()
}

pub(crate) fn paging(sim: &Sim) -> Shared {
    Paging::try_new(sim.clone(), PageSize::Size1G).unwrap()
}

/// A block of memory to be mapped.
pub(crate) fn block(sim: &Sim, order: u8) -> Frame {
    let frame = sim.alloc(order, Place::Local).unwrap();
    // SAFETY: it is ours.
    unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
    frame
}

pub(crate) fn release(sim: &Sim, frame: Frame) {
    // SAFETY: the tests reach it by translations only, which the machine checks.
    unsafe { sim.release(frame) }.unwrap();
}

/// Makes every CPU give back its cached pages, and checks that no frame is left allocated. Call it
/// when no address space is left.
pub(crate) fn all_given_back<F: Format>(
    sim: &Sim,
    paging: &Arc<Paging<Sim, F>>,
) -> Result<(), Box<Report>> {
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            paging.quick().drain();
        });
    }
    sim.check_leaks()
}

/// The number of tables.
pub(crate) fn tables(sim: &Sim) -> usize {
    sim.allocated().iter().filter(|frame| matches!(frame.owner, Owner::Table(_))).count()
}

/// Maps and unmaps pages; returns the pending flush.
pub(crate) fn unmap_prune(
    range: VirtRange,
    space: &Space,
) -> PendingFlush<'_, Sim, X86_64L4, Grace> {
    // A frame beyond the machine's memory.
    space.map_own(range, Frame::new(1 << 24).unwrap(), Attrs::USER_RW).unwrap();
    space.unmap_own(range, |_| ()).unwrap()
}

/// Asserts that all seeds pass.
pub(crate) fn right(seeds: u64, run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(seeds, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Asserts that some seed finds a violation. `seeds` may be many more than that takes.
pub(crate) fn caught(seeds: u64, run: impl Fn(u64) -> Result<(), Failure> + Sync) -> Report {
    let failure = explore(seeds, &run).expect_err("the mutant was not caught");
    failure.report().unwrap_or_else(|| panic!("{failure}")).clone()
}

/// An engine that frees at once, without a grace period.
pub(crate) struct AtOnce;

// SAFETY: none. The tests must catch it.
unsafe impl Reclaim for AtOnce {
    type Guard = <Grace as Reclaim>::Guard;
    fn pin() -> Self::Guard {
        Grace::pin()
    }
    unsafe fn retire(_: &Self::Guard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: it is called once.
        unsafe { free(ptr) }
    }
}
// SAFETY: as above.
unsafe impl Concurrent for AtOnce {}

/// An engine that leaves a word in a table.
pub(crate) struct Scribbles;

// SAFETY: retires as `Grace`.
unsafe impl Reclaim for Scribbles {
    type Guard = <Grace as Reclaim>::Guard;
    fn pin() -> Self::Guard {
        Grace::pin()
    }
    unsafe fn retire(guard: &Self::Guard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: a word in the middle of a table. Walks see an absent entry there.
        unsafe { ptr.cast::<u64>().add(77).write_volatile(1 << 20) };
        // SAFETY: passed on.
        unsafe { Grace::retire(guard, ptr, free) }
    }
}
// SAFETY: as `Grace`.
unsafe impl Concurrent for Scribbles {}
