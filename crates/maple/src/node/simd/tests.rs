//! Compares every SIMD implementation with the scalar one.

use super::*;
use crate::descent::Unpacked;
use crate::node::Link;
use crate::node::change::{Bound, Change};
use crate::node::inner::{Inner, Item, Splice};
use crate::node::job::Search;
use crate::node::leaf::{Leaf, LeafSlot, word};
use crate::node::pack::{is_packable, pack};
use crate::node::search::{inner_scalar, leaf_scalar};
use core::ptr::NonNull;
use std::vec::Vec;

/// The results of the search and the unpacking in one leaf and one inner node, for some indices.
struct Look<'a>(&'a Body, &'a Seps, &'a [usize], usize);

impl Job for Look<'_> {
    type Out = (Vec<(usize, usize)>, Vec<(usize, usize, *mut ())>);

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Self::Out {
        let Look(body, seps, indices, from) = self;
        let slots =
            indices.iter().map(|&i| (search.leaf(body, i), search.inner(seps, i))).collect();
        let mut run = Unpacked::<true>::new();
        // SAFETY: the leaf is a local of the test.
        unsafe { run.open(search, body, from, (3, usize::MAX)) };
        (
            slots,
            run.fold(Vec::new(), |mut all, entry| {
                all.push((entry.min, entry.max, entry.word));
                all
            }),
        )
    }
}

/// Every implementation that this CPU supports, not only the best one.
fn supported() -> Vec<Vectors> {
    let best = Vectors::get();
    // A CPU with AVX-512 also has AVX2.
    let also = best.filter(|&best| best != Vectors::Avx2).map(|_| Vectors::Avx2);
    best.into_iter().chain(also).collect()
}

#[test]
fn all_vectors_agree_with_none() {
    let found = supported();
    for (size, holes) in [10, 0x1000, 0x3000, (1 << 40) + 1, (1 << 58) + 1]
        .into_iter()
        .flat_map(|s| [(s, 2), (s, 3), (s, 99)])
    {
        for len in 1..30usize {
            let Some(slots) = (0..len)
                .map(|i| {
                    let end =
                        if i + 1 == len { usize::MAX } else { (i + 1).checked_mul(size)? - 1 };
                    Some(LeafSlot { end, word: word(if i % holes == 1 { 0 } else { i + 1 }) })
                })
                .collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            if !is_packable(&slots) {
                continue;
            }
            let body = pack(&slots);
            let mut seps = Seps::empty();
            for (bound, slot) in seps.bounds.iter_mut().zip(&slots[..len - 1]) {
                *bound = slot.end;
            }
            let indices: Vec<usize> = (0..len)
                .flat_map(|i| [i * size, i * size + size / 2, i * size + (size - 1)])
                .chain([usize::MAX])
                .collect();
            for from in 0..len {
                let mut start = 3;
                let mut entries = Vec::new();
                for (i, slot) in slots.iter().enumerate() {
                    if i >= from && !slot.word.is_null() {
                        entries.push((start, slot.end, slot.word));
                    }
                    start = slot.end.wrapping_add(1);
                }
                let places: Vec<_> = indices
                    .iter()
                    .map(|&i| (leaf_scalar(&body, i), inner_scalar(&seps, i)))
                    .collect();
                for &vectors in &found {
                    let (places_found, entries_found) =
                        vectors.run(Look(&body, &seps, &indices, from));
                    assert_eq!(places_found, places, "{size:#x}, {len} slots");
                    assert_eq!(entries_found, entries, "{size:#x}, {len} slots");
                }
            }
        }
    }
}

/// The holes for a size and an alignment, upwards and downwards from an index; with and without the
/// exact test at the leaf's ends.
struct Room<'a>(&'a Body, usize, usize, (usize, usize));

