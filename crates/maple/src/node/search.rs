//! The search within a node without vectors.
//!
//! It counts how many bounds lie below an index, in two stages: every fourth or fifth bound tells
//! which group, then the group's own are compared. There is no branch that depends on the data, so
//! nothing to mispredict. What bounds the rate of searches is how many instructions a processor can
//! have waiting (some hundred): hence few of them, and short ways from one to the next. A
//! comparison is two: one with memory leaves its outcome in the carry, an addition takes that up.
//!
//! What a leaf's room holds behind its bounds may be anything. So outcomes are bits, not counts,
//! and those beyond the last bound are masked out. Separators that are not there are the largest
//! number, so those of inner nodes are counted at once.
//!
//! # What each step gave
//!
//! Nanoseconds of a lookup in a kernel's build at 100 / 1,000 / 10,000 ranges, independent keys, in
//! one sitting; by AVX-512 it took 4.4 / 6.7 / 11.
//!
//! | step | ns |
//! |---|---|
//! | five halvings in a leaf, 4 + 3 comparisons in an inner node, each by a byte that is set, widened, and added | 16.0 / 22.5 / 32 |
//! | 3 + 7 comparisons in a leaf, 3 + 3 in an inner node, by carries; `popcnt`, `bmi1` and `bmi2` where they are | 11.4 / 17.0 / 26 |
//! | one call instead of two; what is far from all bounds by a branch | 10.3 / 15.5 / 22 |
//! | 4 + 5 comparisons in a leaf; one chain of additions in an inner node; the slot as a bit, its rank from that | 9.4 / 13.9 / 21 |
//! | 5 + 4 comparisons in a leaf | 9.2 / 13.2 / 21 |
//! | what is rare out of the way | 9.1 / 12.6 / 20 |
//! | addresses from a base and an index; a negation by name | 8.5 / 12.2 / 20 |
//!
//! Without effect: prefetches by fewer instructions (they wait for nothing), or none at all up to
//! 1,000. Slower: the first stage of a leaf in two chains of additions. A level's tag taken off by
//! the address, in code of its own for each level, gave 2 to 4 % from 1,000 on, and took 4 % at 100.

use super::inner::Seps;
use super::leaf::Body;
use super::simd::taken_out;
use crate::layout::{INNER_SLOTS, LEAF_CELLS, LEAF_SLOTS, WIDE};
use by::{count_inner, minus};
use core::hint::{assert_unchecked, cold_path};
use core::ptr;

/// A group of bounds of a leaf: the last tells it from the next, the others are compared once it is
/// known.
const LEAF_GROUP: usize = 5;
/// The same in an inner node.
const INNER_GROUP: usize = 4;

// Six groups are enough, and lie inside the room; of wide bounds, which are fewer, as many as may
// hold some.
const _: () = assert!(LEAF_SLOTS <= 6 * LEAF_GROUP && 2 * LEAF_CELLS >= 6 * LEAF_GROUP);
const _: () = assert!(WIDE.full / 3 * 2 < 5 * LEAF_GROUP && LEAF_CELLS >= 5 * LEAF_GROUP);
const _: () = assert!(INNER_SLOTS == 4 * INNER_GROUP || INNER_SLOTS == INNER_GROUP);

/// The slots of a leaf that lie before the one that holds `index`: bit `i` for slot `i`.
///
/// Cost: one or two cache lines, two loads in a row. Branches: the leaf's form, and whether the
/// index lies within reach of the leaf's bounds.
#[inline(always)]
pub(super) fn below_scalar(body: &Body, index: usize) -> u32 {
    slot_bit(body, index).wrapping_sub(1)
}

/// The slot of a leaf that holds `index`. Cost: as [`below_scalar`].
#[inline(always)]
pub(super) fn leaf_scalar(body: &Body, index: usize) -> usize {
    let slot = slot_bit(body, index);
    // SAFETY: there is a slot.
    unsafe { assert_unchecked(slot != 0) };
    slot.trailing_zeros() as usize
}

