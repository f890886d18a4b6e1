//! The entries of a leaf, unpacked, for who reads one after the other.
//!
//! Where slots begin is written out as whole words: then an entry costs as much as three loads,
//! whichever slot it has and whatever form the leaf has. Vectors do that for all slots that a leaf
//! might have at once, so that there is no branch to mispredict; without, it is done one after the
//! other. Words are read where they are.

use super::leaf::{Body, Cell};
use super::load::Search;
use super::simd;
use core::mem::MaybeUninit;
use core::ptr;

/// How many starts fit in: vectors write 32 of narrow bounds, or 24 of wide ones.
pub(super) const LANES: usize = 32;
const _: () = assert!(LANES >= crate::layout::LEAF_SLOTS);

/// Before the first, so that vectors are stored to whole cache lines: that of the first slot is by
/// itself.
const BEFORE: usize = 7;

/// What is left of a leaf.
pub(crate) struct Unpacked {
    starts: Starts,
    /// The slots of the entries still to come; above those 32 bits, the place of the first one's
    /// word, from `words` on. One word for both: what a step changes then stays in a register.
    rest: u64,
    /// The slots of all entries that were to come, and were not cut off.
    all: u32,
    /// The word of the last entry that is to come. Those of the others lie behind it.
    words: *const Cell,
}

/// The first index of each slot, and of what comes after the last (0: nothing does).
#[repr(C, align(64))]
struct Starts(MaybeUninit<[usize; BEFORE + 1 + LANES]>);

/// One word further on, in `Unpacked::rest`.
const WORD: u64 = 1 << 32;

impl Unpacked {
    /// Nothing.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Unpacked { starts: Starts(MaybeUninit::uninit()), rest: 0, all: 0, words: ptr::null() }
    }

    /// Takes up the entries from a slot on, in a leaf from `min` to `max`.
    ///
    /// # Safety
    /// The leaf stays allocated, and as it is, until another is taken up or no entry is asked for.
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
        // None: a place that is not looked at.
        self.rest = u64::from(rest) | u64::from(rest.count_ones().wrapping_sub(1)) << 32;
        self.words =
            body.cell(0).cast::<Cell>().wrapping_sub(all.count_ones() as usize).wrapping_add(1);
        search.unpack(body, self);
        // SAFETY: inside the array; a leaf has a slot, and no more than lanes.
        unsafe {
            self.others().sub(1).write(min);
            self.others().add(body.len() - 1).write(max.wrapping_add(1));
        }
    }

    /// Where the starts of the slots but the first go: to a place for [`LANES`], at a cache line's
    /// beginning.
    #[inline(always)]
    pub(super) fn others(&mut self) -> *mut usize {
        // SAFETY: inside the array.
        unsafe { self.starts.0.as_mut_ptr().cast::<usize>().add(BEFORE + 1) }
    }

    /// # Safety
    /// The leaf that was taken up has the slot, or one less.
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

    /// Whether no entry is to come.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots() == 0
    }

    /// Lets go of all that is to come.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.rest, self.all) = (0, 0);
    }

    /// The first entry of some to come: its range, and its word.
    ///
    /// # Safety
    /// `rest` is as it was at some time since the leaf was taken up; the entry was not cut off.
    #[inline(always)]
    unsafe fn first(&self, rest: u64) -> (usize, usize, *mut ()) {
        let slot = (rest as u32).trailing_zeros() as usize;
        // SAFETY: the slot is one of the leaf's; the word lies in it, and is initialised.
        unsafe {
            let word = self.words.add((rest >> 32) as usize).cast::<*mut ()>().read();
            (self.start(slot), self.start(slot + 1).wrapping_sub(1), simd::taken_out(word))
        }
    }

    /// The next entry: its range, and its word. Cost: three loads next to those before; no branch.
    ///
    /// # Safety
    /// There is one ([`Unpacked::is_empty`]).
    #[inline(always)]
    pub(crate) unsafe fn next(&mut self) -> (usize, usize, *mut ()) {
        debug_assert!(!self.is_empty());
        let rest = self.rest;
        self.rest = (rest & rest.wrapping_sub(1)).wrapping_sub(WORD);
        // SAFETY: the caller's promise.
        unsafe { self.first(rest) }
    }

    /// The last entry to come: its range, and its word. Cost: as of [`Unpacked::next`].
    ///
    /// # Safety
    /// There is one ([`Unpacked::is_empty`]).
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

    /// Folds all that is to come. Cost of an entry: as of [`Unpacked::next`], in registers.
    #[inline(always)]
    pub(crate) fn fold<B>(
        &mut self,
        mut value: B,
        mut f: impl FnMut(B, (usize, usize, *mut ())) -> B,
    ) -> B {
        let mut rest = self.rest;
        while rest as u32 != 0 {
            // SAFETY: there is one.
            value = f(value, unsafe { self.first(rest) });
            rest = (rest & (rest - 1)).wrapping_sub(WORD);
        }
        self.rest = rest;
        value
    }

    /// Where the last entry that was returned ends; `None` if none was.
    pub(crate) fn returned(&self) -> Option<usize> {
        let slot = (self.all & !self.slots()).checked_ilog2()? as usize;
        // SAFETY: one of the leaf's.
        Some(unsafe { self.start(slot + 1) }.wrapping_sub(1))
    }

    /// Cuts off what begins after `limit`, and, if `whole`, what only ends there.
    pub(crate) fn cut(&mut self, limit: usize, whole: bool) {
        while let Some(slot) = self.slots().checked_ilog2() {
            // SAFETY: one of the leaf's.
            let (min, end) = unsafe { (self.start(slot as usize), self.start(slot as usize + 1)) };
            if min <= limit && (!whole || end.wrapping_sub(1) <= limit) {
                break;
            }
            self.drop_last(slot as usize);
        }
    }
}

/// Without vectors. Cost: four instructions a slot.
#[inline(always)]
pub(super) fn scalar(body: &Body, to: &mut Unpacked) {
    let others = to.others();
    for slot in 0..body.len() - 1 {
        // SAFETY: fewer than the leaf's slots, of which there are no more than lanes.
        unsafe { others.add(slot).write(body.bound(slot).wrapping_add(1)) };
    }
}
