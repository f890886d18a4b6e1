//! Leaving shared tables.

use crate::cursor::{Error, covers_entry};
use crate::format::Format;
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::tlb_gather::GatherState;
use crate::walk::beyond;
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unlinks the shared tables that lie wholly in a range, with everything below them. The other
    /// spaces keep them. The frames of their pages are not this space's to give back: the
    /// references are the tables'.
    ///
    /// Returns the address from which to go on, after a flush; `None` at the end of the range. A
    /// call that empties a range calls [`unshare_ends`](Self::unshare_ends) before its first
    /// change, then this one, then [`sweep`](Self::sweep). Where the architecture demands
    /// break-before-make, unlinked tables are also flushed before the lock of the table above is
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
