//! Inner nodes: separators, children, and the largest gap below each child.
//!
//! Child `i` ends at separator `i` and begins after separator `i - 1`. The last child ends where
//! the node ends.
//!
//! Why readers need no lock:
//!
//! - Separators and length never change once readers can reach the node.
//! - A child is replaced by one store, always by a subtree that covers the same range.
//! - Only the writer stores gaps. A reader that runs concurrently with the writer treats gaps as
//!   hints.

use super::copy_words;
use super::link::{AtomicLink, Link};
use super::prefetch::prefetch;
use super::refs::Refs;
use crate::Index;
use crate::layout::INNER_SLOTS;
use crate::sync::{AtomicIndex, Frozen, Ordering, copy_cells};
#[cfg(loom)]
use core::array;
use core::hint::select_unpredictable;
use core::ops::Range;
use core::ptr::NonNull;

/// An inner node.
#[repr(C, align(64))]
pub(crate) struct Inner {
    seps: Frozen<Seps>,
    children: [AtomicLink; INNER_SLOTS],
    gaps: [AtomicIndex; INNER_SLOTS],
}

/// The part of an inner node that does not change after publication, and the reference count.
#[repr(C)]
pub(crate) struct Seps {
    /// Last indices of the children. Bound `len - 1` is the node's end, those above are
    /// `Index::MAX`. The bound of child `INNER_SLOTS - 1` is not stored: it is the node's end.
    pub(crate) bounds: [Index; INNER_SLOTS - 1],
    /// The number of children.
    pub(crate) len: u8,
    /// The number of the node's parents. This one may change.
    pub(crate) refs: Refs,
}

/// A child: its last index, its link, and its largest gap.
pub(crate) type Item = (Index, Link, Index);

/// Some adjacent children of a node, and the children that replace them.
#[derive(Clone)]
pub(crate) struct Splice<'i> {
    pub(crate) gone: Range<usize>,
    pub(crate) items: &'i [Item],
}

impl Inner {
    /// Initialises a node without children.
    ///
    /// # Safety
    /// The place is memory for an inner node.
    pub(crate) unsafe fn make(place: NonNull<Inner>) {
        let node = place.as_ptr();
        // Field by field, and not through the stack: see `Leaf::copy_body`. Zero is a null link and
        // an empty gap. SAFETY: the caller's promise; atomics and cells hold nothing but their
        // values.
        #[cfg(not(loom))]
        unsafe {
            (&raw mut (*node).seps).cast::<Seps>().write(Seps::empty());
            (&raw mut (*node).children).write_bytes(0, 1);
            (&raw mut (*node).gaps).write_bytes(0, 1);
        }
        // SAFETY: the caller's promise.
        #[cfg(loom)]
        unsafe {
            node.write(Inner {
                seps: Frozen::new(Seps::empty()),
                children: array::from_fn(|_| AtomicLink::new(Link::NULL)),
                gaps: array::from_fn(|_| AtomicIndex::new(0)),
            })
        }
    }

    /// # Safety
    /// No other code appends to the node while the reference lives: it is published, or owned by
    /// the caller alone.
    #[inline(always)]
    pub(crate) unsafe fn seps(&self) -> &Seps {
        // SAFETY: the caller's promise.
        unsafe { self.seps.get() }
    }

