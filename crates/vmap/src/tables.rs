//! Page tables that a call has made before it failed are given back.
//!
//! The kernel's page tables stay when they become empty, for areas to come. So a call that fails
//! for lack of memory would keep some, and each further try at other addresses some more. A table
//! decides about 2 MiB or 1 GiB, an area about part of that.
//!
//! # Why it is correct
//! A table may be pruned if nothing is mapped at any of its addresses before the flush that
//! follows. The addresses of the area are the caller's. Those around it, up to the borders of its
//! tables, are free, or wait, and nobody takes them: that needs the lock of their zone, which is
//! held until the flush is done. If an area lies there that is in use, or about to be, that table
//! stays: the area has use for it.
//!
//! Cost, for calls that fail only: a walk for each 2 MiB, and a flush on all CPUs if there was such
//! a table, with the zone's lock held. Interrupt handlers do not take that lock, and who waits for
//! it answers requests for flushes.

use crate::area::Ours;
use crate::vmap::Vmap;
use grace::Concurrent;
use machine::Machine;
use paging::Format;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Gives back the empty page tables of an area that is the caller's, and in which nothing is
    /// mapped any more.
    #[cold]
    pub(crate) fn give_tables(&self, area: Ours) {
        let Some(zone) = self.zone_of(area.start()) else { return };
        zone.with_idle_around(self.machine(), area, |range| {
            // An error says that the tables are malformed; what was pruned is flushed all the same.
            // SAFETY: the addresses are the caller's, or nobody takes them meanwhile: see the head
            // of this file. The leaf of a block that waits is not used any more. Nothing is mapped
            // in the range.
            match unsafe { self.tables.prune(range) } {
                Ok(owed) => owed.flush(),
                Err(failed) => failed.owed.flush(),
            }
        });
    }
}
