//! A map that is divided in two.
//!
//! Both parts begin as one tree with shared nodes, and each erases what is the other's. Entries
//! that are not shared ([`Entry::SHARES`]) are moved: their tree is divided as a tree of their
//! words, which are copied and dropped like numbers. Then each word is in one of the parts. An
//! entry on both sides of the key is duplicated first, for the upper part.
//!
//! Correctness: in the end, the trees of words share no node, as trees require whose entries are
//! not shared. A node has an entry below it. One of the trees has erased that entry, and copied the
//! nodes on the way to it for that.
//!
//! Cost: two or three writes, and the nodes that either part gives up.

use super::RangeMap;
use super::key::Key;
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
        for _ in 0..if cfg!(miri) { 2 } else { 60 } {
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

    #[test]
    fn maps_are_divided_without_memory() {
        let before = (Flaky::live(), Counted::live());
        divided_without_memory(|value| value);
        divided_without_memory(Counted::new);
        assert_eq!((Flaky::live(), Counted::live()), before);
    }
}
