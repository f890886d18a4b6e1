//! Tables that are not linked yet.
//!
//! Whatever needs several tables and must be all or nothing (I7) takes all of them here before it
//! changes anything. They wait in a chain, by a note in a word of each, so that nothing is
//! allocated for that; what is left over goes back.

use super::Error;
use crate::format::{Format, note, noted};
use crate::pending::NEXT;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use core::result::Result;
use grace::Concurrent;
use machine::{Frame, Machine, Owner};

/// Empty tables that nobody else knows of. They are given back when this is dropped.
pub(super) struct Spare<'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    first: Option<Frame>,
    len: usize,
}

impl<'p, M: Machine, F: Format, G: Concurrent> Spare<'p, M, F, G> {
    pub(super) fn none(tables: &'p PageTables<M, F, G>) -> Self {
        Spare { tables, first: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sees to it that there are so many at least. With no lock held; and with no guard, which
    /// would hold up the grace period that memory may have to wait for.
    pub(super) fn fill(&mut self, wanted: usize) -> Result<(), Error> {
        while self.len < wanted {
            let tables = self.tables;
            let new = tables.with_memory(|| tables.new_table(0))?;
            self.put(new);
            // Whether an entry can lead there: later it is too late for an error.
            F::table(new)?;
        }
        Ok(())
    }

    /// An empty table, of no use as it turned out, or of later use.
    pub(super) fn put(&mut self, table: Frame) {
        if let Some(entry) = self.entry(table) {
            entry.store(note(self.first.map_or(0, |next| next.number() + 1)));
            self.first = Some(table);
            self.len += 1;
        }
    }

    /// One of them, to be a table of this level.
    pub(super) fn take(&mut self, level: u8) -> Option<Frame> {
        let table = self.pop()?;
        // SAFETY: it is ours, and empty, as a table of any level may be.
        unsafe { self.tables.machine().set_owner(table, Owner::Table(level)) }.ok()?;
        Some(table)
    }

    fn pop(&mut self) -> Option<Frame> {
        let table = self.first?;
        let entry = self.entry(table)?;
        self.first = noted(entry.load()).checked_sub(1).and_then(Frame::new);
        self.len -= 1;
        entry.store(0);
        Some(table)
    }

    fn entry(&self, table: Frame) -> Option<machine::Entry<'p, M>> {
        // SAFETY: a table of ours, which nobody else knows.
        unsafe { self.tables.machine().entry(table, NEXT) }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Spare<'_, M, F, G> {
    fn drop(&mut self) {
        while let Some(table) = self.pop() {
            self.tables.discard_table(table);
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// An empty table that is not linked yet.
    pub(super) fn new_table(&self, level: u8) -> Result<Frame, Error> {
        let table = self.paging().lists().alloc(QUICK_TABLE)?;
        // SAFETY: it came from a quicklist, so it is ours, and empty, as a table of any level may
        // be.
        unsafe { self.machine().set_owner(table, Owner::Table(level)) }?;
        Ok(table)
    }

    /// A table that was not linked, and is empty.
    pub(super) fn discard_table(&self, table: Frame) {
        // SAFETY: it came from the list, nobody knows of it, and it is as it was. An error would
        // mean that it never was a frame.
        let _ = unsafe { self.paging().lists().free(QUICK_TABLE, table) };
    }
}
