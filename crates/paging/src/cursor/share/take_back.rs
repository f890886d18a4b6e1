//! Clearing pages everywhere, also in tables that other spaces share.

use crate::cursor::sweep::Ended;
use crate::cursor::{Changing, Error, SweepChange};
use crate::format::{Decoded, Format};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Flush, Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Changes pages of a range as [`sweep`](Self::sweep) does, for this space and for all that
    /// share its tables. It only clears pages, or takes rights from them. For pages that an object
    /// takes back: the truncation of a file takes them from every space that maps it, and must not
    /// need memory for tables.
    ///
    /// It is ordered with faults as [`sweep`](Self::sweep) is. An empty table that is shared stays.
    ///
    /// Cost: that of [`sweep`](Self::sweep). If pages were changed in a shared table, all running
    /// CPUs flush everything before it returns. No allocation.
    ///
    /// # Context
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep). Changes before the failure stay.
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep), for all spaces that share the tables. No fork, no unmapping
    /// and no move of these tables runs beside it; faults, pins and walks may.
    pub unsafe fn take_back<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        let mut shared = false;
        let result = self.take_back_from(range, pending, &mut shared, &mut change);
        if shared {
            // CPUs of the other spaces translate by these tables, too.
            self.machine().flush_on(&self.machine().online(), Flush::All);
        }
        result
    }

    fn take_back_from<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        shared: &mut bool,
        change: &mut impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            if spot.found == Decoded::Malformed {
                return Err(Error::Malformed(at));
            }
            let (table, level) = (spot.entry.table(), spot.level);
            let Some(locked) = lock(self.machine(), table, at)? else { continue };
            // A fault of this space may have replaced the table by a copy meanwhile.
            if !self.is_way(&walk, at, level, table, false) {
                continue;
            }
            let own = self.leads_to(&walk, at, level, table);
            let mut changing =
                Changing { tables: self, walk: &walk, at, level, locked: Some(locked), pending };
            let (end, result) = changing.each(range, table, &mut |pending, count, slot| {
                let mut seen = |page| {
                    let change = change(page);
                    let changes = matches!(change, SweepChange::Clear | SweepChange::Set(_));
                    *shared |= !own && changes;
                    change
                };
                self.sweep_page(range, pending, count, slot, &mut |_| true, &mut seen)
            });
            if !own {
                // Unlocked here, so that the table is not unlinked: it is not this space's.
                changing.locked = None;
            }
            drop(changing);
            match result {
                Ok(()) => next = end,
                Err(Ended::Stopped(at)) => return Ok(Some(at)),
                Err(Ended::Failed(error)) => return Err(error),
            }
        }
        Ok(None)
    }
}
