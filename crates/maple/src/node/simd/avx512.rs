//! The search and the unpacking with AVX-512.
//!
//! A search in a node of 16 children or a leaf of 32 slots takes two vector comparisons. Its
//! latency counts, and its number of instructions, which limits how many searches the CPU overlaps.
//! So inline assembly replaces the cases in which the compiler emits more instructions than needed.

use crate::Index;
use crate::cold_path::cold_path;
use crate::layout::INNER_SLOTS;
use crate::node::inner::{Inner, Seps};
use crate::node::job::{Job, Search};
use crate::node::leaf::Body;
use crate::node::simd::outer_holes;
use crate::node::starts::{LANES, Starts, after};
use core::arch::asm;
use core::arch::x86_64::*;
use core::hint::assert_unchecked;

/// Proof that the CPU has AVX-512.
#[derive(Clone, Copy)]
pub(super) struct Avx512(Seven);

impl Search for Avx512 {
    #[inline(always)]
    fn below(self, body: &Body, index: Index) -> u32 {
        // SAFETY: the CPU has AVX-512.
        unsafe { below(body, index) }
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: Index) -> usize {
        // SAFETY: as above.
        unsafe { inner(seps, index, self.0) }
    }

    #[inline(always)]
    fn inner_soon(self, seps: &Seps, index: Index) -> usize {
        // SAFETY: as above.
        unsafe { inner_soon(seps, index, self.0) }
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
        unsafe { holes::<UP, ENDS>(body, range, bound, wanted) }
    }

    #[inline(always)]
    fn gaps(self, inner: &Inner, size: Index) -> u32 {
        // SAFETY: as above.
        unsafe { gaps(inner, size) }
    }

    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Starts) {
        // SAFETY: as above.
        unsafe { unpack(body, to) }
    }
}

impl Avx512 {
    /// # Safety
    /// The CPU has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        // SAFETY: the caller's promise.
        Avx512(unsafe { Seven::new() })
    }
}

/// Runs a job with AVX-512.
///
/// # Safety
/// The CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn run<J: Job>(job: J) -> J::Out {
    // SAFETY: the caller's promise.
    job.run(unsafe { Avx512::new() })
}

#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn below(body: &Body, index: Index) -> u32 {
    let n = body.len() as u32 - 1;
    if body.wide {
        let (at, wanted) = (body.words_wide(), _mm512_set1_epi64(index as i64));
        let mut lanes = 0;
        for i in 0..3 {
            // SAFETY: inside the room.
            let bounds = unsafe { _mm512_loadu_si512(at.add(8 * i).cast()) };
            lanes |= u32::from(_mm512_cmplt_epu64_mask(bounds, wanted)) << (8 * i);
        }
        return _bzhi_u32(lanes, n);
    }
    let (at, wanted) = (body.narrow(), _mm512_set1_epi32(body.units(index) as i32));
    // SAFETY: inside the room.
    let (low, high) =
        unsafe { (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast())) };
    let low = _mm512_cmplt_epu32_mask(low, wanted);
    let high = _mm512_cmplt_epu32_mask(high, wanted);
    _bzhi_u32(join(low, high), n)
}

#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn inner(seps: &Seps, index: Index, seven: Seven) -> usize {
    let (at, wanted) = (&raw const *seps, _mm512_set1_epi64(index as i64));
    let below: usize;
    // SAFETY: reads separators 0 to 7, and 8 to 14. It must not read past them: the reference count
    // there may change. In assembly, because the intrinsics load the vector before they compare it
    // under a mask, which takes an instruction more.
    unsafe {
        asm!(
            "vpcmpnleuq {low}, {wanted}, zmmword ptr [{at}]",
            "vpcmpnleuq {high} {{{seven}}}, {wanted}, zmmword ptr [{at} + 64]",
            "kunpckbw {low}, {high}, {low}",
            "kmovw {below:e}, {low}",
            "popcnt {below:e}, {below:e}",
            at = in(reg) at,
            wanted = in(zmm_reg) wanted,
            seven = in(kreg) seven.0,
            low = out(kreg) _,
            high = out(kreg) _,
            below = lateout(reg) below,
            options(pure, readonly, nostack),
        );
        assert_unchecked(below < INNER_SLOTS);
    }
    below
}

