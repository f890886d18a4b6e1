//! Unlinking tables that have become empty.

use super::{Error, Result, covers_entry};
use crate::format::{Decoded, Format, span_at};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::tlb_gather::TlbGather;
use crate::walk::{Walk, beyond};
use core::ops::Range;
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unlinks the empty tables that lie wholly in a range: those for 2 MiB of it, for 1 GiB, and
    /// so on. For the kernel's tables, which otherwise stay: before a large page is mapped in place
    /// of small ones, or to get memory back. The kernel's tables right below the top level always
    /// stay.
    ///
    /// Cost: a walk and two locks for each lowest table of the range; the same for each absent
    /// entry of upper tables.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`] and [`Error::Kernel`], as
    /// for [`unmap`](PageTables::unmap); [`Error::Malformed`].
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change. No [`Leaf`](crate::Leaf) for any part of
    ///   it is used any more.
    /// - *Flush*: until the returned flush is done, an access to a mapping in the range may fault
    ///   spuriously.
    pub unsafe fn prune(&self, range: VirtRange) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let pruned = self.with_flush(|pending| {
            self.unshare(range)?;
            let mut next = Some(range.start());
            while let Some(at) = next.filter(|at| range.contains(*at)) {
                let guard = G::pin();
                let walk = self.walk(&guard);
                let level = walk.find(at, 0).ok_or(Error::Malformed(at))?.level;
                let within = |level: &u8| covers_entry::<F>(range, at, *level + 1);
                let levels = (level..self.fixed_level()).take_while(within).count() as u8;
                let levels = level..level + levels;
                next = match self.prune_up_to(&walk, at, levels, &mut pending.gather) {
                    true => beyond::<F>(at, level + 1),
                    // Of a lowest table that stays, no other entry has to be looked at.
                    false => beyond::<F>(at, level.max(1)),
                };
            }
            Ok(())
        });
        pruned.map(|((), pending)| pending)
    }

    /// Unlinks the table of this level on the way to `at`, if it is empty, and the tables above it
    /// that become empty by that. A table that another CPU has unlinked meanwhile is left to that
    /// CPU. Returns whether this call unlinked any.
    pub(super) fn prune_at(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        deferred: &mut TlbGather,
    ) -> bool {
        self.prune_up_to(walk, at, level..self.fixed_level(), deferred)
    }

    /// The lowest level whose tables always stay: the top level; for the kernel, the level below,
    /// to which all top-level tables lead.
    fn fixed_level(&self) -> u8 {
        if self.space().is_some() { F::LEVELS - 1 } else { F::LEVELS - 2 }
    }

    fn prune_up_to(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        mut levels: Range<u8>,
        deferred: &mut TlbGather,
    ) -> bool {
        let pruned =
            levels.by_ref().take_while(|level| self.unlink(walk, at, *level, deferred)).count();
        // Any page will do: the flush of a page that the table decided about drops every cached
        // entry that leads to the table.
        if pruned != 0
            && let Some(page) = span_at::<F>(at, 0)
        {
            deferred.add(page, F::PAGE);
        }
        pruned != 0
    }

    /// Unlinks the table of this level on the way to `at`, if it is empty.
    fn unlink(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        deferred: &mut TlbGather,
    ) -> bool {
        let machine = self.machine();
        let above = level + 1;
        let Some(spot) = walk.find(at, above).filter(|spot| spot.level == above) else {
            return false;
        };
        let Ok(Some(upper)) = lock::<M, F>(machine, spot.entry.table(), at) else { return false };
        let unlinked = upper.unlink(&spot.entry, |value| match F::decode(value, above) {
            Decoded::Table(table) => Some((table, lock::<M, F>(machine, table, at).ok()??)),
            _ => None,
        });
        let Some(table) = unlinked else { return false };
        deferred.add_table(machine, table);
        self.paging().went();
        true
    }
}
