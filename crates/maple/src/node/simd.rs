//! The search within a node by vectors: all bounds at once.
//!
//! With the feature `std` the processor is asked, once, what it has; a build for a processor that
//! has vectors for sure does not ask.
//!
//! Vectors read whole lines: bounds beyond the last, too. Those lie in the node, are initialised,
//! and are masked out. Nobody writes to a published node's bounds, so this races with nothing.

mod avx2;
mod avx512;
mod change;
mod splice;
#[cfg(test)]
mod tests;

use super::inner::Seps;
use super::leaf::Body;
use super::load::{Job, Scalar, Search};
use super::search::inner_scalar;
use crate::layout::{INNER_SLOTS, LEAF_CELLS};
use avx2::Avx2;
use avx512::Avx512;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};

// Two vectors of bounds, three of wide ones, lie in the room; separators and a word in two.
const _: () = assert!(8 * LEAF_CELLS >= 192 && size_of::<Seps>() == 128 && INNER_SLOTS == 16);

/// The vectors that this processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Vectors {
    Avx2 = 1,
    Avx512 = 2,
}

/// What the processor was found to have; 0 as long as nobody asked.
static FOUND: AtomicU8 = AtomicU8::new(0);
const NOTHING: u8 = 3;

impl Vectors {
    /// Cost: nothing where the build knows, else a load and two predictable branches.
    #[inline(always)]
    fn get() -> Option<Vectors> {
        // Tests run each way on one processor.
        #[cfg(test)]
        return Self::found().and_then(Self::allowed);
        #[cfg(not(test))]
        Self::found()
    }

    /// The best that a test allows.
    #[cfg(test)]
    fn allowed(self) -> Option<Vectors> {
        match crate::testing::vectors() {
            0 => None,
            1 => Some(Vectors::Avx2),
            _ => Some(self),
        }
    }

    #[inline(always)]
    fn found() -> Option<Vectors> {
        if cfg!(all(
            target_feature = "avx512bw",
            target_feature = "popcnt",
            target_feature = "bmi1",
            target_feature = "bmi2"
        )) {
            return Some(Vectors::Avx512);
        }
        // Relaxed: the byte is all there is to know.
        match FOUND.load(Ordering::Relaxed) {
            2 => Some(Vectors::Avx512),
            1 => Some(Vectors::Avx2),
            0 => Self::ask(),
            _ => None,
        }
    }

    #[cold]
    fn ask() -> Option<Vectors> {
        let found = Self::detect();
        // Relaxed: see `get`.
        FOUND.store(found.map_or(NOTHING, |found| found as u8), Ordering::Relaxed);
        found
    }

    #[cfg(feature = "std")]
    fn detect() -> Option<Vectors> {
        use std::arch::is_x86_feature_detected;
        let scalar = is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        if scalar && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            Some(Vectors::Avx512)
        } else if scalar && is_x86_feature_detected!("avx2") {
            Some(Vectors::Avx2)
        } else {
            None
        }
    }

    #[cfg(not(feature = "std"))]
    fn detect() -> Option<Vectors> {
        cfg!(all(
            target_feature = "avx2",
            target_feature = "popcnt",
            target_feature = "bmi1",
            target_feature = "bmi2"
        ))
        .then_some(Vectors::Avx2)
    }

    /// Does a job with these vectors.
    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Out {
        match self {
            // SAFETY: the processor has them.
            Vectors::Avx512 => unsafe { avx512::run(job) },
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { avx2::run(job) },
        }
    }
}

/// Does a job by what this processor has.
#[inline(always)]
pub(super) fn run<J: Job>(job: J) -> J::Out {
    match Vectors::get() {
        Some(vectors) => vectors.run(job),
        None => job.run(Scalar),
    }
}

/// The child of an inner node that holds `index`.
#[inline(always)]
pub(super) fn inner(seps: &Seps, index: usize) -> usize {
    match Vectors::get() {
        // SAFETY: the processor has them.
        Some(Vectors::Avx512) => unsafe { Avx512::new() }.inner(seps, index),
        // SAFETY: as above.
        Some(Vectors::Avx2) => unsafe { Avx2::new() }.inner(seps, index),
        None => inner_scalar(seps, index),
    }
}

/// Lets a word into a leaf. Vectors move words as numbers, and those have nothing that they may be
/// used for (no provenance): so what a word has is left with the machine as long as the word is in
/// leaves. No instruction.
#[inline(always)]
pub(super) fn put_in(word: *mut ()) -> *mut () {
    word.expose_provenance();
    word
}

/// A word as it is read out of a leaf has again what [`put_in`] has left. No instruction.
#[inline(always)]
pub(super) fn taken_out(word: *mut ()) -> *mut () {
    ptr::with_exposed_provenance_mut(word.addr())
}

/// What is added to a narrow bound, shifted, to have the index after it.
#[inline(always)]
fn after(body: &Body) -> i64 {
    body.base.wrapping_add(1 << body.shift) as i64
}
