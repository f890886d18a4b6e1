//! [`Frames`] and its machine together: a whole [`FrameSource`].

use super::Frames;
use crate::{Accounts, Cpus, Frame, FrameError, FrameInfo, FrameSource, Irqs, NodeId, NodePolicy};

/// A source and its machine; see [`Frames::on`].
#[derive(Debug)]
pub struct FramesOn<'f, C> {
    frames: &'f Frames,
    machine: &'f C,
}

// SAFETY: as `Frames`.
unsafe impl<C: Cpus + Irqs> FrameSource for FramesOn<'_, C> {
    fn alloc(&self, order: u8, place: NodePolicy) -> Result<Frame, FrameError> {
        self.frames.alloc(self.machine, order, place)
    }

    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: passed on.
        unsafe { self.frames.recycle(self.machine, frame, info) }
    }

    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.frames.info(frame)
    }

    fn free_frames(&self) -> usize {
        self.frames.free_frames()
    }

    fn accounts(&self) -> Option<&Accounts> {
        Some(self.frames.accounts())
    }

    fn nodes(&self) -> usize {
        self.frames.nodes()
    }

    fn local_node(&self) -> NodeId {
        self.frames.local_node(self.machine)
    }
}

impl Frames {
    /// This source as a [`FrameSource`], for a host that has this one alone.
    pub fn on<'f, C: Cpus + Irqs>(&'f self, machine: &'f C) -> FramesOn<'f, C> {
        FramesOn { frames: self, machine }
    }
}
