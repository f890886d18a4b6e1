//! A debugger's copies from and to a program's memory: they ignore the rights of VMAs
//! (PTRACE_PEEKDATA and PTRACE_POKEDATA, and FOLL_FORCE behind them).
//!
//! A debugger reads what may ever be readable, and writes to private memory that may ever be
//! writable: then the page becomes a copy of the program's own, as by a write of the program, and
//! stays without the right to write.
//!
//! # Correctness
//! The page is brought in by a fault, and then copied from or to with the mmap lock held. So no
//! fork shares the page, and no call takes it away, between the look at its entry and the copy.

use core::sync::atomic::{AtomicU8, Ordering};

use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::{EntryChange, Format, Mapping};
use vma::PAGE_SIZE;

use crate::{
    Access, AddressSpace, CopyError, FaultError,
    fault::frame_ref::{Reference, hold, is_counted},
    fault::rights::WantedAccess,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Copies a program's bytes at `at` into `into`, whether or not the program may read them.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// [`CopyError`]: the bytes before the fault have been copied. [`FaultError::Denied`]: memory
    /// that can never be readable, or that of a device.
    pub fn peek(&self, at: usize, into: &mut [u8]) -> Result<(), CopyError> {
        let len = into.len();
        self.force(at, len, WantedAccess::forced(Access::Read), |offset, bytes| {
            for (byte, into) in bytes.iter().zip(&mut into[offset..]) {
                // Relaxed: the program's own memory orders nothing here.
                *into = byte.load(Ordering::Relaxed);
            }
        })
    }

    /// Copies `from` to a program's memory at `at`, whether or not the program may write there: a
    /// breakpoint in its text. Other maps of a file do not see it.
    ///
    /// ```
    /// # use machine::{Asid, PageSize};
    /// # use mm::*;
    /// # use paging::{Paging, X86_64L4};
    /// # use sim::{Config, Grace, Sim};
    /// # let sim = Sim::new(Config::default()).unwrap();
    /// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// # sim.on_cpu(0, || {
    /// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
    /// # let profile = Profile::LINUX_6_18;
    /// # let tag = Asid(1);
    /// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, tag, None, profile, layout)?;
    /// let text = space.mmap(0, 4096, 5, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    /// assert!(space.write(text, &[0xcc]).is_err());
    /// space.poke(text, &[0xcc]).unwrap();
    /// let mut found = [0];
    /// space.read(text, &mut found).unwrap();
    /// assert_eq!(found, [0xcc]);
    /// # Ok::<(), Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// As for [`peek`](Self::peek). [`FaultError::Denied`]: also a shared map that is not writable.
    pub fn poke(&self, at: usize, from: &[u8]) -> Result<(), CopyError> {
        self.force(at, from.len(), WantedAccess::forced(Access::Write), |offset, bytes| {
            for (byte, from) in bytes.iter().zip(&from[offset..]) {
                // Relaxed: as in `peek`.
                byte.store(*from, Ordering::Relaxed);
            }
        })
    }

    /// Calls `each` with parts of the memory, in order, and their offsets.
    fn force(
        &self,
        at: usize,
        len: usize,
        want: WantedAccess,
        mut each: impl FnMut(usize, &[AtomicU8]),
    ) -> Result<(), CopyError> {
        let mut copied = 0;
        while copied < len {
            let fail = |error| CopyError { copied, error };
            let here = at.wrapping_add(copied);
            let page = VirtAddr::new(here as u64);
            if here < at {
                return Err(fail(FaultError::Unmapped(page)));
            }
            let within = here % PAGE_SIZE;
            let part = (PAGE_SIZE - within).min(len - copied);
            let mut done = Ok(false);
            while !done.map_err(fail)? {
                self.fault(page, want).map_err(fail)?;
                let with_right = self.change(|_| {
                    let (offset, each) = (copied, &mut each);
                    done = self.with_page(here, part, want, |bytes| each(offset, bytes));
                    Ok::<_, vma::Error>(())
                });
                if let Err(crate::Error::Tables(error)) = with_right {
                    return Err(fail(FaultError::Tables(error)));
                }
            }
            copied += part;
        }
        Ok(())
    }

    /// Calls `each` with a part of a page that is present and fits; returns whether it was.
    fn with_page(
        &self,
        at: usize,
        len: usize,
        want: WantedAccess,
        each: impl FnOnce(&[AtomicU8]),
    ) -> Result<bool, FaultError> {
        let (machine, page) = (self.core.tables.machine(), VirtAddr::new(at as u64));
        let look = |now: Option<Mapping>| {
            let fits = now.filter(|now| want.is_met(now.attrs) && !self.core.is_special(now.frame));
            let held = fits
                .and_then(|now| now.frame_of(page))
                .filter(|frame| !is_counted(machine, *frame) || hold(machine, *frame));
            (EntryChange::Keep, held)
        };
        let guard = G::pin();
        // SAFETY: the entry stays as it is.
        let held = match unsafe { self.core.tables.with_entry(&guard, page, look) } {
            Err(failed) if matches!(failed.error, paging::Error::Occupied(_)) => {
                drop(failed);
                // SAFETY: as above.
                unsafe { self.core.tables.with_large(&guard, page, look) }
            }
            held => held,
        };
        let Some(frame) = held.ok().and_then(|(held, _)| held) else { return Ok(false) };
        // SAFETY: just taken. A frame that is not counted outlives the tables.
        let _held = is_counted(machine, frame).then(|| unsafe { Reference::new(machine, frame) });
        // An object of the host may have other memory.
        let bytes = machine.frame_ptr(frame).ok_or(FaultError::Denied(page, want.access))?;
        // SAFETY: the part lies in the frame, which is held. Programs, and other users of it, write
        // by translations or by atomic bytes.
        each(unsafe {
            core::slice::from_raw_parts(bytes.cast::<AtomicU8>().add(at % PAGE_SIZE).as_ptr(), len)
        });
        Ok(true)
    }
}
