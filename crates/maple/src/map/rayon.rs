//! Parallel iteration over a map: the keys are halved until a part has few entries.

use super::{Key, RangeMap, keys};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use core::ops::RangeInclusive;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// A part with at most this number of entries is not halved.
const FEW: usize = 64;

/// The entries that begin in a range of indices.
struct Part<'m, K, E: Entry, A: NodeAlloc> {
    map: &'m RangeMap<K, E, A>,
    indices: RangeInclusive<Index>,
}

impl<'m, K: Key + Send, E: Entry, A: NodeAlloc> Part<'m, K, E, A> {
    /// Ranges are of indices, so a key that does not keep the rules of [`Key`] harms no more than
    /// the keys of the result.
    fn entries(
        &self,
    ) -> impl Iterator<Item = (RangeInclusive<Index>, E::Ref<'m>)> + use<'m, K, E, A> {
        let (first, last) = self.indices.clone().into_inner();
        let guard = RangeMap::<K, E, A>::GUARD;
        // One that began before belongs to the part before.
        self.map.tree.iter(guard, first..=last).skip_while(move |(range, _)| *range.start() < first)
    }

    /// Halves the part where that leaves entries on both sides.
    fn halves(self) -> (Self, Option<Self>) {
        let mut entries = self.entries().map(|(range, _)| *range.start());
        let Some(low) = entries.next() else { return (self, None) };
        if entries.nth(FEW - 1).is_none() {
            return (self, None);
        }
        let guard = RangeMap::<K, E, A>::GUARD;
        let high = self.map.tree.find_rev(guard, self.indices.clone());
        let Some((high, _)) = high else { return (self, None) };
        let middle = low + (high.start() - low) / 2;
        let (first, last) = self.indices.into_inner();
        let part = |indices| Part { map: self.map, indices };
        (part(first..=middle), Some(part(middle + 1..=last)))
    }
}

impl<'m, K, E, A> IntoParallelIterator for &'m RangeMap<K, E, A>
where
    K: Key + Send + Sync,
    E: Entry,
    A: NodeAlloc + Sync,
    E::Ref<'m>: Send,
{
    type Item = (RangeInclusive<K>, E::Ref<'m>);
    type Iter = ParEntries<'m, K, E, A>;

    fn into_par_iter(self) -> Self::Iter {
        ParEntries { map: self }
    }
}

/// A parallel iterator over the entries of a map, in no order; `into_par_iter` makes it. A part of
/// the work is a range of keys; uneven ones are divided further.
pub struct ParEntries<'m, K, E: Entry, A: NodeAlloc> {
    map: &'m RangeMap<K, E, A>,
}

impl<'m, K, E, A> ParallelIterator for ParEntries<'m, K, E, A>
where
    K: Key + Send + Sync,
    E: Entry,
    A: NodeAlloc + Sync,
    E::Ref<'m>: Send,
{
    type Item = (RangeInclusive<K>, E::Ref<'m>);

    fn drive_unindexed<C>(self, consumer: C) -> C::Result
    where
        C: rayon::iter::plumbing::UnindexedConsumer<Self::Item>,
    {
        let all = Part { map: self.map, indices: 0..=Index::MAX };
        rayon::iter::split(all, Part::halves)
            .flat_map_iter(|part| part.entries().map(|(range, entry)| (keys(&range), entry)))
            .drive_unindexed(consumer)
    }
}
