//! The change of a leaf with AVX-512. Cost: four loads, five masked loads, four stores.

use super::Avx512;
use super::splice::splice_lines;
use crate::Index;
use crate::cold_path::cold_path;
use crate::layout::{LEAF_CELLS, LEAF_SLOTS, NARROW, WIDE};
use crate::node::change::{Change, NodeEdits, Run};
use crate::node::inner::{Inner, Item, Splice};
use crate::node::leaf::{Body, Leaf};
use core::arch::x86_64::*;
use core::hint::{assert_unchecked, select_unpredictable};
use core::ptr::NonNull;

// Bounds lie in the first two lines, words in the last three. The last line also holds the
// reference count. It is one, since a shared leaf is never changed.
const _: () = assert!(size_of::<Leaf>() == 256 && 4 * (LEAF_SLOTS - 1) <= 128);
const _: () = assert!(8 * (LEAF_CELLS - NARROW.full / NARROW.entry) >= 64);
// Wide bounds lie in the first three lines, and so do those of the gaps.
const _: () = assert!(LEAF_CELLS - WIDE.full / WIDE.entry >= 8 && WIDE.full * 2 / 3 <= 24);

impl NodeEdits for Avx512 {
    #[cfg_attr(not(unoptimized), inline(always))]
    unsafe fn change(
        self,
        change: &Change,
        sources: (*const Leaf, *const Leaf),
        to: *mut Leaf,
        copy: *mut (),
    ) {
        // SAFETY: the caller's promise, and the CPU has AVX-512.
        unsafe {
            if (*sources.0).body().is_wide() {
                change_wide(change, sources, to, copy)
            } else {
                change_narrow(change, sources, to, copy)
            }
        }
    }

    #[inline(always)]
    unsafe fn change_apart(
        self,
        change: &Change,
        sources: (*const Leaf, *const Leaf),
        to: *mut Leaf,
        copy: *mut (),
    ) {
        // SAFETY: the caller's promise, and the CPU has AVX-512.
        unsafe { change_apart(self, change, sources, to, copy) }
    }

    #[inline(always)]
    unsafe fn splice(self, from: &Inner, to: NonNull<Inner>, end: Index, splice: Splice) {
        // SAFETY: the caller's promise, and the CPU has AVX-512.
        unsafe { splice_lines(from, to.as_ptr(), end, splice) }
    }

    #[cfg_attr(not(unoptimized), inline(always))]
    unsafe fn insert(self, inner: &Inner, slot: usize, pair: [Item; 2]) {
        let splice = Splice { gone: slot..slot + 1, items: &pair };
        // SAFETY: the caller's promise, and the CPU has AVX-512; a reference to a node gives write
        // access to all of it. In a node that is not full, the bound of the last child is the
        // node's end.
        unsafe {
            let len = inner.seps().len();
            if slot + 1 == len {
                return inner.insert(slot, pair);
            }
            let end = inner.seps().bounds[len - 1];
            splice_lines(inner, (&raw const *inner).cast_mut(), end, splice);
        }
    }

    const MEASURES: bool = true;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn gap(self, body: &Body, holes: u32, ends: (Index, Index), _: Index) -> Index {
        // SAFETY: the CPU has AVX-512.
        unsafe {
            if body.wide {
                cold_path();
                return gap_wide(body, holes, ends);
            }
            gap_narrow(body, holes, ends)
        }
    }

    #[inline(always)]
    fn max_gap_with(self, inner: &Inner, (changed, gap): (u32, Index), _: Index) -> Index {
        // SAFETY: the CPU has AVX-512.
        unsafe { max_gap(inner, changed, gap) }
    }
}

