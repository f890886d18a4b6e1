//! Changing the rights of pages.

use super::{Error, Failed, Result, Slot, Users, covers};
use crate::format::{Attrs, Decoded, Flags, Format};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Frame, Machine, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Sets the rights ([`Flags::RIGHTS`]) of all pages of a range; their other attributes stay.
    /// Holes are skipped. Without READ, WRITE and EXECUTE the pages become `PROT_NONE`: no access
    /// translates, but they keep their frames.
    ///
    /// A flush is pending for pages that have lost a right. A page that has gained some may still
    /// fault once, spuriously.
    ///
    /// # Errors
    /// As for [`unmap`](PageTables::unmap); [`Error::Format`] if no page can have these rights;
    /// [`Error::NotUser`].
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change, and nothing relies on the removed
    ///   rights.
    /// - *Frames*: they are the caller's to lend with the new rights.
    /// - *Flush*: the removed rights are in effect until the returned flush is done.
    pub unsafe fn protect(
        &self,
        range: VirtRange,
        rights: Flags,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let mut pending = PendingFlush::nothing(self);
        let checked = self.unshare(range).and_then(|()| {
            self.check_kind(range.start(), rights & Flags::RIGHTS)?;
            // Fails before any change if the format cannot express these rights: it would fail in
            // the same way for every page.
            F::page(F::PAGE, Frame::default(), Attrs::new(rights & Flags::RIGHTS))?;
            let guard = G::pin();
            self.check_ends(&self.walk(&guard), range)
        });
        let result = checked.and_then(|()| {
            self.each_page(range, &mut pending, |pending, _, slot| {
                self.give(range, rights, pending, slot)
            })
        });
        match result {
            Ok(()) => Ok(pending),
            Err(error) => Err(Failed { error, pending }),
        }
    }

    fn give(
        &self,
        range: VirtRange,
        rights: Flags,
        pending: &mut PendingFlush<'_, M, F, G>,
        slot: Slot<'_, M>,
    ) -> core::result::Result<(), Error> {
        let Slot { at, level, entry, mut value, grouped } = slot;
        let Some(size) = F::size_at(level) else { return Err(Error::Malformed(at)) };
        let page = at.align_down(size);
        if !covers(range, page, size) {
            return Err(Error::Cut(page, size));
        }
        if grouped {
            self.part_group(page, &entry, Users::Own);
        }
        loop {
            let Decoded::Page(frame, attrs) = F::decode(value, level) else {
                return Err(Error::Malformed(at));
            };
            let new = F::page(size, frame, attrs.with_rights(rights))?;
            // Hardware may set the accessed and dirty bits at any moment; none is lost.
            match entry.compare_exchange(value, new) {
                Ok(()) => {
                    let lost = attrs.flags & Flags::RIGHTS & !rights;
                    if !lost.is_empty()
                        && let Some(range) = VirtRange::new(page, size.bytes())
                    {
                        pending.gather.add(range, size);
                    }
                    return Ok(());
                }
                Err(now) => value = now,
            }
        }
    }
}
