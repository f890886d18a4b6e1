//! The maps, and the pages that are present.

use core::{fmt, ops::Range};

use grace::Concurrent;
use machine::{Machine, SharedAccess, VirtAddr, VirtRange};
use paging::{Format, Mapping};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{AddressSpace, Backing, Error, addresses::virt};

/// How much of a page lies in the range.
pub(crate) fn bytes_in(range: VirtRange, page: &paging::Mapping) -> usize {
    let (start, end) = (page.page.get(), page.page.get() + page.size.bytes());
    let (first, after) = (range.start().get(), range.start().get() + range.len());
    end.min(after).saturating_sub(start.max(first)) as usize
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// mincore(2): one byte for each page from `addr` on; bit 0 says that it is present,
    /// in the page tables or in the object.
    ///
    /// # Errors
    /// [`vma::Error::Unaligned`], [`vma::Error::Unmapped`] if part of the range is not mapped.
    pub fn mincore(&self, addr: usize, into: &mut [u8]) -> Result<(), Error> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(vma::Error::Unaligned.into());
        }
        let mut mapped = addr;
        let end = into.len().checked_mul(PAGE_SIZE).and_then(|len| addr.checked_add(len));
        let end = end.ok_or(Error::Vma(vma::Error::Unmapped))?;
        while mapped < end {
            let found = self.vma_at(mapped, |range, _| range.end);
            mapped = found.ok_or(vma::Error::Unmapped)?;
        }
        for (byte, at) in into.iter_mut().zip((addr..).step_by(PAGE_SIZE)) {
            let page = self.core.tables.walk(&G::pin()).get(VirtAddr::new(at as u64));
            if page.is_some_and(|page| !self.core.is_special(page.frame)) {
                *byte = 1;
                continue;
            }
            *byte = self.when_still(at, |vma, page| {
                let vma = vma.ok_or(vma::Error::Unmapped)?;
                let index = vma.offset_at(at) as u64;
                let object = vma.file.as_ref().map(|file| file.object());
                let is_here = page.is_some_and(|page| !self.core.is_special(page.frame));
                Ok::<_, Error>(u8::from(is_here || object.is_some_and(|o| o.is_present(index))))
            })?;
        }
        Ok(())
    }

    /// Calls `look` with the VMA at an address, and with the page, as they were at one moment, and
    /// not half-way through a call. Takes the mmap lock if they are not found so: a hole may be a
    /// moment of a call, and a page that moves is nowhere for a moment.
    ///
    /// If no call has swept pages since the look at the VMA, it decides about the entry, as in
    /// `space/change_count`. `look` may ask the VMA's object, so the VMA must be there afterwards,
    /// too: a call on a VMA that was never touched does not count. `look` may be called twice.
    pub(crate) fn when_still<T>(
        &self,
        at: usize,
        mut look: impl FnMut(Option<&Vma<Backing<M>>>, Option<Mapping>) -> T,
    ) -> T {
        let guard = G::pin();
        let changes = || self.core.changes.now(self.core.tables.machine());
        let seen = changes();
        let vma = self.core.vmas.lookup(&guard, at).map(|(_, vma)| vma);
        if let Some(vma) = vma.filter(|vma| !vma.is_busy()) {
            let found = self.core.tables.walk(&guard).get(VirtAddr::new(at as u64));
            let looked = look(Some(vma), found);
            let is_empty = vma.file.is_none() && found.is_none();
            let same = is_empty || self.core.vmas.is_current(&guard, at, vma);
            if same && changes() == seen {
                return looked;
            }
        }
        drop(guard);
        self.when_locked(at, look)
    }

    /// Calls `look` with the VMA and the page at an address, with the mmap lock.
    pub(crate) fn when_locked<T>(
        &self,
        at: usize,
        look: impl FnOnce(Option<&Vma<Backing<M>>>, Option<Mapping>) -> T,
    ) -> T {
        let _lock = self.core.writer();
        let guard = G::pin();
        let vma = self.core.vmas.lookup(&guard, at).map(|(_, vma)| vma);
        look(vma, self.core.tables.walk(&guard).get(VirtAddr::new(at as u64)))
    }

    /// Calls `look` with the range and the VMA at an address. A hole may be a moment of a call, so
    /// the mmap lock decides about it.
    pub(crate) fn vma_at<T>(
        &self,
        at: usize,
        look: impl Fn(&Range<usize>, &Vma<Backing<M>>) -> T,
    ) -> Option<T> {
        // Another call may come between the looks of this one.
        self.core.tables.machine().step(SharedAccess::Other);
        let find = || self.core.vmas.lookup(&G::pin(), at).map(|(range, vma)| look(&range, vma));
        find().or_else(|| {
            let _lock = self.core.writer();
            find()
        })
    }

    /// The number of present pages of a range. Exact while nothing changes. O(pages).
    pub fn resident(&self, range: Range<usize>) -> usize {
        let guard = G::pin();
        let Some(range) = virt(range) else { return 0 };
        let pages = self.core.tables.walk(&guard).pages(range);
        pages
            .filter(|page| !self.core.is_special(page.frame))
            .map(|page| bytes_in(range, &page) / PAGE_SIZE)
            .sum()
    }

    /// Calls `each` with the range and the flags of each VMA, in order.
    pub fn for_each_vma(&self, mut each: impl FnMut(Range<usize>, VmFlags)) {
        let guard = G::pin();
        self.core.vmas.iter(&guard, 0).for_each(|(range, vma)| each(range, vma.flags));
    }

    /// Where the shared memory at `at` lies: the address of its object, which is this object's as
    /// long as something maps it, and the byte within it. Two addresses that lead to the same
    /// memory have the same place, in all spaces: it is what names a shared futex. `None` for
    /// private memory, where nothing is mapped, and beyond the last byte that an object can have.
    /// Takes no lock where something is mapped.
    pub fn shared_place(&self, at: usize) -> Option<(usize, u64)> {
        self.vma_at(at, |_, vma| {
            let file = vma.file.as_ref().filter(|_| !vma.is_private())?;
            let page = vma.offset_at(at) as u64;
            let byte = page.checked_mul(PAGE_SIZE as u64)? + (at % PAGE_SIZE) as u64;
            Some((core::ptr::from_ref(&**file.object()).addr(), byte))
        })?
    }

    /// Writes the listing of `/proc/PID/maps`. Waits for the mmap lock.
    ///
    /// # Errors
    /// Those of `out`.
    ///
    /// # Misuse
    /// `out` must not call the space: it would wait without end.
    pub fn write_maps(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.write_maps_from(0, usize::MAX, out).map(|_| ())
    }

    /// As [`write_maps`](Self::write_maps), in parts, as
    /// [`write_smaps_from`](Self::write_smaps_from).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_maps_from(
        &self,
        from: usize,
        most: usize,
        out: &mut dyn fmt::Write,
    ) -> Result<Option<usize>, fmt::Error> {
        let (mut written, mut left) = (Ok(None), most);
        let outcome = self.change(|calls| {
            written = calls.write_maps_from(from, out, &mut |_, _, _| {
                left = left.saturating_sub(1);
                Ok(left > 0)
            });
            Ok::<_, vma::Error>(())
        });
        debug_assert!(outcome.is_ok(), "a listing changes nothing");
        written
    }
}
