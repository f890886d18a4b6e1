//! Leaves: consecutive ranges and their words, packed.
//!
//! A leaf covers the range that its parent gives it, and divides it into slots. Slot `i` ends at
//! bound `i`. It begins after bound `i - 1`, or at the leaf's first index. The last slot ends at
//! the leaf's last index; its bound is not stored. A slot is either an entry, with a word, or a
//! hole, without a word: bit `i` of the mask is set for an entry. Two holes never touch.
//!
//! Bounds grow from the front of the leaf's room, words from its back. The word of the first entry
//! is the last cell. So memory that holes do not use is available to entries.
//!
//! ```text
//! 0                                              232       240    244   248
//! | bound 0 | bound 1 | ...  ->    <-  ... | word 1 | word 0 | base | mask | form | references |
//! ```
//!
//! A *narrow* leaf keeps a bound as 32 bits: the number of whole units of `1 << shift` indices
//! between `base` and the slot's end, less one. Such bounds span 16 TiB if the unit is a page.
//! Where the bounds do not fit this form, the leaf is *wide* and its bounds are whole words.
//!
//! Correctness: a leaf that readers can reach is never changed; a write makes a new one. So readers
//! may read it with SIMD loads, which are not atomic.

use super::prefetch::prefetch;
use super::refs::Refs;
use super::word;
use crate::Index;
use crate::cold_path::cold_path;
use crate::layout::LEAF_CELLS;
use crate::sync::Frozen;
use core::hint::select_unpredictable;
use core::mem::MaybeUninit;
#[cfg(test)]
use core::ptr;

/// A leaf node.
#[repr(C, align(64))]
pub(crate) struct Leaf {
    body: Frozen<Body>,
    pub(crate) refs: Refs,
    /// SIMD loads read whole cache lines, so every byte must be initialised.
    _rest: u32,
}

/// A cell of a leaf's room: eight bytes on every machine. Words move as whole cells, as bytes and
/// not as numbers, so a pointer keeps its provenance.
pub(crate) type Cell = MaybeUninit<u64>;

const _: () = assert!(size_of::<*mut ()>() <= size_of::<Cell>());

/// The contents of a leaf.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Body {
    room: [Cell; LEAF_CELLS],
    /// The origin of narrow bounds.
    pub(super) base: Index,
    /// Bit `i` is set if slot `i` is an entry.
    pub(super) mask: u32,
    len: u8,
    pub(super) shift: u8,
    pub(super) wide: bool,
    /// The number of entries. Stored, because not every CPU has an instruction to count bits.
    count: u8,
}

/// A slot as a value: its last index, and its word (null for a hole).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafSlot {
    pub(crate) end: Index,
    pub(crate) word: *mut (),
}

impl Leaf {
    #[inline(always)]
    pub(crate) fn new(body: Body) -> Self {
        Leaf { body: Frozen::new(body), refs: Refs::new(), _rest: 0 }
    }

    /// Makes a leaf out of a body.
    ///
    /// # Safety
    /// `to` is memory for a leaf.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn copy_body(from: &Body, to: *mut Leaf) {
        // Written directly to its place. A copy through the stack is stored in one width and loaded
        // in another, so the load waits for the stores. SAFETY: the caller's promise; the cell
        // holds nothing but the body.
        #[cfg(not(loom))]
        unsafe {
            core::ptr::copy_nonoverlapping(from, (&raw mut (*to).body).cast::<Body>(), 1);
            (&raw mut (*to).refs).write(Refs::new());
            (&raw mut (*to)._rest).write(0);
        }
        // SAFETY: the caller's promise.
        #[cfg(loom)]
        unsafe {
            to.write(Leaf::new(*from))
        }
    }

    /// # Safety
    /// The leaf does not change while the reference lives: it is published, or owned by the caller
    /// alone.
    #[inline(always)]
    pub(crate) unsafe fn body(&self) -> &Body {
        // SAFETY: the caller's promise.
        unsafe { self.body.get() }
    }

    /// # Safety
    /// No other reference to the leaf is used while this one lives.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn body_mut(&self) -> &mut Body {
        // SAFETY: the caller's promise.
        unsafe { self.body.get_mut() }
    }
}

impl Body {
    /// One hole.
    pub(crate) const EMPTY: Body = Body {
        room: [MaybeUninit::new(0); LEAF_CELLS],
        base: 0,
        mask: 0,
        len: 1,
        shift: 0,
        wide: false,
        count: 0,
    };