/// The word of the slot that holds `index`; null for a hole.
///
/// Cost: as [`below_scalar`], a cache line for the word, and a branch for whether there is an
/// entry.
#[inline(always)]
pub(super) fn word_scalar(body: &Body, index: usize) -> *mut () {
    let slot = slot_and_more(body, index);
    // The entries up to it, which are no slots beyond.
    let entries = body.entries() & (slot ^ slot.wrapping_sub(1));
    if entries & slot == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the cell of an entry.
    taken_out(unsafe { body.cell_down(minus(entries.count_ones())).read() })
}

/// The slot of a leaf that holds `index`, as a bit.
#[inline(always)]
fn slot_bit(body: &Body, index: usize) -> u32 {
    let slot = slot_and_more(body, index);
    slot & slot.wrapping_neg()
}

/// The slot of a leaf that holds `index`, as the lowest bit that is set.
#[inline(always)]
fn slot_and_more(body: &Body, index: usize) -> u32 {
    let n = body.len() - 1;
    // SAFETY: the room is initialised, and has so many things wherever a group is.
    unsafe {
        if body.wide {
            cold_path();
            lowest(body.words_wide(), index, n)
        } else {
            lowest(body.narrow(), near(body, index), n)
        }
    }
}

/// How many units an index lies above the base, as far as bounds go.
///
/// As [`Body::units`], by a branch: few indices are that far from all bounds, and to wait for what
/// is decided without one takes longer.
#[inline(always)]
fn near(body: &Body, index: usize) -> u32 {
    // SAFETY: bits of a word.
    unsafe { assert_unchecked(u32::from(body.shift) < usize::BITS) };
    // Below the base that is more than the reach of bounds, too: see `pack`.
    let units = index.wrapping_sub(body.base) >> body.shift;
    if units > u32::MAX as usize {
        cold_path();
        return body.units(index);
    }
    units as u32
}

/// The first of the `n` ascending things at `at` that is not below another, or their end: the
/// lowest bit that is set.
///
/// # Safety
/// Things are there, if only with any value, as far as any group goes that begins at or below `n`;
/// so are all that tell groups apart.
#[inline(always)]
unsafe fn lowest<T: Compare>(at: *const T, than: T, n: usize) -> u32 {
    // SAFETY: the caller's promise, and the number of slots.
    unsafe {
        assert_unchecked(n < 6 * LEAF_GROUP);
        // As far as they are bounds.
        let heads = T::heads(at, than) & ((1 << groups(n)) - 1);
        let first = LEAF_GROUP * heads.count_ones() as usize;
        assert_unchecked(first <= n);
        // Of ascending ones those below come first: one more is the next bit.
        (T::group(at, first, than) + 1) << first | 1 << n
    }
}

/// How many groups of a leaf have all their bounds.
#[inline(always)]
const fn groups(n: usize) -> usize {
    // A fifth; the compiler takes an instruction more for what may be any number.
    n * 13 / 64
}

const _: () = {
    let mut n = 0;
    while n <= LEAF_SLOTS {
        assert!(groups(n) == n / LEAF_GROUP);
        n += 1;
    }
};

/// The child of an inner node that holds `index`.
///
/// Cost: one or two cache lines, two loads in a row, no branch.
#[inline(always)]
pub(super) fn inner_scalar(seps: &Seps, index: usize) -> usize {
    // SAFETY: they are separators.
    unsafe {
        let slot = count_inner(seps.bounds.as_ptr(), index);
        assert_unchecked(slot < INNER_SLOTS);
        slot
    }
}

/// Things that are compared.
trait Compare: Copy + Ord {
    /// Which of those that tell groups apart are below: bit `i` for the last of group `i`.
    ///
    /// # Safety
    /// They are there.
    unsafe fn heads(at: *const Self, than: Self) -> u32;

