//! A decision about the pages of a group, in the lock of their table, as [`PageTables::with_entry`]
//! decides about one page. The argument for its order with sweeps is that of `entry`.

use super::group::first_page;
use super::{Changed, CheckedBlock, Error, Result};
use crate::format::{Attrs, Decoded, Format, Geometry, group_entries};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Locks the lowest table for `at`, and maps the pages of the group ([`Format::GROUP`]) around
    /// `at`, if all of them are absent and `decide` agrees. It returns the first of as many
    /// neighbouring frames, and the attributes. If hardware has nothing to mark there
    /// ([`map`](Self::map)), the pages become a group. If there is no such table, makes it first.
    ///
    /// Returns whether the pages were mapped, and the flush, which is pending as after
    /// [`with_entry`](Self::with_entry). It is `false` without a call of `decide` if a page is
    /// there, or if the format has no groups.
    ///
    /// Cost: that of [`with_entry`](Self::with_entry), and a load and a store for each page.
    ///
    /// # Context
    /// As for [`with_entry`](Self::with_entry).
    ///
    /// # Errors
    /// As for [`with_entry`](Self::with_entry); [`Error::Occupied`]: a large page contains `at`;
    /// [`Error::Format`]: also frames that are not aligned to the group. No page has changed.
    ///
    /// # Safety
    /// As for [`with_entry`](Self::with_entry), for each page and its frame.
    pub unsafe fn with_group<'p>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce() -> Option<(Frame, Attrs)>,
    ) -> Result<'p, Changed<'p, bool, M, F, G>, M, F, G> {
        let _published = self.publish_page(at, F::GROUP.unwrap_or(F::PAGE));
        self.with_flush(|pending| self.decide_group(guard, at, decide, pending))
    }

    #[cold]
    fn decide_group<'p>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce() -> Option<(Frame, Attrs)>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<bool, Error> {
        let Some(size) = F::GROUP else { return Ok(false) };
        let at = at.align_down(size);
        self.check(VirtRange::new(at, size.bytes()).ok_or(Error::Empty)?)?;
        let walk = self.walk(guard);
        let mut locked = self.table_to_decide(&walk, at, 0, pending)?;
        let entries = walk.entries(locked.table).ok_or(Error::Malformed(at))?;
        let index = F::index(at, 0);
        let mut all = entries.range(index..index + group_entries::<F>());
        let absent = all.all(|entry| F::decode(entry.load(), 0) == Decoded::Absent);
        let chosen = if absent { decide() } else { None };
        let result = chosen.map_or(Ok(false), |(frame, attrs)| {
            self.check_kind(at, attrs.flags)?;
            let first = first_page::<F>(size, frame, attrs)?;
            self.check_frames(&mut CheckedBlock::default(), at, frame, size.frames())?;
            Ok(self.fill_group(&entries, index, first, &mut locked).1)
        });
        self.locked_table(walk, at, 0, locked, pending).end_decision(false);
        result
    }
}
