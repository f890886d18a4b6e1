//! The search within a node with SIMD: it compares all bounds of a node at once.
//!
//! With the feature `std`, the first call asks the CPU for its instruction sets. A build for a
//! target that guarantees them does not ask.
//!
//! AVX2 has fewer instructions with masks than AVX-512. Leaves are changed and inner nodes spliced
//! without it.
//!
//! Correctness: SIMD loads read whole cache lines, and so also bounds beyond the last. Those lie
//! inside the node, are initialised, and are masked out. The bounds of a published node never
//! change, so the loads race with no store.

mod avx2;
mod avx512;
mod change;
mod splice;
#[cfg(test)]
mod tests;

use super::inner::Seps;
use super::job::{Job, Scalar};
#[cfg(test)]
use super::leaf::Body;
use crate::Index;
use crate::layout::{INNER_SLOTS, LEAF_CELLS};
use avx512::Avx512;
use core::sync::atomic::{AtomicU8, Ordering};

const _: () = assert!(super::word::MOVES_WORDS);

// Two vectors of narrow bounds, or three of wide ones, lie in the room; the separators and one more
// word fill two vectors.
const _: () = assert!(8 * LEAF_CELLS >= 192 && size_of::<Seps>() == 128 && INNER_SLOTS == 16);

/// The first slot of a leaf and its last, by their ranges, if they have room; `last` is the number
/// of the last one. They have only one stored bound, so they are tested by index. The exact test of
/// their alignment has a long latency, so only `ENDS` asks for it.
#[inline(always)]
fn outer_holes<const UP: bool, const ENDS: bool>(
    ranges: [(Index, Index); 2],
    last: usize,
    bound: Index,
    (size, align): (Index, Index),
) -> u32 {
    let over = if ENDS { align - 1 } else { 0 };
    let fits = |(from, to): (Index, Index)| {
        u32::from(if UP {
            let from = from.max(bound);
            let start = from.wrapping_add(over) & !over;
            (start >= from) & (start <= to) & (to.wrapping_sub(start) >= size - 1)
        } else {
            let to = to.min(bound);
            let start = to.wrapping_sub(size - 1) & !over;
            (to >= size - 1) & (start >= from)
        })
    };
    let [first, end] = ranges.map(fits);
    first | end << last
}

/// The SIMD instructions that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Vectors {
    Avx2 = 1,
    Avx512 = 2,
}

/// The result of `Vectors::ask`; 0 before the first call.
static FOUND: AtomicU8 = AtomicU8::new(0);
const NOTHING: u8 = 3;

impl Vectors {
    /// Cost: none if the build guarantees the instructions, else a load and two predictable
    /// branches.
    #[inline(always)]
    fn get() -> Option<Vectors> {
        // Tests run every implementation on one CPU.
        #[cfg(test)]
        return Self::found().and_then(Self::allowed);
        #[cfg(not(test))]
        Self::found()
    }

    /// The best implementation that the test allows.
    #[cfg(test)]
    fn allowed(self) -> Option<Vectors> {
        match crate::testing::vectors() {
            0 => None,
            1 => Some(Vectors::Avx2),
            _ => Some(self),
        }
    }

    #[cfg_attr(not(unoptimized), inline(always))]
    fn found() -> Option<Vectors> {
        if cfg!(all(
            target_feature = "avx512bw",
            target_feature = "popcnt",
            target_feature = "bmi1",
            target_feature = "bmi2"
        )) {
            return Some(Vectors::Avx512);
        }
        // Relaxed: no other data depends on the byte.
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
        // Relaxed: see `found`.
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

    /// Runs a job with these instructions.
    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Out {
        match self {
            // SAFETY: the CPU has the instructions.
            Vectors::Avx512 => unsafe { avx512::run(job) },
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { avx2::run(job) },
        }
    }
}

/// Runs a job with the best implementation for this CPU.
#[inline(always)]
pub(super) fn run<J: Job>(job: J) -> J::Out {
    match Vectors::get() {
        Some(vectors) => vectors.run(job),
        None => job.run(Scalar),
    }
}
