//! Maps against a model, and their traits.

use super::*;
use grace::Epoch;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

/// Random stores, erases and reads of a map of bytes, against an array.
#[test]
fn a_map_is_an_array_of_options() {
    let mut random = fastrand_like(7);
    let mut map = RangeMap::<i8, u64>::new();
    let mut array = [None; 256];
    for _ in 0..if cfg!(miri) { 15 } else { 3_000 } {
        let (a, b, value) = (random() as i8, random() as i8, (random() % 5) << 61);
        let (a, b) = (a.min(b), a.max(b));
        let slots = (a as i16 + 128) as usize..=(b as i16 + 128) as usize;
        match random() % 6 {
            0 | 1 => {
                map.store(a..=b, value).unwrap();
                array[slots].fill(Some(value));
            }
            2 => {
                map.erase_range(a..=b).unwrap();
                array[slots].fill(None);
            }
            3 => {
                let erased = map.erase(a).unwrap();
                assert_eq!(erased.as_ref().map(|(_, value)| *value), array[*slots.start()]);
                if let Some((range, _)) = erased {
                    let (a, b) = range.into_inner();
                    array[(a as i16 + 128) as usize..=(b as i16 + 128) as usize].fill(None);
                }
            }
            4 => {
                let outcome = map.insert(a..b, value);
                if a == b {
                    assert_eq!(outcome.unwrap_err().error, Error::EmptyRange);
                } else {
                    let slots = *slots.start()..*slots.end();
                    assert_eq!(outcome.is_ok(), array[slots.clone()].iter().all(Option::is_none));
                    if outcome.is_ok() {
                        array[slots].fill(Some(value));
                    }
                }
            }
            _ => {
                map.store_merged(a..=b, value, |old| old == value).unwrap();
                array[slots].fill(Some(value));
            }
        }
        for key in (i8::MIN..=i8::MAX).step_by(if cfg!(miri) { 31 } else { 1 }) {
            assert_eq!(map.get(key), array[(key as i16 + 128) as usize]);
            assert_eq!(map.contains(key), map.get(key).is_some());
        }
        let free = map.holes(..).map(|hole| hole.count()).sum::<usize>();
        let taken = map.iter().map(|(range, _)| range.count()).sum::<usize>();
        assert_eq!((free + taken, free), (256, array.iter().filter(|one| one.is_none()).count()));
        assert_eq!(map.len(), map.iter().count());
        assert_eq!(map.first(), map.iter().next());
        assert_eq!(map.last(), map.iter().last());
        map.tree_mut().get_mut().validate().unwrap();
    }
}

/// A newtype over 64 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
struct Block(u64);

#[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
impl Key for Block {
    const MIN: Self = Block(0);
    const MAX: Self = Block(u64::MAX);

    fn to_index(self) -> Index {
        self.0.to_index()
    }

    fn from_index(index: Index) -> Self {
        Block(u64::from_index(index))
    }
}

/// Keys of all 64 bits, also where pointers have 32: writes over 256 equal parts of the key range,
/// against an array, and some parts of these parts.
#[test]
#[cfg(any(target_pointer_width = "64", target_has_atomic = "64"))]
fn keys_have_64_bits() {
    const PART: u64 = 1 << 56;
    let mut random = fastrand_like(11);
    let mut blocks = RangeMap::<Block, u16>::new();
    let mut signed = RangeMap::<i64, u16>::new();
    let shared = SharedMap::<u64, u16, Epoch>::new();
    let mut array = [None; 256];
    for _ in 0..if cfg!(miri) { 2 } else { 500 } {
        let (a, b, value) = (random() % 256, random() % 256, random() as u16 % 5);
        let (a, b) = (a.min(b), b.max(a));
        let (first, last) = (a * PART, b * PART + (PART - 1));
        // The highest bit is turned around: the lowest signed key is the first.
        let [low, high] = [first, last].map(|key| (key ^ 1 << 63) as i64);
        let what = (value > 0).then_some(value);
        match what {
            Some(value) => {
                blocks.store(Block(first)..=Block(last), value).unwrap();
                signed.store(low..=high, value).unwrap();
                shared.store(first..=last, value).unwrap();
            }
            None => {
                blocks.erase_range(Block(first)..=Block(last)).unwrap();
                signed.erase_range(low..=high).unwrap();
                shared.erase_range(first..=last).unwrap();
            }
        }
        array[a as usize..=b as usize].fill(what);
        let view = shared.view();
        for (part, &expected) in array.iter().enumerate() {
            let key = part as u64 * PART + random() % PART;
            assert_eq!(blocks.get(Block(key)), expected, "{key:#x}");
            assert_eq!(signed.get((key ^ 1 << 63) as i64), expected, "{key:#x}");
            assert_eq!(view.get(key), expected, "{key:#x}");
        }
        let ranges = blocks.iter().map(|(range, value)| (range.start().0, range.end().0, value));
        assert!(view.iter().map(|(range, value)| (*range.start(), *range.end(), value)).eq(ranges));
        let free = array.iter().filter(|one| one.is_none()).count() as u128;
        let holes = view.holes(..).map(|hole| u128::from(hole.end() - hole.start()) + 1);
        assert_eq!(holes.sum::<u128>(), free << 56);
        signed.tree_mut().get_mut().validate().unwrap();
    }
    blocks.erase_range(..).unwrap();
    blocks.store(..=Block(1 << 33), 1).unwrap();
    assert_eq!(blocks.alloc(.., 1 << 40, 1 << 36, 2).unwrap(), Block(1 << 36));
    assert_eq!(blocks.alloc_last(.., 1 << 40, 1 << 40, 3).unwrap().0, u64::MAX - (1 << 40) + 1);
    assert_eq!(
        blocks.lookup(Block(u64::MAX)).unwrap().0,
        Block(u64::MAX - (1 << 40) + 1)..=Block::MAX
    );
}

