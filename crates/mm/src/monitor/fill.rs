//! How a page of a userfaultfd's monitor gets its place in registered memory.
//!
//! The entry is stored with the mmap lock and with the lock of its table held, after a look at
//! the VMA as it is then ([`AddressSpace::place`]). A page of an object goes into the object at the
//! same moment ([`MemoryPages::fill`](crate::MemoryPages::fill)). So a page that is present is
//! never replaced, and a page of one map never gets into another.

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

/// Refuses an address beyond the end of the VMA's object. Called with the lock of the table: an
/// object that becomes smaller takes that lock afterwards.
pub(super) fn check_end<M: Machine>(vma: &Vma<Backing<M>>, at: usize) -> Result<(), Error> {
    let index = vma.offset_at(at) as u64;
    match vma.file.as_ref().is_some_and(|file| file.object().is_beyond_end(index)) {
        true => Err(UserFaultError::Absent.into()),
        false => Ok(()),
    }
}

/// The same, for a page of private memory. A call may have put a shared map there.
pub(super) fn check_private<M: Machine>(vma: &Vma<Backing<M>>, at: usize) -> Result<(), Error> {
    match vma.is_private() {
        true => check_end(vma, at),
        false => Err(UserFaultError::NotRegistered.into()),
    }
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
        self.place(at, FillsOver::Guards, |vma| {
            check_private(vma, at)?;
            let attrs = rights::attrs(vma.flags, Share::Exclusive);
            Ok((frame, marked(attrs, if protect { WP } else { 0 })))
        })?;
        new.keep();
        Ok(())
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
            return Err(self.of_page(at, file, index, UserFaultError::Present));
        }
        let fill = |frame| fill(machine, frame).map_err(ObjectError::OutOfMemory);
        let share = match file.object().cached().is_some() {
            true => Share::CopyOnWrite,
            false => Share::Object,
        };
        let mut placed = Ok(());
        let object = file.object().in_memory().ok_or(ObjectError::NotSupported)?;
        let done = object.fill(index, &fill, &mut |frame, put| {
            placed = self.place(at, FillsOver::Guards, |vma| {
                // Otherwise another map is there now.
                if !file.has_page_at(index, vma, at)
                    || vma.is_private()
                    || !is_counted(machine, frame)
                {
                    return Err(UserFaultError::NotRegistered.into());
                }
                if !put() {
                    return Err(UserFaultError::Present.into());
                }
                let attrs = rights::attrs_in::<M, F>(vma, share);
                Ok((frame, marked(attrs, if protect { WP } else { 0 })))
            });
        });
        match (done, placed) {
            (Ok(true), _) => Ok(()),
            // It has become smaller since.
            (Err(ObjectError::BeyondEnd), _) => {
                Err(self.of_page(at, file, index, UserFaultError::Absent))
            }
            // No writable map was left, so this one has gone.
            (Err(ObjectError::Sealed), _) => Err(UserFaultError::NotRegistered.into()),
            (Err(error), _) => Err(Error::Object(error)),
            (Ok(false), Err(error)) => Err(error),
            (Ok(false), Ok(())) => Err(UserFaultError::Present.into()),
        }
    }

    /// The error for a page of an object, if registered memory has that page still. A call may have
    /// put another map there before the object has answered.
    fn of_page(&self, at: usize, file: &Backing<M>, index: u64, error: impl Into<Error>) -> Error {
        match self.registered(at, VmFlags::UFFD) {
            Ok((Some(now), page)) if now == *file && page == index => error.into(),
            Ok(_) => UserFaultError::NotRegistered.into(),
            Err(error) => error.into(),
        }
    }

    /// Whether the VMA at an address is private: a page that is brought in there is anonymous.
    pub(super) fn is_private(&self, at: usize) -> bool {
        self.vma_at(at, |_, vma| vma.is_private()).unwrap_or(false)
    }

    /// Refuses registered memory beyond the end of its object.
    pub(super) fn check_size(&self, at: usize) -> Result<(), Error> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        match file.filter(|file| file.object().is_beyond_end(index)) {
            Some(file) => Err(self.of_page(at, &file, index, UserFaultError::Absent)),
            None => Ok(()),
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
            Err(error) => {
                drop(guard);
                let error = match error {
                    ObjectError::Absent => UserFaultError::Absent.into(),
                    ObjectError::BeyondEnd => vma::Error::BadRange.into(),
                    error => Error::Object(error),
                };
                return Err(self.of_page(at, &file, index, error));
            }
        };
        drop(guard);
        self.place(at, FillsOver::Guards, |vma| {
            if !file.has_page_at(index, vma, at) {
                return Err(UserFaultError::NotRegistered.into());
            }
            // The object has taken the page back since.
            if !held.is_current() {
                return Err(match file.object().is_beyond_end(index) {
                    true => vma::Error::BadRange.into(),
                    false => UserFaultError::Absent.into(),
                });
            }
            let private = vma.is_private() || held.counts_writes();
            let share = if private { Share::CopyOnWrite } else { Share::Object };
            let attrs = rights::attrs_in::<M, F>(vma, share);
            Ok((held.frame(), marked(attrs, if protect { WP } else { 0 })))
        })?;
        held.mapped();
        Ok(())
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
    /// is none, or none but that of a page that may be replaced. The memory may be another map than
    /// the caller has seen: `make` fails if the page does not fit.
    pub(super) fn place(
        &self,
        at: usize,
        over: FillsOver,
        make: impl Fn(&Vma<Backing<M>>) -> Result<(Frame, Attrs), Error>,
    ) -> Result<(), Error> {
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
                        let made = match free {
                            true => make(&area.vma),
                            false => Err(UserFaultError::Present.into()),
                        };
                        match made {
                            // The frame of guards has no references.
                            Ok((frame, attrs)) if guard => {
                                (EntryChange::Replace(frame, attrs), Ok(()))
                            }
                            Ok((frame, attrs)) => (EntryChange::Set(frame, attrs), Ok(())),
                            Err(error) => (EntryChange::Keep, Err(error)),
                        }
                    })
                };
                match done {
                    Ok((placed, pending)) => {
                        pending.flush();
                        placed
                    }
                    Err(failed) if matches!(failed.error, paging::Error::Occupied(_)) => {
                        Err(UserFaultError::Present.into())
                    }
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
