//! All calls that change translations.

use crate::common::{OnSim, Own};
use crate::space::LiveSpace;
use crate::world::Tables;
use machine::*;
use paging::*;
use sim::{Grace, Sim};

pub(crate) type Pending<'p, F> = PendingFlush<'p, Sim, F, Grace>;

fn cause<F: OnSim>(failed: Failed<'_, Sim, F, Grace>) -> Error {
    failed.error
}

/// The pages are claimed, the frames are new, and no flush of the range is pending.
pub(crate) fn map<F: OnSim>(
    live: &LiveSpace<F>,
    range: VirtRange,
    first: Frame,
    attrs: Attrs,
) -> Result<(), Error> {
    live.tables.map_own(range, first, attrs).map_err(cause)
}

/// As [`map`], one frame for each page, by one of two calls.
pub(crate) fn map_each<F: OnSim>(
    live: &LiveSpace<F>,
    range: VirtRange,
    frames: &[Frame],
    attrs: Attrs,
    at_once: bool,
) -> Result<(), Error> {
    if at_once {
        return live.tables.map_frames_own(range.start(), frames, attrs).map_err(cause);
    }
    let supply = |at: VirtAddr, _| {
        let page = (at.get() - range.start().get()) >> F::PAGE.shift();
        Ok((frames[page as usize], F::PAGE))
    };
    live.tables.map_with_own(range, attrs, supply).map_err(cause)
}

/// The pages are claimed until the flush.
pub(crate) fn unmap<F: OnSim>(
    live: &LiveSpace<F>,
    range: VirtRange,
    gone: impl FnMut(Mapping),
) -> Pending<'_, F> {
    live.tables.unmap_own(range, gone).unwrap()
}

/// As [`unmap`].
pub(crate) fn try_unmap<F: OnSim>(live: &LiveSpace<F>, range: VirtRange) -> Result<(), Error> {
    live.tables.unmap_own(range, |_| ()).map(drop).map_err(cause)
}

/// The pages are claimed until the flush.
pub(crate) fn protect<F: OnSim>(
    live: &LiveSpace<F>,
    range: VirtRange,
    rights: Flags,
) -> Pending<'_, F> {
    live.tables.protect_own(range, rights).unwrap()
}

/// Unmaps kernel pages, and flushes here.
pub(crate) fn unmap_lazily<F: OnSim>(
    sim: &Sim,
    live: &LiveSpace<F>,
    range: VirtRange,
    mut gone: impl FnMut(Frame),
) {
    // SAFETY: the pages are claimed, and the flush comes before any other use of them.
    unsafe { live.tables.unmap_lazily(range, |frame, _| gone(frame)) }.unwrap();
    let stride = F::PAGE;
    sim.flush_on(&sim.online(), Flush::Range { space: None, range, stride, tables: false });
}

/// Performs a pending flush, in one of several ways.
pub(crate) fn flush<F: OnSim>(tables: &Tables<F>, pending: Pending<'_, F>, how: usize) {
    match how {
        0 => pending.flush(),
        1 => tables.flush_deferred(pending.defer()),
        2 => {
            let mut deferred = tables.deferred_flush();
            pending.defer_to(&mut deferred);
            tables.flush_deferred(deferred);
        }
        // It outlives the borrow, and is flushed on all CPUs.
        _ => drop(pending.defer()),
    }
}

/// The range is claimed until the flush.
pub(crate) fn prune<F: OnSim>(live: &LiveSpace<F>, range: VirtRange) -> Pending<'_, F> {
    live.tables.prune_own(range).unwrap()
}

/// The page is claimed until the flush. `None` if there are no frames for the tables.
pub(crate) fn split<F: OnSim>(live: &LiveSpace<F>, at: VirtAddr) -> Option<Pending<'_, F>> {
    match live.tables.split_own(at, F::PAGE) {
        Ok(pending) => Some(pending),
        Err(failed) if matches!(failed.error, Error::Frames(_)) => None,
        Err(failed) => panic!("{failed}"),
    }
}