    /// The stored form of a bound: the index itself, or the number of units between the base and
    /// the index after it, less one.
    #[inline(always)]
    pub(crate) fn encode(&self, end: Index) -> Index {
        if self.wide {
            return end;
        }
        (end.wrapping_add(1).wrapping_sub(self.base) >> self.shift).wrapping_sub(1)
    }

    /// The number of slots.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The number of entries.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// The slots that are entries: bit `i` for slot `i`.
    #[inline(always)]
    pub(crate) fn entries(&self) -> u32 {
        self.mask
    }

    /// Whether a stored bound means the same index in both leaves.
    #[inline(always)]
    pub(crate) fn has_form_of(&self, other: &Body) -> bool {
        (self.base, self.shift, self.wide) == (other.base, other.shift, other.wide)
    }

    /// Whether bounds are whole words.
    #[inline(always)]
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    /// The slots that are holes: bit `i` for slot `i`.
    #[inline(always)]
    pub(crate) fn holes(&self) -> u32 {
        !self.mask & ((1 << self.len) - 1)
    }

    #[inline(always)]
    pub(crate) fn set_slots(&mut self, len: usize, mask: u32, count: usize) {
        debug_assert!(len < 32 && mask.count_ones() as usize == count);
        (self.len, self.mask, self.count) = (len as u8, mask, count as u8);
    }

    /// The narrow bounds.
    #[inline(always)]
    pub(super) fn narrow(&self) -> *const u32 {
        self.room.as_ptr().cast()
    }

    /// The wide bounds.
    #[inline(always)]
    pub(super) fn words_wide(&self) -> *const Index {
        self.room.as_ptr().cast()
    }

    #[inline(always)]
    pub(super) fn room(&self) -> *const u64 {
        self.room.as_ptr().cast()
    }

    #[inline(always)]
    pub(super) fn room_mut(&mut self) -> *mut u64 {
        self.room.as_mut_ptr().cast()
    }