/// A small generator of random numbers.
pub(super) fn fastrand_like(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

#[test]
fn a_map_is_a_collection() {
    let mut map: RangeMap<u32, Box<u8>> =
        (0..50).map(|i| (i * 10..i * 10 + 5, Box::new(i as u8))).collect();
    map.extend([(1_000..1_010, Box::new(100)), (1_005..1_007, Box::new(101))]);
    assert_eq!((map.len(), map[1_007], map[1_006]), (53, 100, 101));
    *map.get_mut(3).unwrap() = 77;
    let copy = map.clone();
    assert_eq!(copy, map);
    assert_eq!(map.retain(|_, &value| value < 90).unwrap(), 3);
    assert_ne!(copy, map);
    let backwards = map.iter().rev().map(|(range, _)| *range.start()).collect::<Vec<_>>();
    assert!(backwards.iter().is_sorted_by(|a, b| a > b) && backwards.len() == 50);
    let (range, value) = map.pop_last().unwrap();
    assert_eq!((range, *value), (490..=494, 49));
    assert_eq!(map.pop_first().unwrap().0, 0..=4);
    assert_eq!((&map).into_iter().count(), 48);
    let all: BTreeMap<u32, u8> = map.into_iter().map(|(range, v)| (*range.end(), *v)).collect();
    assert_eq!((all.len(), all[&14]), (48, 1));
    // Half consumed, the rest is dropped.
    assert_eq!(*copy.into_iter().nth(1).unwrap().1, 1);
    assert_eq!(format!("{:?}", RangeMap::<u8, u64>::from_iter([(1..3, 7)])), "{1..=2: 7}");
    assert_eq!(RangeMap::<u8, u64>::default().first(), None);
}

#[test]
fn sorted_entries_may_not_overlap() {
    let map = RangeMap::<u64, u64>::from_sorted((0..100).map(|i| (i * 3..i * 3 + 3, 1))).unwrap();
    assert_eq!((map.len(), map.holes(..).collect::<Vec<_>>().len()), (100, 1));
    let refused = RangeMap::<u64, u64>::from_sorted([(0..5, 1), (4..9, 2)]).unwrap_err();
    assert_eq!((refused.error, refused.entry), (Error::Occupied { start: 0, end: 4 }, 2));
}

#[test]
fn a_slot_is_taken_or_free() {
    let mut map = RangeMap::<u8, Box<u8>>::new();
    let Slot::Free(free) = map.slot(9) else { panic!("taken") };
    assert_eq!(free.range(), 0..=255);
    free.store(5..15, Box::new(1)).unwrap();
    let Slot::Free(free) = map.slot(20) else { panic!("taken") };
    let refused = free.store(10..25, Box::new(2)).unwrap_err();
    assert_eq!(refused.error, Error::Occupied { start: 5, end: 14 });
    let Slot::Taken(taken) = map.slot(9) else { panic!("free") };
    *taken.into_mut() += 10;
    let Slot::Taken(taken) = map.slot(5) else { panic!("free") };
    assert_eq!((taken.range(), *taken.get()), (5..=14, 11));
    taken.replace(Box::new(3)).unwrap();
    let Slot::Taken(taken) = map.slot(14) else { panic!("free") };
    assert_eq!(*taken.remove().unwrap(), 3);
    assert!(map.is_empty());
    let (range, made) = map.get_or_insert_with(3..=7, || Box::new(4)).unwrap();
    assert_eq!((range, *made), (3..=7, 4));
    let (range, found) = map.get_or_insert_with(7..=9, || unreachable!()).unwrap();
    assert_eq!((range, *found), (3..=7, 4));
}

#[test]
fn cyclic_allocations_go_around() {
    let mut own = RangeMap::<u16, u64>::new();
    let shared = SharedMap::<u16, u64, Epoch>::new();
    for round in 0..3 {
        for id in 5..8 {
            assert_eq!(own.alloc_next(5..8, 1).unwrap(), id, "round {round}");
            assert_eq!(shared.alloc_next(5..8, 1).unwrap(), id);
            own.erase(id).unwrap();
            shared.erase(id).unwrap();
        }
    }
    assert_eq!(own.alloc(.., 10, 16, 2).unwrap(), 0);
    assert_eq!(own.alloc_last(.., 10, 16, 2).unwrap(), 0xfff0);
    assert_eq!(own.find_free(.., 10, 16), Ok(16));
    assert_eq!(own.find_free_last(..100, 10, 16), Ok(80));
    assert_eq!(own.find_free(..8, 1, 1), Err(Error::NoSpace));
}

#[test]
fn views_read_beside_a_writer() {
    let map = SharedMap::<u64, Option<Arc<str>>, Epoch>::new();
    map.store(10..20, Some("a".into())).unwrap();
    let view = map.view();
    let held = view.get(12).unwrap();
    map.update(12, |old| old.map(|old| format!("{}b", &*old).into())).unwrap().unwrap();
    assert_eq!((held.as_deref(), view.get(12).flatten().as_deref()), (Some("a"), Some("ab")));
    assert_eq!(view.lookup(10).unwrap().0, 10..=19);
    assert_eq!(map.set_end(12, 14).unwrap(), Some(10..=14));
    assert!(view.holes(..20).eq([0..=9, 15..=19]));
    assert_eq!(format!("{view:?}"), "{10..=14: Some(\"ab\")}");
    let copy = map.duplicate().unwrap();
    assert_eq!(map.erase(13).unwrap().unwrap().0, 10..=14);
    map.clear();
    assert_eq!((copy.view().len(), map.view().is_empty()), (1, true));
}

#[test]
fn slots_show_what_they_are() {
    let mut map = RangeMap::<u8, u16>::new();
    map.store(3..=4, 7).unwrap();
    assert_eq!(format!("{:?}", map.slot(3)), "Taken(3..=4, 7)");
    assert_eq!(format!("{:?}", map.slot(9)), "Free(5..=255)");
}

/// A key that breaks the rules of `Key`: the key of each index is the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Liar(usize);

impl Key for Liar {
    const MIN: Self = Liar(0);
    const MAX: Self = Liar(usize::MAX);

    fn to_index(self) -> Index {
        self.0.to_index()
    }

    fn from_index(_: Index) -> Self {
        Liar::MAX
    }
}

#[test]
fn keys_that_lie_harm_only_keys() {
    let mut map: RangeMap<Liar, Box<usize>> =
        (0..500).map(|i| (Liar(i * 3)..=Liar(i * 3 + 1), Box::new(i))).collect();
    let Slot::Taken(taken) = map.slot(Liar(4)) else { panic!("free") };
    assert_eq!(*taken.get(), 1);
    *taken.into_mut() += 1;
    #[cfg(feature = "rayon")]
    {
        use ::rayon::iter::{IntoParallelIterator, ParallelIterator};
        assert_eq!((&map).into_par_iter().map(|(_, &value)| value).sum::<usize>(), 499 * 250 + 1);
    }
    assert_eq!(map.pop_first().map(|(_, value)| *value), Some(0));
    assert_eq!(map.pop_last().map(|(_, value)| *value), Some(499));
    assert_eq!(map.into_iter().count(), 498);
}

/// A `RangeInclusive` that was iterated to its end has no index, though its ends are equal.
#[test]
fn exhausted_ranges_are_empty() {
    let mut map = RangeMap::<usize, u8>::new();
    map.store(.., 1).unwrap();
    let mut indices = 5..=5 as Index;
    indices.next();
    let mut done = 5..=5;
    done.next();
    assert_eq!(map.store(done.clone(), 2).unwrap_err().error, Error::EmptyRange);
    assert_eq!((map.range(done.clone()).count(), map.holes(done).count()), (0, 0));
    let mut writer = map.tree_mut().get_mut();
    assert_eq!(writer.retain(indices.clone(), |_, _| false), Ok(0));
    assert_eq!(writer.erase_range(indices.clone()), Err(Error::EmptyRange));
    let merged = writer.store_merged(indices, 1, |_| true).unwrap_err();
    assert_eq!(merged.error, Error::EmptyRange);
}

#[cfg(feature = "serde")]
#[test]
fn a_map_is_serialised_and_read_back() {
    let map: RangeMap<u16, u64> = [(3..5, 1 << 63), (9..10, 2)].into_iter().collect();
    let text = serde_json::to_string(&map).unwrap();
    assert_eq!(text, "[[3,4,9223372036854775808],[9,9,2]]");
    assert_eq!(serde_json::from_str::<RangeMap<u16, u64>>(&text).unwrap(), map);
    let overlap = serde_json::from_str::<RangeMap<u16, u64>>("[[3,4,1],[4,5,2]]").unwrap_err();
    assert!(format!("{overlap}").contains("occupied by 0x3..=0x4"), "{overlap}");
    serde_json::from_str::<RangeMap<u16, u64>>("[[5,4,1]]").unwrap_err();
}

#[cfg(feature = "rayon")]
#[test]
fn a_parallel_iteration_meets_each_entry_once() {
    use ::rayon::iter::{IntoParallelIterator, ParallelIterator};
    let n = if cfg!(miri) { 70 } else { 10_000 };
    let mut map: RangeMap<i64, u64> =
        (0..n).map(|i| (i as i64 * 7..=i as i64 * 7 + 3, i as u64)).collect();
    map.store(1 << 60.., n as u64).unwrap();
    map.store(..-5, n as u64 + 1).unwrap();
    let mut all = (&map).into_par_iter().map(|(_, value)| value).collect::<Vec<_>>();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..n as u64 + 2));
    let none = RangeMap::<u8, u64>::new();
    assert_eq!((&none).into_par_iter().count(), 0);
}