impl Job for Room<'_> {
    type Out = [u32; 4];

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> [u32; 4] {
        let Room(body, max, bound, wanted) = self;
        [
            search.holes::<true, true>(body, (0, max), bound, wanted),
            search.holes::<false, true>(body, (0, max), bound, wanted),
            search.holes::<true, false>(body, (0, max), bound, wanted),
            search.holes::<false, false>(body, (0, max), bound, wanted),
        ]
    }
}

/// The search finds every hole that has room, with bounds near the base and far from it. It reports
/// few holes without room.
#[test]
fn all_vectors_find_room() {
    let mut dice = crate::tests::Dice(5);
    let (mut real, mut said) = (0, 0);
    for round in 0..3000 {
        let unit = [1, 0x1000, 0x4000, 1 << 31][round % 4];
        // The first hole may be far below the others, the last one may reach the end of the index
        // range, and the base may be near that end.
        let mut at = [0, 7 * unit, usize::MAX - 2000 * unit + 1][round % 3];
        let slots: Vec<LeafSlot> = (0..2 + dice.roll(24))
            .map(|i| {
                at += unit * (1 + dice.roll(if i == 0 { 300 } else { 12 }));
                LeafSlot { end: at - 1, word: word(i % 2 * (i + 1)) }
            })
            .collect();
        if !is_packable(&slots) {
            continue;
        }
        let (body, max) = (pack(&slots), slots[slots.len() - 1].end);
        let max = if round % 5 == 0 { usize::MAX } else { max };
        for _ in 0..20 {
            let i = dice.roll(slots.len());
            let bound = slots[i].end - dice.roll(unit.min(1 << 20));
            let size = 1 + dice.roll(9) * unit + dice.roll(3) * (unit / 2);
            let align = 1 << dice.roll(unit.ilog2() as usize + 4);
            let exact = |up: bool| {
                (0..slots.len()).fold(0u32, |bits, i| {
                    let (from, to) = (body.start(i, 0), body.end(i, max));
                    let place = if up {
                        from.max(bound)
                            .checked_next_multiple_of(align)
                            .filter(|start| start.checked_add(size - 1).is_some_and(|e| e <= to))
                    } else {
                        to.min(bound)
                            .checked_sub(size - 1)
                            .map(|start| start & !(align - 1))
                            .filter(|&start| start >= from)
                    };
                    bits | u32::from(place.is_some() && slots[i].word.is_null()) << i
                })
            };
            let (up, down) = (exact(true), exact(false));
            for vectors in supported() {
                let found = vectors.run(Room(&body, max, bound, (size, align)));
                for (found, exact) in found.into_iter().zip([up, down, up, down]) {
                    assert_eq!(found & exact, exact, "{bound:#x} {size:#x} {align:#x}");
                    assert_eq!(found & !body.holes(), 0);
                }
                real += up.count_ones() + down.count_ones();
                said += found[0].count_ones() + found[1].count_ones();
            }
        }
    }
    assert!(Vectors::get().is_none() || said < real + real / 4, "{said} of {real}");
}

/// SIMD and scalar code find the same children with large gaps.
#[test]
fn all_vectors_see_the_same_gaps() {
    struct Gaps<'a>(&'a Inner, usize);
    impl Job for Gaps<'_> {
        type Out = u32;

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> u32 {
            search.gaps(self.0, self.1)
        }
    }
    let mut place = core::mem::MaybeUninit::<Inner>::uninit();
    let place = core::ptr::NonNull::from(&mut place).cast();
    // SAFETY: memory for a node; a node needs no drop.
    let inner = unsafe {
        Inner::make(place);
        place.as_ref()
    };
    for i in 0..INNER_SLOTS {
        inner.set_gap(i, (((i * 7) % 16) << 60) | i);
    }
    for size in [1, 2, 9, 1 << 60, 5 << 60, (15 << 60) + 9, usize::MAX] {
        let fits = (0..INNER_SLOTS).filter(|&i| inner.gap(i) >= size);
        let fits = fits.fold(0, |bits, i| bits | 1 << i);
        assert_eq!(Gaps(inner, size).run(Scalar), fits);
        for vectors in supported() {
            assert_eq!(vectors.run(Gaps(inner, size)), fits);
        }
    }
}

