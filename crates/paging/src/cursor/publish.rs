//! Publishing: telling the machine that absent entries have become valid
//! ([`Tlb::published`](machine::Tlb::published)).
//!
//! Each call that may store such an entry holds a [`Publish`] for its range from its first check to
//! its end. So it publishes once, after its last store, and also after an error or a panic that
//! leaves some of its changes. That covers pages that were broken and made again, pages that get
//! rights, and tables on the way, whichever call has linked them: a way that another CPU's call has
//! linked, and not published yet, is published by the call that uses it.
//!
//! A split publishes each page that it has made again, since that is larger than its range.
//!
//! These need nothing:
//! - A fork, and each table of a space that was never active: no CPU has cached anything there,
//!   and a tag is not kept for a new space.
//! - Pages outside of the range: a group of which a part changes, or a table that the space makes
//!   its own. Only spaces of programs have them. An access there may fault once, and its handler
//!   flushes the page ([`PageTables::flush_page_here`]).
//!
//! Cost: nothing on x86-64, where the machine's method is empty and inlined.

use crate::format::Format;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange};

/// Publishes a range when it is dropped.
pub(super) struct Publish<'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    range: Option<VirtRange>,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// A call begins that may make entries of the range valid.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn publish(&self, range: VirtRange) -> Publish<'_, M, F, G> {
        Publish { tables: self, range: Some(range) }
    }

    /// As [`publish`](Self::publish), for one page.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn publish_page(&self, at: VirtAddr, size: PageSize) -> Publish<'_, M, F, G> {
        Publish { tables: self, range: VirtRange::new(at.align_down(size), size.bytes()) }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Publish<'_, M, F, G> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn drop(&mut self) {
        if let Some(range) = self.range {
            self.tables.machine().published(self.tables.space(), range);
        }
    }
}
