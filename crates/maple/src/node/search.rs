//! The search within a node without SIMD.
//!
//! The search counts the bounds below an index, in two stages. The first stage compares every fifth
//! bound of a leaf (every fourth of an inner node) and so finds a group; the second compares the
//! other bounds of that group. No branch depends on the data, so none is mispredicted.
//!
//! The number of instructions that a CPU keeps in flight, a few hundred, limits the rate of
//! searches. So the code minimises the number of instructions and the length of the dependency
//! chains. A comparison takes two instructions: one compares with memory and leaves the outcome in
//! the carry flag, an add-with-carry collects it.
//!
//! Correctness: the room behind a leaf's bounds holds arbitrary values. So outcomes are collected
//! as bits, and bits beyond the last bound are masked out. Unused separators of an inner node are
//! the largest number, so their outcomes are zero and can be added up at once.

use super::inner::Seps;
use super::leaf::Body;
use super::word::taken_out;
use crate::Index;
use crate::cold_path::cold_path;
use crate::layout::{INNER_SLOTS, LEAF_CELLS, LEAF_SLOTS, WIDE};
use by::{count_inner, minus};
use core::hint::assert_unchecked;
use core::ptr;

/// The size of a group of bounds in a leaf. The first stage compares the last bound of each group,
/// the second stage the others of one group.
const LEAF_GROUP: usize = 5;
/// The size of a group in an inner node.
const INNER_GROUP: usize = 4;

// Six groups cover all slots and lie inside the room. Five groups cover a wide leaf, which has
// fewer slots.
const _: () = assert!(LEAF_SLOTS <= 6 * LEAF_GROUP && 2 * LEAF_CELLS >= 6 * LEAF_GROUP);
const _: () = assert!(WIDE.full / 3 * 2 < 5 * LEAF_GROUP && LEAF_CELLS >= 5 * LEAF_GROUP);
const _: () = assert!(INNER_SLOTS == 4 * INNER_GROUP || INNER_SLOTS == INNER_GROUP);

/// The slots of a leaf that lie before the one that holds `index`: bit `i` for slot `i`.
///
/// Cost: one or two cache lines, two dependent loads. Branches: the leaf's form, and whether the
/// index is within reach of the leaf's bounds.
#[inline(always)]
pub(super) fn below_scalar(body: &Body, index: Index) -> u32 {
    slot_bit(body, index).wrapping_sub(1)
}

/// The slot of a leaf that holds `index`. Cost: as for [`below_scalar`].
#[inline(always)]
pub(super) fn leaf_scalar(body: &Body, index: Index) -> usize {
    let slot = slot_bit(body, index);
    // SAFETY: there is a slot.
    unsafe { assert_unchecked(slot != 0) };
    slot.trailing_zeros() as usize
}

/// The word of the slot that holds `index`; null for a hole.
///
/// Cost: as for [`below_scalar`], plus a cache line for the word and a branch on whether there is
/// an entry.
#[cfg_attr(not(unoptimized), inline(always))]
pub(super) fn word_scalar(body: &Body, index: Index) -> *mut () {
    let slot = slot_and_more(body, index);
    // The entries up to and including the slot. The mask has no bits beyond the last slot.
    let entries = body.entries() & (slot ^ slot.wrapping_sub(1));
    if entries & slot == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the cell of an entry.
    taken_out(unsafe { body.cell_down(minus(entries.count_ones())).read() })
}

/// The slot of a leaf that holds `index`, as a single bit.
#[inline(always)]
fn slot_bit(body: &Body, index: Index) -> u32 {
    let slot = slot_and_more(body, index);
    slot & slot.wrapping_neg()
}

/// The slot of a leaf that holds `index`, as the lowest set bit. Higher bits are arbitrary.
#[cfg_attr(not(unoptimized), inline(always))]
fn slot_and_more(body: &Body, index: Index) -> u32 {
    let n = body.len() - 1;
    // SAFETY: the room is initialised, and holds every group.
    unsafe {
        if body.wide {
            cold_path();
            lowest(body.words_wide(), index, n)
        } else {
            lowest(body.narrow(), near(body, index), n)
        }
    }
}

/// The number of units from the base to an index, saturated to the range of narrow bounds.
///
/// Unlike [`Body::units`], with a branch: few indices are far from all bounds, and the branchless
/// form has a longer latency.
#[cfg_attr(not(unoptimized), inline(always))]
fn near(body: &Body, index: Index) -> u32 {
    // SAFETY: the shift is less than the bits of a word.
    unsafe { assert_unchecked(u32::from(body.shift) < Index::BITS) };
    // An index below the base also wraps to more than the reach of bounds: see `pack`.
    let units = index.wrapping_sub(body.base) >> body.shift;
    if units > u32::MAX as Index {
        cold_path();
        return body.units(index);
    }
    units as u32
}

/// The first of the `n` ascending elements at `at` that is not below `than`, or `n`: as the lowest
/// set bit.
///
/// # Safety
/// Initialised elements, of any value, exist for every group that begins at or below `n`, and for
/// the last element of every group.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn lowest<T: Compare>(at: *const T, than: T, n: usize) -> u32 {
    // SAFETY: the caller's promise; a leaf has fewer bounds than six groups.
    unsafe {
        assert_unchecked(n < 6 * LEAF_GROUP);
        // Mask out groups that are not complete.
        let heads = T::heads(at, than) & ((1 << groups(n)) - 1);
        let first = LEAF_GROUP * heads.count_ones() as usize;
        assert_unchecked(first <= n);
        // Elements below `than` come first; adding one sets the bit after theirs.
        (T::group(at, first, than) + 1) << first | 1 << n
    }
}

