//! The frames, ranges and tables that wait for TLB grace periods, in a list for each period.
//!
//! There are two lists: for the period that runs, and for the one that begins next. When a period
//! has ended, its list goes as a whole, so nothing is removed from within one. `deferred_unmap`
//! says why the lists' contents are not used, and what the lists cost.

use alloc::vec::Vec;
use core::ops::Range;

use grace::Concurrent;
use machine::{Frame, Machine};
use paging::{DeferredFlush, Format, PageTables, PendingFlush};

use crate::{
    addresses::virt,
    change::range_list::Ranges,
    change::release::release,
    thresholds::{WAITING_PAGES, WAITING_RANGES},
};

/// The frames, ranges and tables that wait for one grace period.
pub(crate) struct WaitList<M: Machine, F: Format, G: Concurrent> {
    pub(crate) period: u64,
    /// Each with the reference of the entry that led there.
    pub(crate) frames: Vec<Frame>,
    /// The pages of the entries.
    pub(crate) pages: usize,
    pub(crate) ranges: Ranges,
    /// The tables.
    pub(crate) flush: DeferredFlush<M, F, G>,
}

impl<M: Machine, F: Format, G: Concurrent> WaitList<M, F, G> {
    pub(crate) fn new(tables: &PageTables<M, F, G>, period: u64) -> Self {
        let (frames, ranges) = (Vec::new(), Ranges::new());
        WaitList { period, frames, pages: 0, ranges, flush: tables.deferred_flush() }
    }

    pub(crate) fn size(&self) -> usize {
        self.pages + self.flush.tables()
    }

    /// The addresses become free: tells the machine.
    pub(crate) fn check_reuse(&self, tables: &PageTables<M, F, G>) {
        for range in self.ranges.iter().filter_map(virt) {
            tables.check_reuse(range);
        }
    }
}

/// The lists of periods that have ended, to be [given back](Self::give_back) without the mmap
/// lock.
#[must_use = "the frames leak"]
pub(crate) struct EndedWait<M: Machine, F: Format, G: Concurrent>(
    pub(crate) [Option<WaitList<M, F, G>>; 2],
);

impl<M: Machine, F: Format, G: Concurrent> EndedWait<M, F, G> {
    /// Gives the frames and tables back. Returns the pages.
    pub(crate) fn give_back(self, tables: &PageTables<M, F, G>) -> usize {
        let mut pages = 0;
        for list in self.0.into_iter().flatten() {
            pages += list.size();
            // SAFETY: the period has ended (`take_over`), so all CPUs have flushed since the
            // entries were cleared.
            unsafe {
                tables.flushed_elsewhere(list.flush);
                release(tables, list.frames);
            }
        }
        pages
    }
}

/// All that waits: in two lists, of which the older one gets nothing more.
pub(crate) struct WaitLists<M: Machine, F: Format, G: Concurrent> {
    /// The ranges that waited before, and may have empty tables.
    pub(crate) idle: Ranges,
    pub(crate) old: Option<WaitList<M, F, G>>,
    pub(crate) new: Option<WaitList<M, F, G>>,
}

impl<M: Machine, F: Format, G: Concurrent> WaitLists<M, F, G> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &WaitList<M, F, G>> {
        self.old.iter().chain(&self.new)
    }

    /// The ranges that wait, and those that have waited last.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Ranges> {
        self.iter().map(|list| &list.ranges).chain([&self.idle])
    }

    pub(crate) fn size(&self) -> usize {
        self.iter().map(WaitList::size).sum()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.size() > WAITING_PAGES || self.iter().any(|list| list.ranges.len() > WAITING_RANGES)
    }

    /// The list for what waits for `period`, with room for so many frames and a range. Returns
    /// `None` if there is no memory.
    ///
    /// Between the period that runs and the one that begins next, there are two numbers. A
    /// broadcast of other users may skip some. Then the newer list waits longer than it must.
    pub(crate) fn room(
        &mut self,
        tables: &PageTables<M, F, G>,
        period: u64,
        frames: usize,
    ) -> Option<&mut WaitList<M, F, G>> {
        if self.old.is_none() && self.new.as_ref().is_some_and(|new| new.period < period) {
            self.old = self.new.take();
        }
        let list = self.new.get_or_insert_with(|| WaitList::new(tables, period));
        list.period = list.period.max(period);
        list.frames.try_reserve(frames).ok()?;
        list.ranges.reserve().then_some(list)
    }
}

/// Unlinks the empty tables of a range, unless a fork shares tables: then they stay.
pub(crate) fn unlink_empty<'p, M: Machine, F: Format, G: Concurrent>(
    tables: &'p PageTables<M, F, G>,
    range: Range<usize>,
    pending: &mut PendingFlush<'p, M, F, G>,
) {
    if let Some(range) = virt(range).filter(|_| !tables.forks()) {
        // Corrupt tables are found by the calls that use them.
        let _stay = tables.unlink_empty(range, pending);
    }
}