    /// Which of a group that begins at `first` are below, but for the last: bit `i` for the one at
    /// `first + i`.
    ///
    /// # Safety
    /// They are there.
    unsafe fn group(at: *const Self, first: usize, than: Self) -> u32;
}

/// Without instructions by name: the compiler's choice.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod by {
    use super::*;

    impl<T: Copy + Ord> Compare for T {
        #[inline(always)]
        unsafe fn heads(at: *const T, than: T) -> u32 {
            let head = |i| LEAF_GROUP * i + LEAF_GROUP - 1;
            // SAFETY: the caller's promise.
            (0..5).fold(0, |bits, i| bits | u32::from(unsafe { *at.add(head(i)) } < than) << i)
        }

        #[inline(always)]
        unsafe fn group(at: *const T, first: usize, than: T) -> u32 {
            // SAFETY: the caller's promise.
            let below = |i| u32::from(unsafe { *at.add(first + i) } < than);
            (0..LEAF_GROUP - 1).fold(0, |bits, i| bits | below(i) << i)
        }
    }

    #[inline(always)]
    pub(super) fn minus(n: u32) -> isize {
        -(n as isize)
    }

    /// How many separators of an inner node are below.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    pub(super) unsafe fn count_inner(at: *const usize, than: usize) -> usize {
        // SAFETY: the caller's promise.
        let below = |i| usize::from(unsafe { *at.add(i) } < than);
        let heads = INNER_SLOTS / INNER_GROUP - 1;
        let first: usize = (0..heads).map(|i| below(INNER_GROUP * i + INNER_GROUP - 1)).sum();
        let first = INNER_GROUP * first;
        first + (first..first + INNER_GROUP - 1).map(below).sum::<usize>()
    }
}

