//! The unpacked entries of a leaf, for iteration in one direction.
//!
//! The first index of each slot is written to an array of whole words. Then an entry costs three
//! loads, independent of its slot and of the leaf's form. SIMD unpacks all slots that a leaf might
//! have at once, so there is no branch to mispredict. Without SIMD, a loop unpacks slot by slot.
//! Words are read from the leaf itself.
//!
//! A step changes a single word, in which the next entry is the lowest set bit: upwards bit `i` is
//! slot `i`, downwards it is slot `31 - i`. So a step has a short dependency chain either way.

use super::Span;
use super::spot::Spot;
use crate::Index;
use crate::node::{Body, Cell, Search, Starts, word};
use core::mem::MaybeUninit;
use core::ptr;

/// The entries of a leaf that the iteration has not returned yet. It returns them upwards, or
/// downwards if not `UP`.
#[derive(Clone)]
pub(crate) struct Unpacked<const UP: bool> {
    starts: Starts,
    /// The slots of the entries still to come, in the low 32 bits; mirrored if not `UP`. The high
    /// 32 bits are the offset of the next one's word from `words`. Both are in one word, so that
    /// the state that a step changes stays in a register.
    rest: u64,
    /// The slots of all entries since the leaf was opened, without those cut off. Unused if not
    /// `UP`.
    all: u32,
    /// The word of the last entry of the leaf that is not cut off. The words of the others lie
    /// behind it.
    words: *const Cell,
}

/// An offset of one word in `Unpacked::rest`.
const WORD: u64 = 1 << 32;

