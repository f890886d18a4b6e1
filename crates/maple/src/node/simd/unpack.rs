//! The bounds of a leaf unpacked by vectors, all at once.
//!
//! Vectors read bounds beyond the last, too, as those of the search do, and unpack them to where nobody looks.

use crate::node::leaf::Body;
use crate::node::unpack::{LANES, Unpacked};
use core::arch::x86_64::*;

/// What is added to a narrow bound, shifted, to have the index after it.
#[inline(always)]
fn after(body: &Body) -> i64 {
    body.base.wrapping_add(1 << body.shift) as i64
}

#[target_feature(enable = "avx512f,popcnt,bmi1")]
#[inline]
pub(super) unsafe fn avx512(body: &Body, to: &mut Unpacked) {
    let others = to.others();
    if body.wide {
        for i in 0..3 {
            // SAFETY: 24 words lie in the room, and fit where they go.
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
        // SAFETY: 32 bounds lie in the room, and fit where they go.
        unsafe {
            let bounds = _mm256_loadu_si256(body.narrow().add(8 * i).cast());
            let units = _mm512_sll_epi64(_mm512_cvtepu32_epi64(bounds), shift);
            _mm512_store_si512(others.add(8 * i).cast(), _mm512_add_epi64(units, after));
        }
    }
}

#[target_feature(enable = "avx2,popcnt,bmi1")]
#[inline]
pub(super) unsafe fn avx2(body: &Body, to: &mut Unpacked) {
    let others = to.others();
    if body.wide {
        for i in 0..6 {
            // SAFETY: 24 words lie in the room, and fit where they go.
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
        // SAFETY: 32 bounds lie in the room, and fit where they go.
        unsafe {
            let bounds = _mm_loadu_si128(body.narrow().add(4 * i).cast());
            let units = _mm256_sll_epi64(_mm256_cvtepu32_epi64(bounds), shift);
            _mm256_store_si256(others.add(4 * i).cast(), _mm256_add_epi64(units, after));
        }
    }
}