    /// # Safety
    /// No other reference to the separators is used while this one lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn seps_mut(&self) -> &mut Seps {
        // SAFETY: the caller's promise.
        unsafe { self.seps.get_mut() }
    }

    #[inline(always)]
    pub(crate) fn child(&self, slot: usize) -> Link {
        self.children[slot].load()
    }

    #[inline(always)]
    pub(crate) fn refs(&self) -> &Refs {
        // SAFETY: the count is an atomic. Code that appends to a node owns it alone and does not
        // call this.
        unsafe { &self.seps().refs }
    }

    /// Prefetches the children, before the search has found the right one.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(&raw const self.children);
        prefetch(&raw const self.children[INNER_SLOTS / 2]);
    }

    /// Prefetches the gap of a child.
    #[inline(always)]
    pub(crate) fn prefetch_gap(&self, slot: usize) {
        prefetch(self.gaps.as_ptr().wrapping_add(slot));
    }

    /// The place of a child's link.
    pub(crate) fn place(&self, slot: usize) -> &AtomicLink {
        &self.children[slot]
    }

    /// Copies the separators, children and gaps of another node.
    ///
    /// # Safety
    /// The caller owns this node alone, and the other does not change.
    pub(crate) unsafe fn fill_from(&self, other: &Inner) {
        // SAFETY: the caller's promise.
        let (to, from) = unsafe { (self.seps_mut(), other.seps()) };
        (to.bounds, to.len) = (from.bounds, from.len);
        // SAFETY: as above; only the writer stores children and gaps, and the caller is the writer.
        unsafe {
            copy_cells(&other.children, &self.children, from.len());
            copy_cells(&other.gaps, &self.gaps, from.len());
        }
    }

    /// Appends the separators, children and gaps of some adjacent children of another node. The
    /// last of them ends at `end`. There must be room.
    ///
    /// # Safety
    /// The node is new and the caller owns it alone; the other does not change.
    pub(crate) unsafe fn append(&self, other: &Inner, end: Index, part: Range<usize>) {
        // SAFETY: the caller's promise; the other node has these children, and this one has room
        // for them.
        unsafe {
            let (to, from, n) = (self.seps_mut(), other.seps(), part.len());
            let at = to.len();
            let last = at + n - 1;
            copy_words::copy(
                from.bounds.as_ptr().add(part.start),
                to.bounds.as_mut_ptr().add(at),
                last - at,
            );
            if last < INNER_SLOTS - 1 {
                to.bounds[last] = end;
            }
            to.len += n as u8;
            copy_cells(&other.children[part.start..], &self.children[at..], n);
            copy_cells(&other.gaps[part.start..], &self.gaps[at..], n);
        }
    }

    /// Copies the separators, children and gaps of another node, which ends at `end`, and replaces
    /// some adjacent children. There must be room.
    ///
    /// # Safety
    /// The node is new and the caller owns it alone; the other does not change.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn fill_spliced(&self, other: &Inner, end: Index, splice: Splice) {
        let Splice { gone, items } = splice;
        let (at, behind) = (gone.start, gone.start + items.len());
        // SAFETY: the caller's promise.
        let (to, from) = unsafe { (self.seps_mut(), other.seps()) };
        let rest = from.len() - gone.end;
        debug_assert!((1..=INNER_SLOTS).contains(&(behind + rest)));
        debug_assert!(!items.is_empty() || rest > 0);
        to.len = (behind + rest) as u8;
        let last = usize::from(to.len) - 1;
        // SAFETY: the caller's promise; all copied elements exist. The end of the last child of a
        // full node is not stored.
        unsafe {
            let bounds = to.bounds.as_mut_ptr();
            copy_words::copy(from.bounds.as_ptr(), bounds, at);
            if rest > 1 {
                copy_words::copy(from.bounds.as_ptr().add(gone.end), bounds.add(behind), rest - 1);
            }
            copy_cells(&other.children, &self.children, at);
            copy_cells(&other.gaps, &self.gaps, at);
            copy_cells(&other.children[gone.end..], &self.children[behind..], rest);
            copy_cells(&other.gaps[gone.end..], &self.gaps[behind..], rest);
        }
        if last < INNER_SLOTS - 1 {
            to.bounds[last] = end;
        }
        // SAFETY: as above.
        unsafe { self.put(at, items) }
    }

    /// Writes children into the slots from `at` on.
    ///
    /// # Safety
    /// The caller owns the node alone.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn put(&self, at: usize, items: &[Item]) {
        for (slot, &(end, link, gap)) in (at..).zip(items) {
            if slot < INNER_SLOTS - 1 {
                // SAFETY: the caller's promise.
                unsafe { self.seps_mut() }.bounds[slot] = end;
            }
            self.publish(slot, link);
            self.set_gap(slot, gap);
        }
    }

    /// Replaces a child by two. There must be room.
    ///
    /// # Safety
    /// The caller owns the node alone.
    pub(crate) unsafe fn insert(&self, slot: usize, pair: [Item; 2]) {
        // SAFETY: the caller's promise.
        let seps = unsafe { self.seps_mut() };
        let len = seps.len();
        let behind = len - (slot + 1);
        // The bound of the last child of a full node is not stored.
        let end = len.min(INNER_SLOTS - 2);
        if slot + 1 < end {
            let from = &raw mut seps.bounds[slot + 1];
            // SAFETY: the bounds up to `end`, and one more, exist.
            unsafe { copy_words::copy_up(from, from.add(1), end - (slot + 1)) }
        }
        // SAFETY: as above.
        unsafe {
            copy_cells(&self.children[slot + 1..], &self.children[slot + 2..], behind);
            copy_cells(&self.gaps[slot + 1..], &self.gaps[slot + 2..], behind);
        }
        seps.len += 1;
        // SAFETY: as above.
        unsafe { self.put(slot, &pair) }
    }

    /// Replaces a child with one store. Writers only.
    #[inline(always)]
    pub(crate) fn publish(&self, slot: usize, link: Link) {
        self.children[slot].publish(link);
    }

    #[inline(always)]
    pub(crate) fn gap(&self, slot: usize) -> Index {
        // Relaxed: only the writer stores gaps, and it reads its own stores. A reader takes gaps as
        // hints and checks the hole that it finds in the leaf.
        self.gaps[slot].load(Ordering::Relaxed)
    }

    /// A pointer to the gaps.
    #[allow(dead_code)] // Used with SIMD only.
    #[inline(always)]
    pub(super) fn gaps(&self) -> *const Index {
        (&raw const self.gaps).cast()
    }

    /// Writers only.
    #[inline(always)]
    pub(crate) fn set_gap(&self, slot: usize, gap: Index) {
        // Relaxed: see `gap`.
        self.gaps[slot].store(gap, Ordering::Relaxed);
    }

    /// The largest gap below the node. It is known to be at most `limit`; the search may stop
    /// there. For a reader that runs concurrently with a writer it is a hint, like each gap.
    pub(crate) fn max_gap(&self, limit: Index) -> Index {
        self.max_gap_with((0, 0), limit)
    }

    /// As [`Inner::max_gap`], with `gap` in place of the gaps of the children in `changed` (bit `i`
    /// for child `i`). Writers only.
    pub(crate) fn max_gap_with(&self, (changed, gap): (u32, Index), limit: Index) -> Index {
        // The gaps of unused slots are 0.
        let mut max = gap;
        for slot in 0..INNER_SLOTS {
            if changed >> slot & 1 == 0 {
                max = max.max(self.gap(slot));
                if max == limit {
                    break;
                }
            }
        }
        max
    }

    /// Appends a child that ends at `end`. There must be room.
    ///
    /// # Safety
    /// The node is not published, and the caller owns it alone.
    pub(crate) unsafe fn push(&self, end: Index, child: Link, gap: Index) {
        // SAFETY: the caller's promise.
        let seps = unsafe { self.seps_mut() };
        let at = seps.len();
        if at < INNER_SLOTS - 1 {
            seps.bounds[at] = end;
        }
        self.children[at].publish(child);
        self.set_gap(at, gap);
        seps.len += 1;
    }
}