/// The number of groups of a leaf that have all their bounds.
#[inline(always)]
const fn groups(n: usize) -> usize {
    // A division by five. For an argument of unknown range the compiler would take one instruction
    // more.
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
/// Cost: one or two cache lines, two dependent loads, no branch.
#[inline(always)]
pub(crate) fn inner_scalar(seps: &Seps, index: Index) -> usize {
    // SAFETY: the separators are initialised.
    unsafe {
        let slot = count_inner(seps.bounds.as_ptr(), index);
        assert_unchecked(slot < INNER_SLOTS);
        slot
    }
}

/// An element that can be compared: a narrow or a wide bound.
trait Compare: Copy + Ord {
    /// Compares the last element of each group: bit `i` is set if that of group `i` is below
    /// `than`.
    ///
    /// # Safety
    /// These elements are initialised.
    unsafe fn heads(at: *const Self, than: Self) -> u32;

    /// Compares the elements of the group at `first`, except its last: bit `i` is set if element
    /// `first + i` is below `than`.
    ///
    /// # Safety
    /// These elements are initialised.
    unsafe fn group(at: *const Self, first: usize, than: Self) -> u32;
}

/// The portable version.
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

    /// The number of separators of an inner node below `than`.
    ///
    /// # Safety
    /// The separators are initialised.
    #[inline(always)]
    pub(super) unsafe fn count_inner(at: *const Index, than: Index) -> usize {
        // SAFETY: the caller's promise.
        let below = |i| usize::from(unsafe { *at.add(i) } < than);
        let heads = INNER_SLOTS / INNER_GROUP - 1;
        let first: usize = (0..heads).map(|i| below(INNER_GROUP * i + INNER_GROUP - 1)).sum();
        let first = INNER_GROUP * first;
        first + (first..first + INNER_GROUP - 1).map(below).sum::<usize>()
    }
}

/// The x86-64 version. The compiler would set a byte for each outcome, widen it and add it, which
/// takes twice as many instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod by {
    use super::*;
    use core::arch::asm;

    /// Compares the elements at some offsets from a place with a register (both given as assembly
    /// text), and collects each outcome with `$take`.
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

    // Each outcome is shifted in from below, so the highest offset comes first.
    const _: () = assert!(LEAF_GROUP == 5 && INNER_GROUP == 4);

    impl Compare for u32 {
        #[inline(always)]
        unsafe fn heads(at: *const Self, than: Self) -> u32 {
            // SAFETY: reads only the elements that the caller promises.
            unsafe {
                compare!("{at}", "{than:e}", "adc {out:e}, {out:e}", 96 76 56 36 16;
                    at = in(reg) at, than = in(reg) than) as u32
            }
        }

        #[inline(always)]
        unsafe fn group(at: *const Self, first: usize, than: Self) -> u32 {
            // SAFETY: reads only the elements that the caller promises.
            unsafe {
                compare!("{at} + 4 * {first}", "{than:e}", "adc {out:e}, {out:e}", 12 8 4 0;
                    at = in(reg) at, first = in(reg) first, than = in(reg) than)
                    as u32
            }
        }
    }

    impl Compare for Index {
        #[inline(always)]
        unsafe fn heads(at: *const Self, than: Self) -> u32 {
            // SAFETY: reads only the elements that the caller promises.
            unsafe {
                compare!("{at}", "{than}", "adc {out:e}, {out:e}", 192 152 112 72 32;
                    at = in(reg) at, than = in(reg) than) as u32
            }
        }

        #[inline(always)]
        unsafe fn group(at: *const Self, first: usize, than: Self) -> u32 {
            // SAFETY: reads only the elements that the caller promises.
            unsafe {
                compare!("{at} + 8 * {first}", "{than}", "adc {out:e}, {out:e}", 24 16 8 0;
                    at = in(reg) at, first = in(reg) first, than = in(reg) than)
                    as u32
            }
        }
    }

    /// Negates with one instruction. The compiler turns a negation within an address into a shift
    /// and a subtraction.
    #[inline(always)]
    pub(super) fn minus(n: u32) -> isize {
        let mut n = n as isize;
        // SAFETY: uses registers only.
        unsafe { asm!("neg {0}", inout(reg) n, options(pure, nomem, nostack)) }
        n
    }

    /// The number of separators of an inner node below `than`.
    ///
    /// # Safety
    /// The separators are initialised.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(super) unsafe fn count_inner(at: *const Index, than: Index) -> usize {
        if INNER_SLOTS == INNER_GROUP {
            // SAFETY: reads only the separators that the caller promises.
            return unsafe {
                compare!("{at}", "{than}", "adc {out:e}, 0", 0 8 16; at = in(reg) at, than = in(reg) than)
            };
        }
        let slot;
        // SAFETY: reads only the separators that the caller promises: 3, 7 and 11, then the three
        // before one of these, or the last three.
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
mod tests;
