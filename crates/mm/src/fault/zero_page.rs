//! The zero frame, which reads of untouched anonymous memory find.
//!
//! An address space and its children share one. No entry that leads to it is writable, and none
//! holds a reference: its owner is not [`Owner::User`]. So no line is written for it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use machine::{Frame, FrameError, Machine, Owner, PageSize};
use paging::{Format, Paging};

use crate::fault::frame_ref::Reference;

/// No frame has this number.
const NONE: u64 = u64::MAX;

/// A frame of zeros, allocated when it is first needed.
pub(crate) struct ZeroFrame<M: Machine, F: Format> {
    paging: Arc<Paging<M, F>>,
    number: AtomicU64,
    /// The base-2 logarithm of the number of frames.
    order: u8,
}

impl<M: Machine, F: Format> ZeroFrame<M, F> {
    pub(crate) fn new(paging: Arc<Paging<M, F>>) -> Self {
        ZeroFrame::with_order(paging, 0)
    }

    pub(crate) fn with_order(paging: Arc<Paging<M, F>>, order: u8) -> Self {
        ZeroFrame { paging, number: AtomicU64::new(NONE), order }
    }

    /// The frame, if it has been needed before.
    pub(crate) fn get(&self) -> Option<Frame> {
        self.paging.machine().step(machine::SharedAccess::Other);
        // Acquire: pairs with the Release of `make`, which comes after the zeroing.
        Frame::new(self.number.load(Ordering::Acquire))
    }

    /// Makes sure that there is one.
    pub(crate) fn make(&self) -> Result<(), FrameError> {
        let machine = self.paging.machine();
        if self.get().is_some() {
            return Ok(());
        }
        let new = Reference::alloc_block(machine, Owner::Kernel, self.order)?;
        zero_block(machine, new.frame(), self.order)?;
        machine.step(machine::SharedAccess::Other);
        // Release: pairs with `get`. Relaxed on failure: another CPU was faster.
        let first = self
            .number
            .compare_exchange(NONE, new.frame().number(), Ordering::Release, Ordering::Relaxed)
            .is_ok();
        if first {
            new.keep();
        }
        Ok(())
    }
}

/// Fills a frame with zeros.
pub(crate) fn zero<M: Machine>(machine: &M, frame: Frame) -> Result<(), FrameError> {
    let at = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
    // SAFETY: the caller has just allocated the frame, so it is ours alone; it is a page long.
    unsafe { at.as_ptr().write_bytes(0, PageSize::Size4K.bytes() as usize) };
    // SAFETY: as above.
    #[cfg(loom)]
    unsafe {
        machine::word::clear(at.cast())
    };
    Ok(())
}

/// Fills a block of frames with zeros.
pub(crate) fn zero_block<M: Machine>(
    machine: &M,
    first: Frame,
    order: u8,
) -> Result<(), FrameError> {
    (0..1 << order).try_for_each(|number| {
        zero(machine, first.checked_add(number).ok_or(FrameError::NotOurs(first))?)
    })
}

impl<M: Machine, F: Format> Drop for ZeroFrame<M, F> {
    fn drop(&mut self) {
        if let Some(frame) = self.get() {
            // The last space is gone, and with it every entry that led here. A lock-free pin may
            // hold a reference.
            // SAFETY: the reference is ours.
            drop(unsafe { Reference::new(self.paging.machine(), frame) });
        }
    }
}
