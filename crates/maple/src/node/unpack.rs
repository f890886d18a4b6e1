//! The unpacked entries of a leaf, for iteration.
//!
//! The first index of each slot is written to an array of whole words. Then an entry costs three
//! loads, independent of its slot and of the leaf's form. SIMD unpacks all slots that a leaf might
//! have at once, so there is no branch to mispredict. Without SIMD, a loop unpacks slot by slot.
//! Words are read from the leaf itself.

use super::leaf::{Body, Cell};
use super::load::Search;
use super::simd;
use core::mem::MaybeUninit;
use core::ptr;

/// The number of starts that fit: SIMD writes 32 for narrow bounds, 24 for wide ones.
pub(super) const LANES: usize = 32;
const _: () = assert!(LANES >= crate::layout::LEAF_SLOTS);

/// The padding before the start of slot 0. The starts of the other slots then begin at a cache
/// line, so SIMD stores whole lines.
const BEFORE: usize = 7;

/// The entries of a leaf that the iteration has not returned yet.
pub(crate) struct Unpacked {
    starts: Starts,
    /// The slots of the entries still to come, in the low 32 bits. The high 32 bits are the offset
    /// of the first one's word from `words`. Both are in one word, so that the state that a step
    /// changes stays in a register.
    rest: u64,
    /// The slots of all entries since the leaf was opened, without those cut off.
    all: u32,
    /// The word of the last entry to come. The words of the others lie behind it.
    words: *const Cell,
}

/// The first index of each slot, and the index after the last slot (0 after `usize::MAX`).
#[repr(C, align(64))]
struct Starts(MaybeUninit<[usize; BEFORE + 1 + LANES]>);

/// An offset of one word in `Unpacked::rest`.
const WORD: u64 = 1 << 32;

