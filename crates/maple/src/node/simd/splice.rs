//! An inner node of which some children are others, by vectors of 64 bytes: each of its three
//! arrays is two lines, and each line the one before, the one before shifted, and what stands for
//! no child. So it does not matter how many move, and there is no loop whose end must be guessed.

use crate::layout::INNER_SLOTS;
use crate::node::inner::{Inner, Seps, Splice};
use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::offset_of;

// Separators and their count with that of references are two lines, children two, gaps two.
const _: () = assert!(size_of::<Seps>() == 128 && size_of::<Inner>() == 384 && INNER_SLOTS == 16);
const _: () = assert!(offset_of!(Seps, len) == 120 && offset_of!(Seps, refs) == 124);

/// Which words come from where.
#[derive(Clone, Copy)]
struct Moved {
    /// Those that stay where they are: bit `i` for word `i`.
    low: u32,
    /// Those that move, by where they come to be.
    high: u32,
    /// How many bytes further on they were.
    by: isize,
}

/// Makes an inner node in `to`: `from`, which ends at `end`, in which others take the place of some
/// neighbours. There is room for them. Both may be one. There are others, or a child that stays is
/// the last.
///
/// # Safety
/// `to` is `from`, at which nobody else looks, or memory for an inner node; nobody changes `from`
/// meanwhile. The processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
pub(super) unsafe fn splice_lines(from: &Inner, to: *mut Inner, end: usize, splice: Splice) {
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
    // The last child ends where the node does. Behind the separators lie their count and that of
    // references, which is one.
    let last = 1 << (len - 1) & 0x7fff_u32;
    let ends = _mm512_set1_epi64(end as i64);
    let high = _mm512_mask_mov_epi64(all, (last >> 8) as u8, ends);
    let high = _mm512_mask_set1_epi64(high, 1 << 7, len as i64 | 1 << 32);
    let low = _mm512_mask_mov_epi64(all, last as u8, ends);
    let seps = Moved { high: moved.high & !last & 0x7fff, ..moved };
    // SAFETY: the arrays lie in the nodes, two lines each, and the words that are moved are the
    // node's. Nobody else looks at what is written.
    unsafe {
        two_lines(at_from, at_to, seps, (low, high));
        for array in [128, 256] {
            two_lines(at_from.add(array), at_to.add(array), moved, (none, none));
        }
        (*to).put(at, items);
    }
}

/// Makes two lines: words of two others, and what is given where none of them come to be.
///
/// In assembly, for a word may be a link, and as a number it would lose what it may be used for.
///
/// # Safety
/// The words are there, and the lines may be written to.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn two_lines(from: *const u8, to: *mut u8, moved: Moved, (low, high): (__m512i, __m512i)) {
    let Moved { low: stays, high: moves, by } = moved;
    // SAFETY: the caller's promise; words that no mask selects are not read. All is read before
    // anything is written.
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
