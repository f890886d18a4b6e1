//! Iteration over the entries in a range of indices, from both ends.

use crate::Entry;
use crate::cursor::Position;
use crate::node::{Body, Link};
use crate::path::{Path, Pick, Span};
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;

/// The entries that overlap some bounds, each with its whole range, in order; made by
/// [`MapleTree::iter`](crate::MapleTree::iter) and [`Writer::iter`](crate::Writer::iter).
///
/// Beside a writer, each end sees for each index what the tree held there at some moment under the
/// guard; where the two ends meet they agree on no moment, and a range that one end has passed is not
/// shown by the other.
///
/// Cost of a step: a bound and a word from the leaf; every dozen or so, the way to the next leaf.
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
    root: Link,
    /// The way to the leaf at the front.
    front: Path,
    leaf: Run<'g>,
    back: Position,
    /// What is still to be visited; `lo > hi` when nothing is.
    lo: usize,
    hi: usize,
    /// Whether the front, or the back, has returned something.
    begun: (bool, bool),
    _life: PhantomData<&'g E>,
}

/// What is left of a leaf.
#[derive(Clone, Copy)]
struct Run<'g> {
    /// `None` before the first.
    body: Option<&'g Body>,
    /// The slots of the entries still to come.
    entries: u32,
    /// The rank of the first of them.
    rank: usize,
    min: usize,
    max: usize,
}

impl Run<'_> {
    const NONE: Self = Run { body: None, entries: 0, rank: 0, min: 0, max: 0 };

    /// What there is from the end of a path on. Field by field: a copy would wait for its parts to be written.
    ///
    /// # Safety
    /// The leaf stays as it is for the run's lifetime.
    #[inline(always)]
    unsafe fn set(&mut self, path: &Path) {
        let step = path.step(0);
        // SAFETY: the caller's promise.
        let body = unsafe { step.link.as_leaf().body() };
        let entries = body.entries() >> step.slot << step.slot;
        self.body = Some(body);
        self.entries = entries;
        self.rank = (body.entries() ^ entries).count_ones() as usize;
        self.min = step.min;
        self.max = step.max;
    }

    /// The next entry. Cost: two bounds and a word, next to those before.
    #[inline(always)]
    fn next(&mut self) -> Option<Span> {
        let body = self.body?;
        if self.entries == 0 {
            return None;
        }
        let slot = self.entries.trailing_zeros() as usize;
        let word = body.word_of_rank(self.rank);
        self.entries &= self.entries - 1;
        self.rank += 1;
        Some(Span { min: body.start(slot, self.min), max: body.end(slot, self.max), word })
    }
}

impl<'g, E: Entry> Iter<'g, E> {
    /// # Safety
    /// For `'g`, nodes reachable from `root` now or later stay allocated, leaves and separators
    /// unchanged: the caller has a guard, or the writer's right.
    pub(crate) unsafe fn new(root: Link, bounds: RangeInclusive<usize>) -> Self {
        let empty = bounds.is_empty() || root.is_null();
        let (lo, hi) = if empty { (1, 0) } else { bounds.into_inner() };
        Iter {
            root,
            front: Path::new(),
            leaf: Run::NONE,
            back: Position::new(hi),
            lo,
            hi,
            begun: (false, false),
            _life: PhantomData,
        }
    }

    fn finish<T>(&mut self) -> Option<T> {
        (self.lo, self.hi) = (1, 0);
        self.leaf = Run::NONE;
        None
    }

    /// Goes on to the next leaf, or to the first; false if there is none before the end.
    #[inline(never)]
    fn next_leaf(&mut self) -> bool {
        if self.lo > self.hi {
            return false;
        }
        if self.leaf.body.is_none() {
            // SAFETY: the promise of `new`.
            unsafe { self.front.walk(self.root, Pick::Index(self.lo)) };
        } else if !self.front.next_leaf() || self.front.step(0).min > self.hi {
            self.finish::<()>();
            return false;
        }
        // SAFETY: the promise of `new`.
        unsafe { self.leaf.set(&self.front) };
        true
    }

    /// The last entry to be returned from the front, if it is one: it reaches the end of what is to be visited.
    #[cold]
    fn ending(&mut self, span: Span) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // A range that runs into what the back has shown can only be another version of it.
        let beyond = span.min > self.hi || (span.max > self.hi && self.begun.1);
        self.finish::<()>();
        if beyond {
            return None;
        }
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(span) }
    }
}

