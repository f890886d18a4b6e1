//! `get_user_pages_fast`: pins the frames of user pages, without a lock.
//!
//! # Why it is right
//! The walk is an ordinary one ([`walk`](crate::walk)): a guard keeps the tables in place. The
//! frame needs more. Between the load of the entry and the pin, the page may be unmapped, and its
//! frame given back and reused. So:
//!
//! 1. Read the entry: it leads to frame `f`, with the wanted rights.
//! 2. Pin `f`. This fails if `f` is free: it has no reference then.
//! 3. Read the entry again: it still leads to `f`, with the wanted rights. If not, give the pin
//!    back.
//!
//! If step 3 succeeds, `f` was mapped there at a moment when we had the pin, and cannot go to
//! another owner while we have it. Proof: suppose that the page was unmapped before step 3 and its
//! frame given back.
//! - If the pin was taken before the last reference was dropped, the pin *is* a reference: `f` is
//!   not free, and stays what it was.
//! - If it was taken after `f` had been allocated again, the pin's Acquire saw the Release of that
//!   allocation, which came after the unmapping. So step 3 sees the entry as the unmapping left it,
//!   or newer.
//!
//! A pin that is given back in step 3 was held on another owner's frame for a moment. So owners of
//! frames that were ever mapped free them by [`release`](machine::FrameSource::release).
//!
//! # A call that looks for pins
//! Reclaim keeps a page that is pinned for writing: it takes the right to write from the entry, and
//! then looks at the pins of the frame. Between steps 2 and 3 is a SeqCst fence, and between these
//! two that of the flush. So the call sees the pin, or step 3 sees that the right is gone. On
//! x86-64 the pin itself is the fence.
//!
//! # The locked path
//! If an entry is absent, lacks a wanted right or has changed, the page is pinned with its table
//! locked, after the caller has faulted it in. The callback `bring_in` does that: in most kernels a
//! page fault under the lock of the address space. Such calls count in [`GupStats::fast_gup_slow`];
//! normally there are none.
//!
//! # Cost
//! - A guard, and for each table one load per level.
//! - For each page two loads of its entry, and one locked instruction on the frame's own count.
//! - A large page is pinned in one step, for as many of its frames as are wanted.
//!
//! The locked instruction dominates. The work before the next one overlaps with it, but only if it
//! is short. So entries are tested for the wanted rights instead of being decoded, and the loop
//! keeps its state in registers.

mod hold;
mod kernel;
mod pins;
pub(crate) mod stats;
mod take;
#[cfg(all(test, not(loom)))]
mod tests;

pub use pins::{Pins, unpin};
pub use stats::GupStats;
use take::PinOutcome;

use crate::format::{Format, Geometry};
use crate::tables::PageTables;
use core::fmt;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};

/// The reason why no page could be pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GupError {
    /// The range reaches beyond the last address.
    Wraps,
    /// The address is not canonical, or the range crosses non-canonical addresses.
    NotCanonical(VirtAddr),
    /// The address is in the kernel's half.
    Kernel(VirtAddr),
    /// No page with the wanted rights is mapped at the first address, and `bring_in` could not
    /// fault one in.
    Hole(VirtAddr),
    /// The first address maps memory that is not the frame source's: a device.
    NotMemory(VirtAddr),
    /// `bring_in` reported success for the first page, again and again, but the page was not there.
    Unsettled(VirtAddr),
}

impl fmt::Display for GupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GupError::Wraps => f.write_str("the range reaches beyond the last address"),
            GupError::NotCanonical(at) => {
                write!(f, "{at} is not canonical, or the range crosses non-canonical addresses")
            }
            GupError::Kernel(at) => write!(f, "{at} is in the kernel's half: pass a user address"),
            GupError::Hole(at) => write!(f, "no page with the wanted rights is mapped at {at}"),
            GupError::NotMemory(at) => {
                write!(f, "a device is mapped at {at}: only memory can be pinned")
            }
            GupError::Unsettled(at) => {
                write!(f, "the page at {at} was faulted in {TRIES} times and was gone each time")
            }
        }
    }
}

impl core::error::Error for GupError {}

