//! Groups: neighbouring pages that hardware may cache as one translation ([`Format::GROUP`]).
//!
//! [`map`](PageTables::map) and [`with_group`](PageTables::with_group) make groups of a program's
//! pages or a guest's, where the frames and the attributes fit. All other calls see single pages. A
//! call that changes one page of a group, or some of them, first takes the mark off all of its
//! entries: it *parts* the group.
//!
//! # What always holds
//! - *A group is whole.* Between two holders of the table's lock, either all entries of a group
//!   have its mark, or none has. Their frames are neighbours, and their attributes are the same.
//! - *Hardware changes no entry of a group.* All marks that it would set are there: each page of a
//!   group is accessed, and dirty if it may be written. Otherwise hardware could set the mark of
//!   one page in the entry of another, and each call that reads marks would have to combine them.
//!
//! # Why it is correct
//! A CPU that walks one entry of a group may cache all of its pages. So:
//! - *Making one*: all entries are absent, and then written, with the lock held. A CPU may use a
//!   page before its own entry is written, but none that was anything else before.
//! - *Parting one* (`part_group`) is a break-before-make of all entries at once (`breaks`): they
//!   become pages without rights, the range is flushed, and the single entries are stored. Walks
//!   without a lock, and hardware, meet what `breaks` says.
//! - *Clearing* needs none of that, if it clears all. A call clears the entries one after the
//!   other, and leaves the flush pending as for other pages. When it comes to a page outside of the
//!   group, or ends, or panics, with a part of the group left, it parts that (`OpenGroup`), before
//!   it gives up the lock.
//! - *A fork* takes the right to write from all pages of a group, or from none. Until the flush, a
//!   CPU may use the old right for each of the pages, as it may for single ones.
//! - *A copy of a table* has the same groups: a space comes from the old table to it without a
//!   break. Until the flush for that, its CPUs may have cached the way to the old table. So the
//!   flush of a group that is parted drops cached ways, too, once a space has forked. Where a copy
//!   leaves out pages, the group is parted first.
//!
//! Pages for the kernel alone are in no groups: while one is parted, its pages fault.
//!
//! Cost: nothing for formats without groups. Parting: two stores for each entry, and one flush.

use super::breaks::without_rights;
use crate::format::{
    Attrs, Decoded, Flags, Format, FormatError, entries, group_entries, is_grouped,
};
use crate::lock::Locked;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Entries, Entry, Flush, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// The spaces whose CPUs may have cached the pages of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TableUsers {
    /// This one.
    Own,
    /// All that share the table.
    Sharers,
}

/// The index of the first entry of a group, by any of its entries.
#[inline]
pub(super) fn first_of<F: Format>(index: usize) -> usize {
    index & !(group_entries::<F>() - 1)
}

/// Whether pages with these attributes can be a group: hardware has no mark to set, and the pages
/// are a program's or a guest's.
fn is_settled(attrs: Attrs) -> bool {
    let flags = attrs.flags;
    flags.contains(Flags::READ | Flags::USER | Flags::ACCESSED)
        && flags.contains(Flags::WRITE) == flags.contains(Flags::WRITE | Flags::DIRTY)
}

