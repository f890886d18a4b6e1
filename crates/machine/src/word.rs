//! The atomic words that lockless walks read, with their orderings: page-table entries, and the
//! counts of references and pins.
//!
//! Generic over the atomic word, so that loom, which has its own, checks the same code. With `--cfg
//! loom` this module is public, and the words of frames are those of `placed`: the machine for
//! models, `sim::Model`, is built on them.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(loom)]
mod placed;

#[cfg(loom)]
pub use placed::{Placed, clear, copy, fill, forget, model_begins, model_ends};

use core::sync::atomic::{AtomicU64, Ordering};

/// A word of 64 bits in the memory of a frame, or in its state. In models, loom sees its accesses.
#[cfg(not(loom))]
pub(crate) type MemoryWord = AtomicU64;
/// A word of 64 bits in the memory of a frame, or in its state. In models, loom sees its accesses.
#[cfg(loom)]
pub type MemoryWord = Placed<AtomicU64>;

/// The word of a frame that belongs to its owner; see [`FrameInfo::word`](crate::FrameInfo::word).
#[cfg(not(loom))]
pub type FrameWord = core::sync::atomic::AtomicU32;
/// The word of a frame that belongs to its owner; see [`FrameInfo::word`](crate::FrameInfo::word).
#[cfg(loom)]
pub type FrameWord = Placed<core::sync::atomic::AtomicU32>;

/// A word of 64 bits, with the methods of core's atomics.
#[allow(missing_docs)]
pub trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    fn compare_exchange(
        &self,
        old: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64>;
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order)
            }
            #[inline(always)]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                self.swap(value, order)
            }
            #[inline(always)]
            fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_and(value, order)
            }
            #[inline(always)]
            fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_or(value, order)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                old: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange(old, new, success, failure)
            }
            #[inline(always)]
            fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl FnMut(u64) -> Option<u64>,
            ) -> Result<u64, u64> {
                self.fetch_update(success, failure, change)
            }
        }
    };
}

word!(AtomicU64);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU64);

/// A page-table entry.
#[derive(Debug)]
#[repr(transparent)]
pub struct EntryWord<W = MemoryWord>(W);

impl<W: Word> EntryWord<W> {
    /// An entry made from a word, for models.
    #[cfg(loom)]
    pub fn new(word: W) -> Self {
        EntryWord(word)
    }

    /// Reads the entry.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        // Acquire: pairs with the Release that linked the table or page behind the entry.
        self.0.load(Ordering::Acquire)
    }

    /// Stores `value`.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        // Release: the table or page behind the entry is written before. Pairs with the Acquire of
        // `load`, and with hardware walks.
        self.0.store(value, Ordering::Release)
    }

    /// Stores `value` and returns the old value.
    #[inline(always)]
    pub fn swap(&self, value: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.swap(value, Ordering::AcqRel)
    }

    /// Stores `new` if the entry is `old`.
    ///
    /// # Errors
    /// The entry's value, if it is not `old`.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        // AcqRel, Acquire: as `load` and `store`.
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Clears the bits outside `mask`, and returns the old value.
    #[inline(always)]
    pub fn fetch_and(&self, mask: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.fetch_and(mask, Ordering::AcqRel)
    }

    /// Sets the bits of `mask`, and returns the old value.
    #[inline(always)]
    pub fn fetch_or(&self, mask: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.fetch_or(mask, Ordering::AcqRel)
    }
}

const ONE_PIN: u64 = 1 << 32;
/// The largest count, far from an overflow into the other half of the word.
pub(crate) const LIMIT: u32 = 1 << 30;

/// The references of a frame, in the low half, and its pins, in the high half.
#[derive(Debug)]
pub struct RefCounts<W = MemoryWord>(W);

impl<W> RefCounts<W> {
    /// The counts of a free frame. The word must be 0.
    pub const fn new(word: W) -> Self {
        RefCounts(word)
    }
}

impl<W: Word> RefCounts<W> {
    /// References and pins.
    #[inline(always)]
    pub fn get(&self) -> (u32, u32) {
        // Acquire: pairs with the Release of the CPUs that dropped references, so the last owner
        // sees their writes.
        let counts = self.0.load(Ordering::Acquire);
        (counts as u32, (counts >> 32) as u32)
    }

    /// Takes this many references and pins. Fails if the frame is free or the counts are too large.
    #[inline(always)]
    pub fn add(&self, refs: u32, pins: u32) -> bool {
        let what = u64::from(pins) * ONE_PIN + u64::from(refs);
        let room = |counts: u64| {
            let have = counts as u32;
            (have != 0 && refs < LIMIT && have < LIMIT - refs).then(|| counts + what)
        };
        // Acquire: the owner's writes before the frame could be found, by any path. Relaxed on
        // failure: the caller does not access the frame then.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, room).is_ok()
    }

    /// Drops this many references and pins. Returns whether the last reference was among them.
    /// `None` if there are fewer, or if a pin would remain without a reference.
    #[inline(always)]
    pub fn sub(&self, refs: u32, pins: u32) -> Option<bool> {
        let what = u64::from(pins) * ONE_PIN + u64::from(refs);
        let rest = |counts: u64| {
            let (have_refs, have_pins) = (counts as u32, (counts >> 32) as u32);
            let rest = (have_refs.checked_sub(refs)?, have_pins.checked_sub(pins)?);
            // A pin keeps its reference.
            (rest.0 >= rest.1).then(|| counts - what)
        };
        // Release: this holder's accesses to the frame come before its reuse. Acquire: the last
        // holder sees the accesses of all others; pairs with their Release. Relaxed on failure: the
        // caller does not access the frame then.
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, rest).ok()?;
        Some(before as u32 == refs)
    }

    /// Drops the only reference, if there is exactly one and no pin.
    ///
    /// # Errors
    /// The number of references.
    #[inline(always)]
    pub fn sub_only(&self) -> Result<(), u32> {
        // AcqRel: as `sub`. Relaxed on failure: only a number to report.
        match self.0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(counts) => Err(counts as u32),
        }
    }

    /// Sets the first reference to a frame that was free.
    #[inline(always)]
    pub fn begin(&self) {
        // Release: the frame's state is written. Pairs with the Acquire of `add` by a CPU that has
        // an old pointer to the frame.
        self.0.store(1, Ordering::Release);
    }
}