/// A set against an array of keys.
#[test]
fn a_set_is_an_array_of_flags() {
    let mut random = fastrand_like(11);
    let mut set = RangeSet::<u8>::new();
    let mut array = [false; 256];
    for _ in 0..if cfg!(miri) { 15 } else { 3_000 } {
        let (a, b) = (random() as u8, random() as u8);
        let (a, b) = (a.min(b), a.max(b).min(a.saturating_add(30)));
        let before = set.clone();
        let add = random().is_multiple_of(2);
        let slots = usize::from(a)..=usize::from(b);
        let was = array;
        array[slots.clone()].fill(add);
        if add {
            let whole = set.insert(a..=b).unwrap();
            assert_eq!(set.lookup(a), Some(whole.clone()));
            assert!(set.contains_all(whole));
        } else {
            set.remove(a..=b).unwrap();
            assert!(!set.overlaps(a..=b));
        }
        assert_eq!(set == before, array == was);
        for key in 0..=u8::MAX {
            assert_eq!(set.contains(key), array[usize::from(key)]);
        }
        // No two ranges touch, and gaps lie between them.
        let mut all: Vec<_> = set.iter().map(|range| (range, true)).collect();
        assert_eq!(all.len(), set.len());
        all.extend(set.gaps(..).map(|range| (range, false)));
        all.sort_by_key(|(range, _)| *range.start());
        assert!(all.windows(2).all(|two| two[0].1 != two[1].1));
        assert_eq!(all.iter().map(|(range, _)| range.clone().count()).sum::<usize>(), 256);
        let (c, d) = (random() as u8, random() as u8);
        let keys = array.get(usize::from(c)..=usize::from(d)).filter(|_| c <= d);
        let keys = keys.unwrap_or_default();
        assert_eq!(set.contains_all(c..=d), c <= d && keys.iter().all(|key| *key));
        assert_eq!(set.overlaps(c..=d), keys.iter().any(|key| *key));
    }
    assert!(RangeSet::<u8>::from_iter([3..5, 5..9]).iter().eq([3..=8]));
}

