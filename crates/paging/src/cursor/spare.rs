//! New tables, until they are linked.
//!
//! An operation that needs several tables and must be all or nothing (I7) takes all of them here
//! before it changes anything. They wait in a chain, linked by a note in a word of each, so nothing
//! is allocated for that. Unused tables are given back.

use super::Error;
use crate::format::{Decoded, Format, Geometry, entry, note, noted};
use crate::lock::lock;
use crate::quick::QUICK_TABLE;
use crate::tables::PageTables;
use crate::tlb_gather::NEXT;
use crate::walk::{Walk, WalkEnd, beyond};
use core::result::Result;
use grace::Concurrent;
use machine::{Frame, Machine, Owner, VirtAddr, VirtRange};

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
    /// Links a new table where there is none, unless another CPU does, or is changing the way.
    /// Returns whether it did.
    pub(super) fn grow(
        &self,
        walk: &Walk<'_, M, F>,
        spot: &WalkEnd<'_, M>,
        at: VirtAddr,
        source: &mut TableSource<'_, '_, M, F, G>,
    ) -> Result<bool, Error> {
        let new = match source {
            TableSource::Lists => self.new_table(spot.level - 1)?,
            TableSource::Spare(spare) => match spare.take(spot.level - 1) {
                Some(table) => table,
                None => self.new_table(spot.level - 1)?,
            },
        };
        let linked = self.link(walk, spot, at, new);
        if linked != Ok(true) {
            match source {
                TableSource::Lists => self.discard_table(new),
                TableSource::Spare(spare) => spare.put(new),
            }
        }
        linked
    }

    fn link(
        &self,
        walk: &Walk<'_, M, F>,
        spot: &WalkEnd<'_, M>,
        at: VirtAddr,
        new: Frame,
    ) -> Result<bool, Error> {
        let value = F::table(new)?;
        let Some(mut locked) = lock::<M, F>(self.machine(), spot.entry.table(), at)? else {
            return Ok(false);
        };
        if !self.may_change(walk, at, spot.level, &locked)
            || F::decode(spot.entry.load(), spot.level) != Decoded::Absent
        {
            return Ok(false);
        }
        if spot.level == F::LEVELS - 1 && !self.may_grow() {
            return Err(Error::TopLevelFixed(at));
        }
        spot.entry.store(value);
        locked.count += 1;
        Ok(true)
    }

    /// Makes the kernel's tables below the top level for a range, so that it can be mapped after
    /// user spaces have been made. Deferred frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// As for [`map`](PageTables::map). Nothing has changed then.
    pub fn reserve(&self, range: VirtRange) -> Result<(), Error> {
        self.check(range)?;
        let top = F::LEVELS - 1;
        let each = || {
            let next = |at: &VirtAddr| beyond::<F>(*at, top);
            core::iter::successors(Some(range.start()), next).take_while(|at| range.contains(*at))
        };
        let found = |at: VirtAddr| {
            // SAFETY: the top-level table stays while `self` does.
            let entry = unsafe { entry::<M, F>(self.machine(), self.root(), F::index(at, top)) };
            let entry = entry.ok_or(Error::Malformed(at))?;
            match F::decode(entry.load(), top) {
                Decoded::Absent => Ok(Some(entry)),
                Decoded::Table(_) => Ok(None),
                Decoded::Page(..) => Err(Error::Occupied(at)),
                Decoded::Malformed => Err(Error::Malformed(at)),
            }
        };
        let (mut spare, mut needed) = (Spare::none(self), 0);
        loop {
            spare.fill(needed)?;
            let mut locked = lock::<M, F>(self.machine(), self.root(), range.start())?
                .ok_or(Error::Malformed(range.start()))?;
            needed = 0;
            for at in each() {
                if found(at)?.is_some() {
                    if !self.may_grow() {
                        return Err(Error::TopLevelFixed(at));
                    }
                    needed += 1;
                }
            }
            // Other CPUs may link some meanwhile; none is ever unlinked.
            if spare.len() < needed {
                continue;
            }
            for at in each() {
                if let Some(entry) = found(at)?
                    && let Some(new) = spare.take(top - 1)
                {
                    entry.store(F::table(new)?);
                    locked.count += 1;
                }
            }
            return Ok(());
        }
    }

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
