//! Rollback of page-table pages that a call allocated before it failed.
//!
//! The kernel's page-table pages normally stay when they become empty, for later areas. Without
//! this rollback, a call that fails for lack of memory would keep some, and each retry at other
//! addresses would keep more. A page-table page covers 2 MiB or 1 GiB; an area often covers only a
//! part of that.
//!
//! # Why it is correct
//! A page-table page may be pruned if nothing is mapped at any of its addresses until the flush
//! that follows.
//!
//! - The caller owns the addresses of the failed area.
//! - The addresses around it, up to the boundaries of its page-table pages, are free or wait.
//!   Taking them requires the lock of their zone, which is held until the flush is done.
//! - If those addresses contain an area that is in use or about to be used, the page-table page
//!   stays: that area needs it.
//!
//! # Cost
//! Only calls that fail pay: a walk for each 2 MiB and, if there is such a page, a flush on all
//! CPUs with the zone's lock held. This cannot deadlock: interrupt handlers do not take that lock,
//! and a CPU that spins on it answers flush requests.

use crate::area::Ours;
use crate::space::Vmap;
use grace::Concurrent;
use machine::Machine;
use paging::Format;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Gives back the empty page-table pages of an area that the caller owns and in which nothing
    /// is mapped any more.
    #[cold]
    pub(crate) fn give_tables(&self, area: Ours) {
        let Some(zone) = self.zone_of(area.start()) else { return };
        zone.with_idle_around(self.machine(), area, |range| {
            // An error means that the tables are malformed; pages that were already pruned are
            // flushed.
            //
            // SAFETY: the caller owns these addresses, or the zone's lock keeps others from taking
            // them: see the head of this file. The leaf of a waiting block is not used any more.
            // Nothing is mapped in the range.
            match unsafe { self.tables.prune(range) } {
                Ok(pending) => pending.flush(),
                Err(failed) => failed.pending.flush(),
            }
        });
    }
}
