//! How a page of a userfaultfd's monitor gets its place in registered memory.
//!
//! The entry is stored with the mmap lock and with the lock of its table held, after a look at
//! the VMA as it is then ([`AddressSpace::place`]). A page of an object goes into the object at the
//! same moment ([`MemoryPages::fill`](crate::MemoryPages::fill)). So a page that is present is
//! never replaced, and a page of one map never gets into another.

use core::cell::Cell;

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{Attrs, EntryChange, Format, Share};
use vma::{VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error, FaultError, ObjectError, UserFaultError,
    entry_marks::{WP, marked},
    fault::frame_ref::{NoFrame, Reference, is_counted},
    fault::rights,
    object::HeldPage,
};

/// The entries that a page may replace when it is brought in. In Linux, the calls that bring
/// contents overwrite a marker in an entry, such as that of a guard page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FillsOver {
    Nothing,
    /// Guard pages and poisoned pages.
    Guards,
}

/// Whether an address lies beyond the end of the VMA's object. With the lock of the table: an
/// object that becomes smaller takes that lock afterwards.
pub(super) fn is_beyond_end<M: Machine>(vma: &Vma<Backing<M>>, at: usize) -> bool {
    let index = vma.offset_at(at) as u64;
    vma.file.as_ref().is_some_and(|file| file.object().is_beyond_end(index))
}

/// Whether a VMA has this page of the file at an address.
fn maps<M: Machine>(vma: &Vma<Backing<M>>, at: usize, file: &Backing<M>, index: u64) -> bool {
    vma.file.as_ref() == Some(file) && vma.offset_at(at) as u64 == index
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// A page of new contents in registered memory, where there is none.
    pub(super) fn fill_page(
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
        let placed = self.place(at, FillsOver::Guards, |vma| {
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
        let share = match file.object().cached().is_some() {
            true => Share::CopyOnWrite,
            false => Share::Object,
        };
        let (mut placed, same) = (Ok(false), Cell::new(true));
        let object = file.object().in_memory().ok_or(ObjectError::NotSupported)?;
        let done = object.fill(index, &fill, &mut |frame, put| {
            placed = self.place(at, FillsOver::Guards, |vma| {
                let is_same =
                    maps(vma, at, file, index) && !vma.is_private() && is_counted(machine, frame);
                same.set(is_same);
                let attrs = rights::attrs_in::<M, F>(vma, share);
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
    pub(super) fn placed(&self, at: usize, placed: bool) -> Result<(), Error> {
        if placed {
            return Ok(());
        }
        self.check_size(at)?;
        Err(UserFaultError::Present.into())
    }

    /// Whether the VMA at an address is private: a page that is brought in there is anonymous.
    pub(super) fn is_private(&self, at: usize) -> bool {
        self.vma_at(at, |_, vma| vma.is_private()).unwrap_or(false)
    }

    /// Refuses registered memory beyond the end of its object.
    pub(super) fn check_size(&self, at: usize) -> Result<(), UserFaultError> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        match file.is_some_and(|file| file.object().is_beyond_end(index)) {
            true => Err(UserFaultError::Absent),
            false => Ok(()),
        }
    }

    /// Maps the object's page in registered memory.
    pub(super) fn map_object_page(&self, at: usize, protect: bool) -> Result<(), Error> {
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
        let placed = self.place(at, FillsOver::Guards, |vma| {
            let same = maps(vma, at, &file, index) && held.is_current();
            let private = vma.is_private() || held.counts_writes();
            let share = if private { Share::CopyOnWrite } else { Share::Object };
            let attrs = rights::attrs_in::<M, F>(vma, share);
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
        let found = self.vma_at(at, |_, vma| {
            let place = (vma.file.clone(), vma.offset_at(at) as u64);
            (vma.uffd(), vma.flags.intersects(modes).then_some(place))
        });
        let (uffd, place) = found.ok_or(UserFaultError::NotRegistered)?;
        // A first look, before an object gets a page. `place` decides.
        self.core.check_unchanging(uffd)?;
        place.ok_or(UserFaultError::NotRegistered)
    }

    /// Stores the entry that `make` returns for registered memory, with the mmap lock, if there
    /// is none, or none but that of a page that may be replaced. Returns whether it did. The memory
    /// may be another map than the caller has seen: `make` returns `None` if the page does not fit.
    pub(super) fn place(
        &self,
        at: usize,
        over: FillsOver,
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
                        let free = now.is_none() || guard && over == FillsOver::Guards;
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
