//! Gaps and holes with AVX2: all gaps of an inner node, or all holes of a leaf, at once.
//!
//! AVX2 compares signed numbers, so the highest bit of each is inverted before. A vector has four
//! gaps or eight bounds, so a node takes four vectors, and no loop end can be mispredicted.

use super::words_masked;
use crate::Index;
use crate::cold_path::cold_path;
use crate::layout::INNER_SLOTS;
use crate::node::inner::Inner;
use crate::node::leaf::Body;
use crate::node::simd::change::outer_gap;
use crate::node::simd::outer_holes;
use core::arch::asm;
use core::arch::x86_64::*;

// Four vectors hold the gaps of a node, and the narrow bounds of a leaf.
const _: () = assert!(INNER_SLOTS == 16);

/// As [`crate::node::Search::gaps`].
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn gaps(inner: &Inner, size: Index) -> u32 {
    let turn = _mm256_set1_epi64x(i64::MIN);
    let wanted = _mm256_xor_si256(_mm256_set1_epi64x(size as i64), turn);
    let (a, b, c, d): (u32, u32, u32, u32);
    // SAFETY: reads sixteen gaps. In assembly, since a writer may store to them: each read is like
    // a relaxed load, and its result is a hint.
    unsafe {
        asm!(
            "vpxor {v}, {turn}, ymmword ptr [{at}]",
            "vpcmpgtq {v}, {wanted}, {v}",
            "vmovmskpd {a:e}, {v}",
            "vpxor {v}, {turn}, ymmword ptr [{at} + 32]",
            "vpcmpgtq {v}, {wanted}, {v}",
            "vmovmskpd {b:e}, {v}",
            "vpxor {v}, {turn}, ymmword ptr [{at} + 64]",
            "vpcmpgtq {v}, {wanted}, {v}",
            "vmovmskpd {c:e}, {v}",
            "vpxor {v}, {turn}, ymmword ptr [{at} + 96]",
            "vpcmpgtq {v}, {wanted}, {v}",
            "vmovmskpd {d:e}, {v}",
            at = in(reg) inner.gaps(),
            turn = in(ymm_reg) turn,
            wanted = in(ymm_reg) wanted,
            v = out(ymm_reg) _,
            a = out(reg) a,
            b = out(reg) b,
            c = out(reg) c,
            d = lateout(reg) d,
            options(readonly, nostack, preserves_flags),
        );
    }
    // The gaps that are too small.
    let small = (a | b << 4) | (c | d << 4) << 8;
    small ^ 0xffff
}

/// The largest gap of a node when `gap` replaces the gaps of the children in `changed`.
///
/// # Safety
/// The CPU has AVX2, and the caller is the writer.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn max_gap(inner: &Inner, changed: u32, gap: Index) -> Index {
    let turn = _mm256_set1_epi64x(i64::MIN);
    let changed = _mm256_set1_epi64x(changed.into());
    let mut max = turn;
    for i in 0..4 {
        let lane = 1 << (4 * i);
        let lanes = _mm256_setr_epi64x(lane, 2 * lane, 4 * lane, 8 * lane);
        let gone = _mm256_cmpeq_epi64(_mm256_and_si256(changed, lanes), lanes);
        // SAFETY: a node has sixteen gaps; only the writer stores to them, and the caller is the
        // writer.
        let gaps = unsafe { _mm256_load_si256(inner.gaps().add(4 * i).cast()) };
        let gaps = _mm256_xor_si256(_mm256_andnot_si256(gone, gaps), turn);
        max = larger(max, gaps);
    }
    (largest(max) as Index ^ 1 << 63).max(gap)
}

/// The larger ones of signed numbers.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
fn larger(a: __m256i, b: __m256i) -> __m256i {
    _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(b, a))
}

