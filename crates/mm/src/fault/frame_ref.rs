//! References to frames.
//!
//! Each entry of a page whose frame has [`Owner::User`] holds one, and so does an object for each
//! of its pages. The frame is free when the last one is dropped; a lock-free pin may hold one for a
//! moment longer.

use machine::{Frame, FrameError, Machine, NodePolicy, Owner};
pub(crate) use paging::block::{block_of, hold, is_counted};

use crate::FrameGroup;

/// Why there is no frame for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoFrame {
    Source(FrameError),
    /// The limit of the group leaves too few frames.
    Group {
        needed: usize,
    },
}

impl From<FrameError> for NoFrame {
    fn from(error: FrameError) -> Self {
        NoFrame::Source(error)
    }
}

/// A reference to a frame, which is dropped with this.
pub(crate) struct Reference<'m, M: Machine> {
    machine: &'m M,
    frame: Frame,
}

impl<'m, M: Machine> Reference<'m, M> {
    /// # Safety
    /// The caller holds the reference, and does not use the frame through it any more.
    pub(crate) unsafe fn new(machine: &'m M, frame: Frame) -> Self {
        Reference { machine, frame }
    }

    /// A new frame, which is ours alone.
    pub(crate) fn alloc(machine: &'m M, owner: Owner) -> Result<Self, FrameError> {
        Reference::alloc_block(machine, owner, 0)
    }

    /// A new block of 2^`order` frames, which is ours alone.
    pub(crate) fn alloc_block(machine: &'m M, owner: Owner, order: u8) -> Result<Self, FrameError> {
        let frame = machine.alloc(order, NodePolicy::Local)?;
        let new = Reference { machine, frame };
        // SAFETY: the frame is ours alone.
        unsafe { machine.set_owner(frame, owner) }?;
        Ok(new)
    }

    /// A new block of 2^`order` frames for a page of a program, which is ours alone; it counts in
    /// the group.
    pub(crate) fn alloc_page(
        machine: &'m M,
        group: Option<&FrameGroup<M>>,
        order: u8,
    ) -> Result<Self, NoFrame> {
        let needed = 1 << order;
        if group.is_some_and(|group| !group.charge(needed)) {
            return Err(NoFrame::Group { needed });
        }
        let new = Reference::alloc_block(machine, Owner::User, order);
        match (&new, group) {
            // SAFETY: it has just been allocated, for a program.
            (Ok(new), Some(group)) => unsafe { group.note(new.frame) },
            (Err(_), Some(group)) => group.uncharge(needed),
            _ => {}
        }
        Ok(new?)
    }

    /// As [`alloc_page`](Self::alloc_page), and lets the host of the group make room. Nothing is
    /// held meanwhile.
    pub(crate) fn alloc_page_with_room(
        machine: &'m M,
        group: Option<&FrameGroup<M>>,
    ) -> Result<Self, NoFrame> {
        loop {
            match Reference::alloc_page(machine, group, 0) {
                Err(NoFrame::Group { needed })
                    if group.is_some_and(|group| group.make_room(needed)) => {}
                done => return done,
            }
        }
    }

    pub(crate) fn frame(&self) -> Frame {
        self.frame
    }

    /// One more reference to the frame, which has few.
    pub(crate) fn another(&self) -> Result<Self, FrameError> {
        let (frame, machine) = (self.frame, self.machine);
        match machine.info(frame).is_some_and(machine::FrameInfo::try_get) {
            true => Ok(Reference { machine, frame }),
            false => Err(FrameError::NotOurs(frame)),
        }
    }

    /// Passes the reference on to the caller.
    pub(crate) fn keep(self) -> Frame {
        let frame = self.frame;
        core::mem::forget(self);
        frame
    }
}

impl<M: Machine> Drop for Reference<'_, M> {
    fn drop(&mut self) {
        // SAFETY: the reference is ours.
        let released = unsafe { paging::block::release(self.machine, self.frame) };
        debug_assert!(released.is_some(), "a reference of ours is gone");
    }
}

/// Whether one entry leads to the frame, or to its block, and nothing else does.
pub(crate) fn is_alone<M: Machine>(machine: &M, frame: Frame) -> bool {
    is_counted(machine, frame) && block_of(machine, frame).is_some_and(|(_, info)| info.refs() == 1)
}