/// Maps of this entry that are divided and joined are as before.
fn divided<E: Entry + Clone>(make: impl Fn(u64) -> E)
where
    for<'g> E::Ref<'g>: PartialEq + std::fmt::Debug,
{
    let mut random = fastrand_like(5);
    for _ in 0..if cfg!(miri) { 2 } else { 200 } {
        let mut map = RangeMap::<u16, E>::new();
        for _ in 0..random() % if cfg!(miri) { 12 } else { 60 } {
            let start = random() as u16;
            map.store(start..=start.saturating_add(random() as u16 % 3000), make(random()))
                .unwrap();
        }
        let whole = map.clone();
        let key = random() as u16;
        let mut high = map.split_off(key).unwrap();
        assert!(map.keys().all(|range| *range.end() < key));
        assert!(high.keys().all(|range| *range.start() >= key));
        for key in (0..=u16::MAX).step_by(if cfg!(miri) { 4001 } else { 97 }) {
            assert_eq!(whole.get(key), map.get(key).or(high.get(key)));
        }
        let count = map.len() + high.len();
        map.append(&mut high).unwrap();
        assert!(high.is_empty());
        assert_eq!(map.len(), count);
        let back: Vec<_> = map.clone().into_iter().rev().map(|(range, _)| range).collect();
        assert!(map.keys().rev().eq(back));
    }
}