    /// The last index of a slot that is not the last one.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn bound(&self, slot: usize) -> Index {
        debug_assert!(slot + 1 < self.len());
        if self.wide {
            // SAFETY: a leaf stores a bound for each slot but the last.
            unsafe { *self.words_wide().add(slot) }
        } else {
            // SAFETY: as above.
            let units = unsafe { *self.narrow().add(slot) } as Index;
            self.base.wrapping_add((units + 1) << self.shift).wrapping_sub(1)
        }
    }

    /// The last index of a slot of a narrow leaf; an arbitrary index for the last slot.
    #[inline(always)]
    pub(crate) fn bound_or_any(&self, slot: usize) -> Index {
        debug_assert!(slot < self.len() && !self.wide);
        // SAFETY: the room is initialised, and has at least as many narrow bounds as a leaf has
        // slots.
        let units = unsafe { *self.narrow().add(slot) } as Index;
        self.base.wrapping_add((units + 1) << self.shift).wrapping_sub(1)
    }

    /// The number of units from the base to an index, saturated to the range of narrow bounds.
    #[inline(always)]
    pub(super) fn units(&self, index: Index) -> u32 {
        (index.saturating_sub(self.base) >> self.shift).min(u32::MAX as Index) as u32
    }

    /// The first index of a slot, in a leaf that begins at `min`.
    #[inline(always)]
    pub(crate) fn start(&self, slot: usize, min: Index) -> Index {
        if slot == 0 { min } else { self.bound(slot - 1) + 1 }
    }

    /// The last index of a slot, in a leaf that ends at `max`.
    #[inline(always)]
    pub(crate) fn end(&self, slot: usize, max: Index) -> Index {
        if slot + 1 < self.len() { self.bound(slot) } else { max }
    }

    /// As [`Body::start`], without a branch on the slot: for callers that cannot predict it.
    #[inline(always)]
    pub(crate) fn start_of(&self, slot: usize, min: Index) -> Index {
        let after = self.bound_of(slot.saturating_sub(1)).wrapping_add(1);
        select_unpredictable(slot == 0, min, after)
    }

    /// As [`Body::end`], without a branch on the slot.
    #[inline(always)]
    pub(crate) fn end_of(&self, slot: usize, max: Index) -> Index {
        select_unpredictable(slot + 1 < self.len(), self.bound_of(slot), max)
    }

    /// The last index of a slot; an arbitrary index for the last slot.
    #[inline(always)]
    pub(super) fn bound_of(&self, slot: usize) -> Index {
        debug_assert!(slot < self.len());
        if !self.wide {
            return self.bound_or_any(slot);
        }
        cold_path();
        // SAFETY: the room is initialised, and has at least as many words as a wide leaf has slots.
        unsafe { *self.words_wide().add(slot) }
    }

    #[inline(always)]
    pub(crate) fn is_hole(&self, slot: usize) -> bool {
        self.mask >> slot & 1 == 0
    }

    /// Whether the last slot is a hole.
    #[inline(always)]
    pub(crate) fn ends_with_hole(&self) -> bool {
        self.is_hole(self.len() - 1)
    }

    /// The rank of a slot: the number of entries in the slots before it.
    #[inline(always)]
    pub(crate) fn rank(&self, slot: usize) -> usize {
        (self.mask & ((1 << slot) - 1)).count_ones() as usize
    }

    /// The word of the entry with that rank. A rank one too large is allowed: the cell then holds
    /// no entry's word.
    #[inline(always)]
    pub(crate) fn cell(&self, rank: usize) -> *const *mut () {
        debug_assert!(rank < LEAF_CELLS);
        // SAFETY: inside the room: a leaf has fewer entries than cells. (Negating the rank takes
        // one instruction; subtracting it from a constant would take two.)
        unsafe {
            self.room.as_ptr().add(LEAF_CELLS - 1).offset((rank as isize).wrapping_neg()).cast()
        }
    }

    /// The word of the entry with rank `-down - 1`. Saves an instruction over [`Body::cell`].
    #[inline(always)]
    pub(super) fn cell_down(&self, down: isize) -> *const *mut () {
        debug_assert!(down < 0 && -down < LEAF_CELLS as isize);
        // SAFETY: inside the room: a leaf has fewer entries than cells.
        unsafe { self.room.as_ptr().add(LEAF_CELLS).offset(down).cast() }
    }

    /// The word of the entry with that rank.
    #[inline(always)]
    pub(crate) fn word_of_rank(&self, rank: usize) -> *mut () {
        // SAFETY: the room is initialised.
        word::taken_out(unsafe { self.cell(rank).read() })
    }

    /// The word of a slot; null for a hole. Branchless: it reads a cell in either case.
    #[inline(always)]
    pub(crate) fn word(&self, slot: usize) -> *mut () {
        // SAFETY: the room is initialised. If the cell holds no word, its contents become a pointer
        // that is never dereferenced.
        let word = word::taken_out(unsafe { self.cell(self.rank(slot)).read() });
        word.map_addr(|addr| addr & ((self.mask >> slot & 1) as usize).wrapping_neg())
    }

    /// Prefetches the words that share no cache line with the first bounds or the header.
    #[inline(always)]
    pub(crate) fn prefetch_words(&self) {
        prefetch(&raw const self.room[16]);
    }

    /// One slot as a value, in a leaf that ends at `max`.
    pub(crate) fn slot(&self, slot: usize, max: Index) -> LeafSlot {
        LeafSlot { end: self.end(slot, max), word: self.word(slot) }
    }

    /// The length of the longest hole, in a leaf from `min` to `max`.
    pub(crate) fn largest_gap(&self, ends: (Index, Index)) -> Index {
        self.gap(self.holes(), ends, Index::MAX)
    }

    /// The length of the longest of `holes`, in a leaf from `min` to `max`. It is known to be at
    /// most `limit`; the search may stop when it reaches that.
    pub(crate) fn gap(&self, holes: u32, (min, max): (Index, Index), limit: Index) -> Index {
        // A leaf has an entry, so a hole is shorter than the whole index range and `+ 1` does not
        // overflow.
        let length = |slot: usize| self.end(slot, max) - self.start(slot, min) + 1;
        let last = self.len() - 1;
        let mut gap = if holes & 1 != 0 { length(0) } else { 0 };
        if last > 0 && holes >> last != 0 {
            gap = gap.max(length(last));
        }
        // The remaining holes have a bound on either side.
        let mut holes = holes & ((1 << last) - 1) & !1;
        if self.wide {
            while holes != 0 && gap < limit {
                gap = gap.max(length(holes.trailing_zeros() as usize));
                holes &= holes - 1;
            }
            return gap;
        }
        let (mut units, limit) = (0, limit >> self.shift);
        while holes != 0 && (units as Index) < limit {
            let slot = holes.trailing_zeros() as usize;
            // SAFETY: a leaf stores a bound for each slot but the last, and `holes` excludes the
            // first slot.
            let (before, end) = unsafe { (*self.narrow().add(slot - 1), *self.narrow().add(slot)) };
            units = units.max(end - before);
            holes &= holes - 1;
        }
        gap.max((units as Index) << self.shift)
    }
}

/// A word for tests.
#[cfg(test)]
pub(crate) fn word(n: usize) -> *mut () {
    ptr::without_provenance_mut(n)
}