/// # Safety
/// As for [`Entry::borrow`], with the span from the tree.
pub(crate) unsafe fn hit<'g, E: Entry>(span: Span) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
    // SAFETY: the caller's promise.
    let entry = unsafe { E::borrow(NonNull::new(span.word)?) };
    Some((span.min..=span.max, entry))
}

impl<'g, E: Entry> Iterator for Iter<'g, E> {
    type Item = (RangeInclusive<usize>, E::Ref<'g>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(span) = self.leaf.next() {
                if span.max >= self.hi {
                    return self.ending(span);
                }
                self.lo = span.max + 1;
                self.begun.0 = true;
                // SAFETY: the promise of `new`.
                return unsafe { hit::<E>(span) };
            }
            if !self.next_leaf() {
                return None;
            }
        }
    }

    /// As by [`Iterator::next`], but what is left of a leaf stays in registers.
    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(mut self, init: B, mut f: F) -> B {
        let mut value = init;
        loop {
            match self.leaf.body {
                // Nothing in the leaf reaches the end.
                Some(body) if self.leaf.max < self.hi => {
                    let run = self.leaf;
                    value =
                        body.fold(run.entries, run.min, run.max, value, |value, min, max, word| {
                            // SAFETY: the promise of `new`; the word is an entry's, so it is not null.
                            let entry = unsafe { E::borrow(NonNull::new_unchecked(word)) };
                            f(value, (min..=max, entry))
                        });
                }
                Some(_) => {
                    let mut run = self.leaf;
                    while let Some(span) = run.next() {
                        if span.max >= self.hi {
                            return match self.ending(span) {
                                Some(item) => f(value, item),
                                None => value,
                            };
                        }
                        // SAFETY: the promise of `new`.
                        if let Some(item) = unsafe { hit::<E>(span) } {
                            value = f(value, item);
                        }
                    }
                }
                None => {}
            }
            if !self.next_leaf() {
                return value;
            }
        }
    }
}

impl<E: Entry> DoubleEndedIterator for Iter<'_, E> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.lo > self.hi {
            return None;
        }
        // SAFETY: the promise of `new`.
        let Some(span) = (unsafe { self.back.find_rev(self.root, self.lo) }) else {
            return self.finish();
        };
        if span.min < self.lo && self.begun.0 {
            return self.finish();
        }
        self.begun.1 = true;
        if span.min <= self.lo {
            self.finish::<()>();
        } else {
            self.hi = span.min - 1;
        }
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(span) }
    }
}

impl<E: Entry> FusedIterator for Iter<'_, E> {}

#[cfg(test)]
mod tests {
    use crate::MapleTree;
    use std::vec::Vec;

    #[test]
    fn the_ends_meet() {
        let n = if cfg!(miri) { 12 } else { 60 };
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..n {
            writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
        }
        for fronts in 0..=n {
            let mut iter = writer.iter(0..=usize::MAX);
            let mut seen: Vec<_> = iter.by_ref().take(fronts).map(|(_, value)| value).collect();
            let mut back: Vec<_> = iter.by_ref().rev().map(|(_, value)| value).collect();
            assert!(iter.next().is_none() && iter.next_back().is_none());
            back.reverse();
            seen.extend(back);
            assert_eq!(seen, (0..n as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn bounds_cut_through_entries() {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        writer.store_range(10..=19, 1).unwrap();
        writer.store_range(30..=39, 2).unwrap();
        let count = |from, to| {
            let forwards = writer.iter(from..=to).count();
            assert_eq!(writer.iter(from..=to).rev().count(), forwards);
            forwards
        };
        assert_eq!((count(0, 9), count(0, 10), count(15, 15), count(20, 29)), (0, 1, 1, 0));
        assert_eq!((count(19, 30), count(39, 99), count(40, usize::MAX)), (2, 1, 0));
        // One entry, asked for from both ends.
        let mut iter = writer.iter(15..=16);
        assert_eq!(iter.next_back(), Some((10..=19, 1)));
        assert_eq!((iter.next(), iter.next_back()), (None, None));
    }
}