/// # Safety
/// As for [`NodeEdits::change`]; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline(never)]
unsafe fn change_apart(
    way: Avx512,
    change: &Change,
    sources: (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    unsafe { way.change(change, sources, to, copy) }
}

/// # Safety
/// As for [`NodeEdits::change`]; the leaf is narrow, and the CPU has AVX-512.
// Without `#[target_feature]`, which rules out `inline(always)`. The callers have the attribute.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn change_narrow(
    change: &Change,
    (from, other): (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // The masks of the 32-bit lanes in the first two lines, and of the cells in the last three,
    // that move; and the places that they move from.
    let (bounds, bound_at) = moved(change.bounds, other, 4);
    let (words, word_at) = moved(change.words, other, 8);
    let at = from.cast::<u8>();
    // SAFETY: the lines lie in `from`, and the lanes that the masks select in `other`; the caller
    // owns `to`, which is a leaf.
    unsafe {
        // Macros, since a closure would be compiled without AVX-512.
        macro_rules! bound {
            ($v:expr, $i:expr) => {{
                let moved = bound_at.wrapping_add(64 * $i).cast();
                _mm512_mask_loadu_epi32($v, (bounds >> (16 * $i)) as u16, moved)
            }};
        }
        macro_rules! cell {
            ($v:expr, $i:expr) => {{
                let moved = word_at.wrapping_add(64 * $i).cast();
                _mm512_mask_loadu_epi64($v, (words >> (8 * $i)) as u8, moved)
            }};
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| at.add(64 * i));
        let a = bound!(_mm512_load_si512(a.cast()), 0);
        let b = cell!(bound!(_mm512_load_si512(b.cast()), 1), 1);
        let c = cell!(_mm512_load_si512(c.cast()), 2);
        let d = cell!(_mm512_load_si512(d.cast()), 3);
        store(to, [a, b, c, d]);
        let body = (*to).body_mut();
        assert_unchecked(!body.is_wide());
        change.put(body, copy);
    }
}

/// # Safety
/// As for [`NodeEdits::change`]; the leaf is wide, and the CPU has AVX-512.
// Without `#[target_feature]`: see `change_narrow`.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn change_wide(
    change: &Change,
    (from, other): (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // As above; all lanes have 64 bits. Bounds lie in the first three lines.
    let (bounds, bound_at) = moved(change.bounds, other, 8);
    let (words, word_at) = moved(change.words, other, 8);
    let at = from.cast::<u8>();
    // SAFETY: the lines lie in `from`, and the lanes that the masks select in `other`; the caller
    // owns `to`, which is a leaf.
    unsafe {
        // A macro, since a closure would be compiled without AVX-512.
        macro_rules! lanes {
            ($v:expr, $i:expr, $mask:expr, $from:expr) => {
                _mm512_mask_loadu_epi64(
                    $v,
                    ($mask >> (8 * $i)) as u8,
                    $from.wrapping_add(64 * $i).cast(),
                )
            };
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| at.add(64 * i));
        let a = lanes!(_mm512_load_si512(a.cast()), 0, bounds, bound_at);
        let b = lanes!(_mm512_load_si512(b.cast()), 1, bounds, bound_at);
        let c = lanes!(_mm512_load_si512(c.cast()), 2, bounds, bound_at);
        let b = lanes!(b, 1, words, word_at);
        let c = lanes!(c, 2, words, word_at);
        let d = lanes!(_mm512_load_si512(d.cast()), 3, words, word_at);
        store(to, [a, b, c, d]);
        let body = (*to).body_mut();
        assert_unchecked(body.is_wide());
        change.put(body, copy);
    }
}

/// The lanes of `size` bytes that a run moves to, as a mask, and the address from which lane 0
/// would come.
#[inline(always)]
fn moved(run: Run, other: *const Leaf, size: isize) -> (u64, *const u8) {
    let down = run.old as isize - run.new as isize;
    (((1u64 << run.len) - 1) << run.new, other.cast::<u8>().wrapping_offset(size * down))
}

/// Stores the lines of a leaf.
///
/// # Safety
/// `to` is a leaf, or memory for one, of the caller's own. The CPU has AVX-512.
#[inline(always)]
unsafe fn store(to: *mut Leaf, lines: [__m512i; 4]) {
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm512_store_si512(to.cast::<u8>().add(64 * i).cast(), line) }
    }
}