#[test]
fn maps_are_divided_and_joined() {
    divided(|value| value);
    divided(Box::new);
    divided(Arc::new);
    let mut map = RangeMap::<u16, crate::Owned<u8>>::new();
    map.store(0..10, crate::Owned::new(1).unwrap()).unwrap();
    map.store(10..20, crate::Owned::new(2).unwrap()).unwrap();
    assert_eq!(map.split_off(15).unwrap_err(), Error::Whole);
    assert_eq!(map.len(), 2);
    assert!(map.split_off(10).unwrap().values().eq([&2]));
    assert!(map.values().eq([&1]));
}

#[test]
fn values_are_changed_in_place() {
    let mut map = RangeMap::<u32, Box<u64>>::new();
    for i in 0..if cfg!(miri) { 30 } else { 1000 } {
        map.store(i * 10..i * 10 + 5, Box::new(u64::from(i))).unwrap();
    }
    let mut values = map.iter_mut();
    let (first, last) = (values.next().unwrap(), values.next_back().unwrap());
    (*first.1, *last.1) = (100, 200);
    assert_eq!(first.0, 0..=4);
    values.for_each(|(_, value)| *value *= 2);
    map.range_mut(12..13).for_each(|(_, value)| *value += 7);
    assert_eq!(map.values().take(3).copied().collect::<Vec<_>>(), [100, 9, 4]);
    assert_eq!(map.values().next_back(), Some(&200));
    assert_eq!(map.len(), map.iter_mut().rev().count());
}

/// The best fit against a search of all holes; and entries that contain their place.
#[test]
fn places_are_found_before_entries_are_made() {
    let mut random = fastrand_like(3);
    for _ in 0..if cfg!(miri) { 5 } else { 500 } {
        let mut map = RangeMap::<u16, u64>::new();
        for _ in 0..random() % 40 {
            let start = random() as u16;
            map.store(start..=start.saturating_add(random() as u16 % 4000), 1).unwrap();
        }
        let (size, align) = (1 + random() as Index % 2000, 1 << (random() % 12));
        let bounds = 1000..=50_000_u16;
        let first = |hole: &RangeInclusive<u16>| Index::from(*hole.start()).next_multiple_of(align);
        let fits = |hole: &RangeInclusive<u16>| first(hole) + size - 1 <= Index::from(*hole.end());
        let holes: Vec<_> = map.holes(bounds.clone()).filter(fits).collect();
        let best = holes.iter().min_by_key(|hole| hole.end() - hole.start());
        let found = map.find_free_best(bounds.clone(), size, align);
        assert_eq!(found.ok().map(Index::from), best.map(first));
        let (low, high) = (map.find_free(bounds.clone(), size, align), map.clone());
        assert_eq!(low.is_ok(), best.is_some());
        let made = map.alloc_with(bounds.clone(), size, align, u64::from);
        assert_eq!(made.ok(), low.ok());
        assert!(made.is_err() || map.get(made.unwrap()) == Some(u64::from(made.unwrap())));
        let mut map = high;
        let high = map.find_free_last(bounds.clone(), size, align);
        let made = map.alloc_last_with(bounds, size, align, u64::from);
        assert_eq!((made.ok(), made.is_ok()), (high.ok(), high.is_ok()));
        assert!(made.is_err() || map.get(made.unwrap()) == made.ok().map(u64::from));
    }
    assert_eq!(RangeMap::<u8, u8>::new().find_free_best(.., 0, 1), Err(Error::ZeroSize));
    assert_eq!(RangeMap::<u8, u8>::new().find_free_best(.., 1, 3), Err(Error::BadAlign));
}
