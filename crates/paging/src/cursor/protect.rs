//! Changing what pages allow.

use super::{Error, Failed, Result, Slot, covers};
use crate::format::{Attrs, Decoded, Flags, Format, size_at};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Gives all pages of a range these rights, of [`Flags::RIGHTS`], and no others; the rest of
    /// their attributes stays. Holes do not matter. Without READ, WRITE and EXECUTE the pages are
    /// parked: nothing translates to them, but they stay where they are.
    ///
    /// A flush is owed for pages that have lost a right. One that has gained some may still fault
    /// once, spuriously.
    ///
    /// # Errors
    /// As [`unmap`](PageTables::unmap); [`Error::Format`] if no page can have these rights;
    /// [`Error::NotUser`].
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change, and nothing relies on the rights that
    ///   are taken away.
    /// - *Frames*: they are the caller's to lend with the rights that are given.
    /// - *Flush*: the rights that were taken away count as taken away only when the flush that is
    ///   returned is done.
    pub unsafe fn protect(
        &self,
        range: VirtRange,
        rights: Flags,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let mut owed = PendingFlush::nothing(self);
        let checked = self.check(range).and_then(|()| {
            self.check_kind(range, rights & Flags::RIGHTS)?;
            // Whether rights can be said depends on nothing else: so it is known before any is
            // changed.
            F::page(PageSize::Size4K, Frame::default(), Attrs::new(rights & Flags::RIGHTS))?;
            let guard = G::pin();
            self.check_ends(&self.walk(&guard), range)
        });
        let result = checked.and_then(|()| {
            self.each_page(range, &mut owed, |owed, _, slot| Self::give(range, rights, owed, slot))
        });
        match result {
            Ok(()) => Ok(owed),
            Err(error) => Err(Failed { error, owed }),
        }
    }

    fn give(
        range: VirtRange,
        rights: Flags,
        owed: &mut PendingFlush<'_, M, F, G>,
        slot: Slot<'_, M>,
    ) -> core::result::Result<(), Error> {
        let Slot { at, level, entry, mut value } = slot;
        let Some(size) = size_at(level) else { return Err(Error::Malformed(at)) };
        let page = at.align_down(size);
        if !covers(range, page, size) {
            return Err(Error::Cut(page, size));
        }
        loop {
            let Decoded::Page(frame, attrs) = F::decode(value, level) else {
                return Err(Error::Malformed(at));
            };
            let new = F::page(size, frame, attrs.with_rights(rights))?;
            // Hardware may mark the page at any moment: nothing that it has marked is lost.
            match entry.compare_exchange(value, new) {
                Ok(()) => {
                    let lost = attrs.flags & Flags::RIGHTS & !rights;
                    if !lost.is_empty()
                        && let Some(range) = VirtRange::new(page, size.bytes())
                    {
                        owed.gather.add(range, size);
                    }
                    return Ok(());
                }
                Err(now) => value = now,
            }
        }
    }
}
