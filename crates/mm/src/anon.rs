//! The pages of anonymous memory: zeroed frames.

use core::cell::Cell;

use machine::{Frame, FrameError, Machine, Owner, PageSize, Place};
use paging::{EntryChange, Mapping};
use vma::Vma;

use crate::{Access, fault::Step, rights, rights::EXCLUSIVE};

/// A frame for a page that may be needed. It is given back if it is not.
pub(crate) struct Fresh<'m, M: Machine> {
    machine: &'m M,
    frame: Cell<Option<Frame>>,
}

impl<'m, M: Machine> Fresh<'m, M> {
    pub(crate) fn new(machine: &'m M) -> Self {
        Fresh { machine, frame: Cell::new(None) }
    }

    /// Makes sure that there is a zeroed frame.
    pub(crate) fn prepare(&self) -> Result<(), FrameError> {
        if self.frame.get().is_some() {
            return Ok(());
        }
        let frame = self.machine.alloc(0, Place::Local)?;
        // Given back if it cannot be prepared.
        let new = Fresh { machine: self.machine, frame: Cell::new(Some(frame)) };
        let at = self.machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: the frame is ours alone, and a page long.
        unsafe { at.as_ptr().write_bytes(0, PageSize::Size4K.bytes() as usize) };
        // SAFETY: as above.
        unsafe { self.machine.set_owner(frame, Owner::User) }?;
        self.frame.set(new.frame.take());
        Ok(())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.frame.get().is_some()
    }

    fn get(&self) -> Option<Frame> {
        self.frame.get()
    }

    /// The frame was mapped: it belongs to the page.
    pub(crate) fn mapped(&self) {
        self.frame.set(None);
    }
}

impl<M: Machine> Drop for Fresh<'_, M> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.get() {
            // SAFETY: the frame is ours alone.
            let freed = unsafe { self.machine.release(frame) };
            debug_assert!(freed.is_ok(), "a frame of our own has no reference: {freed:?}");
        }
    }
}

/// The change of a page's entry at a fault in a VMA that allows the access, with the lock of the
/// table held. A write makes the page exclusive: the VMA has an anon_vma by now.
pub(crate) fn decide<B, M: Machine>(
    vma: &Vma<B>,
    access: Access,
    now: Option<Mapping>,
    fresh: &Fresh<'_, M>,
) -> (EntryChange, Step) {
    let exclusive = access == Access::Write;
    match now {
        Some(page) if rights::suffices(page.attrs, access) => (EntryChange::Keep, Step::Spurious),
        // No page is shared yet, so a write takes it over.
        Some(page) => {
            let exclusive = exclusive || page.attrs.soft & EXCLUSIVE != 0;
            let attrs = rights::attrs(vma.flags, exclusive);
            (EntryChange::Set(page.frame, attrs), Step::Mapped)
        }
        None => match fresh.get() {
            Some(frame) => {
                let attrs = rights::attrs(vma.flags, exclusive);
                (EntryChange::Set(frame, attrs), Step::MappedFresh)
            }
            // The entry was there at the first look.
            None => (EntryChange::Keep, Step::NeedsFrame),
        },
    }
}