/// The number of times that a page is faulted in before the call gives up.
const TRIES: u32 = 64;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pins `into.len()` frames of consecutive user addresses, 4 KiB each, beginning with the frame
    /// at `start`: for reading, or, with `write`, for writing. Stops early at a hole:
    /// see [`Pins::frames`].
    ///
    /// `bring_in` is called for a page that is not mapped or lacks a right, with the page's address
    /// and `write`, and with no lock held. It returns whether it has faulted the page in. It may
    /// sleep.
    ///
    /// Not for interrupts, since it falls back to the tables' locks. Use
    /// [`get_user_pages_fast_only`](Self::get_user_pages_fast_only) there.
    ///
    /// # Errors
    /// [`GupError`]; nothing is pinned then.
    #[inline]
    pub fn get_user_pages_fast<'a>(
        &'a self,
        start: VirtAddr,
        write: bool,
        into: &'a mut [Frame],
        bring_in: impl FnMut(VirtAddr, bool) -> bool,
    ) -> Result<Pins<'a, M>, GupError> {
        self.pin_pages::<true>(start, write, into, bring_in)
    }

    /// As [`get_user_pages_fast`](Self::get_user_pages_fast), without the fallback: a page that is
    /// not mapped, lacks a right or changes at that moment counts as a hole. Allowed in any
    /// context, interrupts too: it takes no lock and waits for nothing.
    ///
    /// # Errors
    /// [`GupError::Wraps`], [`GupError::NotCanonical`], [`GupError::Kernel`]; [`GupError::Hole`],
    /// also for a page that is not memory. Nothing is pinned then.
    pub fn get_user_pages_fast_only<'a>(
        &'a self,
        start: VirtAddr,
        write: bool,
        into: &'a mut [Frame],
    ) -> Result<Pins<'a, M>, GupError> {
        let start = start.align_down(PageSize::Size4K);
        user_range::<F>(start, into.len())?;
        let mut pins = Pins::none(self.machine(), into);
        self.take_fast(start, write, &mut pins);
        match (pins.room(), pins.frames()) {
            (0, _) => self.count_gup(false),
            (_, []) => return Err(GupError::Hole(start)),
            _ => {}
        }
        Ok(pins)
    }

    /// As [`get_user_pages_fast`](Self::get_user_pages_fast), but by the locked path for every
    /// page. For callers that take a lock of the address space anyway. Not for interrupts.
    ///
    /// # Errors
    /// [`GupError`]; nothing is pinned then.
    ///
    /// # Misuse
    /// `bring_in` may panic, map, unmap or pin: no lock is held while it runs, and it is called at
    /// most 64 times for a page. Pins taken before a panic are given back.
    pub fn get_user_pages<'a>(
        &'a self,
        start: VirtAddr,
        write: bool,
        into: &'a mut [Frame],
        bring_in: impl FnMut(VirtAddr, bool) -> bool,
    ) -> Result<Pins<'a, M>, GupError> {
        self.pin_pages::<false>(start, write, into, bring_in)
    }

    #[inline(always)]
    fn pin_pages<'a, const FAST: bool>(
        &'a self,
        start: VirtAddr,
        write: bool,
        into: &'a mut [Frame],
        mut bring_in: impl FnMut(VirtAddr, bool) -> bool,
    ) -> Result<Pins<'a, M>, GupError> {
        let start = start.align_down(PageSize::Size4K);
        user_range::<F>(start, into.len())?;
        let mut pins = Pins::none(self.machine(), into);
        // The start of the rest of the range. A user range does not reach the last address, so the
        // sum does not overflow.
        let rest = |pins: &Pins<'_, M>| match pins.room() {
            0 => None,
            _ => start.checked_add((pins.frames().len() as u64) << 12),
        };
        if FAST {
            self.take_fast(start, write, &mut pins);
            self.count_gup(pins.room() != 0);
        }
        while let Some(left) = rest(&pins) {
            match self.take_slowly(left, write, &mut pins, &mut bring_in) {
                Ok(()) => {}
                Err(error) if pins.frames().is_empty() => return Err(error),
                // A hole after the pages pinned so far.
                Err(_) => break,
            }
            if FAST && let Some(left) = rest(&pins) {
                self.take_fast(left, write, &mut pins);
            }
        }
        Ok(pins)
    }

    /// Pins one page, or the wanted part of a large page, with its table locked; calls `bring_in`
    /// and retries if there is none.
    fn take_slowly(
        &self,
        at: VirtAddr,
        write: bool,
        pins: &mut Pins<'_, M>,
        bring_in: &mut impl FnMut(VirtAddr, bool) -> bool,
    ) -> Result<(), GupError> {
        for _ in 0..TRIES {
            match self.take_locked(at, write, pins) {
                PinOutcome::Some => return Ok(()),
                PinOutcome::NotMemory => return Err(GupError::NotMemory(at)),
                PinOutcome::Not => {}
            }
            if !bring_in(at, write) {
                return Err(GupError::Hole(at));
            }
        }
        Err(GupError::Unsettled(at))
    }

    fn count_gup(&self, slow: bool) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        if let Some(counter) = self.paging().gup.get(machine.current()) {
            counter.count(slow);
        }
    }
}

/// The range of these user pages, or why they are none.
fn user_range<F: Format>(start: VirtAddr, pages: usize) -> Result<VirtRange, GupError> {
    let len = (pages as u64).checked_mul(PageSize::Size4K.bytes()).ok_or(GupError::Wraps)?;
    let range = VirtRange::new(start, len).ok_or(GupError::Wraps)?;
    let last = range.last().unwrap_or(start);
    match () {
        () if !F::is_canonical(start) => Err(GupError::NotCanonical(start)),
        () if F::is_upper(start) => Err(GupError::Kernel(start)),
        () if !F::is_canonical(last) || F::is_upper(last) => Err(GupError::NotCanonical(last)),
        () => Ok(range),
    }
}
