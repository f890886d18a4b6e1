//! The search and the unpacking with AVX2.

mod gaps;

use crate::Index;
use crate::node::change::NodeEdits;
use crate::node::inner::{Inner, Seps};
use crate::node::job::{Job, Search};
use crate::node::leaf::Body;
use crate::node::starts::{LANES, Starts, after};
use core::arch::x86_64::*;

/// Proof that the CPU has AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl NodeEdits for Avx2 {
    #[inline(always)]
    fn gap(self, body: &Body, holes: u32, ends: (Index, Index), limit: Index) -> Index {
        // SAFETY: the CPU has AVX2.
        unsafe { gaps::gap(body, holes, ends, limit) }
    }

    #[inline(always)]
    fn max_gap_with(self, inner: &Inner, (changed, gap): (u32, Index), _: Index) -> Index {
        // SAFETY: the CPU has AVX2, and only the writer calls this.
        unsafe { gaps::max_gap(inner, changed, gap) }
    }
}

impl Search for Avx2 {
    #[inline(always)]
    fn below(self, body: &Body, index: Index) -> u32 {
        // SAFETY: the CPU has AVX2.
        unsafe { below(body, index) }
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: Index) -> usize {
        // SAFETY: as above.
        unsafe { inner(seps, index) }
    }

    #[inline(always)]
    fn holes<const UP: bool, const ENDS: bool>(
        self,
        body: &Body,
        range: (Index, Index),
        bound: Index,
        wanted: (Index, Index),
    ) -> u32 {
        // SAFETY: as above.
        unsafe { gaps::holes::<UP, ENDS>(body, range, bound, wanted) }
    }

    #[inline(always)]
    fn gaps(self, inner: &Inner, size: Index) -> u32 {
        // SAFETY: as above.
        unsafe { gaps::gaps(inner, size) }
    }

    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Starts) {
        // SAFETY: as above.
        unsafe { unpack(body, to) }
    }
}

impl Avx2 {
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Avx2(())
    }
}

/// Runs a job with AVX2.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn run<J: Job>(job: J) -> J::Out {
    // SAFETY: the caller's promise.
    job.run(unsafe { Avx2::new() })
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn below(body: &Body, index: Index) -> u32 {
    let n = body.len() as u32 - 1;
    if body.wide {
        // SAFETY: inside the room.
        return _bzhi_u32(unsafe { words::<6>(body.words_wide(), index) }, n);
    }
    // AVX2 compares signed numbers: inverting the highest bit turns the order into the unsigned
    // one.
    let turn = _mm256_set1_epi32(i32::MIN);
    let wanted = _mm256_xor_si256(_mm256_set1_epi32(body.units(index) as i32), turn);
    let mut lanes = 0;
    for i in 0..4 {
        // SAFETY: inside the room.
        let bounds = unsafe { _mm256_loadu_si256(body.narrow().add(8 * i).cast()) };
        let below = _mm256_cmpgt_epi32(wanted, _mm256_xor_si256(bounds, turn));
        lanes |= (_mm256_movemask_ps(_mm256_castsi256_ps(below)) as u32) << (8 * i);
    }
    _bzhi_u32(lanes, n)
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn inner(seps: &Seps, index: Index) -> usize {
    let at = (&raw const *seps).cast::<Index>();
    // SAFETY: reads separators 0 to 11, and 11 to 14. It must not read past them: the reference
    // count there may change.
    let (first, last) = unsafe { (words::<3>(at, index), words::<1>(at.add(11), index)) };
    // Separator 11 is in both results, at the same bit.
    (first | last << 11).count_ones() as usize
}

/// Compares `4 * N` words: bit `i` is set if word `i` is below `index`.
///
/// # Safety
/// The words at `at` are initialised.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn words<const N: usize>(at: *const Index, index: Index) -> u32 {
    let mut lanes = 0;
    for i in 0..N {
        // SAFETY: the caller's promise.
        let bounds = unsafe { _mm256_loadu_si256(at.add(4 * i).cast()) };
        lanes |= four(bounds, index) << (4 * i);
    }
    lanes
}

/// Compares four words: bit `i` is set if word `i` is below `index`.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
fn four(bounds: __m256i, index: Index) -> u32 {
    let turn = _mm256_set1_epi64x(i64::MIN);
    let wanted = _mm256_xor_si256(_mm256_set1_epi64x(index as i64), turn);
    let below = _mm256_cmpgt_epi64(wanted, _mm256_xor_si256(bounds, turn));
    _mm256_movemask_pd(_mm256_castsi256_pd(below)) as u32
}

/// The lanes of vector `i` whose bits are set in all lanes of `bits`.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
fn words_masked(bits: __m256i, i: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let lanes = _mm256_sll_epi32(lanes, _mm_cvtsi32_si128(8 * i as i32));
    _mm256_cmpeq_epi32(_mm256_and_si256(bits, lanes), lanes)
}

#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn unpack(body: &Body, to: &mut Starts) {
    let others = to.others();
    if body.wide {
        for i in 0..6 {
            // SAFETY: 24 words lie in the room, and have a place in `others`.
            unsafe {
                let bounds = _mm256_loadu_si256(body.words_wide().add(4 * i).cast());
                let starts = _mm256_add_epi64(bounds, _mm256_set1_epi64x(1));
                _mm256_store_si256(others.add(4 * i).cast(), starts);
            }
        }
        return;
    }
    let (shift, after) = (_mm_cvtsi32_si128(body.shift.into()), _mm256_set1_epi64x(after(body)));
    for i in 0..LANES / 4 {
        // SAFETY: 32 bounds lie in the room, and have a place in `others`.
        unsafe {
            let bounds = _mm_loadu_si128(body.narrow().add(4 * i).cast());
            let units = _mm256_sll_epi64(_mm256_cvtepu32_epi64(bounds), shift);
            _mm256_store_si256(others.add(4 * i).cast(), _mm256_add_epi64(units, after));
        }
    }
}
