//! Pages that are kept elsewhere: swap entries.
//!
//! The entry of such a page has no rights, so that no access translates. In the place of a frame it
//! has a number from the upper half of the physical addresses, where a host with swap has no memory
//! and no device. The number stands for the *slot* in which the host keeps the page. An entry holds
//! a reference to its slot, as others do to their frames: a copy of a table takes one more, the end
//! of a table drops one.

use alloc::sync::Arc;

use crate::block::{self, is_counted};
use crate::format::Format;
use crate::shared::Paging;
use machine::{Frame, Machine, PageSize};

/// Where a host keeps pages that are not in memory: a disk, a network, compressed memory.
///
/// Each slot has a count of references. [`write`](Swap::write) makes a slot with one.
///
/// # Misuse
/// One that returns a slot twice, or one that no entry can name, that loses pages or counts
/// wrongly: programs see wrong contents, and no frame of another owner. If `write` or `read`
/// panics, the page stays where it was; in `hold` and `release` a table stays locked, and frames
/// and slots leak.
pub trait Swap: Send + Sync + 'static {
    /// Keeps a copy of a page. Called with nothing held; may wait. Returns its slot, a number below
    /// [`Paging::SLOTS`], or `None` if there is no room, or the page could not be written.
    fn write(&self, page: &[u8; PAGE]) -> Option<u64>;

    /// Reads a page. Called with nothing held; may wait. The caller holds a reference to the slot.
    /// Returns whether it could be read.
    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool;

    /// Takes a reference more to a slot that has one. Returns false if it has none, or too many.
    /// Called with a table's lock held: takes no lock of this crate, and waits for no CPU.
    fn hold(&self, slot: u64) -> bool;

    /// Drops a reference; the slot is free with the last one. Called as [`hold`](Swap::hold).
    fn release(&self, slot: u64);
}

/// The bytes of a page.
const PAGE: usize = PageSize::Size4K.bytes() as usize;

impl<M: Machine, F: Format> Paging<M, F> {
    /// The number of slots that entries can name.
    pub const SLOTS: u64 = 1 << (F::PHYSICAL_BITS - 13);

    /// The number in an entry that stands for a slot.
    pub fn swap_frame(slot: u64) -> Option<Frame> {
        if slot < Self::SLOTS { Frame::new(Self::SLOTS + slot) } else { None }
    }

    /// The slot that the number in an entry stands for. Without swap, none does: a host without it
    /// may have devices there.
    #[inline]
    pub fn slot_of(&self, frame: Frame) -> Option<u64> {
        self.swap.as_ref()?;
        frame.number().checked_sub(Self::SLOTS)
    }

    /// Where the host keeps pages that are not in memory, if it does.
    pub fn swap(&self) -> Option<&Arc<dyn Swap>> {
        self.swap.as_ref()
    }

    /// Takes a reference for one more entry with this frame or slot. Returns false if there are too
    /// many. Frames that are not counted need none.
    #[inline]
    pub fn hold_entry(&self, frame: Frame) -> bool {
        match self.slot_of(frame) {
            Some(slot) => self.swap.as_ref().is_some_and(|swap| swap.hold(slot)),
            None => !is_counted(self.machine(), frame) || block::hold(self.machine(), frame),
        }
    }

    /// Whether an entry with this frame or slot holds a reference.
    #[inline]
    pub fn holds(&self, frame: Frame) -> bool {
        self.slot_of(frame).is_some() || is_counted(self.machine(), frame)
    }

    /// Drops the reference of an entry with this frame or slot, if it [holds](Self::holds) one.
    ///
    /// # Safety
    /// The entry held it, and leads there no more. No CPU has a translation by it.
    pub unsafe fn release_entry(&self, frame: Frame) {
        if let Some(slot) = self.slot_of(frame) {
            self.swap.as_ref().inspect(|swap| swap.release(slot));
        } else if is_counted(self.machine(), frame) {
            // SAFETY: the caller's promise.
            let released = unsafe { block::release(self.machine(), frame) };
            debug_assert!(released.is_some(), "a page's frame has no reference");
        }
    }
}
