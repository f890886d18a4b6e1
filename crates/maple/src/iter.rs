//! The iterator over the entries in a range of indices, from both ends.
//!
//! `front` and `back` are its two ends, which unpack a leaf at a time; `holes` iterates free
//! ranges.

mod back;
mod front;
mod holes;

pub use holes::Holes;

use crate::Entry;
use crate::Index;
use crate::descent::Span;
use crate::node::Link;
use back::Back;
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
use front::Front;

/// An iterator over the entries that overlap some bounds, each with its whole range, in order.
/// [`MapleTree::iter`](crate::MapleTree::iter) and [`Writer::iter`](crate::Writer::iter) make it.
///
/// With a concurrent writer, an iterator is not an atomic snapshot: each end sees, for each index,
/// what the tree held there at some moment under the guard. Neither end returns a range that the
/// other end has passed.
///
/// Cost of a step, in either direction: three loads and one branch. About every tenth step also
/// reads the next leaf and unpacks it as a whole. The first step is a descent as that of
/// [`find`](crate::MapleTree::find), and the rest of that leaf is unpacked at the second step.
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// for i in 0..10 {
///     writer.store_range(i * 10..=i * 10 + 4, i as u32).unwrap();
/// }
/// let mut iter = writer.iter(12..=40);
/// assert_eq!(iter.next(), Some((10..=14, 1)));
/// assert_eq!(iter.next_back(), Some((40..=44, 4)));
/// assert_eq!(iter.map(|(_, entry)| entry).collect::<Vec<_>>(), [2, 3]);
/// ```
pub struct Iter<'g, E: Entry> {
    front: Front,
    root: Link,
    /// The indices still to be visited, as the back has left them; `lo > hi` if there are none.
    lo: Index,
    hi: Index,
    /// Whether the back has returned an entry.
    back_begun: bool,
    back: Back,
    _life: PhantomData<&'g E>,
}

impl<'g, E: Entry> Iter<'g, E> {
    /// # Safety
    /// For `'g`, nodes reachable from `root`, now or later, stay allocated, and leaves and
    /// separators do not change: the caller holds a guard, or is the writer.
    // Not inlined, so the value is built in its final place. Otherwise 2 KiB would be copied, most
    // of it uninitialised.
    #[inline(never)]
    pub(crate) unsafe fn new(root: Link, bounds: RangeInclusive<Index>) -> Self {
        let empty = bounds.is_empty() || root.is_null();
        let (lo, hi) = if empty { (1, 0) } else { bounds.into_inner() };
        Iter {
            front: Front::new(),
            root,
            lo,
            hi,
            back_begun: false,
            back: Back::new(),
            _life: PhantomData,
        }
    }

    /// Opens the next leaf with an entry to come; false if there is none. The first entry is opened
    /// alone.
    #[inline(never)]
    fn refill(&mut self) -> bool {
        if !self.front.has_way() {
            return self.first();
        }
        // SAFETY: the promise of `new`.
        let quick = unsafe { self.front.advance(self.hi) };
        quick || self.refill_further()
    }

    /// Opens the first entry alone, since most callers want one or two. Not if the iteration is
    /// over everything, or if the back has begun: then entries may have to be cut off.
    #[inline(never)]
    fn first(&mut self) -> bool {
        let alone = self.front.is_new() && !self.back_begun && self.lo != 0 && self.lo <= self.hi;
        // SAFETY: the promise of `new`; the root is not null, since there are indices to visit.
        let found = alone && unsafe { self.front.open_one(self.root, self.lo) };
        found && self.front.run.next_is_in(self.lo, self.hi) || self.refill_further()
    }

    #[cold]
    #[inline(never)]
    fn refill_further(&mut self) -> bool {
        while self.lo <= self.hi {
            // SAFETY: the promise of `new`; the root is not null, since there are indices to visit.
            if !unsafe { self.front.turn(self.root, self.lo, self.hi) } {
                self.finish();
                break;
            }
            self.cut();
            if !self.front.run.is_empty() {
                return true;
            }
        }
        false
    }

    /// Opens the previous leaf with an entry to come; false if there is none. The last entry is
    /// opened alone.
    #[inline(never)]
    fn refill_back(&mut self) -> bool {
        if !self.back.has_way() {
            return self.first_back();
        }
        // SAFETY: the promise of `new`.
        let quick = unsafe { self.back.advance(self.lo) };
        self.back_begun |= quick;
        quick || self.refill_back_further()
    }

    /// As [`Iter::first`], at the back. Not if the front has begun: the ends may meet.
    #[inline(never)]
    fn first_back(&mut self) -> bool {
        let alone = self.back.is_new()
            && self.front.is_new()
            && self.hi != Index::MAX
            && self.lo <= self.hi;
        // SAFETY: the promise of `new`; the root is not null, since there are indices to visit.
        let found = alone && unsafe { self.back.open_one(self.root, self.hi) };
        if found && self.back.run.next_is_in(self.lo, self.hi) {
            self.back_begun = true;
            return true;
        }
        self.refill_back_further()
    }

