//! Clearing pages everywhere, also in tables that other spaces share.

use crate::cursor::sweep::Depth;
use crate::cursor::{Error, SweepChange};
use crate::format::Format;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, Walk};
use grace::Concurrent;
use machine::{Flush, Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Changes pages of a range as [`sweep`](Self::sweep) does, for this space and for all that
    /// share its tables. It only clears pages, replaces
    /// them by pages without rights, or takes rights from them. For pages that an object
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
    /// and no move of these tables runs beside it; faults, pins and walks may. No page is stored
    /// in the place of one that was taken back before the call returns, in no space: the object
    /// refuses it. (The lock is given up before the flush.)
    pub unsafe fn take_back<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        // SAFETY: as the caller promises.
        unsafe { self.take_back_in(range, pending, Depth::Pages, change) }
    }

    /// Takes the lock of each lowest table of a range once, also of one that spaces share, and
    /// changes nothing. So a fault that held a lock has ended, and one that comes later sees what
    /// the caller has stored before. Reads no entry of a lowest table.
    ///
    /// # Context
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Safety
    /// No fork, no unmapping and no move of these tables runs beside it.
    pub unsafe fn pass_locks<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        let keep = |_| SweepChange::Keep;
        // SAFETY: no entry changes, and the caller promises the rest.
        unsafe { self.take_back_in(range, pending, Depth::Tables, keep) }.map(drop)
    }

    /// [`take_back`](Self::take_back), as deep as `depth` says.
    ///
    /// # Safety
    /// As for [`take_back`](Self::take_back).
    unsafe fn take_back_in<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        depth: Depth,
        mut change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        // A fault of this space may have replaced the table by a copy meanwhile.
        let owns = |walk: &Walk<'_, M, F>, at, level, table| {
            let leads = self.is_way(walk, at, level, table, false);
            leads.then(|| self.leads_to(walk, at, level, table))
        };
        let mut flush = SharedFlush { machine: self.machine(), needed: false };
        let change = |page, own: bool| {
            let change = change(page);
            flush.needed |= !own && !matches!(change, SweepChange::Keep | SweepChange::Stop);
            change
        };
        self.sweep_tables(range, pending, Some(&owns), depth, change)
    }
}

/// The flush of all CPUs, once a shared table has changed: those of the other spaces translate by
/// it, too. It is done when this is dropped, also by a panic.
struct SharedFlush<'m, M: Machine> {
    machine: &'m M,
    needed: bool,
}

impl<M: Machine> Drop for SharedFlush<'_, M> {
    fn drop(&mut self) {
        if self.needed {
            self.machine.flush_on(&self.machine.online(), Flush::All);
        }
    }
}
