//! Frames that were unmapped and wait for the flush.

use machine::{Frame, Machine};
use paging::{Format, Paging};

/// The frames of one flush. Needs no memory, so that unmapping cannot run out of it.
pub(crate) struct FrameBatch {
    frames: [Frame; 64],
    len: usize,
}

impl FrameBatch {
    pub(crate) fn new() -> Self {
        FrameBatch { frames: [Frame::default(); 64], len: 0 }
    }

    /// Takes the frame or the slot of a page, if its entry holds a reference. Returns false, and
    /// takes nothing, if the batch is full.
    pub(crate) fn take<M: Machine, F: Format>(
        &mut self,
        paging: &Paging<M, F>,
        frame: Frame,
    ) -> bool {
        !paging.holds(frame) || self.push(frame)
    }

    /// Takes a frame; returns false, and takes nothing, if the batch is full.
    fn push(&mut self, frame: Frame) -> bool {
        let place = self.frames.get_mut(self.len);
        let fits = place.is_some();
        if let Some(place) = place {
            *place = frame;
            self.len += 1;
        }
        fits
    }

    /// The frames.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames[..self.len]
    }

    /// The frames are elsewhere now.
    pub(crate) fn forget(&mut self) {
        self.len = 0;
    }

    /// Gives the frames back. A lock-free pin may hold a reference for a moment, so they are
    /// released, not freed.
    ///
    /// # Safety
    /// No CPU has a translation of them any more, and each came from one mapping, whose reference
    /// it is.
    pub(crate) unsafe fn release<M: Machine, F: Format>(&mut self, paging: &Paging<M, F>) {
        for &frame in &self.frames[..core::mem::take(&mut self.len)] {
            // SAFETY: the caller's promise.
            unsafe { paging.release_entry(frame) };
        }
    }
}
