//! The cursor over a range: it locks the tables of the range one after the other.

use super::{Error, TablePages, TableUsers};
use crate::format::{Decoded, Format};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::beyond;
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};

/// The tables that a cursor locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Locking {
    /// Those with a page in the range.
    WherePages,
    /// Each in which a page of the range could appear: a lowest table, or the upper table where a
    /// lower one is absent. So the call is ordered with each decision in the range (`entry`).
    /// Tables that other spaces share are made this space's own first.
    Everywhere,
    /// As [`Everywhere`](Locking::Everywhere), also tables that other spaces share.
    AlsoShared,
}

/// A cursor over the tables of a range.
pub(super) struct Cursor<'c, 'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    range: VirtRange,
    next: Option<VirtAddr>,
    locking: Locking,
    /// Whether tables of programs that become empty are unlinked.
    pub(super) unlinks: bool,
    pending: &'c mut PendingFlush<'p, M, F, G>,
    /// One for each table, so that a long range holds up no grace period.
    guard: Option<G::Guard>,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// A cursor at the start of a range. Changes add their flush to `pending`.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn cursor<'c, 'p>(
        &'p self,
        range: VirtRange,
        locking: Locking,
        pending: &'c mut PendingFlush<'p, M, F, G>,
    ) -> Cursor<'c, 'p, M, F, G> {
        let next = Some(range.start());
        Cursor { tables: self, range, next, locking, unlinks: true, pending, guard: None }
    }
}

impl<'p, M: Machine, F: Format, G: Concurrent> Cursor<'_, 'p, M, F, G> {
    /// Locks the next table. Its user goes through its pages, or passes over them, before it asks
    /// for another one. `None` at the end of the range.
    ///
    /// # Errors
    /// [`Error::Malformed`]; with [`Locking::Everywhere`], as for [`PageTables::unshare`].
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn next_table(&mut self) -> Result<Option<TablePages<'_, 'p, M, F, G>>, Error> {
        let tables = self.tables;
        let (at, level, locked, users) = loop {
            let Some(at) = self.next.filter(|at| self.range.contains(*at)) else {
                return Ok(None);
            };
            self.guard = None;
            let walk = tables.walk(self.guard.insert(G::pin()));
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            match (spot.found, self.locking) {
                (Decoded::Malformed, _) => return Err(Error::Malformed(at)),
                (Decoded::Absent | Decoded::Table(_), Locking::WherePages) => {
                    self.next = beyond::<F>(at, spot.level);
                    continue;
                }
                // Also if the entry is absent: a page or a table may appear there until the lock
                // is held, and none that a CPU decided on by what was stored before this call does
                // later.
                _ => {}
            }
            let (table, level) = (spot.entry.table(), spot.level);
            if self.locking == Locking::Everywhere && !spot.own && tables.forks() {
                self.guard = None;
                tables.own_whole_way(at)?;
                continue;
            }
            let Some(locked) = lock::<M, F>(tables.machine(), table, at)? else { continue };
            let users = match self.locking {
                Locking::AlsoShared => tables.users_of(&walk, at, level, table),
                _ => Some(TableUsers::Own),
            };
            if let Some(users) = users {
                break (at, level, locked, users);
            }
        };
        let guard = self.guard.get_or_insert_with(G::pin);
        let mut table = tables.locked_table(tables.walk(guard), at, level, locked, self.pending);
        table.users = users;
        table.unlinks = self.unlinks && users == TableUsers::Own;
        table.pages(self.range, &mut self.next).map(Some)
    }

    /// Locks and unlocks the tables that are left. Of a lowest table, no entry is read.
    pub(super) fn pass_tables(mut self) -> Result<(), Error> {
        while let Some(table) = self.next_table()? {
            table.pass_pages()?;
        }
        Ok(())
    }
}