/// SIMD and scalar code measure the same largest hole of a leaf.
#[test]
fn all_vectors_measure_the_same_holes() {
    struct Longest<'a>(&'a Body, u32, (usize, usize));
    impl Job for Longest<'_> {
        type Out = usize;

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> usize {
            let Longest(body, holes, ends) = self;
            search.gap(body, holes, ends, usize::MAX)
        }
    }
    let mut dice = crate::tests::Dice(7);
    let mut measured = 0;
    for round in 0..3000 {
        let unit = [1, 0x1000, 0x4000, 1 << 31, (1 << 52) + 1][round / 3 % 5];
        let min = [0, 7 * unit, usize::MAX - 2000 * unit + 1][round % 3];
        let mut at = min;
        let first = dice.roll(2);
        let slots: Vec<LeafSlot> = (0..1 + dice.roll(27))
            .map(|i| {
                at += unit * (1 + dice.roll(40));
                LeafSlot { end: at - 1, word: word((i + first) % 2 * (i + 1)) }
            })
            .collect();
        let entries = slots.iter().filter(|slot| !slot.word.is_null()).count();
        if entries == 0 || !is_packable(&slots) {
            continue;
        }
        let body = pack(&slots);
        let max = if round % 7 == 0 { usize::MAX } else { slots[slots.len() - 1].end };
        for holes in [body.holes(), body.holes() & dice.roll(1 << 30) as u32, 0] {
            let length = |i: usize| body.end(i, max) - body.start(i, min) + 1;
            let some = (0..slots.len()).filter(|&i| holes >> i & 1 == 1);
            let expected = some.map(length).max().unwrap_or(0);
            assert_eq!(Longest(&body, holes, (min, max)).run(Scalar), expected);
            for vectors in supported() {
                assert_eq!(vectors.run(Longest(&body, holes, (min, max))), expected);
            }
            measured += 1;
        }
    }
    assert!(measured > 5000, "{measured}");
}

/// SIMD and scalar code find the same largest gap of an inner node, with and without a changed gap.
#[test]
fn all_vectors_find_the_largest_gap() {
    struct Largest<'a>(&'a Inner, usize, usize);
    impl Job for Largest<'_> {
        type Out = [usize; 2];

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> [usize; 2] {
            let Largest(inner, slot, gap) = self;
            [(0, 0), (1 << slot, gap)].map(|with| search.max_gap_with(inner, with, usize::MAX))
        }
    }
    let mut place = core::mem::MaybeUninit::<Inner>::uninit();
    let place = core::ptr::NonNull::from(&mut place).cast();
    // SAFETY: memory for a node; a node needs no drop.
    let inner = unsafe {
        Inner::make(place);
        place.as_ref()
    };
    let mut dice = crate::tests::Dice(3);
    for round in 0..2000 {
        let mut gaps = [0; INNER_SLOTS];
        // The gaps of unused slots are 0.
        for (slot, gap) in gaps[..1 + round % INNER_SLOTS].iter_mut().enumerate() {
            *gap = dice.roll(1 << 20) << (round % 40);
            inner.set_gap(slot, *gap);
        }
        (1 + round % INNER_SLOTS..INNER_SLOTS).for_each(|slot| inner.set_gap(slot, 0));
        let (slot, gap) = (dice.roll(1 + round % INNER_SLOTS), dice.roll(1 << 20) << (round % 40));
        let before = gaps.into_iter().max();
        gaps[slot] = gap;
        let expected = [before, gaps.into_iter().max()].map(Option::unwrap);
        assert_eq!(Largest(inner, slot, gap).run(Scalar), expected);
        for vectors in supported() {
            assert_eq!(vectors.run(Largest(inner, slot, gap)), expected);
        }
    }
}

