//! The calls of a userfaultfd's monitor: they bring pages in, and protect them. `userfault_move`
//! moves them.
//!
//! # Correctness
//! The calls hold the write right, so the VMA stays registered meanwhile. Faults run beside them:
//! the lock of the page's table decides which came first. A page that is present already is not
//! replaced (EEXIST), so the contents that a program has seen stay.

pub(crate) mod absent;
pub(crate) mod events;
pub(crate) mod moves;
pub(crate) mod scan;
pub(crate) mod track;
pub(crate) mod userfault;

use core::{cell::Cell, fmt, ops::Range};

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{Attrs, EntryChange, Format, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error, FaultError, ObjectError, UserFaultError,
    change::guard,
    fault::fresh::copy_bytes,
    fault::reference::{NoFrame, Reference, is_counted},
    fault::rights,
    fault::zero::zero,
    monitor::track::{POISON, WP, marked},
    object::HeldPage,
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

/// What a page that is brought in may replace. In Linux, the calls that bring contents overwrite a
/// marker in an entry, such as that of a guard page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Nothing,
    /// Guard pages and poisoned pages.
    Guards,
}

/// Whether an address lies beyond the end of the VMA's object. With the lock of the table: an
/// object that becomes smaller takes that lock afterwards.
fn is_beyond_end<M: Machine>(vma: &Vma<Backing<M>>, at: usize) -> bool {
    let index = vma.offset_at(at) as u64;
    vma.file.as_ref().is_some_and(|file| file.object().is_beyond_end(index))
}