/// The longer one of the holes in the first and the last slot, if these are among `holes`, and the
/// other holes.
#[cfg_attr(not(unoptimized), inline(always))]
pub(super) fn outer_gap(body: &Body, holes: u32, (min, max): (Index, Index)) -> (Index, u32) {
    let last = body.len() - 1;
    // A leaf has an entry, so a hole is shorter than the whole index range and `+ 1` does not
    // overflow.
    let first = if holes & 1 != 0 { body.end(0, max) - min + 1 } else { 0 };
    // Whether the last slot is a hole is unpredictable, so this is branchless. If it is the first
    // slot, too, `first` has its length.
    let behind = max.wrapping_sub(body.bound_of(last.saturating_sub(1)));
    let behind = select_unpredictable(last > 0 && holes >> last != 0, behind, 0);
    // The remaining holes have a bound on either side.
    (first.max(behind), holes & ((1 << last) - 1) & !1)
}

/// The longest of `holes` of a wide leaf.
///
/// # Safety
/// The CPU has AVX-512.
// Without `#[target_feature]`: see `change_narrow`.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn gap_wide(body: &Body, holes: u32, ends: (Index, Index)) -> Index {
    // SAFETY: the caller has asked.
    unsafe { assert_unchecked(body.wide) }
    let (outer, holes) = outer_gap(body, holes, ends);
    let at = body.words_wide();
    // SAFETY: inside the room, and the CPU has AVX-512.
    let longest = unsafe {
        let a = _mm512_loadu_si512(at.cast());
        let b = _mm512_loadu_si512(at.add(8).cast());
        let c = _mm512_loadu_si512(at.add(16).cast());
        let before = (
            _mm512_alignr_epi64(a, a, 7),
            _mm512_alignr_epi64(b, a, 7),
            _mm512_alignr_epi64(c, b, 7),
        );
        let a = _mm512_maskz_sub_epi64(holes as u8, a, before.0);
        let b = _mm512_maskz_sub_epi64((holes >> 8) as u8, b, before.1);
        let c = _mm512_maskz_sub_epi64((holes >> 16) as u8, c, before.2);
        _mm512_reduce_max_epu64(_mm512_max_epu64(_mm512_max_epu64(a, b), c)) as usize
    };
    outer.max(longest)
}

/// The longest of `holes` of a narrow leaf.
///
/// Loads whole lines and shifts them in registers. An unaligned load across two lines of a leaf
/// that was just written would have to wait for the stores.
///
/// # Safety
/// The CPU has AVX-512.
// Without `#[target_feature]`: see `change_narrow`.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn gap_narrow(body: &Body, holes: u32, ends: (Index, Index)) -> Index {
    // SAFETY: the caller has asked.
    unsafe { assert_unchecked(!body.wide) }
    let (outer, holes) = outer_gap(body, holes, ends);
    let at = body.narrow();
    // SAFETY: inside the room, and the CPU has AVX-512. The lines of a leaf are aligned, but those
    // of a body outside a leaf need not be.
    let units = unsafe {
        let (low, high) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(16).cast()));
        let before = (_mm512_alignr_epi32(low, low, 15), _mm512_alignr_epi32(high, low, 15));
        let low = _mm512_maskz_sub_epi32(holes as u16, low, before.0);
        let high = _mm512_maskz_sub_epi32((holes >> 16) as u16, high, before.1);
        _mm512_reduce_max_epu32(_mm512_max_epu32(low, high))
    };
    outer.max((units as Index) << body.shift)
}

/// The largest gap of a node when `gap` replaces the gaps of the children in `changed`.
#[target_feature(enable = "avx512f,avx512bw,popcnt,bmi1,bmi2")]
#[inline]
unsafe fn max_gap(inner: &Inner, changed: u32, gap: Index) -> Index {
    let gaps = inner.gaps();
    // SAFETY: a node has sixteen gaps; only the writer stores to them, and the caller is the
    // writer.
    let (low, high) =
        unsafe { (_mm512_load_si512(gaps.cast()), _mm512_load_si512(gaps.add(8).cast())) };
    let low = _mm512_mask_set1_epi64(low, changed as u8, gap as i64);
    let high = _mm512_mask_set1_epi64(high, (changed >> 8) as u8, gap as i64);
    _mm512_reduce_max_epu64(_mm512_max_epu64(low, high)) as usize
}