/// SIMD and scalar code replace children of an inner node in the same way, out of place and in
/// place.
#[test]
fn all_vectors_splice_the_same() {
    struct Made<'a>(&'a Inner, NonNull<Inner>, usize, Splice<'a>);
    impl Job for Made<'_> {
        type Out = ();

        #[inline(always)]
        fn run<S: Search>(self, search: S) {
            let Made(from, to, end, splice) = self;
            // SAFETY: the test owns the places.
            unsafe { search.splice(from, to, end, splice) }
        }
    }
    struct Inserted<'a>(&'a Inner, usize, [Item; 2]);
    impl Job for Inserted<'_> {
        type Out = ();

        #[inline(always)]
        fn run<S: Search>(self, search: S) {
            // SAFETY: as above.
            unsafe { search.insert(self.0, self.1, self.2) }
        }
    }
    fn seen(inner: &Inner) -> (Vec<usize>, usize, bool, Vec<(usize, usize)>) {
        // SAFETY: as above.
        let seps = unsafe { inner.seps() };
        let children = (0..INNER_SLOTS).map(|slot| {
            (inner.child(slot).tagged().map_or(0, |link| link.addr().get()), inner.gap(slot))
        });
        (seps.bounds.to_vec(), seps.len(), seps.refs.shared(), children.collect())
    }
    let item = |i: usize, end: usize| {
        let link = NonNull::new(core::ptr::without_provenance_mut(64 * (i + 1)));
        (end, link.map_or(Link::NULL, Link::from_tagged), 7 * i + 1)
    };
    let mut places = [const { core::mem::MaybeUninit::<Inner>::uninit() }; 3];
    let [from, scalar, vector] =
        places.each_mut().map(|place| NonNull::from(place).cast::<Inner>());
    // SAFETY: memory for nodes; a node needs no drop.
    let [node, expected, found] = unsafe { [from.as_ref(), scalar.as_ref(), vector.as_ref()] };
    let Some(vectors) = Vectors::get() else { return };
    for len in 1..=INNER_SLOTS {
        for (end, (first, last)) in [1000 * len - 1, usize::MAX]
            .into_iter()
            .flat_map(|end| (0..len).flat_map(move |a| (a..=len).map(move |b| (end, (a, b)))))
        {
            let fill = || {
                // SAFETY: as above.
                unsafe {
                    Inner::make(from);
                    for i in 0..len {
                        let (_, link, gap) = item(i, 0);
                        node.push(if i + 1 == len { end } else { 1000 * (i + 1) - 1 }, link, gap);
                    }
                }
            };
            fill();
            let before = seen(node);
            let start = 1000 * first;
            let bound = if last == len { end } else { (1000 * last).max(start + 300) - 1 };
            let items = [item(30, start + 99), item(31, bound)];
            for items in [&items[..0], &items[1..], &items] {
                let left = len - (last - first) + items.len();
                if !(1..=INNER_SLOTS).contains(&left) || (items.is_empty() && last == len) {
                    continue;
                }
                let splice = Splice { gone: first..last, items };
                Made(node, scalar, end, splice.clone()).run(Scalar);
                vectors.run(Made(node, vector, end, splice));
                assert_eq!(seen(found), seen(expected), "{first}..{last} of {len}");
                assert!(seen(node) == before, "the source node changed");
            }
            if last == first + 1 && len < INNER_SLOTS {
                Inserted(node, first, items).run(Scalar);
                let expected = seen(node);
                fill();
                vectors.run(Inserted(node, first, items));
                assert_eq!(seen(node), expected, "{first} of {len}");
            }
        }
    }
}