/// Whether a VMA has this page of the file at an address.
fn maps<M: Machine>(vma: &Vma<Backing<M>>, at: usize, file: &Backing<M>, index: u64) -> bool {
    vma.file.as_ref() == Some(file) && vma.offset_at(at) as u64 == index
}

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
            let zero = &self.core.zero;
            zero.make().map_err(FaultError::OutOfMemory)?;
            let zeros = |vma: &Vma<_>| {
                let attrs = rights::attrs(vma.flags, Share::CopyOnWrite);
                let fits = vma.is_private() && !is_beyond_end(vma, at);
                zero.get().filter(|_| fits).map(|frame| (frame, attrs))
            };
            let placed = self.place(at, Over::Nothing, zeros)?;
            self.placed(at, placed)
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
            self.core.guard.make().map_err(FaultError::OutOfMemory)?;
            let attrs = guard::attrs();
            let poison = Attrs { soft: attrs.soft | POISON, ..attrs };
            let guard = self.core.guard.get();
            let lost = |vma: &Vma<_>| {
                guard.filter(|_| !is_beyond_end(vma, at)).map(|guard| (guard, poison))
            };
            let placed = self.place(at, Over::Nothing, lost)?;
            self.placed(at, placed)
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
        let (mut registered, mut unchanging) = (None, Ok(()));
        self.change_with_hook(range, |hook, part, vma| {
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
                    hook.mark_absent(part.clone(), vma);
                }
                hook.write_protect(part, vma, protect);
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
        let guard = G::pin();
        let found = self.core.vmas.lookup(&guard, to);
        let whole = found.filter(|(vma, _)| range.end <= vma.end);
        let flags = whole.map_or(VmFlags::empty(), |(_, vma)| vma.flags);
        drop(guard);
        if !flags.intersects(VmFlags::UFFD) {
            return Err(none(UserFaultError::NotRegistered.into()));
        }
        if protect && !flags.contains(VmFlags::UFFD_WP) {
            return Err(none(vma::Error::WrongKind.into()));
        }
        range.clone().step_by(PAGE_SIZE).try_for_each(|at| {
            let done = at - range.start;
            each(at, done).map_err(|error| Resolved { done, error })
        })
    }

    /// A page of new contents in registered memory, where there is none.
    fn fill_page(
        &self,
        at: usize,
        protect: bool,
        fill: impl Fn(&M, Frame) -> Result<(), machine::FrameError>,
    ) -> Result<(), Error> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        self.check_size(at)?;
        if let Some(file) = file.filter(|_| !self.is_private(at)) {
            return self.fill_object(at, protect, &file, index, fill);
        }
        let machine = self.core.tables.machine();
        let new =
            Reference::alloc_page_with_room(machine, self.core.group()).map_err(
                |error| match error {
                    NoFrame::Source(error) => FaultError::OutOfMemory(error),
                    NoFrame::Group { .. } => FaultError::GroupLimit,
                },
            )?;
        fill(machine, new.frame()).map_err(FaultError::OutOfMemory)?;
        let frame = new.frame();
        let placed = self.place(at, Over::Guards, |vma| {
            let attrs = rights::attrs(vma.flags, Share::Exclusive);
            let fits = vma.is_private() && !is_beyond_end(vma, at);
            fits.then(|| (frame, marked(attrs, if protect { WP } else { 0 })))
        })?;
        if placed {
            new.keep();
        }
        self.placed(at, placed)
    }

    /// A page of new contents in an object and, in the same step, in the map of it.
    ///
    fn fill_object(
        &self,
        at: usize,
        protect: bool,
        file: &Backing<M>,
        index: u64,
        fill: impl Fn(&M, Frame) -> Result<(), machine::FrameError>,
    ) -> Result<(), Error> {
        let machine = self.core.tables.machine();
        if file.object().is_present(index) {
            return Err(UserFaultError::Present.into());
        }
        let fill = |frame| fill(machine, frame).map_err(ObjectError::OutOfMemory);
        let share = match file.object().counts_writes() {
            true => Share::CopyOnWrite,
            false => Share::Object,
        };
        let (mut placed, same) = (Ok(false), Cell::new(true));
        let done = file.object().fill(index, &fill, &mut |frame, put| {
            placed = self.place(at, Over::Guards, |vma| {
                let is_same =
                    maps(vma, at, file, index) && !vma.is_private() && is_counted(machine, frame);
                same.set(is_same);
                let attrs = rights::attrs_in(vma, share);
                (is_same && put()).then(|| (frame, marked(attrs, if protect { WP } else { 0 })))
            });
        });
        match (done, placed) {
            (Ok(true), _) => Ok(()),
            // It has become smaller since.
            (Err(ObjectError::BeyondEnd), _) => Err(UserFaultError::Absent.into()),
            // No writable map was left, so this one has gone.
            (Err(ObjectError::Sealed), _) => Err(UserFaultError::NotRegistered.into()),
            (Err(error), _) => Err(Error::Object(error)),
            (Ok(false), Err(error)) => Err(error),
            // Another map is there now.
            (Ok(false), Ok(_)) if !same.get() => Err(UserFaultError::NotRegistered.into()),
            (Ok(false), Ok(_)) => self.placed(at, false),
        }
    }

    /// The result of a page that was placed, or not: its object may have become smaller since.
    fn placed(&self, at: usize, placed: bool) -> Result<(), Error> {
        if placed {
            return Ok(());
        }
        self.check_size(at)?;
        Err(UserFaultError::Present.into())
    }

    /// Whether the VMA at an address is private: a page that is brought in there is anonymous.
    fn is_private(&self, at: usize) -> bool {
        let guard = G::pin();
        self.core.vmas.lookup(&guard, at).is_some_and(|(_, vma)| vma.is_private())
    }

    /// Refuses registered memory beyond the end of its object.
    fn check_size(&self, at: usize) -> Result<(), UserFaultError> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        match file.is_some_and(|file| file.object().is_beyond_end(index)) {
            true => Err(UserFaultError::Absent),
            false => Ok(()),
        }
    }

    /// Maps the object's page in registered memory.
    fn map_object_page(&self, at: usize, protect: bool) -> Result<(), Error> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        let file = file.ok_or(vma::Error::WrongKind)?;
        let machine = self.core.tables.machine();
        let guard = G::pin();
        let held = match HeldPage::get(machine, &**file.object(), index) {
            Ok(held) => held,
            Err(ObjectError::Absent) => return Err(UserFaultError::Absent.into()),
            Err(ObjectError::BeyondEnd) => return Err(vma::Error::BadRange.into()),
            Err(error) => return Err(error.into()),
        };
        drop(guard);
        let placed = self.place(at, Over::Guards, |vma| {
            let same = maps(vma, at, &file, index) && held.is_current();
            let private = vma.is_private() || held.counts_writes();
            let share = if private { Share::CopyOnWrite } else { Share::Object };
            let attrs = rights::attrs_in(vma, share);
            same.then(|| (held.frame(), marked(attrs, if protect { WP } else { 0 })))
        })?;
        match placed {
            true => {
                held.mapped();
                Ok(())
            }
            false => Err(UserFaultError::Present.into()),
        }
    }

    /// The object of registered memory, and the index of the page.
    fn registered(
        &self,
        at: usize,
        modes: VmFlags,
    ) -> Result<(Option<Backing<M>>, u64), UserFaultError> {
        let guard = G::pin();
        let found = self.core.vmas.lookup(&guard, at);
        let (_, vma) = found.ok_or(UserFaultError::NotRegistered)?;
        // A first look, before an object gets a page. `place` decides.
        self.core.check_unchanging(vma.uffd())?;
        match vma.flags.intersects(modes) {
            true => Ok((vma.file.clone(), vma.offset_at(at) as u64)),
            false => Err(UserFaultError::NotRegistered),
        }
    }

    /// Stores the entry that `make` returns for registered memory, with the write right, if there
    /// is none, or none but that of a page that may be replaced. Returns whether it did. The memory
    /// may be another map than the caller has seen: `make` returns `None` if the page does not fit.
    fn place(
        &self,
        at: usize,
        over: Over,
        make: impl Fn(&Vma<Backing<M>>) -> Option<(Frame, Attrs)>,
    ) -> Result<bool, Error> {
        let mut again = true;
        loop {
            let placed = self.change(|calls| {
                let area = calls.area_at(at).ok_or(UserFaultError::NotRegistered)?;
                if !area.vma.flags.intersects(VmFlags::UFFD) || area.vma.is_busy() {
                    return Err(UserFaultError::NotRegistered.into());
                }
                self.core.check_unchanging(area.vma.uffd())?;
                if area.vma.is_private() && area.vma.file.is_none() {
                    calls.first_write(at)?;
                }
                let area = calls.area_at(at).ok_or(UserFaultError::NotRegistered)?;
                area.vma.mark_touched_for_call();
                let guard = G::pin();
                // SAFETY: the space owns the page. The frame is the caller's, or has a reference
                // for the entry.
                let done = unsafe {
                    self.core.tables.with_entry(&guard, VirtAddr::new(at as u64), |now| {
                        let guard = now.is_some_and(|page| self.core.is_guard(page.frame));
                        let free = now.is_none() || guard && over == Over::Guards;
                        match free.then(|| make(&area.vma)).flatten() {
                            // The frame of guards has no references.
                            Some((frame, attrs)) if guard => {
                                (EntryChange::Replace(frame, attrs), true)
                            }
                            Some((frame, attrs)) => (EntryChange::Set(frame, attrs), true),
                            None => (EntryChange::Keep, false),
                        }
                    })
                };
                match done {
                    Ok((placed, pending)) => {
                        pending.flush();
                        Ok(placed)
                    }
                    Err(failed) if matches!(failed.error, paging::Error::Occupied(_)) => Ok(false),
                    Err(failed) => Err(Error::Tables(failed.error)),
                }
            });
            match placed {
                Err(Error::Tables(paging::Error::Frames(_))) if again => {
                    again = false;
                    self.core.tables.reclaim();
                }
                placed => return placed,
            }
        }
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
