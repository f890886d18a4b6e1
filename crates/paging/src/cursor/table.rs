//! A locked table, and the iteration over its pages.
//!
//! When a table is dropped, also by an error or a panic, it becomes whole before other CPUs see it:
//! a group that was cleared in part is parted (`group`), cleared pages are flushed where the
//! architecture demands break-before-make (`breaks`), the table is unlocked, and an empty one is
//! unlinked, if the call unlinks tables. So a call may return from the middle of an iteration.

use super::{Error, LockedEntry, OpenGroup, PageEntry, TableUsers, covers};
use crate::format::{Decoded, Format, Geometry, alone, is_grouped};
use crate::lock::Locked;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::tlb_gather::GatherState;
use crate::walk::{Mapping, Walk, beyond};
use core::ops::Range;
use grace::Concurrent;
use machine::{Entries, Entry, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// A table whose entries are being changed, with its lock held.
pub(super) struct LockedTable<'c, 'p, M: Machine, F: Format, G: Concurrent> {
    pub(super) tables: &'p PageTables<M, F, G>,
    pub(super) walk: Walk<'c, M, F>,
    /// An address that the table decides about.
    pub(super) at: VirtAddr,
    pub(super) level: u8,
    pub(super) table: Frame,
    /// `None` once it is unlocked.
    locked: Option<Locked<'c, F>>,
    /// The spaces that translate by the table.
    pub(super) users: TableUsers,
    /// Whether it is unlinked if it is empty when it is dropped.
    pub(super) unlinks: bool,
    pub(super) pending: &'c mut PendingFlush<'p, M, F, G>,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// A table of this space, of this level on the way to an address. It stays if it is empty.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn locked_table<'c, 'p>(
        &'p self,
        walk: Walk<'c, M, F>,
        at: VirtAddr,
        level: u8,
        locked: Locked<'c, F>,
        pending: &'c mut PendingFlush<'p, M, F, G>,
    ) -> LockedTable<'c, 'p, M, F, G> {
        let (table, locked) = (locked.table, Some(locked));
        let (users, unlinks) = (TableUsers::Own, false);
        LockedTable { tables: self, walk, at, level, table, locked, users, unlinks, pending }
    }
}

impl<'c, 'p, M: Machine, F: Format, G: Concurrent> LockedTable<'c, 'p, M, F, G> {
    /// One of its entries is no longer absent.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn count_up(&mut self) {
        if let Some(locked) = &mut self.locked {
            locked.count += 1;
        }
    }

    /// One of its entries has become absent.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn count_down(&mut self) {
        if let Some(locked) = &mut self.locked {
            locked.count -= 1;
        }
    }

    /// Whether all of its entries are absent.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn is_empty(&self) -> bool {
        self.locked.as_ref().is_some_and(|locked| locked.count == 0)
    }

    /// Unlocks the table. Returns whether it is empty.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn unlock(&mut self) -> bool {
        self.pending.flush_broken();
        let is_empty = self.is_empty();
        self.locked = None;
        is_empty
    }

    /// Begins an iteration over its pages in a range, from its address on. `next` becomes the
    /// address from which the call goes on behind them.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn pages(
        self,
        range: VirtRange,
        next: &'c mut Option<VirtAddr>,
    ) -> Result<TablePages<'c, 'p, M, F, G>, Error> {
        let entries = self.walk.entries(self.table).ok_or(Error::Malformed(self.at))?;
        let (first, shift) = (F::index(self.at, self.level), F::shift(self.level));
        // The last entry of the range in this table.
        let end = range.last().unwrap_or(self.at).get();
        let more = (end >> shift).saturating_sub(self.at.get() >> shift);
        let last = (F::ENTRIES - 1).min(first.saturating_add(more as usize));
        let (left, passing) = (first..last + 1, OpenGroup::nothing());
        let pages = TablePages { table: self, passing, entries, range, first, left, next };
        *pages.next = beyond::<F>(pages.address(last), pages.table.level);
        Ok(pages)
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for LockedTable<'_, '_, M, F, G> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn drop(&mut self) {
        let empty = self.unlock();
        let keeps = self.pending.gather.state.contains(GatherState::KEEPS_TABLES);
        if empty && self.unlinks && self.tables.space().is_some() && !keeps {
            let walk = self.walk;
            self.tables.prune_at(&walk, self.at, self.level, &mut self.pending.gather);
        }
    }
}

/// A page, and its entry.
type Page<'t, 'c, 'p, M, F, G> = (Mapping, LockedEntry<'t, 'c, 'p, M, F, G>);

/// The pages of a locked table in a range, which a call goes through.
pub(super) struct TablePages<'c, 'p, M: Machine, F: Format, G: Concurrent> {
    pub(super) table: LockedTable<'c, 'p, M, F, G>,
    passing: OpenGroup<'c, M>,
    entries: Entries<'c, M>,
    range: VirtRange,
    /// The index of the entry for the table's address.
    first: usize,
    /// The indices that are left.
    left: Range<usize>,
    next: &'c mut Option<VirtAddr>,
}

