//! Leaving shared tables, and the end of a table that no space leads to any more.

use crate::cursor::{Error, covers_entry};
use crate::format::{Decoded, Format, Geometry, alone, entry};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::shared::Paging;
use crate::tables::PageTables;
use crate::tlb_gather::{GatherState, TlbGather};
use crate::walk::beyond;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unlinks the shared tables that lie wholly in a range, with everything below them. The other
    /// spaces keep them. The frames of their pages are not this space's to give back: the
    /// references are the tables'.
    ///
    /// Returns the address from which to go on, after a flush; `None` at the end of the range. A
    /// call that empties a range calls [`unshare_ends`](Self::unshare_ends) before its first
    /// change, then this one, then [`sweep`](Self::sweep). Where the architecture demands
    /// break-before-make, what was unlinked is also flushed before the lock of the table above is
    /// given up.
    ///
    /// Cost: nothing but a load if the tables were never shared; otherwise a walk for each table
    /// in the range, a load for each absent entry above them, and a lock for each that is unlinked.
    /// No allocation.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`];
    /// [`Error::NotTheTables`]; [`Error::Malformed`].
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep), for the pages of these tables; but their frames stay.
    pub unsafe fn leave_shared<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<Option<VirtAddr>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        let mut next = self.forks().then_some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            if pending.gather.is_full() {
                return Ok(Some(at));
            }
            let guard = G::pin();
            let walk = self.walk(&guard);
            let (entry, end, value, own) = walk.descend(at, 0).ok_or(Error::Malformed(at))?;
            if own {
                next = match value {
                    0 if end > 0 => walk.beyond_absent(entry.table(), at, end),
                    _ => beyond::<F>(at, end.max(1)),
                };
                continue;
            }
            // Otherwise a fault has made the way this space's own meanwhile.
            let Some(link) = walk.first_shared(at, 0) else { continue };
            let level = link.level;
            if !covers_entry::<F>(range, at, level) {
                next = beyond::<F>(at, level);
                continue;
            }
            let upper = link.entry.table();
            let Some(locked) = lock::<M, F>(self.machine(), upper, at)? else { continue };
            let same = link.entry.load() == F::shared_table(link.table)?;
            if !self.leads_to(&walk, at, level, upper) || !same {
                continue;
            }
            let mut upper = self.locked_table(walk, at, level, locked, pending);
            upper.unlinks = true;
            link.entry.store(0);
            upper.count_down();
            self.left(&link, upper.pending);
            // A fault may store other pages there once the lock is given up.
            upper.pending.gather.state.set(GatherState::BROKE, F::BREAK_BEFORE_MAKE);
            next = beyond::<F>(at, level);
        }
        Ok(None)
    }
}

/// Ends the share of a space that has left the table, and has flushed. If it was the last one, the
/// table's pages and lower tables go, too.
pub(crate) fn leave_table<M: Machine, F: Format, G: Concurrent>(
    paging: &Arc<Paging<M, F>>,
    table: Frame,
    level: u8,
) {
    let mut gone = TlbGather::default();
    end_share(paging, table, level, &mut gone);
    gone.retire::<M, F, G>(paging);
}

fn end_share<M: Machine, F: Format>(
    paging: &Paging<M, F>,
    table: Frame,
    level: u8,
    gone: &mut TlbGather,
) {
    let machine = paging.machine();
    let Ok(Some(mut locked)) = lock::<M, F>(machine, table, VirtAddr::new(0)) else { return };
    if locked.shares > 0 {
        locked.shares -= 1;
        return;
    }
    // No space leads here, and each that left has flushed. A fault that was on the way here finds
    // the table dead; one that has the lock is waited for.
    locked.kill();
    for index in 0..F::ENTRIES {
        // SAFETY: a table that no other CPU changes any more. Walks in software may read it until
        // it has been retired.
        let Some(entry) = (unsafe { entry::<M, F>(machine, table, index) }) else { return };
        if entry.load() == 0 {
            continue;
        }
        match F::decode(alone::<F>(entry.swap(0), level, index), level) {
            Decoded::Page(frame, _) => {
                // SAFETY: the reference of this entry, which no translation was cached from. A
                // lock-free pin may hold another one for a moment.
                unsafe { paging.release_entry(frame) };
            }
            Decoded::Table(lower) => end_share(paging, lower, level - 1, gone),
            _ => {}
        }
    }
    paging.went();
    gone.add_table(machine, table);
}