/// The entry of the first page of a group, which is single yet.
///
/// # Errors
/// [`FormatError::Misaligned`], and as for [`Format::page`].
pub(super) fn first_page<F: Format>(
    size: PageSize,
    frame: Frame,
    attrs: Attrs,
) -> core::result::Result<u64, FormatError> {
    match frame.is_aligned(size) {
        true => F::page(F::PAGE, frame, attrs),
        false => Err(FormatError::Misaligned(frame, size)),
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Whether pages with these attributes become a group where they fit.
    #[inline]
    pub(super) fn makes_groups(&self, attrs: Attrs) -> bool {
        F::GROUP.is_some() && self.space().is_some() && is_settled(attrs)
    }

    /// The size of a group that fits at `at`, if pages with these attributes become one.
    #[inline]
    pub(super) fn group_at(
        &self,
        range: VirtRange,
        at: VirtAddr,
        attrs: Attrs,
    ) -> Option<PageSize> {
        F::GROUP.filter(|size| {
            self.makes_groups(attrs)
                && *size <= self.paging().largest()
                && at.is_aligned(*size)
                && super::covers(range, at, *size)
        })
    }

    /// Writes the entries from `index` on of a group whose first page has the entry `first`, if all
    /// are absent. If its pages become no group, they are single. Returns how many were written,
    /// and whether all were.
    pub(super) fn fill_group(
        &self,
        entries: &Entries<'_, M>,
        index: usize,
        first: u64,
        locked: &mut Locked<'_, F>,
    ) -> (usize, bool) {
        let count = group_entries::<F>();
        let all = || entries.range(index..index + count);
        let Decoded::Page(frame, attrs) = F::decode(first, 0) else { return (0, false) };
        // A CPU may use all pages as soon as the first entry is written.
        if all().any(|entry| F::decode(entry.load(), 0) != Decoded::Absent) {
            return (0, false);
        }
        let marked = self.makes_groups(attrs);
        let page = |number: usize| {
            let frame = frame.checked_add(number as u64 * F::PAGE.frames())?;
            let page = F::page(F::PAGE, frame, attrs).ok()?;
            Some(if marked { F::grouped(page) } else { page })
        };
        let written = super::fill::<M, F>(all(), 0, (0..count).map(page), locked);
        (written, written == count)
    }

    /// Parts a group, if pages of it were cleared. A load for each entry.
    #[cold]
    fn part_unless_whole(&self, at: VirtAddr, entry: &Entry<'_, M>, users: TableUsers) {
        let first = first_of::<F>(entry.index());
        // SAFETY: a table, which stays one while its lock is held.
        let table = unsafe { entries::<M, F>(self.machine(), entry.table()) };
        let is_whole = table.is_some_and(|table| {
            let mut all = table.range(first..first + group_entries::<F>());
            all.all(|entry| is_grouped::<F>(entry.load(), 0))
        });
        if !is_whole {
            self.part_group(at, entry, users);
        }
    }

    /// Makes the pages of a group single. The page at `at` has this entry, whose table's lock the
    /// caller holds. For [`TableUsers::Sharers`], `at` may be any address.
    #[cold]
    pub(super) fn part_group(&self, at: VirtAddr, entry: &Entry<'_, M>, users: TableUsers) {
        let (Some(size), first) = (F::GROUP, first_of::<F>(entry.index())) else { return };
        // SAFETY: a table, which stays one while its lock is held.
        let Some(table) = (unsafe { entries::<M, F>(self.machine(), entry.table()) }) else {
            return;
        };
        // A bit for each entry that had the mark, and the attributes of their pages.
        let (mut parted, mut of_all) = (0_u128, Attrs::default());
        for entry in table.range(first..first + group_entries::<F>()) {
            let value = entry.load();
            if is_grouped::<F>(value, 0)
                && let Decoded::Page(frame, attrs) = F::decode(F::alone(value, entry.index()), 0)
            {
                // Hardware sets no bit in an entry of a group.
                entry.store(without_rights::<F>(F::PAGE, frame, attrs));
                parted |= 1 << (entry.index() - first);
                of_all = attrs;
            }
        }
        if parted == 0 {
            return;
        }
        match (users, VirtRange::new(at.align_down(size), size.bytes())) {
            (TableUsers::Own, Some(range)) => {
                let (cpus, space) = self.users();
                // A CPU may have cached the way to a table with the same group that the space has
                // left: the flush for that may be another CPU's, and pending.
                let tables = self.forks();
                let what = Flush::Range { space, range, stride: F::PAGE, tables };
                self.machine().flush_on(&cpus, what);
            }
            _ => self.machine().flush_on(&self.machine().online(), Flush::All),
        }
        for entry in table.range(first..first + group_entries::<F>()) {
            if parted & 1 << (entry.index() - first) != 0
                && let Decoded::Page(frame, _) = F::decode(entry.load(), 0)
                && let Ok(page) = F::page(F::PAGE, frame, of_all)
            {
                entry.store(page);
            }
        }
    }
}

/// The group whose pages a call goes through. When the call comes to a page outside of it, and
/// before it gives up the table's lock, a group is parted that was cleared in part.
pub(super) struct OpenGroup<'m, M>(Option<(VirtAddr, Entry<'m, M>)>);

impl<'m, M: Machine> OpenGroup<'m, M> {
    pub(super) fn nothing() -> Self {
        OpenGroup(None)
    }

    /// The call comes to the page at `at`, which is in a group. Called before a change, since the
    /// change may panic when it has cleared the page.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn enter(&mut self, at: VirtAddr, entry: Entry<'m, M>) {
        self.0 = Some((at, entry));
    }

    /// The call comes to the page at this index of the table.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn pass<F: Format, G: Concurrent>(
        &mut self,
        index: usize,
        tables: &PageTables<M, F, G>,
        users: TableUsers,
    ) {
        if F::GROUP.is_some()
            && let Some((_, entry)) = &self.0
            && first_of::<F>(entry.index()) != first_of::<F>(index)
        {
            self.leave(tables, users);
        }
    }

    /// The call comes to no further page of the group.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn leave<F: Format, G: Concurrent>(
        &mut self,
        tables: &PageTables<M, F, G>,
        users: TableUsers,
    ) {
        if F::GROUP.is_some()
            && let Some((at, entry)) = self.0.take()
        {
            tables.part_unless_whole(at, &entry, users);
        }
    }
}
