//! The splice of an inner node with AVX-512: some of its children are replaced.
//!
//! Each of the node's three arrays is two cache lines. Each new line combines the old line, the old
//! line shifted, and the value of an unused slot. So the cost does not depend on how many children
//! move, and no loop end can be mispredicted. Cost: four masked loads and two stores per array.

use crate::Index;
use crate::layout::INNER_SLOTS;
use crate::node::inner::{Inner, Seps, Splice};
use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::offset_of;

// Separators with the length and the reference count fill two lines, children two, gaps two.
const _: () = assert!(size_of::<Seps>() == 128 && size_of::<Inner>() == 384 && INNER_SLOTS == 16);
const _: () = assert!(offset_of!(Seps, len) == 120 && offset_of!(Seps, refs) == 124);

/// The words that stay, and those that move.
#[derive(Clone, Copy)]
struct Moved {
    /// The words that stay: bit `i` for word `i`.
    low: u32,
    /// The words that move, by their new places.
    high: u32,
    /// The distance from the new place to the old one, in bytes.
    by: isize,
}

/// Makes an inner node in `to`: `from`, which ends at `end`, with some adjacent children replaced.
/// There must be room. `to` may be `from`. The splice has items, or a child behind them stays.
///
/// # Safety
/// `to` is memory for an inner node, or it is `from` and the caller owns it alone. `from` does not
/// change during the call. The CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn splice_lines(from: &Inner, to: *mut Inner, end: Index, splice: Splice) {
    let Splice { gone, items } = splice;
    let (at, behind) = (gone.start, gone.start + items.len());
    // SAFETY: the caller's promise.
    let rest = unsafe { from.seps() }.len() - gone.end;
    let len = behind + rest;
    debug_assert!((1..=INNER_SLOTS).contains(&len) && (!items.is_empty() || rest > 0));
    let moved = Moved {
        low: (1 << at) - 1,
        high: ((1 << rest) - 1) << behind,
        by: 8 * (gone.end as isize - behind as isize),
    };
    let at_from = (&raw const *from).cast::<u8>();
    let at_to = to.cast::<u8>();
    let (none, all) = (_mm512_setzero_si512(), _mm512_set1_epi64(-1));
    // The last child ends where the node ends. The last word of the separators' lines holds the
    // length and the reference count, which is one.
    let last = 1 << (len - 1) & 0x7fff_u32;
    let ends = _mm512_set1_epi64(end as i64);
    let high = _mm512_mask_mov_epi64(all, (last >> 8) as u8, ends);
    let high = _mm512_mask_set1_epi64(high, 1 << 7, len as i64 | 1 << 32);
    let low = _mm512_mask_mov_epi64(all, last as u8, ends);
    let seps = Moved { high: moved.high & !last & 0x7fff, ..moved };
    // SAFETY: each array is two lines inside the node, and the moved words are children of `from`.
    // The caller owns `to` alone.
    unsafe {
        two_lines(at_from, at_to, seps, (low, high));
        for array in [128, 256] {
            two_lines(at_from.add(array), at_to.add(array), moved, (none, none));
        }
        (*to).put(at, items);
    }
}

/// Makes two lines: words of two other lines where a mask selects them, else `low` and `high`.
///
/// In assembly, because a word may be a link: as an integer it would lose its provenance.
///
/// # Safety
/// The selected words are initialised, and the caller owns the lines at `to` alone.
/// The words are there, and the lines may be written to.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn two_lines(from: *const u8, to: *mut u8, moved: Moved, (low, high): (__m512i, __m512i)) {
    let Moved { low: stays, high: moves, by } = moved;
    // SAFETY: the caller's promise; the loads read only words that a mask selects. All loads
    // precede the first store.
    unsafe {
        asm!(
            "vmovdqu64 {low} {{{stays0}}}, zmmword ptr [{from}]",
            "vmovdqu64 {high} {{{stays1}}}, zmmword ptr [{from} + 64]",
            "vmovdqu64 {low} {{{moves0}}}, zmmword ptr [{source}]",
            "vmovdqu64 {high} {{{moves1}}}, zmmword ptr [{source} + 64]",
            "vmovdqa64 zmmword ptr [{to}], {low}",
            "vmovdqa64 zmmword ptr [{to} + 64], {high}",
            from = in(reg) from,
            source = in(reg) from.wrapping_offset(by),
            to = in(reg) to,
            stays0 = in(kreg) stays as u16,
            stays1 = in(kreg) (stays >> 8) as u16,
            moves0 = in(kreg) moves as u16,
            moves1 = in(kreg) (moves >> 8) as u16,
            low = inout(zmm_reg) low => _,
            high = inout(zmm_reg) high => _,
            options(nostack, preserves_flags),
        );
    }
}
