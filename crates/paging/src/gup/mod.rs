//! `get_user_pages_fast`: the frames of a program's pages, pinned, without a lock.
//!
//! # Why it is right
//! The walk is as any other ([`walk`](crate::walk)): a guard keeps tables in place. The frame needs
//! more: between reading an entry and taking a pin the page may be unmapped, its frame given back,
//! and used by somebody else. So:
//!
//! 1. read the entry: it leads to frame `f`, and allows what is wanted;
//! 2. take a pin of `f`, which fails if `f` has no reference: it is free;
//! 3. read the entry again: it still leads to `f`, and allows it. If not, give the pin back.
//!
//! If 3 finds it unchanged, then `f` was mapped there at a moment when we had the pin, and nobody
//! can give it to anyone else as long as we have it. For: let the page have been unmapped before 3
//! and its frame given back. The pin was taken either before the last reference was given up; then
//! it *is* a reference, `f` is not free, and stays what it was. Or after, when `f` had been
//! allocated again; then the pin's acquire saw the allocation's release, which came after the
//! unmapping, and 3 sees the entry as the unmapping left it, or newer. The pin that is given back
//! is of somebody else's frame for a moment, which is why owners of frames that were ever mapped
//! [`release`](machine::FrameSource::release) them.
//!
//! # The locked path
//! Where an entry is absent, does not allow what is wanted or has changed, the page is taken with
//! its table locked, after the caller (`bring_in`: a page fault, with the address space's lock, in
//! most kernels) has brought it in. It counts in [`GupStats::fast_gup_slow`], and when all is well
//! never happens.
//!
//! # Cost
//! A guard; a load a level for each table; for each page two loads of its entry and one locked
//! instruction on the frame's own count. A large page is pinned in one step, for as many of its
//! frames as are wanted.
//!
//! The locked instruction is nearly all of it: 6.7 ns where a page of many takes 8.3. It hides what
//! the rest waits for, which runs ahead of it, but not the number of its instructions: eight of
//! them take a cycle. So entries are asked for what is wanted of them instead of being decoded (22
//! ns a page with that), and the loop keeps its state in registers. To look at eight entries before
//! the first is pinned gains nothing.

mod hold;
mod kernel;
mod pins;
mod stats;
mod take;
#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
pub(crate) use hold::{Held, hold};
pub(crate) use pins::{MAX_ORDER, head_of, left_in};
pub use pins::{Pins, unpin};
pub(crate) use stats::GupCounter;
pub use stats::GupStats;
use take::Taken;

use crate::format::Format;
use crate::tables::PageTables;
use core::fmt;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};

/// Why no page could be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GupError {
    /// The range reaches beyond the last address.
    Wraps,
    /// The address is not canonical, or the range reaches over such addresses.
    NotCanonical(VirtAddr),
    /// The address is the kernel's.
    Kernel(VirtAddr),
    /// Nothing is mapped at the first address that allows what is wanted, and it could not be
    /// brought in.
    Hole(VirtAddr),
    /// What is mapped at the first address is not memory of the frame source: a device.
    NotMemory(VirtAddr),
    /// The first page was said to have been brought in, again and again, and was not there.
    Unsettled(VirtAddr),
}

impl fmt::Display for GupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GupError::Wraps => f.write_str("the range reaches beyond the last address"),
            GupError::NotCanonical(at) => write!(f, "{at} is not canonical, or lies across such"),
            GupError::Kernel(at) => write!(f, "{at} is the kernel's"),
            GupError::Hole(at) => write!(f, "no page at {at} allows it"),
            GupError::NotMemory(at) => write!(f, "what is mapped at {at} is not memory"),
            GupError::Unsettled(at) => write!(f, "the page at {at} comes and goes"),
        }
    }
}

impl core::error::Error for GupError {}

/// How often a page may be gone again after it was brought in.
const TRIES: u32 = 64;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pins the frames of `into.len()` pages of 4 KiB of a program, from the one that `start` lies
    /// in on: to be read, or, with `write`, written. It stops at a hole with what it has: look at
    /// [`Pins::frames`].
    ///
    /// `bring_in` is called where a page is not there or does not allow it, with its address and
    /// whether it will be written, and with nothing held; it returns whether it has been brought
    /// in. It may sleep.
    ///
    /// Not for interrupts: it falls back to tables' locks.
    /// [`get_user_pages_fast_only`](Self::get_user_pages_fast_only) does not.
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

    /// As [`get_user_pages_fast`](Self::get_user_pages_fast), but without anything to fall back to:
    /// a page that is not there, does not allow it or changes at that moment is a hole. Any
    /// context, interrupts too: it takes no lock and waits for nobody.
    ///
    /// # Errors
    /// [`GupError::Wraps`], [`GupError::NotCanonical`], [`GupError::Kernel`]; [`GupError::Hole`],
    /// also where what is mapped is not memory. Nothing is pinned then.
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

    /// As [`get_user_pages_fast`](Self::get_user_pages_fast), but each page with its table's lock:
    /// what that falls back to. Where a caller has to take a lock of the address space anyway. Not
    /// for interrupts.
    ///
    /// # Errors
    /// [`GupError`]; nothing is pinned then.
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
        // Where what is left of the range begins. It is a program's, so it does not reach the last
        // address.
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
                // A hole behind what there is.
                Err(_) => break,
            }
            if FAST && let Some(left) = rest(&pins) {
                self.take_fast(left, write, &mut pins);
            }
        }
        Ok(pins)
    }

    /// One page, or what of its large page is wanted, with the table locked, after it has been
    /// brought in.
    fn take_slowly(
        &self,
        at: VirtAddr,
        write: bool,
        pins: &mut Pins<'_, M>,
        bring_in: &mut impl FnMut(VirtAddr, bool) -> bool,
    ) -> Result<(), GupError> {
        for _ in 0..TRIES {
            match self.take_locked(at, write, pins) {
                Taken::Some => return Ok(()),
                Taken::NotMemory => return Err(GupError::NotMemory(at)),
                Taken::Not => {}
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

/// The pages of a program, or why they are not.
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