/// As `inner`, but moves and counts each mask by itself: seven cycles from the comparisons to the
/// result instead of ten, for two instructions more.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn inner_soon(seps: &Seps, index: Index, seven: Seven) -> usize {
    let (at, wanted) = (&raw const *seps, _mm512_set1_epi64(index as i64));
    let below: usize;
    // SAFETY: as in `inner`.
    unsafe {
        asm!(
            "vpcmpnleuq {low}, {wanted}, zmmword ptr [{at}]",
            "vpcmpnleuq {high} {{{seven}}}, {wanted}, zmmword ptr [{at} + 64]",
            "kmovw {below:e}, {low}",
            "kmovw {more:e}, {high}",
            "popcnt {below:e}, {below:e}",
            "popcnt {more:e}, {more:e}",
            "add {below:e}, {more:e}",
            at = in(reg) at,
            wanted = in(zmm_reg) wanted,
            seven = in(kreg) seven.0,
            low = out(kreg) _,
            high = out(kreg) _,
            below = out(reg) below,
            more = out(reg) _,
            options(pure, readonly, nostack),
        );
        assert_unchecked(below < INNER_SLOTS);
    }
    below
}

/// As [`Search::holes`].
///
/// # Safety
/// The CPU has AVX-512.
// Without `#[target_feature]`, which rules out `inline(always)`. The callers have the attribute.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn holes<const UP: bool, const ENDS: bool>(
    body: &Body,
    (min, max): (Index, Index),
    bound: Index,
    (size, align): (Index, Index),
) -> u32 {
    let last = body.len() - 1;
    let (units, aligned) = (size >> body.shift, align >> body.shift);
    if body.wide || last == 0 || (units | aligned) >> 30 != 0 {
        cold_path();
        return body.holes();
    }
    let outer = [(min, body.bound(0)), (body.bound(last - 1) + 1, max)];
    let ends = outer_holes::<UP, ENDS>(outer, last, bound, (size, align));
    // The other slots are tested in whole units, with a tolerance of one unit on either side.
    // Upwards, the range begins at the unit after the previous bound, or at the limit's unit.
    // Downwards, it ends at the slot's bound, or at the limit's unit.
    let more = units.max(1) as u32 - 1;
    // SAFETY: the CPU has AVX-512; the loads lie inside the room.
    let fits = unsafe {
        let more = _mm512_set1_epi32(more as i32);
        let limit = _mm512_set1_epi32(body.units(bound) as i32);
        let one = _mm512_set1_epi32(1);
        let at = body.narrow();
        // The lines of a leaf are aligned, but those of a body outside a leaf need not be.
        let (low, high) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast()));
        let before = (_mm512_alignr_epi32(low, low, 15), _mm512_alignr_epi32(high, low, 15));
        let begin = _mm512_set1_epi32((body.base >> body.shift) as i32);
        let mask = _mm512_set1_epi32(aligned.max(1) as i32 - 1);
        // A macro, since a closure would be compiled without AVX-512. A range that wraps fits
        // nowhere.
        macro_rules! fit {
            ($end:expr, $before:expr, $align:literal) => {{
                if UP {
                    let start = _mm512_max_epu32(_mm512_add_epi32($before, one), limit);
                    let mut end = _mm512_add_epi32(start, more);
                    if $align {
                        let over = _mm512_add_epi32(start, begin);
                        let short =
                            _mm512_and_si512(_mm512_sub_epi32(_mm512_setzero_si512(), over), mask);
                        end = _mm512_add_epi32(end, short);
                    }
                    let fits = _mm512_cmple_epu32_mask(end, $end);
                    _mm512_mask_cmpge_epu32_mask(fits, end, start)
                } else {
                    let end = _mm512_min_epu32($end, limit);
                    let mut start = _mm512_sub_epi32(end, more);
                    if $align {
                        let over = _mm512_and_si512(_mm512_add_epi32(start, begin), mask);
                        start = _mm512_sub_epi32(start, over);
                    }
                    let fits = _mm512_cmpgt_epu32_mask(start, $before);
                    _mm512_mask_cmple_epu32_mask(fits, start, end)
                }
            }};
        }
        if aligned <= 1 {
            join(fit!(low, before.0, false), fit!(high, before.1, false))
        } else {
            join(fit!(low, before.0, true), fit!(high, before.1, true))
        }
    };
    (fits & ((1 << last) - 2) | ends) & body.holes()
}

