//! Tables that are not linked yet.
//!
//! An operation that needs several tables and must be all or nothing (I7) takes all of them here
//! before it changes anything. They wait in a chain, linked by a note in a word of each, so nothing
//! is allocated for that. Unused tables are given back.

use super::Error;
use crate::format::{Format, note, noted};
use crate::gather::NEXT;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use core::result::Result;
use grace::Concurrent;
use machine::{Frame, Machine, Owner};

/// Where a call takes new tables from.
pub(super) enum TableSource<'s, 'p, M: Machine, F: Format, G: Concurrent> {
    /// The quicklists: there may be no memory.
    Lists,
    /// Tables in hand.
    Spare(&'s mut Spare<'p, M, F, G>),
}

/// Empty tables that no other CPU knows. They are given back when this is dropped.
pub(super) struct Spare<'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    first: Option<Frame>,
    len: usize,
}

impl<'p, M: Machine, F: Format, G: Concurrent> Spare<'p, M, F, G> {
    pub(super) fn none(tables: &'p PageTables<M, F, G>) -> Self {
        Spare { tables, first: None, len: 0 }
    }

    pub(super) fn is_of(&self, tables: &PageTables<M, F, G>) -> bool {
        core::ptr::eq(self.tables, tables)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Fills up to at least `wanted` tables. Called with no lock held, and without a guard, which
    /// would hold up the grace period that memory may have to wait for.
    pub(super) fn fill(&mut self, wanted: usize) -> Result<(), Error> {
        while self.len < wanted {
            let tables = self.tables;
            let new = tables.with_memory(|| tables.new_table(0))?;
            self.put(new);
            // Check that an entry can lead to it: later, an error would be too late.
            F::table(new)?;
        }
        Ok(())
    }

    /// Adds an empty table, for later use or to be given back.
    pub(super) fn put(&mut self, table: Frame) {
        if let Some(entry) = self.entry(table) {
            entry.store(note(self.first.map_or(0, |next| next.number() + 1)));
            self.first = Some(table);
            self.len += 1;
        }
    }

    /// Takes one of them, for a table of this level.
    pub(super) fn take(&mut self, level: u8) -> Option<Frame> {
        let table = self.pop()?;
        // SAFETY: it is ours, and empty, which is valid for a table of any level.
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
        // SAFETY: a table of ours, which no other CPU knows.
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
    /// Makes an empty table that is not linked yet.
    pub(super) fn new_table(&self, level: u8) -> Result<Frame, Error> {
        let table = self.paging().lists().alloc(QUICK_TABLE)?;
        // SAFETY: it came from a quicklist, so it is ours, and empty, which is valid for a table of
        // any level.
        unsafe { self.machine().set_owner(table, Owner::Table(level)) }?;
        Ok(table)
    }

    /// Gives back an empty table that was never linked.
    pub(super) fn discard_table(&self, table: Frame) {
        // SAFETY: it came from the list, no other CPU knows it, and it is in its constructed state.
        // An error would mean that it was never a frame.
        let _ = unsafe { self.paging().lists().free(QUICK_TABLE, table) };
    }
}
