//! Iterators over a map, with keys.

use super::key::{Key, keys};
use crate::descent::Span;
use crate::{Entry, EntryMut, Iter, NodeAlloc, RangeMap};
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;

/// An iterator over the entries of a map, each with its whole range, in order and from both ends.
pub struct Entries<'g, K, E: Entry> {
    inner: Iter<'g, E>,
    _key: PhantomData<K>,
}

impl<'g, K, E: Entry> Entries<'g, K, E> {
    pub(super) fn new(inner: Iter<'g, E>) -> Self {
        Entries { inner, _key: PhantomData }
    }
}

impl<'g, K: Key, E: Entry> Iterator for Entries<'g, K, E> {
    type Item = (RangeInclusive<K>, E::Ref<'g>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next().map(|(range, entry)| (keys(&range), entry))
    }

    #[inline]
    fn fold<B, F: FnMut(B, Self::Item) -> B>(self, init: B, mut f: F) -> B {
        self.inner.fold(init, |value, (range, entry)| f(value, (keys(&range), entry)))
    }
}

impl<K: Key, E: Entry> DoubleEndedIterator for Entries<'_, K, E> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.inner.next_back().map(|(range, entry)| (keys(&range), entry))
    }
}

impl<K: Key, E: Entry> FusedIterator for Entries<'_, K, E> {}

impl<K, E: Entry> Clone for Entries<'_, K, E> {
    fn clone(&self) -> Self {
        Entries { inner: self.inner.clone(), _key: PhantomData }
    }
}

impl<K: Key + fmt::Debug, E: Entry> fmt::Debug for Entries<'_, K, E>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    /// Shows the entries to come.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

/// An iterator over the values of a map, to change in place, each with its whole range, in order
/// and from both ends.
pub struct EntriesMut<'m, K, E: EntryMut> {
    inner: Iter<'m, E>,
    _key: PhantomData<(K, &'m mut E::Value)>,
}

impl<'m, K, E: EntryMut> EntriesMut<'m, K, E> {
    /// # Safety
    /// The entries are borrowed mutably for `'m`.
    pub(super) unsafe fn new(inner: Iter<'m, E>) -> Self {
        EntriesMut { inner, _key: PhantomData }
    }
}

impl<'m, K: Key, E: EntryMut> EntriesMut<'m, K, E> {
    fn item(span: Span) -> Option<(RangeInclusive<K>, &'m mut E::Value)> {
        // SAFETY: the word of an entry points to a value that is this entry's alone. The map is
        // borrowed mutably, and an iteration meets each entry once.
        let value = unsafe { NonNull::new(span.word)?.cast::<E::Value>().as_mut() };
        Some((keys(&(span.min..=span.max)), value))
    }
}

impl<'m, K: Key, E: EntryMut> Iterator for EntriesMut<'m, K, E> {
    type Item = (RangeInclusive<K>, &'m mut E::Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next_span().and_then(Self::item)
    }
}

impl<K: Key, E: EntryMut> DoubleEndedIterator for EntriesMut<'_, K, E> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.inner.next_back_span().and_then(Self::item)
    }
}

impl<K: Key, E: EntryMut> FusedIterator for EntriesMut<'_, K, E> {}

impl<K, E: EntryMut> fmt::Debug for EntriesMut<'_, K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntriesMut").finish_non_exhaustive()
    }
}

/// An iterator over the free ranges of a map, in order.
pub struct Holes<'g, K, E: Entry> {
    inner: crate::Holes<'g, E>,
    _key: PhantomData<K>,
}

impl<'g, K, E: Entry> Holes<'g, K, E> {
    pub(super) fn new(inner: crate::Holes<'g, E>) -> Self {
        Holes { inner, _key: PhantomData }
    }
}

impl<K: Key, E: Entry> Iterator for Holes<'_, K, E> {
    type Item = RangeInclusive<K>;

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next().map(|range| keys(&range))
    }
}

impl<K: Key, E: Entry> FusedIterator for Holes<'_, K, E> {}

impl<K, E: Entry> Clone for Holes<'_, K, E> {
    fn clone(&self) -> Self {
        Holes { inner: self.inner.clone(), _key: PhantomData }
    }
}

impl<K: Key + fmt::Debug, E: Entry> fmt::Debug for Holes<'_, K, E> {
    /// Shows the ranges to come.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// An iterator over the ranges in which two maps differ, each with both entries, in order.
pub struct Changes<'g, K, E: Entry> {
    inner: crate::Diff<'g, E>,
    _key: PhantomData<K>,
}

impl<'g, K, E: Entry> Changes<'g, K, E> {
    pub(super) fn new(inner: crate::Diff<'g, E>) -> Self {
        Changes { inner, _key: PhantomData }
    }
}

impl<'g, K: Key, E: Entry> Iterator for Changes<'g, K, E> {
    type Item = (RangeInclusive<K>, Option<E::Ref<'g>>, Option<E::Ref<'g>>);

    fn next(&mut self) -> Option<Self::Item> {
        self.inner.next().map(|(range, before, after)| (keys(&range), before, after))
    }
}

impl<K: Key, E: Entry> FusedIterator for Changes<'_, K, E> {}

impl<K, E: Entry> fmt::Debug for Changes<'_, K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The entries of a map, moved out of it in order, from both ends. The rest is dropped with it.
pub struct IntoIter<K: Key, E: Entry, A: NodeAlloc>(pub(super) RangeMap<K, E, A>);

impl<K: Key, E: Entry, A: NodeAlloc> Iterator for IntoIter<K, E, A> {
    type Item = (RangeInclusive<K>, E);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop_first()
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> DoubleEndedIterator for IntoIter<K, E, A> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.pop_last()
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> FusedIterator for IntoIter<K, E, A> {}

impl<K: Key, E: Entry, A: NodeAlloc> fmt::Debug for IntoIter<K, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoIter").finish_non_exhaustive()
    }
}