impl<'c, 'p, M: Machine, F: Format, G: Concurrent> TablePages<'c, 'p, M, F, G> {
    /// The next page, in ascending order. `None` at the end of the table or of the range, and
    /// where a lower table follows.
    ///
    /// # Errors
    /// [`Error::Malformed`]; [`Error::Cut`]: the range cuts the page.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn next_page(&mut self) -> Result<Option<Page<'_, 'c, 'p, M, F, G>>, Error> {
        let Some((entry, page, grouped)) = self.next_entry()? else { return Ok(None) };
        if !covers(self.range, page.page, page.size) {
            return Err(Error::Cut(page.page, page.size));
        }
        Ok(Some((page, LockedEntry { table: &mut self.table, entry, grouped })))
    }

    /// Passes over all of its pages in the range. Of a lowest table, no entry is read.
    pub(super) fn pass_pages(mut self) -> Result<(), Error> {
        while self.table.level != 0 && self.next_entry()?.is_some() {}
        Ok(())
    }

    /// Clears the pages that are left, as long as `gone` agrees. Returns the first page for which
    /// it does not. Makes no [`Mapping`], so no attributes are decoded.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn clear_pages(
        &mut self,
        gone: &mut impl FnMut(Frame, PageSize) -> bool,
    ) -> Result<Option<VirtAddr>, Error> {
        let level = self.table.level;
        // The entries behind the last page of the table need no look.
        while !self.table.is_empty()
            && let Some((at, entry, stored)) = self.next_set()
        {
            let value = alone::<F>(stored, level, entry.index());
            let (frame, size) = match (F::decode(value, level), F::size_at(level)) {
                (Decoded::Page(frame, _), Some(size)) => (frame, size),
                (Decoded::Absent, _) => continue,
                (Decoded::Table(_), _) => return Ok(self.ends_at_table(at)),
                _ => return Err(Error::Malformed(at)),
            };
            if is_grouped::<F>(stored, level) {
                self.passing.enter(at, entry);
            }
            let page = at.align_down(size);
            if !covers(self.range, page, size) {
                return Err(Error::Cut(page, size));
            }
            if !gone(frame, size) {
                return Ok(Some(page));
            }
            let entry = PageEntry { at: page, level, entry, value };
            LockedEntry { table: &mut self.table, entry, grouped: false }.clear();
        }
        Ok(None)
    }

    /// The next entry of a page, the page, and whether it is in a group.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn next_entry(&mut self) -> Result<Option<(PageEntry<'c, M>, Mapping, bool)>, Error> {
        let level = self.table.level;
        while let Some((at, entry, stored)) = self.next_set() {
            let value = alone::<F>(stored, level, entry.index());
            match F::decode(value, level) {
                Decoded::Absent => {}
                Decoded::Table(_) => return Ok(self.ends_at_table(at)),
                Decoded::Malformed => return Err(Error::Malformed(at)),
                Decoded::Page(frame, attrs) => {
                    let grouped = is_grouped::<F>(stored, level);
                    if grouped {
                        self.passing.enter(at, entry);
                    }
                    let size = F::size_at(level).ok_or(Error::Malformed(at))?;
                    let page = Mapping { page: at.align_down(size), size, frame, attrs };
                    let entry = PageEntry { at: page.page, level, entry, value };
                    return Ok(Some((entry, page, grouped)));
                }
            }
        }
        Ok(None)
    }

    /// The next entry that is not zero, its address in the range, and its value.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn next_set(&mut self) -> Option<(VirtAddr, Entry<'c, M>, u64)> {
        let next = self.entries.first_set(self.left.clone());
        let Some((entry, value)) = next else {
            self.left.start = self.left.end;
            return None;
        };
        let index = entry.index();
        self.left.start = index + 1;
        self.passing.pass(index, self.table.tables, self.table.users);
        Some((self.address(index), entry, value))
    }

    /// The pages from `at` on lie in a lower table, with another lock.
    fn ends_at_table<T>(&mut self, at: VirtAddr) -> Option<T> {
        *self.next = Some(at);
        self.left.start = self.left.end;
        None
    }

    /// The first address of the range that an entry decides about.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn address(&self, index: usize) -> VirtAddr {
        let (at, shift) = (self.table.at, F::shift(self.table.level));
        match index - self.first {
            0 => at,
            more => VirtAddr::new(((at.get() >> shift) + more as u64) << shift),
        }
    }

    /// Marks the table dead, and unlocks it. Its pages are gone.
    pub(super) fn kill(mut self) {
        self.passing.leave(self.table.tables, self.table.users);
        self.table.locked.take().into_iter().for_each(Locked::kill);
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for TablePages<'_, '_, M, F, G> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn drop(&mut self) {
        self.passing.leave(self.table.tables, self.table.users);
    }
}
