//! The search within a node by vectors: all bounds at once.
//!
//! With the feature `std` the processor is asked, once, what it has; a build for a processor that has
//! vectors for sure does not ask. The functions for AVX-512 and AVX2 are the same but for the width.
//!
//! Vectors read whole lines: bounds beyond the last, too. Those lie in the node, are initialised, and are
//! masked out. Nobody writes to a published node's bounds, so this races with nothing.

mod change;
mod unpack;

use super::change::Way;
use super::inner::Seps;
use super::leaf::Body;
use super::load::{Job, Search};
use super::unpack::Unpacked;
use crate::layout::{INNER_SLOTS, LEAF_CELLS};
use core::arch::x86_64::*;
use core::sync::atomic::{AtomicU8, Ordering};

// Two vectors of bounds, three of wide ones, lie in the room; separators and a word in two.
const _: () = assert!(8 * LEAF_CELLS >= 192 && size_of::<Seps>() == 128 && INNER_SLOTS == 16);

/// The vectors that this processor has.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Vectors {
    Avx2 = 1,
    Avx512 = 2,
}

/// What the processor was found to have; 0 as long as nobody asked.
static FOUND: AtomicU8 = AtomicU8::new(0);
const NOTHING: u8 = 3;

impl Vectors {
    /// Cost: nothing where the build knows, else a load and two predictable branches.
    #[inline(always)]
    pub(super) fn get() -> Option<Vectors> {
        if cfg!(all(target_feature = "avx512f", target_feature = "popcnt", target_feature = "bmi1"))
        {
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
        let scalar = is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("bmi1");
        if scalar && is_x86_feature_detected!("avx512f") {
            Some(Vectors::Avx512)
        } else if scalar && is_x86_feature_detected!("avx2") {
            Some(Vectors::Avx2)
        } else {
            None
        }
    }

    #[cfg(not(feature = "std"))]
    fn detect() -> Option<Vectors> {
        cfg!(all(target_feature = "avx2", target_feature = "popcnt", target_feature = "bmi1"))
            .then_some(Vectors::Avx2)
    }

    /// Does a job with these vectors.
    #[inline(always)]
    pub(super) fn run<J: Job>(self, job: J) -> J::Out {
        match self {
            // SAFETY: the processor has them.
            Vectors::Avx512 => unsafe { run_avx512(job) },
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { run_avx2(job) },
        }
    }
}

impl Way for Vectors {}

impl Search for Vectors {
    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        match self {
            // SAFETY: the processor has them.
            Vectors::Avx512 => unsafe { leaf_avx512(body, index) },
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { leaf_avx2(body, index) },
        }
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: usize) -> usize {
        match self {
            // SAFETY: the processor has them.
            Vectors::Avx512 => unsafe { inner_avx512(seps, index) },
            // SAFETY: as above.
            Vectors::Avx2 => unsafe { inner_avx2(seps, index) },
        }
    }
}

/// Only made where the processor has AVX-512.
#[derive(Clone, Copy)]
struct Avx512;

impl Search for Avx512 {
    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        // SAFETY: the processor has them.
        unsafe { leaf_avx512(body, index) }
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: usize) -> usize {
        // SAFETY: as above.
        unsafe { inner_avx512(seps, index) }
    }

    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Unpacked) {
        // SAFETY: as above.
        unsafe { unpack::avx512(body, to) }
    }
}

/// Only made where the processor has AVX2.
#[derive(Clone, Copy)]
struct Avx2;

impl Way for Avx2 {}

impl Search for Avx2 {
    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        // SAFETY: the processor has them.
        unsafe { leaf_avx2(body, index) }
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: usize) -> usize {
        // SAFETY: as above.
        unsafe { inner_avx2(seps, index) }
    }

    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Unpacked) {
        // SAFETY: as above.
        unsafe { unpack::avx2(body, to) }
    }
}

