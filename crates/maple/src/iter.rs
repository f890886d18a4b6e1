//! The iterator over the entries in a range of indices, from both ends.

mod back;
mod front;

use crate::Entry;
use crate::descent::Span;
use crate::node::Link;
use back::Back;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
use front::Front;

/// An iterator over the entries that overlap some bounds, each with its whole range, in order.
/// [`MapleTree::iter`](crate::MapleTree::iter) and [`Writer::iter`](crate::Writer::iter) make it.
///
/// Beside a writer, an iterator is not an atomic snapshot: each end sees, for each index, what the
/// tree held there at some moment under the guard. Neither end returns a range that the other end
/// has passed.
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
    lo: usize,
    hi: usize,
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
    pub(crate) unsafe fn new(root: Link, bounds: RangeInclusive<usize>) -> Self {
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
            && self.hi != usize::MAX
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
    fn meet(&mut self, min: usize, max: usize) -> bool {
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
pub(crate) unsafe fn item<'g, E: Entry>(span: Span) -> (RangeInclusive<usize>, E::Ref<'g>) {
    // SAFETY: the caller's promise; an entry's word is not null.
    (span.min..=span.max, unsafe { E::borrow(NonNull::new_unchecked(span.word)) })
}

/// # Safety
/// As for [`Entry::borrow`]; the span comes from the tree.
#[inline(always)]
pub(crate) unsafe fn hit<'g, E: Entry>(span: Span) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
    // SAFETY: the caller's promise.
    let entry = unsafe { E::borrow(NonNull::new(span.word)?) };
    Some((span.min..=span.max, entry))
}

impl<'g, E: Entry> Iterator for Iter<'g, E> {
    type Item = (RangeInclusive<usize>, E::Ref<'g>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.front.run.is_empty() && !self.refill() {
            return None;
        }
        // SAFETY: there is an entry to come; the promise of `new`.
        Some(unsafe { item::<E>(self.front.run.next()) })
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
        // SAFETY: the promise of `new`; an entry of the tree.
        Some(unsafe { item::<E>(entry) })
    }
}

impl<E: Entry> FusedIterator for Iter<'_, E> {}

#[cfg(test)]
mod tests {
    use crate::MapleTree;
    use crate::tests::Dice;
    use grace::Epoch;
    use std::vec::Vec;

    #[test]
    fn the_ends_meet() {
        let n = if cfg!(miri) { 12 } else { 60 };
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..n {
            writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
        }
        // Over everything, whole leaves are opened from the beginning, else one entry first.
        for bounds in [0..=usize::MAX, 3..=usize::MAX - 3] {
            for fronts in 0..=n {
                let mut iter = writer.iter(bounds.clone());
                let mut seen: Vec<_> = iter.by_ref().take(fronts).map(|(_, value)| value).collect();
                let mut back: Vec<_> = iter.by_ref().rev().map(|(_, value)| value).collect();
                assert!(iter.next().is_none() && iter.next_back().is_none());
                back.reverse();
                seen.extend(back);
                assert_eq!(seen, (0..n as u32).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_fold_takes_the_remaining_entries() {
        let n = if cfg!(miri) { 12 } else { 100 };
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..n {
            writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
        }
        for fronts in 0..=n {
            for backs in [0, 1, 3, n / 2, n] {
                let mut iter = writer.iter(3..=usize::MAX);
                let taken = iter.by_ref().take(fronts).count();
                let shown = iter.by_ref().rev().take(backs).count();
                let rest: Vec<_> = iter.fold(Vec::new(), |mut rest, (_, value)| {
                    rest.push(value as usize);
                    rest
                });
                assert_eq!(rest, (taken..n - shown).collect::<Vec<_>>());
            }
        }
    }

    /// The ends in turn, by a pattern of bits, from every pair of bounds.
    #[test]
    fn the_ends_in_turn_between_bounds() {
        let n = if cfg!(miri) { 4 } else { 40 };
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..n {
            writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
        }
        for from in 0..n * 5 {
            for to in from..n * 5 {
                let (from, to) = (from * 2, to * 2);
                // Entry `i` overlaps them if 10 i <= to and 10 i + 5 >= from.
                let mut left: std::collections::VecDeque<_> =
                    (0..n).filter(|i| i * 10 <= to && i * 10 + 5 >= from).collect();
                let pattern = from * 7919 + to * 104_729;
                let mut iter = writer.iter(from..=to);
                for turn in 0.. {
                    let (found, wanted) = if pattern >> (turn % 16) & 1 == 0 {
                        (iter.next(), left.pop_front())
                    } else {
                        (iter.next_back(), left.pop_back())
                    };
                    let wanted = wanted.map(|i| (i * 10..=i * 10 + 5, i as u32));
                    assert_eq!(found, wanted, "{from}..={to}, turn {turn}");
                    if found.is_none() {
                        break;
                    }
                }
            }
        }
    }

    /// The first entry and the next ones come from the same version of the leaf.
    #[test]
    fn a_write_after_the_first_entry() {
        let tree = MapleTree::<u32, Epoch>::new();
        for i in 1..9 {
            tree.store_range(i * 10..=i * 10 + 9, i as u32).unwrap();
        }
        let guard = tree.pin();
        let (mut up, mut down) = (tree.iter(&guard, 35..=99), tree.iter(&guard, 1..=65));
        assert_eq!((up.next(), down.next_back()), (Some((30..=39, 3)), Some((60..=69, 6))));
        tree.store_range(30..=69, 9).unwrap();
        // In the new version, one entry covers what has been returned and what is to come.
        assert_eq!((up.next(), down.next_back()), (Some((40..=49, 4)), Some((50..=59, 5))));
    }

    /// Neither end returns a range that the other has passed, whatever a writer does in between.
    #[test]
    fn the_ends_do_not_cross_beside_a_writer() {
        let (rounds, n) = if cfg!(miri) { (4, 20) } else { (300, 200) };
        let mut dice = Dice(5);
        for _ in 0..rounds {
            let tree = MapleTree::<u32, Epoch>::new();
            for i in 0..n {
                tree.store_range(i * 10..=i * 10 + 5, 1).unwrap();
            }
            let guard = tree.pin();
            let (first, last) = (dice.roll(10 * n), dice.roll(10 * n));
            let mut iter = tree.iter(&guard, first.min(last)..=first.max(last));
            let (mut passed, mut shown) = (None, None);
            loop {
                for _ in 0..dice.roll(3) {
                    let from = dice.roll(10 * n);
                    let to = from + dice.roll(40);
                    if dice.roll(2) == 0 {
                        tree.store_range(from..=to, 2).unwrap();
                    } else {
                        tree.erase_range(from..=to).unwrap();
                    }
                }
                if dice.roll(3) > 0 {
                    let Some((range, _)) = iter.next() else { break };
                    assert!(passed.is_none_or(|passed| passed < *range.start()));
                    assert!(shown.is_none_or(|shown| shown > *range.end()));
                    passed = Some(*range.end());
                } else {
                    let Some((range, _)) = iter.next_back() else { break };
                    assert!(passed.is_none_or(|passed| passed < *range.start()));
                    assert!(shown.is_none_or(|shown| shown > *range.end()));
                    shown = Some(*range.start());
                }
            }
            assert!(iter.next().is_none() && iter.next_back().is_none());
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
        // One entry, requested from both ends.
        let mut iter = writer.iter(15..=16);
        assert_eq!(iter.next_back(), Some((10..=19, 1)));
        assert_eq!((iter.next(), iter.next_back()), (None, None));
    }
}