impl Seps {
    pub(super) fn empty() -> Self {
        Seps { bounds: [Index::MAX; INNER_SLOTS - 1], len: 0, refs: Refs::new() }
    }

    /// The number of children.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// As [`Seps::start`], but branchless: for callers whose slot is unpredictable.
    #[inline(always)]
    pub(crate) fn start_of(&self, slot: usize, min: Index) -> Index {
        let after = self.bounds[slot.saturating_sub(1)].wrapping_add(1);
        select_unpredictable(slot == 0, min, after)
    }

    /// As [`Seps::end`], but branchless.
    #[inline(always)]
    pub(crate) fn end_of(&self, slot: usize, max: Index) -> Index {
        let end = self.bounds[slot.min(INNER_SLOTS - 2)];
        select_unpredictable(slot + 1 < self.len(), end, max)
    }

    /// The first index of a child, in a node that begins at `min`.
    #[inline(always)]
    pub(crate) fn start(&self, slot: usize, min: Index) -> Index {
        if slot == 0 { min } else { self.bounds[slot - 1] + 1 }
    }

    /// The last index of a child, in a node that ends at `max`.
    #[inline(always)]
    pub(crate) fn end(&self, slot: usize, max: Index) -> Index {
        if slot + 1 < self.len() { self.bounds[slot] } else { max }
    }
}