impl Unpacked {
    /// No entries.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Unpacked { starts: Starts(MaybeUninit::uninit()), rest: 0, all: 0, words: ptr::null() }
    }

    /// Opens a leaf that reaches from `min` to `max`, at its entries from `slot` on.
    ///
    /// # Safety
    /// The leaf stays allocated and does not change until another one is opened, or until the last
    /// entry is read.
    #[inline(always)]
    pub(crate) unsafe fn open<S: Search>(
        &mut self,
        search: S,
        body: &Body,
        slot: usize,
        (min, max): (usize, usize),
    ) {
        let all = body.entries();
        let rest = all >> slot << slot;
        self.all = rest;
        // Without entries the offset is arbitrary; it is not used.
        self.rest = u64::from(rest) | u64::from(rest.count_ones().wrapping_sub(1)) << 32;
        self.words =
            body.cell(0).cast::<Cell>().wrapping_sub(all.count_ones() as usize).wrapping_add(1);
        search.unpack(body, self);
        // SAFETY: inside the array: a leaf has at least one slot, and at most `LANES`.
        unsafe {
            self.others().sub(1).write(min);
            self.others().add(body.len() - 1).write(max.wrapping_add(1));
        }
    }

    /// The place for the starts of all slots but the first: [`LANES`] words, at the beginning of a
    /// cache line.
    #[inline(always)]
    pub(super) fn others(&mut self) -> *mut usize {
        // SAFETY: inside the array.
        unsafe { self.starts.0.as_mut_ptr().cast::<usize>().add(BEFORE + 1) }
    }

    /// # Safety
    /// The opened leaf has the slot, or `slot` is the number of its slots.
    #[inline(always)]
    unsafe fn start(&self, slot: usize) -> usize {
        debug_assert!(slot <= LANES);
        // SAFETY: inside the array, and the caller's promise.
        unsafe { self.starts.0.as_ptr().cast::<usize>().add(BEFORE + slot).read() }
    }

    /// The slots of the entries to come.
    #[inline(always)]
    fn slots(&self) -> u32 {
        self.rest as u32
    }

    /// Whether no entry is left.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots() == 0
    }

    /// Drops all entries to come.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.rest, self.all) = (0, 0);
    }

    /// The range and the word of the first entry in `rest`.
    ///
    /// # Safety
    /// `rest` is a value that the field has had since the leaf was opened; the entry was not cut
    /// off.
    #[inline(always)]
    unsafe fn first(&self, rest: u64) -> (usize, usize, *mut ()) {
        let slot = (rest as u32).trailing_zeros() as usize;
        // SAFETY: the slot and the word lie in the leaf and are initialised.
        unsafe {
            let word = self.words.add((rest >> 32) as usize).cast::<*mut ()>().read();
            (self.start(slot), self.start(slot + 1).wrapping_sub(1), simd::taken_out(word))
        }
    }

    /// Returns the next entry: its range and its word. Cost: three loads near the previous ones; no
    /// branch.
    ///
    /// # Safety
    /// There is an entry ([`Unpacked::is_empty`]).
    #[inline(always)]
    pub(crate) unsafe fn next(&mut self) -> (usize, usize, *mut ()) {
        debug_assert!(!self.is_empty());
        let rest = self.rest;
        self.rest = (rest & rest.wrapping_sub(1)).wrapping_sub(WORD);
        // SAFETY: the caller's promise.
        unsafe { self.first(rest) }
    }

    /// Returns the last entry to come: its range and its word. Cost: as for [`Unpacked::next`].
    ///
    /// # Safety
    /// There is an entry ([`Unpacked::is_empty`]).
    #[inline(always)]
    pub(crate) unsafe fn next_back(&mut self) -> (usize, usize, *mut ()) {
        debug_assert!(!self.is_empty());
        let slot = self.slots().ilog2() as usize;
        // SAFETY: the caller's promise: the slot is one of the leaf's, and `words` is its word.
        let entry = unsafe {
            let word = self.words.cast::<*mut ()>().read();
            (self.start(slot), self.start(slot + 1).wrapping_sub(1), simd::taken_out(word))
        };
        self.drop_last(slot);
        entry
    }

    /// Removes the last entry to come, which is in this slot.
    #[inline(always)]
    fn drop_last(&mut self, slot: usize) {
        self.all &= !(1 << slot);
        self.rest = (self.rest & !(1 << slot)).wrapping_sub(WORD);
        self.words = self.words.wrapping_add(1);
    }

    /// Folds over all entries to come. Cost per entry: as for [`Unpacked::next`], with the state in
    /// registers.
    #[inline(always)]
    pub(crate) fn fold<B>(
        &mut self,
        mut value: B,
        mut f: impl FnMut(B, (usize, usize, *mut ())) -> B,
    ) -> B {
        let mut rest = self.rest;
        while rest as u32 != 0 {
            // SAFETY: there is an entry.
            value = f(value, unsafe { self.first(rest) });
            rest = (rest & (rest - 1)).wrapping_sub(WORD);
        }
        self.rest = rest;
        value
    }

    /// The last index of the last returned entry; `None` if none was returned.
    pub(crate) fn returned(&self) -> Option<usize> {
        let slot = (self.all & !self.slots()).checked_ilog2()? as usize;
        // SAFETY: the slot is one of the leaf's.
        Some(unsafe { self.start(slot + 1) }.wrapping_sub(1))
    }

    /// Cuts off the entries that begin after `limit`, and, if `whole`, also those that end after
    /// it.
    pub(crate) fn cut(&mut self, limit: usize, whole: bool) {
        while let Some(slot) = self.slots().checked_ilog2() {
            // SAFETY: the slot is one of the leaf's.
            let (min, end) = unsafe { (self.start(slot as usize), self.start(slot as usize + 1)) };
            if min <= limit && (!whole || end.wrapping_sub(1) <= limit) {
                break;
            }
            self.drop_last(slot as usize);
        }
    }
}

/// Unpacks without SIMD. Cost: four instructions per slot.
#[inline(always)]
pub(super) fn scalar(body: &Body, to: &mut Unpacked) {
    let others = to.others();
    for slot in 0..body.len() - 1 {
        // SAFETY: a leaf has at most `LANES` slots.
        unsafe { others.add(slot).write(body.bound(slot).wrapping_add(1)) };
    }
}
