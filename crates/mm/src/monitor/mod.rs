//! The calls of a userfaultfd's monitor: they bring pages in, and protect them. `userfault_move`
//! moves them.
//!
//! # Correctness
//! The calls hold the mmap lock, so the VMA stays registered meanwhile. Faults run concurrently:
//! the lock of the page's table decides which came first. A page that is present already is not
//! replaced (EEXIST), so the contents that a program has seen stay.

pub(crate) mod events;
mod fill;
pub(crate) mod handler;
pub(crate) mod move_ioctl;
pub(crate) mod page_marks;
pub(crate) mod pagemap_scan;
pub(crate) mod userfault;
pub(crate) mod wp_unpopulated;

use core::{fmt, ops::Range};

use grace::Concurrent;
use machine::Machine;
use paging::{Attrs, Format, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Error, FaultError, UserFaultError,
    entry_marks::{POISON, guard_attrs},
    fault::frame_contents::copy_bytes,
    fault::rights,
    fault::zero_page::zero,
    monitor::fill::{FillsOver, check_end, check_private},
};

/// A call of the monitor that stopped early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The bytes that were resolved before.
    pub done: usize,
    /// Why it stopped.
    pub error: Error,
}

impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} bytes: {}", self.done, self.error)
    }
}

impl core::error::Error for Resolved {}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// UFFDIO_COPY: pages with these bytes at `to`, for `from.len()` bytes. With `protect` they are
    /// write-protected.
    ///
    /// # Errors
    /// [`Resolved`]: [`Error::UserFault`], [`vma::Error::Unaligned`], [`vma::Error::WrongKind`] for
    /// `protect` in a VMA that is not registered for WP, or no memory. Nothing is done if not one
    /// registered VMA has the whole range.
    pub fn userfault_copy(&self, to: usize, from: &[u8], protect: bool) -> Result<(), Resolved> {
        self.each_page_of(to, from.len(), protect, |at, offset| {
            self.fill_page(at, protect, |machine, frame| {
                copy_bytes(machine, &from[offset..offset + PAGE_SIZE], frame)
            })
        })
    }

    /// UFFDIO_ZEROPAGE: pages of zeros at `to`; in private memory, the zero page.
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy).
    pub fn userfault_zeropage(&self, to: usize, len: usize) -> Result<(), Resolved> {
        self.each_page_of(to, len, false, |at, _| {
            if !self.is_private(at) {
                return self.fill_page(at, false, |machine, frame| zero(machine, frame));
            }
            self.check_size(at)?;
            let zero = &self.core.zero_frame;
            zero.make().map_err(FaultError::OutOfMemory)?;
            let zeros = |vma: &Vma<_>| {
                check_private(vma, at)?;
                let frame = zero.get().ok_or(vma::Error::OutOfMemory)?;
                Ok((frame, rights::attrs(vma.flags, Share::CopyOnWrite)))
            };
            self.place(at, FillsOver::Nothing, zeros)
        })
    }

    /// UFFDIO_CONTINUE: maps pages that the object has in memory. With `protect` they are
    /// write-protected.
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy); [`UserFaultError::Absent`];
    /// [`vma::Error::BadRange`] beyond the end of the object; [`vma::Error::WrongKind`] for memory
    /// without an object.
    pub fn userfault_continue(&self, to: usize, len: usize, protect: bool) -> Result<(), Resolved> {
        self.each_page_of(to, len, protect, |at, _| self.map_object_page(at, protect))
    }

    /// UFFDIO_POISON: the pages of a range are lost. An access there fails with
    /// [`FaultError::Poisoned`].
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy); [`Error::NotSupported`]: the page tables have
    /// too few software bits.
    pub fn userfault_poison(&self, addr: usize, len: usize) -> Result<(), Resolved> {
        self.each_page_of(addr, len, false, |at, _| {
            Self::check_marks()?;
            self.check_size(at)?;
            self.core.guard_frame.make().map_err(FaultError::OutOfMemory)?;
            let attrs = guard_attrs();
            let poison = Attrs { soft: attrs.soft | POISON, ..attrs };
            let guard = self.core.guard_frame.get().ok_or(vma::Error::OutOfMemory)?;
            let lost = |vma: &Vma<_>| check_end(vma, at).map(|()| (guard, poison));
            self.place(at, FillsOver::Nothing, lost)
        })
    }

    /// UFFDIO_WRITEPROTECT: write-protects the pages of a range, or ends that. Absent pages of
    /// anonymous memory are left out, unless the userfaultfd marks them
    /// ([`marks_absent_pages`](crate::UserFaultHandler::marks_absent_pages)). For pages that it
    /// marks, and for objects, it allocates the page tables of the range.
    ///
    /// # Errors
    /// [`UserFaultError::NotRegistered`]: nothing is mapped in the range, or a VMA is not
    /// registered for WP; the VMAs before it have changed. Holes are left out.
    /// [`vma::Error::Unaligned`]; no memory.
    pub fn userfault_write_protect(
        &self,
        addr: usize,
        len: usize,
        protect: bool,
    ) -> Result<(), Error> {
        let range = aligned(addr, len)?;
        self.with_what_waits(|| self.try_write_protect(range.clone(), protect))
    }

    fn try_write_protect(&self, range: Range<usize>, protect: bool) -> Result<(), Error> {
        let (mut registered, mut unchanging) = (None, Ok(()));
        self.change_with_host(range, |host, part, vma| {
            unchanging = unchanging.and_then(|()| self.core.check_unchanging(vma.uffd()));
            if unchanging.is_err() {
                return;
            }
            let all = registered.unwrap_or(true) && vma.flags.contains(VmFlags::UFFD_WP);
            registered = Some(all);
            if all {
                // The marks of absent pages come first: a page that comes in before them is found
                // by the sweep, and one that comes later takes its mark over.
                if protect && self.marks_absent(vma) {
                    host.mark_absent(part.clone(), vma);
                }
                host.write_protect(part, vma, protect);
            }
        })?;
        unchanging?;
        match registered {
            Some(true) => Ok(()),
            _ => Err(UserFaultError::NotRegistered.into()),
        }
    }

    /// Gives the private VMA at an address an anon_vma. As in Linux, a call does so before it looks
    /// whether the VMA is registered.
    pub(crate) fn prepare_private(&self, at: usize) -> Result<(), Error> {
        self.change(|calls| match calls.area_at(at).is_some_and(|area| area.vma.is_private()) {
            true => calls.first_write(at),
            false => Ok(()),
        })
    }

    fn each_page_of(
        &self,
        to: usize,
        len: usize,
        protect: bool,
        mut each: impl FnMut(usize, usize) -> Result<(), Error>,
    ) -> Result<(), Resolved> {
        let none = |error| Resolved { done: 0, error };
        let range = aligned(to, len).map_err(none)?;
        self.prepare_private(to).map_err(none)?;
        // As in Linux, one VMA has all of it, or nothing is done.
        let found = self.vma_at(to, |found, vma| (range.end <= found.end, vma.flags));
        let flags = found.filter(|(whole, _)| *whole).map_or(VmFlags::empty(), |(_, flags)| flags);
        if !flags.intersects(VmFlags::UFFD) {
            return Err(none(UserFaultError::NotRegistered.into()));
        }
        if protect && !flags.contains(VmFlags::UFFD_WP) {
            return Err(none(vma::Error::WrongKind.into()));
        }
        range.clone().step_by(PAGE_SIZE).try_for_each(|at| {
            let done = at - range.start;
            let placed = self.with_what_waits(|| each(at, done));
            placed.map_err(|error| Resolved { done, error })
        })
    }
}

/// Checks a range of a monitor's call.
pub(crate) fn aligned(addr: usize, len: usize) -> Result<Range<usize>, Error> {
    if !addr.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) || len == 0 {
        return Err(vma::Error::Unaligned.into());
    }
    let end = addr.checked_add(len).ok_or(vma::Error::BadRange)?;
    Ok(addr..end)
}