    #[cold]
    #[inline(never)]
    fn refill_back_further(&mut self) -> bool {
        while self.lo <= self.hi {
            // SAFETY: the promise of `new`; the root is not null, since there are indices to visit.
            if !unsafe { self.back.turn(self.root, self.lo, self.hi) } {
                self.finish();
                break;
            }
            if self.back.max() > self.hi {
                self.back.run.cut(self.hi, self.back_begun);
            }
            if !self.back.run.is_empty() {
                self.back_begun = true;
                return true;
            }
        }
        false
    }

    /// Called when the back reaches an entry that begins at or before the lower bound, or at or
    /// before the end of the front's leaf. Returns whether the back may return that entry.
    #[inline(never)]
    fn meet(&mut self, min: Index, max: Index) -> bool {
        let to_come = match self.front.run.returned() {
            // The front has returned everything up to `end`.
            Some(end) => end < min,
            None => max >= self.lo,
        };
        if !to_come || min <= self.lo {
            self.finish();
        } else {
            self.hi = min - 1;
            self.cut();
        }
        to_come
    }

    /// Cuts off entries that must not be returned. A range that overlaps one that the back has
    /// returned can only be another version of that one.
    fn cut(&mut self) {
        if self.front.max() >= self.hi {
            self.front.run.cut(self.hi, self.back_begun);
        }
    }

    fn finish(&mut self) {
        (self.lo, self.hi) = (1, 0);
        self.front.finish();
        self.back.finish();
    }
}

/// # Safety
/// The span is an entry of the tree; and as for [`Entry::borrow`].
#[inline(always)]
pub(crate) unsafe fn item<'g, E: Entry>(span: Span) -> (RangeInclusive<Index>, E::Ref<'g>) {
    // SAFETY: the caller's promise; an entry's word is not null.
    (span.min..=span.max, unsafe { E::borrow(NonNull::new_unchecked(span.word)) })
}

/// # Safety
/// As for [`Entry::borrow`]; the span comes from the tree.
#[inline(always)]
pub(crate) unsafe fn hit<'g, E: Entry>(span: Span) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
    // SAFETY: the caller's promise.
    let entry = unsafe { E::borrow(NonNull::new(span.word)?) };
    Some((span.min..=span.max, entry))
}

impl<E: Entry> Iter<'_, E> {
    /// The next entry, as its range and word.
    #[inline(always)]
    pub(crate) fn next_span(&mut self) -> Option<Span> {
        if self.front.run.is_empty() && !self.refill() {
            return None;
        }
        // SAFETY: there is an entry to come.
        Some(unsafe { self.front.run.next() })
    }

    /// The previous entry, as its range and word.
    #[inline(always)]
    pub(crate) fn next_back_span(&mut self) -> Option<Span> {
        if self.back.run.is_empty() && !self.refill_back() {
            return None;
        }
        // SAFETY: there is an entry to come.
        let entry = unsafe { self.back.run.next() };
        if entry.min <= self.lo || entry.min <= self.front.max() {
            if !self.meet(entry.min, entry.max) {
                return None;
            }
        } else {
            self.hi = entry.min - 1;
        }
        Some(entry)
    }
}

impl<'g, E: Entry> Iterator for Iter<'g, E> {
    type Item = (RangeInclusive<Index>, E::Ref<'g>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: the promise of `new`; an entry of the tree.
        self.next_span().map(|entry| unsafe { item::<E>(entry) })
    }

    /// Like repeated [`Iterator::next`], but the state of a leaf stays in registers.
    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(mut self, init: B, mut f: F) -> B {
        let mut value = init;
        if self.front.is_new() {
            // Not the first entry alone.
            self.refill_further();
        }
        loop {
            // SAFETY: the promise of `new`.
            value =
                self.front.run.fold(value, |value, entry| f(value, unsafe { item::<E>(entry) }));
            if !self.refill() {
                return value;
            }
        }
    }
}

impl<E: Entry> DoubleEndedIterator for Iter<'_, E> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        // SAFETY: the promise of `new`; an entry of the tree.
        self.next_back_span().map(|entry| unsafe { item::<E>(entry) })
    }
}

impl<E: Entry> FusedIterator for Iter<'_, E> {}

impl<E: Entry> Clone for Iter<'_, E> {
    /// Copies 2 KiB.
    fn clone(&self) -> Self {
        Iter { front: self.front.clone(), back: self.back.clone(), ..*self }
    }
}

impl<E: Entry> fmt::Debug for Iter<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
