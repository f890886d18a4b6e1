//! Changing the rights of pages.

use super::{Locking, Result};
use crate::format::{Attrs, Flags, Format};
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
    /// As for [`unmap`](PageTables::unmap); [`Format`](super::Error::Format) if no page can have
    /// these rights; [`NotUser`](super::Error::NotUser); [`Supervisor`](super::Error::Supervisor).
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
        let _published = self.publish(range);
        let protected = self.with_flush(|pending| {
            self.unshare(range)?;
            self.check_kind(range.start(), rights & Flags::RIGHTS)?;
            self.check_no_supervisor(range)?;
            // Fails before any change if the format cannot express these rights: it would fail in
            // the same way for every page.
            F::page(F::PAGE, Frame::default(), Attrs::new(rights & Flags::RIGHTS))?;
            self.check_ends(&self.walk(&G::pin()), range)?;
            let mut cursor = self.cursor(range, Locking::WherePages, pending);
            while let Some(mut table) = cursor.next_table()? {
                while let Some((found, mut page)) = table.next_page()? {
                    page.set_checked(found.attrs.with_rights(rights))?;
                }
            }
            Ok(())
        });
        protected.map(|((), pending)| pending)
    }
}
