//! The page tables of a baseline: classic faults, unmapping, and a fork that copies the tables.
//!
//! A fault runs under the lock that keeps its VMA as it is. So it decides once, and does not look
//! again. After a fork, both sides map the pages read-only; the first write copies the page, or
//! takes it over if it has no other user.

use super::context::SpaceContext;
use super::memory::{PAGE, VmaType};
use crate::error::Error;
use alloc::sync::Arc;
use core::ops::Range;
use grace::Concurrent;
use machine::{ENTRIES, Frame, FrameError, Machine, NodePolicy, VirtAddr, VirtRange};
use paging::{Attrs, EntryChange, Flags, Mapping, PageTables, SweepChange, X86_64L4};

/// Frames that wait for one flush, as many as ours.
const BATCH: usize = 64;

pub(super) struct Pages<M: Machine, G: Concurrent> {
    pub(super) tables: PageTables<M, X86_64L4, G>,
    pub(super) context: Arc<SpaceContext<M>>,
}

/// The page of a fault, and the type of its VMA.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) page: VirtAddr,
    pub(super) of: VmaType,
    /// The page of the file.
    pub(super) index: usize,
}

fn range_of(range: &Range<usize>) -> Result<VirtRange, Error> {
    let bytes = (range.end - range.start) as u64;
    let range = VirtRange::new(VirtAddr::new(range.start as u64), bytes);
    range.ok_or(Error::Tables(paging::Error::Empty))
}

impl<M: Machine, G: Concurrent> Pages<M, G> {
    pub(super) fn new(context: &Arc<SpaceContext<M>>) -> Result<Self, Error> {
        let tables = PageTables::user(&context.paging, context.next_asid(), None)?;
        Ok(Pages { tables, context: Arc::clone(context) })
    }

    fn machine(&self) -> &M {
        self.tables.machine()
    }

    /// Ends this CPU's part in flushes.
    pub(super) fn leave(&self) {
        // SAFETY: no CPU translates by the tables, and this one does not use them any more.
        unsafe { self.tables.leave() }
    }

    /// Handles the fault of a write. The caller holds a lock under which the VMA stays.
    pub(super) fn fault(&self, guard: &G::Guard, fault: Fault) -> Result<(), Error> {
        let file = self.context.file.get(fault.index).copied().unwrap_or_default();
        match self.tables.walk(guard).get(fault.page) {
            None if fault.of == VmaType::SharedFile => {
                if !self.machine().info(file).is_some_and(machine::FrameInfo::try_get) {
                    return Err(FrameError::NotOurs(file).into());
                }
                self.map(guard, fault.page, file)
            }
            None => {
                let new = self.machine().alloc(0, NodePolicy::Local)?;
                self.fill(new, (fault.of == VmaType::PrivateFile).then_some(file))?;
                self.map(guard, fault.page, new)
            }
            Some(page) if page.attrs.flags.contains(Flags::WRITE) => Ok(()),
            Some(page) => self.copy_on_write(guard, fault.page, page),
        }
    }

