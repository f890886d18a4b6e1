//! The words that walks without a lock go by, and in which order others see what is done to them:
//! entries of page tables, and counts of references and pins.
//!
//! Generic over the atomic word, so that loom, which has its own, runs the same lines: with `--cfg
//! loom` this module is public, and the models of who uses it (`paging`) are made of it.

#[cfg(all(test, loom))]
mod loom_tests;

use core::sync::atomic::{AtomicU64, Ordering};

/// A word of 64 bits; its methods are the standard library's.
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

/// An entry of a page table.
#[derive(Debug)]
#[repr(transparent)]
pub struct EntryWord<W = AtomicU64>(W);

impl<W: Word> EntryWord<W> {
    /// Made of a word: for models.
    #[cfg(loom)]
    pub fn new(word: W) -> Self {
        EntryWord(word)
    }

    /// Reads it.
    #[inline(always)]
    pub fn load(&self) -> u64 {
        // Acquire: pairs with the Release of whoever linked what the entry leads to.
        self.0.load(Ordering::Acquire)
    }

    /// Stores `value`.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        // Release: what the entry leads to is written; pairs with the Acquire of `load` and with
        // hardware walks.
        self.0.store(value, Ordering::Release)
    }

    /// Stores `value` and returns what was there.
    #[inline(always)]
    pub fn swap(&self, value: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.swap(value, Ordering::AcqRel)
    }

    /// Stores `new` if `old` is there.
    ///
    /// # Errors
    /// What is there instead.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        // AcqRel, Acquire: as `load` and `store`.
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    /// Clears the bits outside of `mask`, and returns what was there.
    #[inline(always)]
    pub fn fetch_and(&self, mask: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.fetch_and(mask, Ordering::AcqRel)
    }

    /// Sets the bits of `mask`, and returns what was there.
    #[inline(always)]
    pub fn fetch_or(&self, mask: u64) -> u64 {
        // AcqRel: as `load` and `store`.
        self.0.fetch_or(mask, Ordering::AcqRel)
    }
}

const ONE_PIN: u64 = 1 << 32;
/// Counts stop here, far from an overflow into the other half.
pub(crate) const LIMIT: u32 = 1 << 30;

/// References of a frame, below, and pins, above.
#[derive(Debug)]
pub struct RefCounts<W = AtomicU64>(W);

impl<W> RefCounts<W> {
    /// Made of a word that is 0: the frame is free.
    pub const fn new(word: W) -> Self {
        RefCounts(word)
    }
}

impl<W: Word> RefCounts<W> {
    /// References and pins.
    #[inline(always)]
    pub fn get(&self) -> (u32, u32) {
        // Acquire: pairs with the Release of those who gave theirs up, so the last owner sees what
        // they wrote.
        let counts = self.0.load(Ordering::Acquire);
        (counts as u32, (counts >> 32) as u32)
    }

    /// Takes so many references, and pins, unless the frame is free or there are too many.
    #[inline(always)]
    pub fn add(&self, refs: u32, pins: u32) -> bool {
        let what = u64::from(pins) * ONE_PIN + u64::from(refs);
        let room = |counts: u64| {
            let have = counts as u32;
            (have != 0 && refs < LIMIT && have < LIMIT - refs).then(|| counts + what)
        };
        // Acquire: what the owner wrote before the frame could be found, by whatever path it was
        // found; Relaxed on failure: nothing is looked at then.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, room).is_ok()
    }

    /// Gives up so many references, and pins. Returns whether the last reference went with them;
    /// `None` if there are fewer, or pins would be left without a reference each.
    #[inline(always)]
    pub fn sub(&self, refs: u32, pins: u32) -> Option<bool> {
        let what = u64::from(pins) * ONE_PIN + u64::from(refs);
        let rest = |counts: u64| {
            let (have_refs, have_pins) = (counts as u32, (counts >> 32) as u32);
            let rest = (have_refs.checked_sub(refs)?, have_pins.checked_sub(pins)?);
            // A pin keeps its reference.
            (rest.0 >= rest.1).then(|| counts - what)
        };
        // Release: what this holder did to the frame comes before its reuse. Acquire: the last one
        // sees what all others did; pairs with their Release. Relaxed on failure: nothing is looked
        // at.
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, rest).ok()?;
        Some(before as u32 == refs)
    }

    /// Gives up the only reference, if there is one and no pin.
    ///
    /// # Errors
    /// The references that there are.
    #[inline(always)]
    pub fn sub_only(&self) -> Result<(), u32> {
        // AcqRel: as `sub`; Relaxed on failure: a number to report.
        match self.0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(counts) => Err(counts as u32),
        }
    }

    /// The first reference to a frame that was free.
    #[inline(always)]
    pub fn begin(&self) {
        // Release: what is known of the frame is written; pairs with the Acquire of `add` by
        // somebody who has an old pointer to the frame.
        self.0.store(1, Ordering::Release);
    }
}