/// The largest of four signed numbers.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
fn largest(max: __m256i) -> i64 {
    let (a, b) = (_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_blendv_epi8(a, b, _mm_cmpgt_epi64(b, a));
    _mm_cvtsi128_si64(max).max(_mm_extract_epi64::<1>(max))
}

/// As [`crate::node::change::NodeEdits::gap`].
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn gap(body: &Body, holes: u32, ends: (Index, Index), limit: Index) -> Index {
    if body.wide {
        cold_path();
        return body.gap(holes, ends, limit);
    }
    let (outer, holes) = outer_gap(body, holes, ends);
    let (ring, holes) = (ring(), _mm256_set1_epi32(holes as i32));
    let (mut max, mut turned) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for i in 0..4 {
        // SAFETY: inside the room. Whole vectors, shifted in registers: an unaligned load across
        // two vectors of a leaf that was just written would have to wait for the stores.
        let ends = unsafe { _mm256_loadu_si256(body.narrow().add(8 * i).cast()) };
        let next = _mm256_permutevar8x32_epi32(ends, ring);
        let before = _mm256_blend_epi32::<1>(next, turned);
        turned = next;
        let length = _mm256_sub_epi32(ends, before);
        max = _mm256_max_epu32(max, _mm256_and_si256(length, words_masked(holes, i)));
    }
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    outer.max((_mm_cvtsi128_si32(max) as u32 as Index) << body.shift)
}

/// Moves each lane to the one behind it, and the last to the first.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
fn ring() -> __m256i {
    _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6)
}

/// As [`crate::node::Search::holes`].
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn holes<const UP: bool, const ENDS: bool>(
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
    let outer = [(min, body.bound_or_any(0)), (body.bound_or_any(last - 1).wrapping_add(1), max)];
    let ends = outer_holes::<UP, ENDS>(outer, last, bound, (size, align));
    // The other slots are tested in whole units, with a tolerance of one unit on either side.
    // Upwards, the range begins at the unit after the previous bound, or at the limit's unit.
    // Downwards, it ends at the slot's bound, or at the limit's unit.
    let more = _mm256_set1_epi32((units.max(1) - 1) as i32);
    let limit = _mm256_set1_epi32(body.units(bound) as i32);
    let begin = _mm256_set1_epi32((body.base >> body.shift) as i32);
    let mask = _mm256_set1_epi32((aligned.max(1) - 1) as i32);
    let (one, ring) = (_mm256_set1_epi32(1), ring());
    let (mut fits, mut turned) = (0, _mm256_setzero_si256());
    for i in 0..4 {
        // SAFETY: inside the room.
        let end_at = unsafe { _mm256_loadu_si256(body.narrow().add(8 * i).cast()) };
        let next = _mm256_permutevar8x32_epi32(end_at, ring);
        let before = _mm256_blend_epi32::<1>(next, turned);
        turned = next;
        // A range that wraps fits nowhere. A number is at most another one if the larger of the two
        // is that one.
        let fit = if UP {
            let start = _mm256_max_epu32(_mm256_add_epi32(before, one), limit);
            let over = _mm256_add_epi32(start, begin);
            let short = _mm256_and_si256(_mm256_sub_epi32(_mm256_setzero_si256(), over), mask);
            let end = _mm256_add_epi32(_mm256_add_epi32(start, more), short);
            let inside = _mm256_cmpeq_epi32(_mm256_max_epu32(end, end_at), end_at);
            _mm256_and_si256(inside, _mm256_cmpeq_epi32(_mm256_max_epu32(end, start), end))
        } else {
            let end = _mm256_min_epu32(end_at, limit);
            let start = _mm256_sub_epi32(end, more);
            let over = _mm256_and_si256(_mm256_add_epi32(start, begin), mask);
            let start = _mm256_sub_epi32(start, over);
            let outside = _mm256_cmpeq_epi32(_mm256_max_epu32(start, before), before);
            _mm256_andnot_si256(outside, _mm256_cmpeq_epi32(_mm256_max_epu32(end, start), end))
        };
        fits |= (_mm256_movemask_ps(_mm256_castsi256_ps(fit)) as u32) << (8 * i);
    }
    (fits & ((1 << last) - 2) | ends) & body.holes()
}
