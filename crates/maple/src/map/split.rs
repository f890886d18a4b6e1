//! A map that is divided in two, and two that become one.
//!
//! Both parts begin as one tree with shared nodes, and each erases what is of the other.
//!
//! Entries that are not shared ([`Entry::SHARES`]) are moved: their tree is divided as a tree of
//! their words, which are copied and dropped like numbers. Then each word is in one of the parts.
//! An entry on both sides of the key is duplicated first, for the upper part.
//!
//! Correctness: in the end, the trees of words share no node, as trees require whose entries are
//! not shared. A node has an entry below it. One of the trees has erased that entry, and copied the
//! nodes on the way to it for that.
//!
//! Cost: two or three writes, and the nodes that either part gives up.
//!
//! Two maps may overlap, so the entries of one are stored in the other, one by one. Each leaves its
//! map only with memory for the way back.

use super::key::Key;
use super::{RangeMap, owned};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::{Address, Entry, drop_raw};
use crate::error::Error;
use crate::tree::MapleTree;
use core::marker::PhantomData;
use core::mem;
use core::ops::RangeInclusive;
use grace::Single;

impl<K: Key, E: Entry, A: NodeAlloc> RangeMap<K, E, A> {
    /// Moves the entries from `key` on to a map of their own. An entry that extends beyond both
    /// sides of `key` is divided. Time: that of three writes, and of the nodes that either map
    /// gives up.
    ///
    /// ```
    /// use maple::RangeMap;
    /// let mut low = RangeMap::<u32, char>::new();
    /// low.store(0..100, 'a')?;
    /// let high = low.split_off(50)?;
    /// assert!(low.keys().eq([0..=49]) && high.keys().eq([50..=99]));
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Whole`] if an [`Owned`](crate::Owned) would be divided.
    /// The map is as it was.
    pub fn split_off(&mut self, key: K) -> Result<Self, Error> {
        let first = key.to_index();
        let high = match E::SHARES {
            true => divide(&mut self.tree, first, None),
            false => self.divide_words(first),
        };
        Ok(RangeMap { tree: high?, next: self.next, _key: PhantomData })
    }

    /// Moves all entries of `other` here, over what is here. Time: that of a store for each.
    ///
    /// ```
    /// use maple::RangeMap;
    /// let (mut all, mut more) = (RangeMap::<u32, char>::new(), RangeMap::new());
    /// all.store(0..100, 'a')?;
    /// more.store(50..60, 'b')?;
    /// all.append(&mut more)?;
    /// assert!(all.keys().eq([0..=49, 50..=59, 60..=99]) && more.is_empty());
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`store`](RangeMap::store). The entry that was not stored is still in `other`, with
    /// those above it. Those below it are here.
    ///
    /// # Misuse
    /// If an entry's code panics, at most one entry is lost.
    pub fn append<B: NodeAlloc>(&mut self, other: &mut RangeMap<K, E, B>) -> Result<(), Error> {
        let (mut to, mut from) = (self.tree.get_mut(), other.tree.get_mut());
        loop {
            let lowest = from.find(0..=Index::MAX).map(|(range, _)| range);
            let Some(range) = lowest else { return Ok(()) };
            let first = *range.start();
            // To take it out, and to put it back.
            from.preallocate_writes(2)?;
            if E::SHARES {
                // A word may need memory, so this entry stays until the other one is stored.
                let word = from.duplicate_word(first)?;
                // SAFETY: the word is a fresh duplicate's.
                to.store_range(range, unsafe { E::from_raw(word) })?;
                from.erase(first)?;
                continue;
            }
            let Some((range, entry)) = from.erase(first)? else { unreachable!("found just now") };
            if let Err(refused) = to.store_range(range.clone(), owned(entry)) {
                from.insert_range(range, refused.entry)?;
                return Err(refused.error);
            }
        }
    }

    fn divide_words(&mut self, first: Index) -> Result<MapleTree<E, Single, A>, Error> {
        let across = self.tree.lookup(Self::GUARD, first).map(|(range, _)| range);
        let across = match across.filter(|range| *range.start() < first) {
            Some(range) => {
                let word = self.tree.get_mut().duplicate_word(first)?;
                Some((first..=*range.end(), Address(word)))
            }
            None => None,
        };
        // SAFETY: the words are addresses, and have to be dropped no more.
        let mut low = unsafe { mem::take(&mut self.tree).into_tree_of::<Address<()>>() };
        let high = divide(&mut low, first, across.clone());
        // SAFETY: the words are entries, each in one of the trees. After an error all are in `low`.
        unsafe {
            self.tree = low.into_tree_of();
            if let (Err(_), Some((_, word))) = (&high, across) {
                drop_raw::<E>(word.0);
            }
            Ok(high?.into_tree_of())
        }
    }
}