impl<const UP: bool> Unpacked<UP> {
    /// No entries.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        // Not `Starts(MaybeUninit::uninit())`, which makes the compiler clear all of it.
        // SAFETY: a `MaybeUninit` may be uninitialised.
        let starts = unsafe { MaybeUninit::<Starts>::uninit().assume_init() };
        Unpacked { starts, rest: 0, all: 0, words: ptr::null() }
    }

    /// Opens a leaf that reaches from `min` to `max`, at its entries from `slot` on; if not `UP`,
    /// at those before `slot`, or all with `LANES`.
    ///
    /// # Safety
    /// The leaf stays allocated and does not change until another one is opened, or until the last
    /// entry is read.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn open<S: Search>(
        &mut self,
        search: S,
        body: &Body,
        slot: usize,
        (min, max): (Index, Index),
    ) {
        // The entries up to the last one to come. Without entries the offset, or the place of the
        // word, is arbitrary; it is not used.
        let all = body.entries();
        let upto = if UP { all } else { all & ((1u64 << slot) - 1) as u32 };
        if UP {
            self.all = all >> slot << slot;
            self.rest =
                u64::from(self.all) | u64::from(self.all.count_ones().wrapping_sub(1)) << 32;
        } else {
            self.rest = u64::from(upto.reverse_bits());
        }
        self.words =
            body.cell(0).cast::<Cell>().wrapping_sub(upto.count_ones() as usize).wrapping_add(1);
        search.unpack(body, &mut self.starts);
        // SAFETY: inside the array: a leaf has at least one slot, and at most `LANES`.
        unsafe {
            self.starts.others().sub(1).write(min);
            self.starts.others().add(body.len() - 1).write(max.wrapping_add(1));
        }
    }

    /// Opens only the entry at a place. [`Unpacked::open`] opens its leaf as a whole later.
    ///
    /// # Safety
    /// As for [`Unpacked::open`]. The place is of an entry, whose range is that of `span`.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn open_one(&mut self, spot: &Spot, span: Span) {
        let slot = spot.slot();
        self.all = 1 << slot;
        self.rest = u64::from(if UP { self.all } else { 1 << (31 - slot) });
        self.words = spot.body().cell(spot.rank()).cast();
        // SAFETY: inside the array: a leaf has at most `LANES` slots.
        unsafe {
            self.starts.others().add(slot).sub(1).write(span.min);
            self.starts.others().add(slot).write(span.max.wrapping_add(1));
        }
    }

    /// The slots of the entries to come.
    #[inline(always)]
    fn slots(&self) -> u32 {
        if UP { self.rest as u32 } else { (self.rest as u32).reverse_bits() }
    }

    /// Whether no entry is left.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest as u32 == 0
    }

    /// Drops all entries to come.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.rest, self.all) = (0, 0);
    }

    /// The range and the word of the next entry in `rest`.
    ///
    /// # Safety
    /// `rest` is a value that the field has had since the leaf was opened; the entry was not cut
    /// off.
    #[cfg_attr(not(unoptimized), inline(always))]
    unsafe fn entry(&self, rest: u64) -> Span {
        let bit = (rest as u32).trailing_zeros();
        let slot = (if UP { bit } else { 31 - bit }) as usize;
        // SAFETY: the slot and the word lie in the leaf and are initialised.
        unsafe {
            let word = self.words.add((rest >> 32) as usize).cast::<*mut ()>().read();
            let (min, max) = (self.starts.get(slot), self.starts.get(slot + 1).wrapping_sub(1));
            Span { min, max, word: word::taken_out(word) }
        }
    }

    /// `rest` after its next entry, which it has.
    #[inline(always)]
    fn after(rest: u64) -> u64 {
        let rest = rest & rest.wrapping_sub(1);
        if UP { rest.wrapping_sub(WORD) } else { rest.wrapping_add(WORD) }
    }

    /// Returns the next entry. Cost: three loads near the previous ones; no branch.
    ///
    /// # Safety
    /// There is an entry ([`Unpacked::is_empty`]).
    #[inline(always)]
    pub(crate) unsafe fn next(&mut self) -> Span {
        debug_assert!(!self.is_empty());
        let rest = self.rest;
        self.skip();
        // SAFETY: the caller's promise.
        unsafe { self.entry(rest) }
    }

    /// Passes over the next entry, which there is.
    #[inline(always)]
    pub(crate) fn skip(&mut self) {
        self.rest = Self::after(self.rest);
    }

    /// Folds over all entries to come. Cost per entry: as for [`Unpacked::next`], with the state in
    /// registers.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn fold<B>(&mut self, mut value: B, mut f: impl FnMut(B, Span) -> B) -> B {
        let mut rest = self.rest;
        while rest as u32 != 0 {
            // SAFETY: there is an entry.
            value = f(value, unsafe { self.entry(rest) });
            rest = Self::after(rest);
        }
        self.rest = rest;
        value
    }

    /// Whether the next entry, which there is, overlaps `min..=max`.
    #[inline(always)]
    pub(crate) fn next_is_in(&self, min: Index, max: Index) -> bool {
        // SAFETY: there is an entry.
        let next = unsafe { self.entry(self.rest) };
        next.min <= max && next.max >= min
    }

    /// Cuts off the entries that begin after `limit`, and, if `whole`, also those that end after
    /// it.
    pub(crate) fn cut(&mut self, limit: Index, whole: bool) {
        while let Some(slot) = self.slots().checked_ilog2() {
            // SAFETY: the slot is one of the leaf's.
            let (min, end) =
                unsafe { (self.starts.get(slot as usize), self.starts.get(slot as usize + 1)) };
            if min <= limit && (!whole || end.wrapping_sub(1) <= limit) {
                break;
            }
            if UP {
                self.all &= !(1 << slot);
                self.rest = (self.rest & !(1 << slot)).wrapping_sub(WORD);
                self.words = self.words.wrapping_add(1);
            } else {
                self.skip();
            }
        }
    }
}

impl Unpacked<true> {
    /// The last index of the last returned entry; `None` if none was returned.
    pub(crate) fn returned(&self) -> Option<Index> {
        let slot = (self.all & !self.slots()).checked_ilog2()? as usize;
        // SAFETY: the slot is one of the leaf's.
        Some(unsafe { self.starts.get(slot + 1) }.wrapping_sub(1))
    }
}
