//! Erases one by one, in random order, from trees that are large enough for cases that are rare in
//! small ones: a hole over leaves of two parents, a sibling of another form, a parent that is
//! shared with a duplicate, nodes four levels up.

use super::{Dice, longest_hole};
use crate::Index;
use crate::layout::ALWAYS_WIDE;
use crate::testing::{Flaky, Owned};
use crate::write::SHORTCUTS;
use crate::{Entry, MapleTree, RefCounted, Writer};
use grace::Epoch;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec::Vec;

std::thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// A value that counts its instances.
struct Value(u64);

impl Drop for Value {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
    }
}

/// An entry with a number.
trait EntryKind: Entry {
    fn make(number: u64) -> Self;
    fn number(entry: Self::Ref<'_>) -> u64;
    fn live() -> isize;
}

/// Shared with duplicates of the tree.
impl EntryKind for RefCounted<Value> {
    fn make(number: u64) -> Self {
        LIVE.set(LIVE.get() + 1);
        RefCounted::new(Value(number)).unwrap_or_else(|_| panic!("there is memory"))
    }
    fn number(entry: Self::Ref<'_>) -> u64 {
        entry.get().0
    }
    fn live() -> isize {
        LIVE.get()
    }
}

/// Duplicated together with the tree.
impl EntryKind for Owned {
    fn make(number: u64) -> Self {
        Owned::new(number)
    }
    fn number(entry: Self::Ref<'_>) -> u64 {
        *entry
    }
    fn live() -> isize {
        Owned::live()
    }
}

type Tree<E> = MapleTree<E, Epoch, Flaky>;
type Model = BTreeMap<Index, (Index, u64)>;

/// Checks that a tree holds what the model holds; `whole`: entry by entry.
fn check<E: EntryKind>(writer: &Writer<'_, E, Epoch, Flaky>, model: &Model, whole: bool) {
    if let Err(violation) = writer.validate() {
        panic!("{violation}\n{}", writer.dump());
    }
    if !whole {
        return;
    }
    let found = writer.iter(0..=Index::MAX).map(|(range, entry)| {
        let (first, last) = range.into_inner();
        (first, (last, E::number(entry)))
    });
    assert!(found.eq(model.iter().map(|(&first, &rest)| (first, rest))), "\n{}", writer.dump());
    let mut next = Some(0);
    let mut holes = Vec::new();
    for (&first, &(last, _)) in model {
        let from = next.expect("entries follow one another");
        if first > from {
            holes.push((from..=first - 1, None));
        }
        next = last.checked_add(1);
    }
    holes.extend(next.map(|from| (from..=Index::MAX, None)));
    assert_eq!(writer.largest_gap(), longest_hole(&holes));
}

/// Ranges of pages and ranges of single indices in alternating stretches, so that leaves have
/// several forms. They have holes between them, or all of them touch.
fn ranges(n: usize, dice: &mut Dice) -> Vec<(Index, Index)> {
    let mut at = 0x40_0000;
    let (stretch, touching) = (20 + dice.roll(60), dice.roll(3) == 0);
    let mut ranges = Vec::new();
    for i in 0..n {
        let unit = if i / stretch % 3 == 1 { 1 } else { 0x1000 };
        let size = unit * (1 + dice.roll(4));
        ranges.push((at, at + size - 1));
        at += size + if touching { 0 } else { unit * (1 + dice.roll(6)) };
    }
    ranges
}

/// Fills a tree and erases everything, with some duplicates kept. The duplicates must keep their
/// entries, and in the end nothing may be left. If `alone`, there is only an owner and the counts
/// are exact. Otherwise some writes are shared, and the thread of any test may free what they
/// remove.
fn fill_and_erase<E: EntryKind>(n: usize, seed: u64, every: usize, alone: bool) {
    let (nodes, live) = (Flaky::live(), E::live());
    let mut dice = Dice(seed);
    let mut order = ranges(n, &mut dice);
    let mut shuffle = |order: &mut Vec<_>| {
        (1..n).for_each(|i| order.swap(i, dice.roll(i + 1)));
    };
    shuffle(&mut order);
    let mut tree = Tree::<E>::new_in();
    let mut model = Model::new();
    for (number, &(first, last)) in order.iter().enumerate() {
        tree.get_mut().store_range(first..=last, E::make(number as u64)).unwrap();
        model.insert(first, (last, number as u64));
    }
    check(&tree.get_mut(), &model, true);
    shuffle(&mut order);
    let mut others: Vec<(Tree<E>, Model)> = Vec::new();
    let mut dice = Dice(!seed);
    let mut todo = order.iter().copied().enumerate().peekable();
    while todo.peek().is_some() {
        if others.len() < 3 && dice.roll(n / 40) == 0 {
            others.push((tree.duplicate().unwrap(), model.clone()));
        }
        let mut writer = if alone || dice.roll(2) == 0 { tree.get_mut() } else { tree.lock() };
        let some = 1 + dice.roll(20);
        for (i, (first, last)) in todo.by_ref().take(some) {
            let mut budget = match dice.roll(6) {
                // Sometimes the first, the second, ... allocation fails; then nothing may have
                // changed.
                0 => 0,
                // Preallocated memory is enough.
                1..=3 => {
                    writer.preallocate(first..=first).unwrap();
                    0
                }
                // Preallocate for the split of the erased entry or of the next one. The erase needs
                // neither duplicate.
                4 => {
                    let next = model.range(first..).nth(dice.roll(2));
                    if let Some((&other, &(end, _))) = next
                        && end - other >= 2
                    {
                        writer.preallocate(other + 1..=other + 1).unwrap();
                    }
                    usize::MAX
                }
                _ => usize::MAX,
            };
            let erased = loop {
                match Flaky::failing_after(budget, || {
                    writer.erase(first + dice.roll(last - first + 1))
                }) {
                    Ok(erased) => break erased.expect("it is there"),
                    Err(_) => {
                        check(&writer, &model, n < 1000);
                        budget += 1;
                    }
                }
            };
            let (end, number) = model.remove(&first).unwrap();
            assert_eq!((erased.0, E::number(erased.1.get())), (first..=end, number));
            drop(erased.1);
            if alone && !E::SHARES {
                let theirs: usize = others.iter().map(|(_, model)| model.len()).sum();
                assert_eq!(E::live() - live, (model.len() + theirs) as isize, "entries");
            }
            if i % every == 0 {
                check(&writer, &model, i % (8 * every) == 0);
            }
        }
    }
    assert!(tree.lock().is_empty());
    for (tree, model) in &others {
        check(&tree.lock(), model, true);
    }
    drop((tree, others));
    if alone {
        assert_eq!((Flaky::live(), E::live()), (nodes, live), "left over");
    }
}

#[test]
#[cfg_attr(miri, ignore = "long; `shapes` has a small one")]
fn one_by_one() {
    // Small nodes make many nodes.
    for seed in 1..=if cfg!(samara_small_nodes) { 1 } else { 4 } {
        for alone in [true, false] {
            fill_and_erase::<Owned>(600, seed, 1, alone);
            fill_and_erase::<RefCounted<Value>>(900, 100 + seed, 1, alone);
        }
    }
    let [joined, erased] =
        [crate::write::JOINED.take()[0], crate::write::SPANS_ERASED.take()[1].iter().sum()];
    assert!(ALWAYS_WIDE || !SHORTCUTS || (joined > 0 && erased > 0), "{joined} {erased}");
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn one_by_one_of_many() {
    let n = if cfg!(samara_small_nodes) { 2000 } else { 8000 };
    for alone in [true, false] {
        fill_and_erase::<Owned>(n, 21, 60, alone);
        fill_and_erase::<RefCounted<Value>>(n, 22, 60, alone);
    }
}
