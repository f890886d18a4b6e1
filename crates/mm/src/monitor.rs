//! The calls of a userfaultfd's monitor: they bring pages in, protect them, and move them.
//!
//! # Correctness
//! The calls hold the write right, so the VMA stays registered meanwhile. Faults run beside them:
//! the lock of the page's table decides which came first. A page that is present already is not
//! replaced (EEXIST), so the contents that a program has seen stay.

use core::{fmt, ops::Range};

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{EntryChange, Format, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error, FaultError, ObjectError, UserFaultError,
    fresh::copy_bytes,
    guard,
    hook::virt,
    object::HeldPage,
    reference::{NoFrame, Reference, block_of},
    rights,
    track::{POISON, WP, marked},
    zero::zero,
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
    /// [`Resolved`]: [`Error::UserFault`], [`vma::Error::Unaligned`], or no memory. Nothing is done
    /// if not one registered VMA has the whole range.
    pub fn userfault_copy(&self, to: usize, from: &[u8], protect: bool) -> Result<(), Resolved> {
        self.each_page_of(to, from.len(), |at, offset| {
            self.fill_page(at, protect, |machine, frame| {
                copy_bytes(machine, &from[offset..offset + PAGE_SIZE], frame)
            })
        })
    }

    /// UFFDIO_ZEROPAGE: pages of zeros at `to`.
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy).
    pub fn userfault_zeropage(&self, to: usize, len: usize) -> Result<(), Resolved> {
        self.each_page_of(to, len, |at, _| {
            self.fill_page(at, false, |machine, frame| zero(machine, frame))
        })
    }

    /// UFFDIO_CONTINUE: maps pages that the object has in memory. With `protect` they are
    /// write-protected.
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy); [`UserFaultError::Absent`].
    pub fn userfault_continue(&self, to: usize, len: usize, protect: bool) -> Result<(), Resolved> {
        self.each_page_of(to, len, |at, _| self.map_object_page(at, protect))
    }

    /// UFFDIO_POISON: the pages of a range are lost. An access there fails with
    /// [`FaultError::Poisoned`].
    ///
    /// # Errors
    /// As [`userfault_copy`](Self::userfault_copy); [`Error::NotSupported`]: the page tables have
    /// too few software bits.
    pub fn userfault_poison(&self, addr: usize, len: usize) -> Result<(), Resolved> {
        self.each_page_of(addr, len, |at, _| {
            Self::check_marks()?;
            self.registered(at, VmFlags::UFFD)?;
            self.core.guard.make().map_err(FaultError::OutOfMemory)?;
            let attrs = guard::attrs();
            let poison = paging::Attrs { soft: attrs.soft | POISON, ..attrs };
            let guard = self.core.guard.get();
            match self.place(at, |_| guard.map(|guard| (guard, poison)))? {
                true => Ok(()),
                false => Err(UserFaultError::Present.into()),
            }
        })
    }

    /// UFFDIO_WRITEPROTECT: write-protects the present pages of a range, or ends that.
    ///
    /// # Errors
    /// [`UserFaultError::NotRegistered`]: a part is not registered for WP; a part before it may
    /// have changed. [`vma::Error::Unaligned`]; no memory.
    pub fn userfault_write_protect(
        &self,
        addr: usize,
        len: usize,
        protect: bool,
    ) -> Result<(), Error> {
        let range = aligned(addr, len)?;
        let (mut end, mut registered) = (range.start, true);
        self.change_with_hook(range.clone(), |hook, part, vma| {
            registered &= part.start == end && vma.flags.contains(VmFlags::UFFD_WP);
            end = part.end;
            if registered {
                hook.write_protect(part, vma, protect);
            }
        })?;
        match registered && end == range.end {
            true => Ok(()),
            false => Err(UserFaultError::NotRegistered.into()),
        }
    }

    /// UFFDIO_MOVE: moves the private pages of `from` to `to`, without a copy. Both ranges lie in
    /// one VMA each, with the same rights; that of `to` is registered. With `allow_holes`, pages
    /// that are absent in `from` stay absent in `to`.
    ///
    /// # Errors
    /// Nothing has moved. [`UserFaultError::Busy`]: a page is pinned or shared with a fork;
    /// [`UserFaultError::Absent`]: a hole, without `allow_holes`; [`UserFaultError::Present`]: a
    /// page is in the way; [`vma::Error`]: not such ranges, or no memory.
    pub fn userfault_move(
        &self,
        to: usize,
        from: usize,
        len: usize,
        allow_holes: bool,
    ) -> Result<(), Error> {
        let (source, target) = (aligned(from, len)?, aligned(to, len)?);
        self.registered(to, VmFlags::UFFD)?;
        if source.start < target.end && target.start < source.end {
            return Err(vma::Error::BadRange.into());
        }
        if self.has_pages(&target) {
            return Err(UserFaultError::Present.into());
        }
        let check = || self.check_move(&source, &target, allow_holes);
        self.change(|calls| calls.move_private(source.clone(), to, check))
    }

    fn has_pages(&self, range: &Range<usize>) -> bool {
        let guard = G::pin();
        let range = virt(range.clone());
        range.is_some_and(|range| self.core.tables.walk(&guard).pages(range).next().is_some())
    }

    /// Whether pages may move; the VMAs are busy.
    fn check_move(
        &self,
        from: &Range<usize>,
        to: &Range<usize>,
        allow_holes: bool,
    ) -> Result<(), Error> {
        let machine = self.core.tables.machine();
        let guard = G::pin();
        if self.has_pages(to) {
            return Err(UserFaultError::Present.into());
        }
        let pages = virt(from.clone()).map(|range| self.core.tables.walk(&guard).pages(range));
        let mut found = 0;
        for page in pages.into_iter().flatten() {
            let block = block_of(machine, page.frame);
            let alone = block
                .is_some_and(|(_, info)| info.refs() == 1 || info.order() != 0 && info.pins() == 0);
            let exclusive = page.attrs.share() == Share::Exclusive;
            if self.core.is_guard(page.frame) || !exclusive || !alone {
                return Err(UserFaultError::Busy.into());
            }
            found += page.size.bytes() as usize / PAGE_SIZE;
        }
        match allow_holes || found == from.len() / PAGE_SIZE {
            true => Ok(()),
            false => Err(UserFaultError::Absent.into()),
        }
    }

    fn each_page_of(
        &self,
        to: usize,
        len: usize,
        mut each: impl FnMut(usize, usize) -> Result<(), Error>,
    ) -> Result<(), Resolved> {
        let none = |error| Resolved { done: 0, error };
        let range = aligned(to, len).map_err(none)?;
        // As in Linux, one VMA has all of it, or nothing is done.
        let guard = G::pin();
        let found = self.core.vmas.lookup(&guard, to);
        let whole = found.is_some_and(|(vma, known)| {
            range.end <= vma.end && known.flags.intersects(VmFlags::UFFD)
        });
        drop(guard);
        if !whole {
            return Err(none(UserFaultError::NotRegistered.into()));
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
        let (vma_file, index) = self.registered(at, VmFlags::UFFD)?;
        if let Some(file) = vma_file {
            if file.object().is_present(index) {
                return Err(UserFaultError::Present.into());
            }
            let machine = self.core.tables.machine();
            file.object()
                .fill(index, &|frame| fill(machine, frame).map_err(ObjectError::OutOfMemory))?;
            return self.map_object_page(at, protect);
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
        let placed = self.place(at, |vma| {
            let attrs = rights::attrs(vma.flags, Share::Exclusive);
            Some((frame, marked(attrs, if protect { WP } else { 0 })))
        })?;
        match placed {
            true => {
                new.keep();
                Ok(())
            }
            false => Err(UserFaultError::Present.into()),
        }
    }

    /// Maps the object's page in registered memory.
    fn map_object_page(&self, at: usize, protect: bool) -> Result<(), Error> {
        let (file, index) = self.registered(at, VmFlags::UFFD)?;
        let file = file.ok_or(UserFaultError::NotRegistered)?;
        let machine = self.core.tables.machine();
        let guard = G::pin();
        let held = match HeldPage::get(machine, &**file.object(), index) {
            Ok(held) => held,
            Err(ObjectError::Absent) => return Err(UserFaultError::Absent.into()),
            Err(error) => return Err(error.into()),
        };
        drop(guard);
        let placed = self.place(at, |vma| {
            let same = vma.file.as_ref() == Some(&file) && held.is_current();
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
        match vma.flags.intersects(modes) {
            true => Ok((vma.file.clone(), vma.offset_at(at) as u64)),
            false => Err(UserFaultError::NotRegistered),
        }
    }

    /// Stores the entry that `make` returns for registered memory, with the write right, if there
    /// is none. Returns whether it did.
    fn place(
        &self,
        at: usize,
        make: impl Fn(&Vma<Backing<M>>) -> Option<(Frame, paging::Attrs)>,
    ) -> Result<bool, Error> {
        let mut again = true;
        loop {
            let placed = self.change(|calls| {
                let area = calls.area_at(at).ok_or(UserFaultError::NotRegistered)?;
                if !area.vma.flags.intersects(VmFlags::UFFD) || area.vma.is_busy() {
                    return Err(UserFaultError::NotRegistered.into());
                }
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
                        match now.is_none().then(|| make(&area.vma)).flatten() {
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
fn aligned(addr: usize, len: usize) -> Result<Range<usize>, Error> {
    if !addr.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) || len == 0 {
        return Err(vma::Error::Unaligned.into());
    }
    let end = addr.checked_add(len).ok_or(vma::Error::BadRange)?;
    Ok(addr..end)
}