#[target_feature(enable = "avx512f,popcnt,bmi1")]
#[inline]
unsafe fn run_avx512<J: Job>(job: J) -> J::Out {
    job.run(Avx512)
}

#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
unsafe fn run_avx2<J: Job>(job: J) -> J::Out {
    job.run(Avx2)
}

/// How many of the first `n` lanes are set.
#[inline(always)]
fn count(lanes: u32, n: usize) -> usize {
    (lanes & ((1 << n) - 1)).count_ones() as usize
}

#[target_feature(enable = "avx512f,popcnt,bmi1")]
#[inline]
unsafe fn leaf_avx512(body: &Body, index: usize) -> usize {
    let n = body.len() - 1;
    if body.wide {
        let (at, wanted) = (body.words_wide(), _mm512_set1_epi64(index as i64));
        let mut lanes = 0;
        for i in 0..3 {
            // SAFETY: inside the room.
            let bounds = unsafe { _mm512_loadu_si512(at.add(8 * i).cast()) };
            lanes |= u32::from(_mm512_cmplt_epu64_mask(bounds, wanted)) << (8 * i);
        }
        return count(lanes, n);
    }
    let (at, wanted) = (body.narrow(), _mm512_set1_epi32(body.units(index) as i32));
    // SAFETY: inside the room.
    let (low, high) =
        unsafe { (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast())) };
    let low = u32::from(_mm512_cmplt_epu32_mask(low, wanted));
    let high = u32::from(_mm512_cmplt_epu32_mask(high, wanted));
    count(low | high << 16, n)
}

#[target_feature(enable = "avx512f,popcnt,bmi1")]
#[inline]
unsafe fn inner_avx512(seps: &Seps, index: usize) -> usize {
    let (at, wanted) = ((&raw const *seps).cast::<usize>(), _mm512_set1_epi64(index as i64));
    // SAFETY: separators 0 to 7, and 7 to 14. What lies behind them is not read: the count of references may change.
    let (low, high) =
        unsafe { (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(7).cast())) };
    let low = u32::from(_mm512_cmplt_epu64_mask(low, wanted));
    let high = u32::from(_mm512_cmplt_epu64_mask(high, wanted));
    // Separator 7 is there twice, and counts once.
    (low | high << 7).count_ones() as usize
}

#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
unsafe fn leaf_avx2(body: &Body, index: usize) -> usize {
    let n = body.len() - 1;
    if body.wide {
        // SAFETY: inside the room.
        return count(unsafe { words_avx2::<6>(body.words_wide(), index) }, n);
    }
    // Comparisons are signed: with the highest bit turned they order as without sign.
    let turn = _mm256_set1_epi32(i32::MIN);
    let wanted = _mm256_xor_si256(_mm256_set1_epi32(body.units(index) as i32), turn);
    let mut lanes = 0;
    for i in 0..4 {
        // SAFETY: inside the room.
        let bounds = unsafe { _mm256_loadu_si256(body.narrow().add(8 * i).cast()) };
        let below = _mm256_cmpgt_epi32(wanted, _mm256_xor_si256(bounds, turn));
        lanes |= (_mm256_movemask_ps(_mm256_castsi256_ps(below)) as u32) << (8 * i);
    }
    count(lanes, n)
}

#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
unsafe fn inner_avx2(seps: &Seps, index: usize) -> usize {
    let at = (&raw const *seps).cast::<usize>();
    // SAFETY: separators 0 to 11, and 11 to 14. What lies behind them is not read: the count of references may
    // change.
    let (first, last) = unsafe { (words_avx2::<3>(at, index), words_avx2::<1>(at.add(11), index)) };
    // Separator 11 is there twice, and counts once.
    (first | last << 11).count_ones() as usize
}