/// SIMD and scalar code join the first slots of one leaf and the last slots of another, or take a
/// part of one leaf, in the same way.
#[test]
fn all_vectors_join_the_same() {
    struct Joined<'a>(&'a Change, [*const Leaf; 2], *mut Leaf, bool);
    impl Job for Joined<'_> {
        type Out = ();

        #[cfg_attr(not(unoptimized), inline(always))]
        fn run<S: Search>(self, search: S) {
            let Joined(change, [from, other], to, apart) = self;
            // SAFETY: the test owns the leaves.
            unsafe {
                if apart {
                    search.change_apart(change, (from, other), to, core::ptr::null_mut())
                } else {
                    search.change(change, (from, other), to, core::ptr::null_mut())
                }
            }
        }
    }
    let leaf = |n: usize, first: usize, at: usize, unit: usize| {
        let slots = (0..n).map(|i| LeafSlot {
            end: (at + i + 1) * unit - 1,
            word: word((i + first) % 2 * (at + i + 1)),
        });
        let slots = slots.collect::<Vec<_>>();
        is_packable(&slots).then(|| Leaf::new(pack(&slots)))
    };
    let seen = |leaf: &Leaf, max: usize| {
        // SAFETY: as above.
        let body = unsafe { leaf.body() };
        assert!(body.is_within_room());
        (0..body.len()).map(|slot| body.slot(slot, max)).collect::<Vec<_>>()
    };
    let all = supported();
    if all.is_empty() {
        return;
    }
    let mut joined = [0; 2];
    let pairs = (2..28).flat_map(|n| (2..28).flat_map(move |m| [(n, m, 0), (n, m, 1)]));
    // The second unit makes wide leaves.
    for ((n, m, first), unit) in pairs.flat_map(|pair| [(pair, 0x1000), (pair, (1 << 56) + 1)]) {
        let pair = (leaf(n, first, 0, unit), leaf(m, first, 100, unit));
        let (Some(left), Some(right)) = pair else { continue };
        // SAFETY: as above.
        let (one, two) = unsafe { (left.body(), right.body()) };
        if !two.has_form_of(one) {
            continue;
        }
        let leaves = [&raw const left, &raw const right];
        let mut check =
            |change: &Change, sources: [*const Leaf; 2], max: usize, expected: &[LeafSlot]| {
                if !change.fits(one) {
                    return;
                }
                for (&vectors, apart) in all.iter().flat_map(|v| [(v, false), (v, true)]) {
                    let mut made = [(); 2].map(|()| Leaf::new(Body::EMPTY));
                    Joined(change, sources, &raw mut made[0], apart).run(Scalar);
                    vectors.run(Joined(change, sources, &raw mut made[1], apart));
                    made.iter().for_each(|leaf| assert_eq!(seen(leaf, max), expected, "{n}, {m}"));
                }
                joined[usize::from(one.is_wide())] += 1;
            };
        let max = (100 + m) * unit - 1;
        let slots = |body: &Body, range: core::ops::Range<usize>, max| -> Vec<LeafSlot> {
            range.map(|slot| body.slot(slot, max)).collect()
        };
        // A change may keep no slot of one of the leaves.
        let ends = (0..n).flat_map(|a| (0..=m).map(move |b| (a, b)));
        for (a, b) in ends.filter(|&(a, b)| a > 0 || b < m) {
            let bound = |is: bool, slot: usize, end: usize| Bound {
                is,
                slot,
                value: if is { one.encode(end) } else { 0 },
            };
            let end = if b < m { (100 + b) * unit - 1 } else { max };
            let new =
                [bound(a > 0, a.wrapping_sub(1), (a * unit).wrapping_sub(1)), bound(b < m, a, end)];
            let (behind, from) = if b < m { ((two, b), leaves[1]) } else { ((one, n), leaves[0]) };
            let change = Change::of_parts((one, a), 1, behind, new);
            let mut expected = slots(one, 0..a, max);
            expected.push(LeafSlot { end, word: word(0) });
            expected.extend(slots(two, b..m, max));
            check(&change, [leaves[usize::from(a == 0)], from], max, &expected);
        }
        for at in (1..n).filter(|_| m == 2) {
            let (max, own) = (n * unit - 1, [leaves[0]; 2]);
            check(&Change::rest(one, at), own, max, &slots(one, at..n, max));
            let max = at * unit - 1;
            check(&Change::first(one, at), own, max, &slots(one, 0..at, max));
        }
    }
    assert!(joined[0] > 10_000 && joined[1] > 10_000, "{joined:?}");
}
