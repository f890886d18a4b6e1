//! Clearing pages everywhere, also in tables that other spaces share.

use crate::cursor::range::{Cursor, Locking};
use crate::cursor::{Error, SweepChange, TableUsers};
use crate::format::Format;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, Walk};
use grace::Concurrent;
use machine::{Flush, Frame, Machine, VirtAddr, VirtRange};

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
    /// and no move of these tables runs concurrently; faults, pins and walks may. No page is stored
    /// in the place of one that was taken back before the call returns, in no space: the object
    /// refuses it. (The lock is given up before the flush.)
    pub unsafe fn take_back<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        let mut flush = SharedFlush { machine: self.machine(), needed: false };
        let mut cursor = self.cursor_of_all(range, pending)?;
        while let Some(mut table) = cursor.next_table()? {
            let shared = table.table.users == TableUsers::Sharers;
            while let Some((found, mut page)) = table.next_page()? {
                let change = change(found);
                flush.needed |= shared && !matches!(change, SweepChange::Keep | SweepChange::Stop);
                match change {
                    SweepChange::Stop => return Ok(Some(found.page)),
                    change => page.change(found, change)?,
                }
            }
        }
        Ok(None)
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
    /// No fork, no unmapping and no move of these tables runs concurrently.
    pub unsafe fn pass_locks<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        self.cursor_of_all(range, pending)?.pass_tables()
    }

    /// A cursor over the tables of a range, also those that spaces share.
    fn cursor_of_all<'c, 'p>(
        &'p self,
        range: VirtRange,
        pending: &'c mut PendingFlush<'p, M, F, G>,
    ) -> Result<Cursor<'c, 'p, M, F, G>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        Ok(self.cursor(range, Locking::AlsoShared, pending))
    }

    /// The spaces that translate by the table of this level on the way to `at`, whose lock is held.
    /// `None` if the way leads elsewhere: a fault of this space may have replaced the table by a
    /// copy meanwhile.
    pub(in crate::cursor) fn users_of(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        table: Frame,
    ) -> Option<TableUsers> {
        let leads = self.is_way(walk, at, level, table, false);
        let own = leads.then(|| self.leads_to(walk, at, level, table))?;
        Some(if own { TableUsers::Own } else { TableUsers::Sharers })
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