/// Which of `4 * N` words are below an index.
///
/// # Safety
/// So many words lie at `at`.
#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
unsafe fn words_avx2<const N: usize>(at: *const usize, index: usize) -> u32 {
    let mut lanes = 0;
    for i in 0..N {
        // SAFETY: the caller's promise.
        let bounds = unsafe { _mm256_loadu_si256(at.add(4 * i).cast()) };
        lanes |= below_avx2(bounds, index) << (4 * i);
    }
    lanes
}

/// Which of four words are below an index.
#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
fn below_avx2(bounds: __m256i, index: usize) -> u32 {
    let turn = _mm256_set1_epi64x(i64::MIN);
    let wanted = _mm256_xor_si256(_mm256_set1_epi64x(index as i64), turn);
    let below = _mm256_cmpgt_epi64(wanted, _mm256_xor_si256(bounds, turn));
    _mm256_movemask_pd(_mm256_castsi256_pd(below)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::leaf::{Slot, word};
    use crate::node::pack::{is_packable, pack};
    use crate::node::search::{inner_scalar, leaf_scalar};
    use crate::node::unpack::Unpacked;
    use std::vec::Vec;

    /// What a job finds in a leaf, or an inner node, for some indices.
    struct Look<'a>(&'a Body, &'a Seps, &'a [usize], usize);

    impl Job for Look<'_> {
        type Out = (Vec<(usize, usize)>, Vec<(usize, usize, *mut ())>);

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> Self::Out {
            let Look(body, seps, indices, from) = self;
            let slots =
                indices.iter().map(|&i| (search.leaf(body, i), search.inner(seps, i))).collect();
            let mut run = Unpacked::new();
            // SAFETY: the leaf is here.
            unsafe { run.open(search, body, from, (3, usize::MAX)) };
            (
                slots,
                run.fold(Vec::new(), |mut all, entry| {
                    all.push(entry);
                    all
                }),
            )
        }
    }

    /// Each kind that this processor has, and not only the one that is chosen.
    #[test]
    fn all_vectors_agree_with_none() {
        let mut found = Vec::new();
        if let Some(best) = Vectors::get() {
            found.push(best);
            // A processor that has the larger ones has the smaller ones.
            found.push(Vectors::Avx2);
        }
        for (size, holes) in [10, 0x1000, 0x3000, (1 << 40) + 1, (1 << 58) + 1]
            .into_iter()
            .flat_map(|s| [(s, 2), (s, 3), (s, 99)])
        {
            for len in 1..30usize {
                let Some(slots) = (0..len)
                    .map(|i| {
                        let end =
                            if i + 1 == len { usize::MAX } else { (i + 1).checked_mul(size)? - 1 };
                        Some(Slot { end, word: word(if i % holes == 1 { 0 } else { i + 1 }) })
                    })
                    .collect::<Option<Vec<_>>>()
                else {
                    continue;
                };
                if !is_packable(&slots) {
                    continue;
                }
                let body = pack(&slots);
                let mut seps = Seps::empty();
                for (bound, slot) in seps.bounds.iter_mut().zip(&slots[..len - 1]) {
                    *bound = slot.end;
                }
                let indices: Vec<usize> = (0..len)
                    .flat_map(|i| [i * size, i * size + size / 2, i * size + (size - 1)])
                    .chain([usize::MAX])
                    .collect();
                for from in 0..len {
                    let mut start = 3;
                    let mut entries = Vec::new();
                    for (i, slot) in slots.iter().enumerate() {
                        if i >= from && !slot.word.is_null() {
                            entries.push((start, slot.end, slot.word));
                        }
                        start = slot.end.wrapping_add(1);
                    }
                    let places: Vec<_> = indices
                        .iter()
                        .map(|&i| (leaf_scalar(&body, i), inner_scalar(&seps, i)))
                        .collect();
                    for &vectors in &found {
                        let (places_found, entries_found) =
                            vectors.run(Look(&body, &seps, &indices, from));
                        assert_eq!(places_found, places, "{size:#x}, {len} slots");
                        assert_eq!(entries_found, entries, "{size:#x}, {len} slots");
                    }
                }
            }
        }
    }
}
