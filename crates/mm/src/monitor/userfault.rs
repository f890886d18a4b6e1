//! userfaultfd: faults that a program's monitor resolves.
//!
//! A VMA is registered with a userfaultfd for some kinds of faults
//! ([`AddressSpace::userfault_register`]). Such a fault drops everything and calls the host
//! ([`UserFaultHandler`]), which tells the monitor, and lets the program wait. The monitor brings
//! the page in by one of the calls below. Then the host returns from the upcall, and the fault
//! begins again.
//!
//! A monitor also hears of changes of its memory: `userfault_events`.
//!
//! # Correctness
//! The fault asks before it takes the table's lock, and a page that was write-protected since is
//! seen under it (`copy_on_write`). A registration counts as a change of the VMAs, and then takes
//! the lock of each table of the range once: so a fault that has looked before it looks again, or
//! has ended. The calls of the monitor are in `monitor`.

use alloc::sync::Arc;
use core::{ops::Range, sync::atomic::Ordering};

use grace::Concurrent;
use machine::{Machine, SharedAccess, VirtAddr};
use paging::{EntryChange, Format};
use vma::{Uffd, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Calls, Error, FaultError, UserFault, UserFaultHandler, UserFaultKind,
    entry_marks::WP,
    fault::attempt::{FaultStep, FirstLook},
    fault::rights::WantedAccess,
    monitor::aligned,
    monitor::page_marks::sweep_areas,
};

