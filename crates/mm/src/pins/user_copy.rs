//! Copies from and to a program's memory.

use core::{
    fmt,
    sync::atomic::{AtomicU8, Ordering},
};

use grace::Concurrent;
use machine::{Frame, Machine, Translated, VirtAddr};
use paging::Format;
use vma::{PAGE_SIZE, VmFlags};

use crate::{Access, AddressSpace, FaultError, addresses::lower_half, thresholds::COPIED_PAGES};

/// A copy that stopped early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyError {
    /// The bytes that were copied before.
    pub copied: usize,
    /// The fault at the next byte.
    pub error: FaultError,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} bytes: {}", self.copied, self.error)
    }
}

impl core::error::Error for CopyError {}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Copies a program's bytes at `at` into `into`, also of a space that is active on no CPU
    /// (process_vm_readv). Brings pages in. Memory without PROT_READ is not read, also where the
    /// processor cannot forbid it. Bytes that the program writes meanwhile are the old or
    /// the new ones.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// [`CopyError`]: the bytes before the fault have been copied.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), CopyError> {
        let len = into.len();
        self.copy(at, len, Access::Read, |offset, bytes| {
            for (byte, into) in bytes.iter().zip(&mut into[offset..]) {
                // Relaxed: the program's own memory orders nothing here.
                *into = byte.load(Ordering::Relaxed);
            }
        })
    }

    /// Copies `from` to a program's memory at `at` (process_vm_writev); see [`read`](Self::read).
    /// No stack grows for it.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), CopyError> {
        self.copy(at, from.len(), Access::Write, |offset, bytes| {
            for (byte, from) in bytes.iter().zip(&from[offset..]) {
                // Relaxed: as in `read`.
                byte.store(*from, Ordering::Relaxed);
            }
        })
    }

    /// How many of these pages such a copy may access. As in Linux, it reads only pages with
    /// PROT_READ, also where a processor cannot forbid reading, and no stack grows for it.
    fn allowed(&self, first: usize, pages: usize, access: Access) -> Result<usize, FaultError> {
        let refused = |page: usize| {
            let at = first.wrapping_add(page * PAGE_SIZE);
            match self.flags_at(at) {
                None => Some(FaultError::Unmapped(VirtAddr::new(at as u64))),
                Some(flags) if access == Access::Read && !flags.contains(VmFlags::READ) => {
                    Some(FaultError::Denied(VirtAddr::new(at as u64), access))
                }
                Some(_) => None,
            }
        };
        match (0..pages).find_map(|page| Some((page, refused(page)?))) {
            Some((0, error)) => Err(error),
            Some((page, _)) => Ok(page),
            None => Ok(pages),
        }
    }

    /// Calls `each` with parts of the memory, in order, and their offsets. The pages are pinned.
    fn copy(
        &self,
        at: usize,
        len: usize,
        access: Access,
        mut each: impl FnMut(usize, &[AtomicU8]),
    ) -> Result<(), CopyError> {
        let machine = self.core.tables.machine();
        let mut copied = 0;
        while copied < len {
            let fail = |error| CopyError { copied, error };
            let here = at.wrapping_add(copied);
            if here < at {
                return Err(fail(FaultError::Unmapped(VirtAddr::new(here as u64))));
            }
            let within = here % PAGE_SIZE;
            let pages = (within + (len - copied)).div_ceil(PAGE_SIZE).min(COPIED_PAGES);
            let pages = self.allowed(here - within, pages, access).map_err(fail)?;
            let mut frames = [Frame::default(); COPIED_PAGES];
            let pins = self.pin_pages(here, access, &mut frames[..pages]).map_err(fail)?;
            let mut start = within;
            for &frame in pins.frames() {
                let part = (PAGE_SIZE - start).min(len - copied);
                let Some(page) = machine.frame_ptr(frame) else {
                    return Err(CopyError {
                        copied,
                        error: FaultError::Unmapped(VirtAddr::new(here as u64)),
                    });
                };
                // SAFETY: the pin keeps the frame; the part lies in it. Programs, and other users
                // of the frame, write to it by translations or by atomic bytes.
                let bytes = unsafe {
                    core::slice::from_raw_parts(page.cast::<AtomicU8>().add(start).as_ptr(), part)
                };
                each(copied, bytes);
                copied += part;
                start = 0;
            }
        }
        Ok(())
    }

    /// Copies a program's bytes at `at` into `into` through this CPU's translations. Faults are
    /// handled.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// [`CopyError`]: the bytes before the fault have been copied. An address outside of the
    /// program's half is [`FaultError::Unmapped`], and is not accessed.
    ///
    /// # Safety
    /// This space is active on this CPU, and stays so.
    pub unsafe fn copy_from_user(&self, at: usize, into: &mut [u8]) -> Result<(), CopyError>
    where
        M: Translated,
    {
        let len = into.len();
        self.with_faults(at, len, Access::Read, |machine, from, copied| {
            // SAFETY: memory of the program, by the caller's promise and the check of its half. No
            // Rust code holds a reference to it.
            unsafe { machine.read(from, &mut into[copied..]) }
        })
    }

    /// Copies `from` to a program's memory at `at` through this CPU's translations. Faults are
    /// handled; see [`copy_from_user`](Self::copy_from_user).
    ///
    /// # Errors
    /// As for [`copy_from_user`](Self::copy_from_user).
    ///
    /// # Safety
    /// As for [`copy_from_user`](Self::copy_from_user).
    pub unsafe fn copy_to_user(&self, at: usize, from: &[u8]) -> Result<(), CopyError>
    where
        M: Translated,
    {
        self.with_faults(at, from.len(), Access::Write, |machine, to, copied| {
            // SAFETY: as in `copy_from_user`.
            unsafe { machine.write(to, &from[copied..]) }
        })
    }

    /// Repeats an access to `len` bytes at `at`, from where it has failed on, after each fault.
    fn with_faults(
        &self,
        at: usize,
        len: usize,
        access: Access,
        mut go: impl FnMut(&M, VirtAddr, usize) -> Result<(), machine::Fault>,
    ) -> Result<(), CopyError> {
        let mut copied = 0;
        if at.checked_add(len).is_none_or(|end| end > lower_half::<F>()) {
            let error = FaultError::Unmapped(VirtAddr::new(at as u64));
            return Err(CopyError { copied, error });
        }
        while copied < len {
            let from = VirtAddr::new((at + copied) as u64);
            let Err(fault) = go(self.core.tables.machine(), from, copied) else { return Ok(()) };
            copied = (fault.address.get() as usize).saturating_sub(at).min(len);
            self.handle_fault(fault.address, access)
                .map_err(|error| CopyError { copied, error })?;
        }
        Ok(())
    }
}
