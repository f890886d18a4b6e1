//! The change of a leaf with AVX2: each vector of the new leaf is the old one, with the lanes that
//! move from a masked load. Cost: eight loads, ten masked loads, eight stores; no loop whose end
//! could be mispredicted.

use crate::layout::{LEAF_CELLS, LEAF_SLOTS, NARROW, WIDE};
use crate::node::change::{Change, Run};
use crate::node::leaf::Leaf;
use core::arch::x86_64::*;

/// The vectors of a leaf.
const VECTORS: usize = size_of::<Leaf>() / 32;
/// Narrow bounds lie in the first four vectors, wide ones in the first six, words in the last six.
const BOUNDS: usize = 4;
const WIDE_BOUNDS: usize = 6;
const WORDS: usize = 2;

const _: () = assert!(VECTORS == 8 && 4 * (LEAF_SLOTS - 1) <= 32 * BOUNDS);
const _: () = assert!(8 * (LEAF_CELLS - NARROW.full / NARROW.entry) >= 32 * WORDS);
const _: () = assert!(8 * (LEAF_CELLS - WIDE.full / WIDE.entry) >= 32 * WORDS);
const _: () = assert!(WIDE.full * 2 / 3 <= 4 * WIDE_BOUNDS);

/// Half a table of masks. A mask that begins `n` elements before the middle has its elements from
/// `n` on set.
const HALF: usize = 64;

#[repr(align(64))]
struct Masks([u32; 2 * HALF]);

static MASKS: Masks = {
    let mut masks = [0; 2 * HALF];
    let mut i = HALF;
    while i < 2 * HALF {
        masks[i] = u32::MAX;
        i += 1;
    }
    Masks(masks)
};

/// The lanes that a run moves to, and the place that they come from.
#[derive(Clone, Copy)]
struct Moved {
    /// The masks of the elements from the first that moves on, and from the first behind those.
    from: *const u32,
    behind: *const u32,
    /// The address from which the first byte of the leaf would come.
    at: *const u8,
}

impl Moved {
    /// `size` is that of an element in bytes: 4 or 8.
    #[inline(always)]
    fn new(run: Run, other: *const Leaf, size: usize) -> Moved {
        let lanes = size / 4;
        let down = (run.old as isize - run.new as isize) * size as isize;
        debug_assert!(lanes * (run.new + run.len) <= HALF);
        let middle = MASKS.0.as_ptr().wrapping_add(HALF);
        Moved {
            from: middle.wrapping_sub(lanes * run.new),
            behind: middle.wrapping_sub(lanes * (run.new + run.len)),
            at: other.cast::<u8>().wrapping_offset(down),
        }
    }

    /// Replaces the lanes of vector `i` that move.
    ///
    /// # Safety
    /// The run lies inside the leaves. The CPU has AVX2.
    #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
    #[inline]
    unsafe fn apply(self, old: __m256i, i: usize) -> __m256i {
        // SAFETY: the masks lie in the table, because no run reaches behind its half. The load
        // reads only lanes of the run.
        unsafe {
            let from = _mm256_loadu_si256(self.from.wrapping_add(8 * i).cast());
            let behind = _mm256_loadu_si256(self.behind.wrapping_add(8 * i).cast());
            let mask = _mm256_andnot_si256(behind, from);
            let new = _mm256_maskload_epi32(self.at.wrapping_add(32 * i).cast(), mask);
            _mm256_blendv_epi8(old, new, mask)
        }
    }
}

/// As [`crate::node::change::Way::change`].
///
/// # Safety
/// As for [`crate::node::change::Way::change`]; the CPU has AVX2.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn change(
    change: &Change,
    (from, other): (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    let wide = unsafe { (*from).body() }.is_wide();
    let (size, vectors) = if wide { (8, WIDE_BOUNDS) } else { (4, BOUNDS) };
    let (bounds, words) =
        (Moved::new(change.bounds, other, size), Moved::new(change.words, other, 8));
    // SAFETY: the vectors lie in `from`, and the lanes that move in `other`; the caller owns `to`,
    // which is a leaf. All is loaded before the first store: `to` may be a source.
    unsafe {
        let mut all = [_mm256_setzero_si256(); VECTORS];
        for (i, vector) in all.iter_mut().enumerate() {
            *vector = _mm256_load_si256(from.cast::<u8>().add(32 * i).cast());
            if i < vectors {
                *vector = bounds.apply(*vector, i);
            }
            if i >= WORDS {
                *vector = words.apply(*vector, i);
            }
        }
        for (i, vector) in all.into_iter().enumerate() {
            _mm256_store_si256(to.cast::<u8>().add(32 * i).cast(), vector);
        }
        change.put((*to).body_mut(), copy);
    }
}

/// [`change`], not inlined.
///
/// # Safety
/// As for [`change`].
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline(never)]
pub(super) unsafe fn change_apart(
    change: &Change,
    sources: (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    unsafe { self::change(change, sources, to, copy) }
}