/// Moves the entries from an index on to a tree of their own, in which `across` is stored instead
/// of the entry on both sides of the index. After an error, the tree is as it was.
fn divide<E: Entry, A: NodeAlloc>(
    low: &mut MapleTree<E, Single, A>,
    first: Index,
    across: Option<(RangeInclusive<Index>, E)>,
) -> Result<MapleTree<E, Single, A>, Error> {
    let mut high = low.duplicate_alone()?;
    if let Some(below) = first.checked_sub(1) {
        high.get_mut().erase_range(0..=below)?;
    }
    if let Some((range, entry)) = across {
        high.get_mut().store_range(range, entry)?;
    }
    low.get_mut().erase_range(first..=Index::MAX)?;
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fastrand_like;
    use super::*;
    use crate::testing::{Flaky, Owned as Counted};

    /// With ever more memory: a map is divided, or it is as it was, and nothing is lost.
    fn divided_without_memory<E: Entry>(make: impl Fn(u64) -> E)
    where
        for<'g> E::Ref<'g>: PartialEq,
    {
        let mut random = fastrand_like(9);
        let mut failures = 0;
        for _ in 0..60 {
            let mut map = RangeMap::<u16, E, Flaky>::new_in();
            for _ in 0..random() % 100 {
                let start = random() as u16;
                map.store(start..=start.saturating_add(random() as u16 % 900), make(random()))
                    .unwrap();
            }
            let (key, before) = (random() as u16, Flaky::live());
            for budget in 0.. {
                let mut low = map.clone();
                let Ok(mut high) = Flaky::failing_after(budget, || low.split_off(key)) else {
                    failures += 1;
                    assert!(low == map);
                    continue;
                };
                low.tree_mut().get_mut().validate().unwrap();
                high.tree_mut().get_mut().validate().unwrap();
                if !E::SHARES {
                    let nodes = low.stats().nodes + high.stats().nodes;
                    assert_eq!(Flaky::live() - before, nodes as isize, "the parts share nodes");
                }
                break;
            }
        }
        assert!(failures > 10);
    }

    /// With ever more memory: an entry is in the one map or in the other.
    fn joined_without_memory<E: Entry>(make: impl Fn(u64) -> E)
    where
        for<'g> E::Ref<'g>: PartialEq,
    {
        let mut random = fastrand_like(3);
        let mut failures = 0;
        for round in 0..6 {
            let mut more = RangeMap::<u16, E, Flaky>::new_in();
            for _ in 0..random() % 100 {
                let start = random() as u16;
                more.store(start..=start.saturating_add(300), make(random())).unwrap();
            }
            let mut all = RangeMap::<u16, E, Flaky>::new_in();
            all.store(.., make(1)).unwrap();
            for budget in 0.. {
                let (mut to, mut from) = (all.clone(), more.clone());
                let joined = Flaky::failing_after(budget, || to.append(&mut from));
                to.tree_mut().get_mut().validate().unwrap();
                from.tree_mut().get_mut().validate().unwrap();
                let left = from.first().map_or(u16::MAX, |(range, _)| *range.start());
                for (range, entry) in more.iter() {
                    let (here, there) = (to.lookup(*range.start()), from.lookup(*range.start()));
                    let found = if *range.start() < left { here } else { there };
                    assert!(found == Some((range, entry)), "round {round}, budget {budget}");
                }
                if joined.is_ok() {
                    assert!(from.is_empty());
                    break;
                }
                failures += 1;
            }
        }
        assert!(failures > 10);
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn maps_are_divided_and_joined_without_memory() {
        let before = (Flaky::live(), Counted::live());
        divided_without_memory(|value| value);
        divided_without_memory(Counted::new);
        joined_without_memory(|value| value);
        joined_without_memory(Counted::new);
        assert_eq!((Flaky::live(), Counted::live()), before);
    }

    /// An entry that would divide an entry which cannot be divided stays where it is.
    #[test]
    fn entries_that_are_refused_stay() {
        let owned = |value: u8| crate::Owned::new(value).unwrap();
        let mut all = RangeMap::<u16, crate::Owned<u8>>::new();
        all.store(10..20, owned(1)).unwrap();
        let mut more = RangeMap::<u16, crate::Owned<u8>>::new();
        for (start, value) in [(0, 2), (15, 3), (30, 4)] {
            more.store(start..=start, owned(value)).unwrap();
        }
        assert_eq!(all.append(&mut more), Err(Error::Whole));
        assert!(all.values().eq([&2, &1]));
        assert!(more.iter().eq([(15..=15, &3), (30..=30, &4)]));
    }
}