    /// Fills a new frame with zeros or with a copy.
    fn fill(&self, new: Frame, of: Option<Frame>) -> Result<(), Error> {
        let machine = self.machine();
        let to = machine.frame_ptr(new).ok_or(FrameError::NotOurs(new))?;
        let from = of.map(|of| machine.frame_ptr(of).ok_or(FrameError::NotOurs(of))).transpose()?;
        // SAFETY: both are frames, a page long. The new one is ours alone, and nothing writes to
        // the other one: its pages are read-only, or are the file's, which loops do not write to.
        unsafe {
            match from {
                Some(from) => to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), PAGE),
                None => to.as_ptr().write_bytes(0, PAGE),
            }
        }
        Ok(())
    }

    /// Maps a frame, whose reference the caller passes on, unless a page is there by now.
    fn map(&self, guard: &G::Guard, page: VirtAddr, frame: Frame) -> Result<(), Error> {
        // SAFETY: the space owns the page, which was unmapped and flushed; the frame is lent until
        // it is unmapped.
        let done = unsafe {
            self.tables.with_entry(guard, page, |now| match now {
                None => (EntryChange::Set(frame, Attrs::USER_RW), true),
                Some(_) => (EntryChange::Keep, false),
            })
        };
        let mapped = match done {
            Ok((mapped, pending)) => {
                pending.flush();
                Ok(mapped)
            }
            Err(failed) => Err(Error::from(failed.error)),
        };
        if mapped != Ok(true) {
            self.give_back(frame)?;
        }
        mapped.map(drop)
    }

    /// A write to a page that is read-only since a fork.
    fn copy_on_write(&self, guard: &G::Guard, at: VirtAddr, page: Mapping) -> Result<(), Error> {
        let old = page.frame;
        let alone = self.machine().info(old).is_some_and(|info| info.refs() == 1);
        let new = if alone { old } else { self.machine().alloc(0, NodePolicy::Local)? };
        if !alone {
            self.fill(new, Some(old))?;
            let attrs = Attrs::USER_RO;
            // SAFETY: the contents are the same, and the page stays read-only.
            let replaced = unsafe {
                self.tables.with_entry(guard, at, |now| match now {
                    Some(now) if now.frame == old => (EntryChange::Replace(new, attrs), true),
                    _ => (EntryChange::Keep, false),
                })
            };
            let (replaced, pending) = replaced.map_err(|failed| failed.error)?;
            pending.flush();
            self.give_back(if replaced { old } else { new })?;
            if !replaced {
                return Ok(());
            }
        }
        // SAFETY: the frame is this page's alone, and flushed.
        let done = unsafe {
            self.tables.with_entry(guard, at, |now| match now {
                Some(now) if now.frame == new => (EntryChange::Set(new, Attrs::USER_RW), ()),
                _ => (EntryChange::Keep, ()),
            })
        };
        let ((), pending) = done.map_err(|failed| failed.error)?;
        pending.flush();
        Ok(())
    }

    /// Removes all pages of a range and gives their frames back. No fault adds one meanwhile.
    pub(super) fn remove(&self, range: Range<usize>) -> Result<(), Error> {
        let whole = range_of(&range)?;
        let mut next = Some(whole.start());
        while let Some(at) = next {
            let rest = range_of(&(at.get() as usize..range.end))?;
            let (mut frames, mut len) = ([Frame::default(); BATCH], 0);
            let mut pending = self.tables.no_flush();
            let clear = |page: Mapping| match frames.get_mut(len) {
                Some(place) => {
                    (*place, len) = (page.frame, len + 1);
                    SweepChange::Clear
                }
                None => SweepChange::Stop,
            };
            // SAFETY: the space owns the range, and the frames are given back after the flush.
            next = unsafe { self.tables.sweep(rest, &mut pending, clear) }?;
            pending.flush();
            frames[..len].iter().try_for_each(|frame| self.give_back(*frame))?;
        }
        Ok(())
    }

    /// Removes all pages of the space.
    pub(super) fn remove_all(&self) -> Result<(), Error> {
        self.remove(0..1 << 47)
    }

    /// Copies the tables of a range to a child. Both map the pages read-only then. Pages of the
    /// file that are shared are left out, as in Linux: the child faults for them.
    pub(super) fn copy_to(&self, child: &Self, range: Range<usize>) -> Result<(), Error> {
        let whole = range_of(&range)?;
        let mut next = Some(whole.start());
        while let Some(at) = next {
            let rest = range_of(&(at.get() as usize..range.end))?;
            let (mut frames, mut len, mut first) = ([Frame::default(); ENTRIES], 0, at);
            let mut pending = self.tables.no_flush();
            let take = |page: Mapping| {
                let follows = page.page.get() == first.get() + (len * PAGE) as u64;
                if len == 0 {
                    first = page.page;
                } else if len == ENTRIES || !follows {
                    return SweepChange::Stop;
                }
                if !self.machine().info(page.frame).is_some_and(machine::FrameInfo::try_get) {
                    return SweepChange::Stop;
                }
                (frames[len], len) = (page.frame, len + 1);
                SweepChange::Set(Attrs::USER_RO)
            };
            // SAFETY: the space owns the pages, and loses only the right to write.
            next = unsafe { self.tables.sweep(rest, &mut pending, take) }?;
            pending.flush();
            if len == 0 {
                continue;
            }
            // SAFETY: the child is new, so the pages are unmapped; each frame has a reference for
            // it.
            let mapped = unsafe { child.tables.map_frames(first, &frames[..len], Attrs::USER_RO) };
            mapped.map_err(|failed| failed.error)?;
        }
        Ok(())
    }

    fn give_back(&self, frame: Frame) -> Result<(), Error> {
        // SAFETY: the reference is that of a page that is unmapped and flushed, or of a frame that
        // was not mapped.
        unsafe { self.machine().release(frame) }?;
        Ok(())
    }
}