#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn gaps(inner: &Inner, size: Index) -> u32 {
    let wanted = _mm512_set1_epi64(size as i64);
    let long: u32;
    // SAFETY: reads sixteen gaps. In assembly, since a writer may store to them: each read is like
    // a relaxed load, and its result is a hint.
    unsafe {
        asm!(
            "vpcmpleuq {low}, {wanted}, zmmword ptr [{at}]",
            "vpcmpleuq {high}, {wanted}, zmmword ptr [{at} + 64]",
            "kunpckbw {low}, {high}, {low}",
            "kmovw {long:e}, {low}",
            at = in(reg) inner.gaps(),
            wanted = in(zmm_reg) wanted,
            low = out(kreg) _,
            high = out(kreg) _,
            long = lateout(reg) long,
            options(readonly, nostack, preserves_flags),
        );
    }
    long
}

/// Joins two masks. In assembly, because the compiler would move each mask by itself and then join
/// them, which takes twice as many instructions.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
fn join(low: __mmask16, high: __mmask16) -> u32 {
    let joined: u32;
    // SAFETY: uses registers only.
    unsafe {
        asm!("kunpckwd {0}, {0}, {1}", "kmovd {2:e}, {0}", inout(kreg) high => _, in(kreg) low, lateout(reg) joined,
            options(pure, nomem, nostack, preserves_flags));
    }
    joined
}

/// A mask for the first seven lanes.
#[derive(Clone, Copy)]
struct Seven(u16);

impl Seven {
    /// In assembly: the compiler would write the constant to a part of a register, which has a
    /// false dependency on the previous value of that register, and so on the previous search.
    #[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
    #[inline]
    fn new() -> Self {
        let mask: u16;
        // SAFETY: loads a constant.
        unsafe {
            asm!("mov {0:e}, 0x7f", "kmovw {1}, {0:e}", out(reg) _, out(kreg) mask,
                options(pure, nomem, nostack, preserves_flags));
        }
        Seven(mask)
    }
}

#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn unpack(body: &Body, to: &mut Starts) {
    let others = to.others();
    if body.wide {
        for i in 0..3 {
            // SAFETY: 24 words lie in the room, and have a place in `others`.
            unsafe {
                let bounds = _mm512_loadu_si512(body.words_wide().add(8 * i).cast());
                let starts = _mm512_add_epi64(bounds, _mm512_set1_epi64(1));
                _mm512_store_si512(others.add(8 * i).cast(), starts);
            }
        }
        return;
    }
    let (shift, after) = (_mm_cvtsi32_si128(body.shift.into()), _mm512_set1_epi64(after(body)));
    for i in 0..LANES / 8 {
        // SAFETY: 32 bounds lie in the room, and have a place in `others`.
        unsafe {
            let bounds = _mm256_loadu_si256(body.narrow().add(8 * i).cast());
            let units = _mm512_sll_epi64(_mm512_cvtepu32_epi64(bounds), shift);
            _mm512_store_si512(others.add(8 * i).cast(), _mm512_add_epi64(units, after));
        }
    }
}