bitflags::bitflags! {
    /// The kinds of faults that a monitor resolves.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct UserFaultModes: u32 {
        /// UFFDIO_REGISTER_MODE_MISSING: pages that are nowhere.
        const MISSING = 1;
        /// UFFDIO_REGISTER_MODE_WP: writes to pages that are write-protected.
        const WP = 2;
        /// UFFDIO_REGISTER_MODE_MINOR: pages that the object has in memory.
        const MINOR = 4;
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Sets the host's part. Later calls change nothing; a forked child has the same one.
    pub fn set_userfault_handler(&mut self, handler: Arc<dyn UserFaultHandler>) {
        self.core.userfaults.call_once(|| handler);
    }

    /// UFFDIO_REGISTER of `addr..addr + len`, which has no holes at its ends.
    ///
    /// # Errors
    /// As [`vma::Writer::watch`]. [`Error::NotSupported`]: WP needs software bits that the page
    /// tables do not have.
    pub fn userfault_register(
        &self,
        addr: usize,
        len: usize,
        modes: UserFaultModes,
        uffd: Uffd,
    ) -> Result<(), Error> {
        if modes.contains(UserFaultModes::WP) {
            Self::check_marks()?;
            // A page of an object that goes needs it for its mark, without memory.
            self.core.guard_frame.make().map_err(FaultError::OutOfMemory)?;
        }
        let mut flags = VmFlags::empty();
        flags.set(VmFlags::UFFD_MISSING, modes.contains(UserFaultModes::MISSING));
        flags.set(VmFlags::UFFD_WP, modes.contains(UserFaultModes::WP));
        flags.set(VmFlags::UFFD_MINOR, modes.contains(UserFaultModes::MINOR));
        self.change(|calls| {
            if let Ok(range) = aligned(addr, len) {
                self.clear_old_marks(calls, range)?;
            }
            if modes.contains(UserFaultModes::WP) {
                // Relaxed: pages get marks after this.
                self.core.had_marks.store(true, Ordering::Relaxed);
            }
            self.note_events(uffd);
            let done = calls.watch(addr, len, flags, uffd);
            // Without memory, the VMAs below the failure have changed.
            if matches!(done, Ok(()) | Err(vma::Error::OutOfMemory | vma::Error::TooManyMaps)) {
                self.core.settle_faults(addr..addr.saturating_add(len));
            }
            done
        })
    }

    /// Clears the marks that an earlier registration has left, which nothing has looked at since.
    pub(crate) fn clear_old_marks(
        &self,
        calls: &mut Calls<'_, '_, '_, M, F, G>,
        range: Range<usize>,
    ) -> Result<(), vma::Error> {
        // Relaxed: registrations are ordered by the mmap lock.
        if !self.core.had_marks.load(Ordering::Relaxed) {
            return Ok(());
        }
        sweep_areas(calls, range, |host, part, vma| {
            if !vma.flags.contains(VmFlags::UFFD_WP) {
                host.write_protect(part, vma, false);
            }
        })
    }

    /// UFFDIO_UNREGISTER. Pages that were write-protected are not any more.
    ///
    /// # Errors
    /// As [`vma::Writer::unwatch`].
    pub fn userfault_unregister(&self, addr: usize, len: usize) -> Result<(), Error> {
        self.change(|calls| calls.unwatch(addr, len))
    }

    /// The userfaultfd with this number was closed: unregisters all its memory.
    ///
    /// # Errors
    /// As [`vma::Writer::close_watch`].
    pub fn userfault_close(&self, uffd: u64) -> Result<(), Error> {
        self.change(|calls| calls.close_watch(uffd))
    }

    /// The step of a fault that a monitor resolves, if this is one. A page that this fault has let
    /// the object bring in is not the monitor's.
    pub(crate) fn userfault_step(
        &self,
        look: &FirstLook<'_, M, G>,
        found: Option<paging::Mapping>,
        want: WantedAccess,
        brought_in: bool,
    ) -> Option<FaultStep> {
        let (vma, flags) = (look.vma, look.vma.flags);
        let kind = match found {
            Some(page) if want.writes() && page.attrs.soft & WP != 0 => {
                self.is_write_protected(vma).then_some(UserFaultKind::WriteProtected)
            }
            Some(_) => None,
            None => {
                let index = vma.offset_at(look.addr) as u64;
                let has = vma.file.as_ref().map(|file| file.object());
                match has {
                    Some(object) if object.is_present(index) => {
                        let is_minor = flags.contains(VmFlags::UFFD_MINOR) && !brought_in;
                        // UFFDIO_COPY puts a page into the object and the map in one step.
                        if is_minor && !self.is_still_absent(look.at) {
                            return Some(FaultStep::Again);
                        }
                        is_minor.then_some(UserFaultKind::Minor)
                    }
                    Some(object) if object.is_beyond_end(index) => None,
                    _ => flags.contains(VmFlags::UFFD_MISSING).then_some(UserFaultKind::Missing),
                }
            }
        };
        kind.map(FaultStep::NeedsUser)
    }

    /// Whether a page is absent, also if its entry has a mark, when nothing is under way that
    /// stores one.
    fn is_still_absent(&self, at: VirtAddr) -> bool {
        // SAFETY: the entry stays as it is.
        let looked = unsafe {
            self.core.tables.with_entry(&G::pin(), at, |now| {
                (EntryChange::Keep, now.is_none_or(|page| self.core.is_mark(&page)))
            })
        };
        // Where no table can be made there is none.
        looked.map_or(true, |(absent, _)| absent)
    }

    /// Whether the VMA is registered for write-protection with a userfaultfd of which `is` holds.
    pub(crate) fn protects(
        &self,
        vma: &Vma<Backing<M>>,
        is: impl FnOnce(&dyn UserFaultHandler, u64) -> bool,
    ) -> bool {
        let Some(uffd) = vma.uffd() else { return false };
        let handler = self.core.userfaults.get();
        vma.flags.contains(VmFlags::UFFD_WP)
            && handler.is_some_and(|handler| is(&**handler, uffd.id))
    }

    /// Whether a write to a write-protected page of the VMA is the monitor's to resolve.
    pub(crate) fn is_write_protected(&self, vma: &Vma<Backing<M>>) -> bool {
        self.protects(vma, |handler, uffd| !handler.is_write_protect_async(uffd))
    }

    /// Whether the VMA is registered for write-protection that needs no monitor.
    pub(crate) fn is_write_protect_async(&self, vma: &Vma<Backing<M>>) -> bool {
        self.protects(vma, |handler, uffd| handler.is_write_protect_async(uffd))
    }

    /// Calls the host. Nothing is held.
    pub(crate) fn call_monitor(
        &self,
        at: VirtAddr,
        want: WantedAccess,
        kind: UserFaultKind,
    ) -> Result<(), FaultError> {
        let mode = match kind {
            UserFaultKind::Missing => VmFlags::UFFD_MISSING,
            UserFaultKind::WriteProtected => VmFlags::UFFD_WP,
            UserFaultKind::Minor => VmFlags::UFFD_MINOR,
        };
        // Nothing is held since the fault has looked: another call may come between.
        self.core.tables.machine().step(SharedAccess::Other);
        let uffd = self.core.vmas.lookup(&G::pin(), at.get() as usize).and_then(|(_, vma)| {
            let uffd = vma.uffd()?;
            vma.flags.contains(mode).then_some(uffd)
        });
        // Unregistered meanwhile, or registered for other faults: the fault begins again.
        let Some(uffd) = uffd else { return Ok(()) };
        let fault = UserFault { at, access: want.access, uffd: uffd.id, kind };
        let resolved = self.core.userfaults.get().is_some_and(|handler| handler.handle(fault));
        if resolved { Ok(()) } else { Err(FaultError::UserFault(at)) }
    }
}
