//! mlock, mlock2, mlockall, and their opposites, and the loop that brings the pages of a range in.

use core::ops::Range;

use grace::Concurrent;
use machine::{Machine, SharedAccess};
use paging::Format;
use vma::{LockAll, PAGE_SIZE, VmFlags};

use crate::{Access, AddressSpace, Error};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// mlock(2), and mlock2(2) with `on_fault` (MLOCK_ONFAULT): locks the pages that
    /// `addr..addr + len` touches, and brings them in, at once or when each is first touched.
    /// MADV_DONTNEED is refused for locked memory, and reclaim leaves it alone.
    ///
    /// # Errors
    /// As [`vma::Writer::mlock`], which says what is locked then. [`Error::NotBroughtIn`]: there is
    /// no memory for a page; the range is locked.
    pub fn mlock(&self, addr: usize, len: usize, on_fault: bool) -> Result<(), Error> {
        let outcome = self.change(|calls| calls.mlock(addr, len, on_fault));
        let Some(range) = touched_by(addr, len) else { return outcome };
        let brings_in = match outcome {
            Ok(()) => true,
            // A VMA without rights ends the call after the pages before it are brought in. A hole
            // ends it before any is.
            Err(Error::Vma(vma::Error::Unmapped)) => self.is_mapped(range.clone()),
            Err(_) => false,
        };
        if brings_in {
            self.populate(range.start, range.len())?;
        }
        outcome
    }

    /// Brings in the pages that `addr..addr + len` touches, as mlock(2) does after it has changed
    /// the VMAs, and mmap(2) with MAP_POPULATE: for writing where memory is private and writable.
    /// No VMA changes. So a host brings many pages in part by part.
    ///
    /// # Errors
    /// [`Error::NotBroughtIn`]: there is no memory for a page. [`vma::Error::Unmapped`]: a page
    /// allows no access. The pages before it are in.
    pub fn populate(&self, addr: usize, len: usize) -> Result<(), Error> {
        let Some(range) = touched_by(addr, len) else { return Ok(()) };
        self.bring_in(range).map_err(|error| match error {
            Error::Fault(error) => Error::NotBroughtIn(error),
            // Another call has changed the memory meanwhile.
            _ => Error::Vma(vma::Error::Unmapped),
        })
    }

    /// munlock(2).
    ///
    /// # Errors
    /// As [`vma::Writer::munlock`].
    pub fn munlock(&self, addr: usize, len: usize) -> Result<(), Error> {
        self.change(|calls| calls.munlock(addr, len))
    }

    /// mlockall(2). With `current`, brings in all pages, as far as there is memory.
    ///
    /// # Errors
    /// As [`vma::Writer::mlockall`].
    pub fn mlockall(&self, what: LockAll) -> Result<(), Error> {
        let outcome = self.change(|calls| calls.mlockall(what));
        let mut at = 0;
        while what.current
            && outcome.is_ok()
            && let Some((range, flags)) = self.next_vma(at)
        {
            at = range.end;
            // As in Linux: also memory that another call has unlocked since, but not that of a
            // device. A page that cannot be brought in is not the call's failure.
            if !flags.intersects(VmFlags::IO | VmFlags::PFNMAP) {
                let _later = self.bring_in(range);
            }
        }
        outcome
    }

    /// munlockall(2).
    ///
    /// # Errors
    /// As [`vma::Writer::munlockall`].
    pub fn munlockall(&self) -> Result<(), Error> {
        self.change(|calls| calls.munlockall())
    }

    /// Whether the range has no hole.
    fn is_mapped(&self, range: Range<usize>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.vma_at(at, |found, _| found.end) {
                Some(end) => at = end,
                None => return false,
            }
        }
        true
    }

    /// The first VMA that ends above `at`.
    pub(crate) fn next_vma(&self, at: usize) -> Option<(Range<usize>, VmFlags)> {
        // Another call may come between the looks of this one.
        self.core.tables.machine().step(SharedAccess::Other);
        let guard = G::pin();
        let (range, vma) = self.core.vmas.find(&guard, at)?;
        Some((range, vma.flags))
    }

    /// Brings in the locked pages of a range that a call has mapped, as far as there is memory. As
    /// in Linux, a page that cannot be brought in is not the call's failure. Each VMA is asked:
    /// another call may have unlocked, or replaced, a part of the range meanwhile.
    pub(super) fn bring_in_locked(&self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end
            && let Some((vma, flags)) = self.next_vma(at)
            && vma.start < range.end
        {
            if flags.contains(VmFlags::LOCKED) {
                let _later = self.bring_in(vma.start.max(at)..vma.end.min(range.end));
            }
            at = vma.end;
        }
    }

    /// Brings in the pages of a range, for writing where that is allowed, up to the first page that
    /// allows no access, which is an error. Leaves out memory that is locked when it is touched.
    pub(crate) fn bring_in(&self, range: Range<usize>) -> Result<(), Error> {
        let mut at = range.start;
        while at < range.end
            && let Some((vma, flags)) = self.next_vma(at)
            && vma.start < range.end
        {
            let end = vma.end.min(range.end);
            at = at.max(vma.start);
            let access = match flags {
                _ if flags.contains(VmFlags::LOCKONFAULT) => None,
                // A page of a shared map is not copied, so a read brings it in as well.
                _ if flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE => {
                    Some(Access::Write)
                }
                _ if flags.intersects(VmFlags::ACCESS) => Some(Access::Read),
                _ => return Err(vma::Error::Unmapped.into()),
            };
            match access.map_or(Ok(()), |access| self.touch_all(at..end, access)) {
                // Another call has changed the memory since: it is looked at again. As in Linux, a
                // VMA that is gone is no failure.
                Err(_) if self.next_vma(at) != Some((vma.clone(), flags)) => continue,
                touched => touched?,
            }
            at = end;
        }
        Ok(())
    }
}

/// The pages that a range touches; `None` if it wraps or is empty.
fn touched_by(addr: usize, len: usize) -> Option<Range<usize>> {
    let start = addr & !(PAGE_SIZE - 1);
    let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE_SIZE)?;
    (start < end).then_some(start..end)
}
