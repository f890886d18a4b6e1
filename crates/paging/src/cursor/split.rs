//! Splitting a large page into 512 smaller ones.

use super::{Error, Failed, Result, Spare};
use crate::format::{Attrs, Decoded, Format, level_of, size_at};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use core::mem;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{ENTRIES, Frame, Machine, PageSize, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Splits the page that contains `at`, repeatedly, until it is no larger than `size`. The
    /// translation does not change, but the pieces can be unmapped and protected separately. Does
    /// nothing where nothing is mapped or pages are small enough.
    ///
    /// The old, large translation stays right until a piece is changed. A flush is pending
    /// nevertheless, since some CPUs do not tolerate translations of two sizes for one address.
    /// Deferred frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// [`Error::NotCanonical`], [`Error::Kernel`], [`Error::Malformed`]; [`Error::Frames`]: no
    /// memory for the tables. Nothing has changed then: all tables are allocated before the first
    /// is linked.
    ///
    /// # Safety
    /// - *Addresses*: the page is the caller's to change, and nothing relies on its being one page.
    /// - *Flush*: on CPUs that do not tolerate translations of two sizes for one address, the page
    ///   is not used before the returned flush is done. Its pieces can be changed at once: their
    ///   flush drops the large translation, too.
    pub unsafe fn split(
        &self,
        at: VirtAddr,
        size: PageSize,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let mut pending = PendingFlush::nothing(self);
        match self.split_to(at, level_of(size), &mut pending) {
            Ok(()) => Ok(pending),
            Err(error) => Err(Failed { error, pending }),
        }
    }

    fn split_to(
        &self,
        at: VirtAddr,
        wanted: u8,
        pending: &mut PendingFlush<'_, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let page = at.align_down(PageSize::Size4K);
        let range = VirtRange::new(page, PageSize::Size4K.bytes()).ok_or(Error::Empty)?;
        self.unshare(range)?;
        let (mut spare, mut needed) = (Spare::none(self), 0);
        loop {
            spare.fill(mem::take(&mut needed))?;
            let guard = G::pin();
            let spot = self.walk(&guard).find(at, wanted).ok_or(Error::Malformed(at))?;
            let (Decoded::Page(..), Some(size)) = (spot.found, size_at(spot.level)) else {
                return match spot.found {
                    Decoded::Malformed => Err(Error::Malformed(at)),
                    _ => Ok(()),
                };
            };
            if spot.level <= wanted {
                return Ok(());
            }
            let steps = usize::from(spot.level - wanted);
            if spare.len() < steps {
                needed = steps;
                continue;
            }
            let Some(new) = spare.take(spot.level - 1) else { return Err(Error::Malformed(at)) };
            let done = match lock(self.machine(), spot.entry.table(), at) {
                Ok(Some(_locked)) => self.split_entry(&spot.entry, spot.level, new),
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            match done {
                Ok(true) => {
                    if let Some(range) = VirtRange::new(at.align_down(size), size.bytes()) {
                        pending.gather.add(range, size);
                    }
                }
                // Another CPU changed the entry first: walk again.
                Ok(false) => spare.put(new),
                Err(error) => {
                    spare.put(new);
                    return Err(error);
                }
            }
        }
    }

    /// Called with the lock of the entry's table. If it returns `false` or an error, the new table
    /// is empty again.
    fn split_entry(
        &self,
        entry: &machine::Entry<'_, M>,
        level: u8,
        new: Frame,
    ) -> core::result::Result<bool, Error> {
        let link = F::table(new)?;
        let info = self.machine().info(new);
        let mut value = entry.load();
        while let Decoded::Page(frame, attrs) = F::decode(value, level) {
            if let Err(error) = self.fill_table(new, level - 1, frame, attrs) {
                self.empty_table(new);
                return Err(error);
            }
            // SAFETY: the count of a table that is ours alone. Relaxed: the exchange below links
            // it, with Release.
            info.inspect(|info| unsafe { info.word() }.store(ENTRIES as u32, Ordering::Relaxed));
            match entry.compare_exchange(value, link) {
                Ok(()) => return Ok(true),
                // Hardware has set accessed or dirty bits: copy them to the pieces.
                Err(now) => value = now,
            }
        }
        // The table is still empty: with the lock held, only hardware changes the entry of a page,
        // and it stays one.
        Ok(false)
    }

    fn fill_table(
        &self,
        table: Frame,
        level: u8,
        first: Frame,
        attrs: Attrs,
    ) -> core::result::Result<(), Error> {
        let Some(size) = size_at(level) else { return Ok(()) };
        for index in 0..ENTRIES {
            let frame = first.checked_add(index as u64 * size.frames()).unwrap_or(first);
            let value = F::page(size, frame, attrs)?;
            // SAFETY: a table that is not linked yet.
            if let Some(entry) = unsafe { self.machine().entry(table, index) } {
                entry.store(value);
            }
        }
        Ok(())
    }

    fn empty_table(&self, table: Frame) {
        for index in 0..ENTRIES {
            // SAFETY: a table that is not linked.
            if let Some(entry) = unsafe { self.machine().entry(table, index) } {
                entry.store(0);
            }
        }
    }
}
