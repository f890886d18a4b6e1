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

use alloc::{sync::Arc, vec::Vec};
use core::{ops::Range, sync::atomic::Ordering};

use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::{EntryChange, Format};
use vma::{Uffd, VmFlags, Vma};

use crate::{
    Access, AddressSpace, Backing, Calls, Error, FaultError, UserFaultEvent, UserFaultEvents,
    error::reasons,
    fault::attempt::FaultStep,
    fault::attempt::FirstLook,
    fault::rights::WantedAccess,
    monitor::aligned,
    monitor::page_marks::{WP, sweep_areas},
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

/// The kind of a fault that the monitor resolves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum UserFaultKind {
    /// The page is nowhere.
    Missing,
    /// The page is write-protected.
    WriteProtected,
    /// The object has the page; it is not mapped.
    Minor,
}

/// A fault that a monitor resolves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFault {
    /// The address of the access.
    pub at: VirtAddr,
    /// The access.
    pub access: Access,
    /// The host's number of the userfaultfd.
    pub uffd: u64,
    /// The kind of the fault.
    pub kind: UserFaultKind,
}

/// The host's part of userfaultfd.
///
/// # Misuse
/// A method that is called with a lock or the mmap lock held, and waits for a CPU, hangs. Wrong
/// answers let a monitor copy a page too early, or never.
pub trait UserFaultHandler: Send + Sync + 'static {
    /// A program has faulted. Called with nothing held, in the context of the fault: it may wait
    /// until the monitor has resolved the fault. Returns whether the fault is to begin again;
    /// otherwise it fails with [`FaultError::UserFault`].
    fn handle(&self, fault: UserFault) -> bool;

    /// Whether write-protected pages of this userfaultfd get their rights back without an upcall
    /// (UFFD_FEATURE_WP_ASYNC). Called with a table's lock held: only loads.
    fn is_write_protect_async(&self, uffd: u64) -> bool {
        let _ = uffd;
        false
    }

    /// Whether this userfaultfd write-protects absent pages of anonymous memory, as it does those
    /// of objects (UFFD_FEATURE_WP_UNPOPULATED, which UFFD_FEATURE_WP_ASYNC implies). Called with
    /// the mmap lock held: only loads.
    fn marks_absent_pages(&self, uffd: u64) -> bool {
        self.is_write_protect_async(uffd)
    }

    /// The events that the monitor of this userfaultfd wants; the same ones each time. A
    /// registration with FORK or REMAP has [`Uffd::follows_fork`] or [`Uffd::follows_remap`].
    /// Called with the mmap lock held: only loads.
    fn events(&self, uffd: u64) -> UserFaultEvents {
        let _ = uffd;
        UserFaultEvents::empty()
    }

    /// Memory of this userfaultfd has changed, or its pages are about to be removed. An event
    /// follows for each such call. Called with the mmap lock held: it does not wait, and calls no
    /// space.
    fn begin_change(&self, uffd: u64) {
        let _ = uffd;
    }

    /// Whether the monitor has not read an event yet of a change that has begun. Context: as
    /// [`begin_change`](Self::begin_change).
    fn is_changing(&self, uffd: u64) -> bool {
        let _ = uffd;
        false
    }

    /// Makes a userfaultfd, with the same features, for the memory of a child that is being forked.
    /// Returns its number, or `None` without memory. If the fork fails, no event has the number.
    /// Context: as [`begin_change`](Self::begin_change).
    fn make_child(&self, uffd: u64) -> Option<u64> {
        let _ = uffd;
        None
    }

    /// Tells the monitors of these events, in this order. Called with nothing held, in the context
    /// of the call that has changed the memory: it may wait until each was read.
    fn deliver(&self, events: Vec<UserFaultEvent>) {
        let _ = events;
    }
}

reasons! {
    /// Why a call of the monitor failed.
    UserFaultError, Error::UserFault {
        /// The memory is not registered, or not for this: ENOENT.
        NotRegistered 2 "the memory is not registered for such faults";
        /// The page is present: EEXIST.
        Present 17 "the page is present already";
        /// The object has no such page, or ends before it: EFAULT.
        Absent 14 "the object has no such page";
        /// There is no page to move: ENOENT.
        Hole 2 "there is no page to move; allow holes, or bring it in";
        /// The page to move is pinned, or is not the program's alone: EBUSY.
        Busy 16 "the page is pinned, or another process shares it";
        /// The monitor has not read yet of a change of the memory: EAGAIN.
        Changing 11 "the memory has changed; read the event first";
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
        let uffd =
            self.core.vmas.lookup(&G::pin(), at.get() as usize).and_then(|(_, vma)| vma.uffd());
        // Unregistered meanwhile: the fault begins again.
        let Some(uffd) = uffd else { return Ok(()) };
        let fault = UserFault { at, access: want.access, uffd: uffd.id, kind };
        let resolved = self.core.userfaults.get().is_some_and(|handler| handler.handle(fault));
        if resolved { Ok(()) } else { Err(FaultError::UserFault(at)) }
    }
}