/// By name: the compiler sets a byte for each outcome, widens it, and adds it, which is twice as
/// much.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod by {
    use super::*;
    use core::arch::asm;

    /// Compares things at some offsets from a place with a register (both as they are written), and
    /// takes up each outcome.
    macro_rules! compare {
        ($place:literal, $than:literal, $take:literal, $($offset:literal)*; $($operands:tt)*) => {{
            let out: usize;
            asm!(
                $(concat!("cmp [", $place, " + ", $offset, "], ", $than), $take,)*
                out = inout(reg) 0usize => out,
                $($operands)*,
                options(pure, readonly, nostack),
            );
            out
        }};
    }

    // Each outcome is shifted in from below: so the last one comes first.
    const _: () = assert!(LEAF_GROUP == 5 && INNER_GROUP == 4);

    impl Compare for u32 {
        #[inline(always)]
        unsafe fn heads(at: *const Self, than: Self) -> u32 {
            // SAFETY: reads what the caller promises.
            unsafe {
                compare!("{at}", "{than:e}", "adc {out:e}, {out:e}", 96 76 56 36 16;
                    at = in(reg) at, than = in(reg) than) as u32
            }
        }

        #[inline(always)]
        unsafe fn group(at: *const Self, first: usize, than: Self) -> u32 {
            // SAFETY: reads what the caller promises.
            unsafe {
                compare!("{at} + 4 * {first}", "{than:e}", "adc {out:e}, {out:e}", 12 8 4 0;
                    at = in(reg) at, first = in(reg) first, than = in(reg) than)
                    as u32
            }
        }
    }

    impl Compare for usize {
        #[inline(always)]
        unsafe fn heads(at: *const Self, than: Self) -> u32 {
            // SAFETY: reads what the caller promises.
            unsafe {
                compare!("{at}", "{than}", "adc {out:e}, {out:e}", 192 152 112 72 32;
                    at = in(reg) at, than = in(reg) than) as u32
            }
        }

        #[inline(always)]
        unsafe fn group(at: *const Self, first: usize, than: Self) -> u32 {
            // SAFETY: reads what the caller promises.
            unsafe {
                compare!("{at} + 8 * {first}", "{than}", "adc {out:e}, {out:e}", 24 16 8 0;
                    at = in(reg) at, first = in(reg) first, than = in(reg) than)
                    as u32
            }
        }
    }

    /// The negative: else the compiler makes a shift and a subtraction of a negation that is part
    /// of an address.
    #[inline(always)]
    pub(super) fn minus(n: u32) -> isize {
        let mut n = n as isize;
        // SAFETY: only registers.
        unsafe { asm!("neg {0}", inout(reg) n, options(pure, nomem, nostack)) }
        n
    }

    /// How many separators of an inner node are below.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    pub(super) unsafe fn count_inner(at: *const usize, than: usize) -> usize {
        if INNER_SLOTS == INNER_GROUP {
            // SAFETY: reads what the caller promises.
            return unsafe {
                compare!("{at}", "{than}", "adc {out:e}, 0", 0 8 16; at = in(reg) at, than = in(reg) than)
            };
        }
        let slot;
        // SAFETY: reads what the caller promises: separators 3, 7 and 11, then the three before one
        // of those, or the last.
        unsafe {
            asm!(
                "cmp [{at} + 24], {than}",
                "adc {slot:e}, 0",
                "cmp [{at} + 56], {than}",
                "adc {slot:e}, 0",
                "cmp [{at} + 88], {than}",
                "adc {slot:e}, 0",
                "shl {slot:e}, 2",
                "mov {first:e}, {slot:e}",
                "cmp [{at} + 8 * {first}], {than}",
                "adc {slot:e}, 0",
                "cmp [{at} + 8 * {first} + 8], {than}",
                "adc {slot:e}, 0",
                "cmp [{at} + 8 * {first} + 16], {than}",
                "adc {slot:e}, 0",
                at = in(reg) at,
                than = in(reg) than,
                first = out(reg) _,
                slot = inout(reg) 0usize => slot,
                options(pure, readonly, nostack),
            );
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::leaf::{Slot, word};
    use crate::node::pack::{is_packable, pack};
    use crate::node::simd::inner;
    use crate::node::{Job, Search, run};
    use std::vec::Vec;

    struct Soon<'s>(&'s Seps, usize);

    impl Job for Soon<'_> {
        type Out = usize;

        fn run<S: Search>(self, search: S) -> usize {
            search.inner_soon(self.0, self.1)
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn children_at_every_fill() {
        for len in 1..=INNER_SLOTS {
            let mut seps = Seps::empty();
            for i in 0..len - 1 {
                seps.bounds[i] = 10 * i + 3;
            }
            seps.len = len as u8;
            for index in (0..10 * len + 2).chain([usize::MAX]) {
                let smaller = seps.bounds[..len - 1].iter().filter(|&&bound| bound < index).count();
                assert_eq!(inner_scalar(&seps, index), smaller, "{index} of {len}");
                assert_eq!(inner(&seps, index), smaller, "{index} of {len}");
                assert_eq!(run(Soon(&seps, index)), smaller, "{index} of {len}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn slots_at_every_fill() {
        for size in [10, 0x1000, (1 << 58) + 1] {
            for len in 1..if size > 1 << 50 { 16 } else { 30 } {
                let slots = (0..len).map(|i| Slot {
                    end: if i + 1 == len { usize::MAX } else { (i + 1) * size - 1 },
                    word: word(if i % 2 == 0 { i + 1 } else { 0 }),
                });
                let slots = slots.collect::<Vec<_>>();
                if !is_packable(&slots) {
                    continue;
                }
                let body = pack(&slots);
                for index in (0..len).flat_map(|i| [i * size, i * size + size - 1, i * size + 1]) {
                    let smaller = slots[..len - 1].iter().filter(|slot| slot.end < index).count();
                    assert_eq!(leaf_scalar(&body, index), smaller, "{index:#x} of {len}");
                    assert_eq!(body.find(index), smaller, "{index:#x} of {len}");
                }
                assert_eq!(
                    (body.find(usize::MAX), leaf_scalar(&body, usize::MAX)),
                    (len - 1, len - 1)
                );
            }
        }
    }
}
