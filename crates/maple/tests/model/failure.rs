//! Every allocation of every kind of write fails once; the tree is then as it was before (I7).
//! Writes after a preallocation need no memory.

use crate::ledger::{Item, Ledger, Pool, with_budget, with_node_budget};
use crate::oracle::Oracle;
use crate::play::check;
use crate::run::wait_until;
use grace::Epoch;
use maple::{Error, Index, MapleTree, Refused, Writer};
use std::sync::Arc;

type Tree = MapleTree<Item, Epoch, Pool>;
type Write<'t> = Writer<'t, Item, Epoch, Pool>;

/// A tree that a write starts from, with its model.
struct Scene {
    ledger: Arc<Ledger>,
    tree: Tree,
    oracle: Oracle,
}

impl Scene {
    /// `n` entries of ten indices, `step` apart.
    fn new(n: Index, step: Index) -> Self {
        let mut scene =
            Scene { ledger: Arc::default(), tree: Tree::new_in(), oracle: Oracle::default() };
        for i in 0..n {
            let (first, last) = (i * step, i * step + 9);
            let item = Item::new(&scene.ledger, i as u64);
            scene.tree.get_mut().store_range(first..=last, item).unwrap();
            scene.oracle.set(first, last, Some(i as u64));
        }
        scene
    }

    fn item(&self) -> Item {
        Item::new(&self.ledger, 1 << 40)
    }
}

/// Trees from few nodes to many levels; entries touch, or have holes between them.
fn scenes() -> impl Iterator<Item = Scene> {
    let sizes = if cfg!(miri) { vec![0, 3, 12] } else { vec![0, 1, 3, 5, 16, 17, 60, 250] };
    sizes.into_iter().flat_map(|n| [10, 15].into_iter().map(move |step| Scene::new(n, step)))
}

/// Fails the first, the second, ... allocation of a write until it succeeds. Returns the number of
/// failures in all scenes.
fn every_failure(
    mut write: impl FnMut(&mut Write<'_>, &mut dyn FnMut() -> Item) -> Result<(), Error>,
) -> usize {
    let mut failures = 0;
    for alone in [true, false] {
        for mut scene in scenes() {
            let ledger = scene.ledger.clone();
            // First with the tree owned alone, where leaves are changed in place; then with
            // readers.
            for n in 0.. {
                // A new writer for each try, so that it does not profit from allocations before a
                // failure.
                let mut writer = if alone { scene.tree.get_mut() } else { scene.tree.lock() };
                let mut item = || Item::new(&ledger, 1 << 40);
                let outcome = with_budget(Some(n), || write(&mut writer, &mut item));
                match outcome {
                    Ok(()) => break,
                    Err(Error::NoSpace) => break,
                    Err(error) => assert_eq!(error, Error::OutOfMemory),
                }
                failures += 1;
                check(&mut writer, &scene.oracle);
                drop(writer);
                let nodes = scene.tree.get_mut().stats().nodes;
                left(&ledger, scene.oracle.len(), nodes);
            }
            scene.tree.get_mut().validate().unwrap();
            drop(scene);
            left(&ledger, 0, 0);
        }
    }
    failures
}

/// Exactly this many entries and nodes are left after all grace periods.
fn left(ledger: &Ledger, entries: usize, nodes: usize) {
    wait_until(|| (ledger.live(), Pool::live() as usize) == (entries, nodes));
    assert_eq!(ledger.twice(), 0);
}

/// Accepts the errors of writes that had nothing to do.
fn in_the_way(error: Error) -> Result<(), Error> {
    match error {
        Error::Occupied { .. } | Error::EmptyRange => Ok(()),
        other => Err(other),
    }
}

fn refused(refused: Refused<Item>) -> Error {
    assert_eq!(refused.entry.value(), 1 << 40, "a refused write returned another entry");
    refused.error
}

/// A single test, because the count of live nodes is shared.
#[test]
fn every_kind_of_write() {
    type WriteKind = fn(&mut Write<'_>, &mut dyn FnMut() -> Item) -> Result<(), Error>;
    let kinds: [(&str, WriteKind); 19] = [
        ("store in a hole", |w, item| w.store_range(9_990..=9_999, item()).map_err(refused)),
        ("store that splits", |w, item| w.store_range(3..=6, item()).map_err(refused)),
        ("store over entries", |w, item| w.store_range(14..=55, item()).map_err(refused)),
        ("store over most", |w, item| w.store_range(4..=8_000, item()).map_err(refused)),
        ("store over all", |w, item| w.store_range(0..=Index::MAX, item()).map_err(refused)),
        ("store at the last", |w, item| {
            w.store_range(Index::MAX..=Index::MAX, item()).map_err(refused)
        }),
        ("insert", |w, item| w.insert_range(20_000..=20_001, item()).map_err(refused)),
        ("alloc_range", |w, item| {
            w.alloc_range(0..=Index::MAX, 5, 1, item()).map(drop).map_err(refused)
        }),
        ("alloc_rrange", |w, item| {
            w.alloc_rrange(0..=9_000, 5, 4, item()).map(drop).map_err(refused)
        }),
        ("alloc_cyclic", |w, item| {
            let mut next = 77;
            let outcome = w.alloc_cyclic(0..=20_000, &mut next, item()).map_err(refused);
            assert!(outcome.is_ok() || next == 77, "a failure moved the counter");
            outcome.map(drop)
        }),
        ("erase", |w, _| w.erase(33).map(drop)),
        ("erase_range that splits", |w, _| w.erase_range(2..=3)),
        ("erase_range over many", |w, _| w.erase_range(7..=5_000)),
        // Several leaves of one parent, if the tree is large enough.
        ("erase_range over some", |w, _| w.erase_range(153..=604)),
        ("set_end up", |w, _| w.set_end(1, 12).map(drop).or_else(in_the_way)),
        ("set_end down", |w, _| w.set_end(33, 31).map(drop).or_else(in_the_way)),
        ("cursor store", |w, item| {
            let mut cursor = w.cursor(0);
            cursor.find(Index::MAX);
            let before = cursor.range();
            let outcome = cursor.store(1..=1, item()).map_err(refused);
            assert!(outcome.is_ok() || cursor.range() == before, "a failure moved the cursor");
            outcome
        }),
        ("cursor erase", |w, _| {
            let mut cursor = w.cursor(15);
            cursor.find(Index::MAX);
            let before = cursor.range();
            let outcome = cursor.erase().map(drop);
            assert!(outcome.is_ok() || cursor.range() == before, "a failure moved the cursor");
            outcome
        }),
        ("duplicate", |w, _| w.duplicate().map(drop)),
    ];
    for (name, kind) in kinds {
        let failures = every_failure(kind);
        assert!(failures > 0, "{name}: nothing could fail");
    }
    assert!(every_failure(|w, _| w.preallocate(3..=8_000)) > 0);
    assert!(every_failure(|w, _| w.preallocate_writes(3)) > 0);
    assert!(every_failure(|w, _| w.duplicate_with_token().map(drop)) > 0);
    prepared_writes();
    many_prepared_writes();
}

/// After `preallocate`, a store or an erase of that range succeeds without memory, for every shape
/// of tree.
fn prepared_writes() {
    for n in [0, 1, 3, 5, 16, 17, 250] {
        for step in [10, 15] {
            for (first, last) in [
                (0, 0),
                (3, 6),
                (10, 19),
                (12, 47),
                (5, n * step),
                (0, Index::MAX),
                (n * step / 2, n * step / 2 + 3),
                (n * step / 2, Index::MAX),
                (Index::MAX, Index::MAX),
            ] {
                for kind in (0..4).filter(|_| first <= last) {
                    let mut scene = Scene::new(n, step);
                    let item = scene.item();
                    let mut oracle = scene.oracle.clone();
                    let mut writer = scene.tree.get_mut();
                    writer.preallocate(first..=last).unwrap();
                    with_budget(Some(0), || match kind {
                        0 => writer.store_range(first..=last, item).unwrap(),
                        1 => writer.erase_range(first..=last).unwrap(),
                        2 => writer.cursor(first).store(first..=last, item).unwrap(),
                        _ => drop(writer.insert_range(first..=last, item).map_err(|refused| {
                            assert!(matches!(refused.error, Error::Occupied { .. }));
                        })),
                    });
                    match kind {
                        0 | 2 => oracle.set(first, last, Some(1 << 40)),
                        1 => oracle.set(first, last, None),
                        _ if oracle.overlapping(first, last).next().is_none() => {
                            oracle.set(first, last, Some(1 << 40));
                        }
                        _ => {}
                    }
                    check(&mut writer, &oracle);
                }
            }
        }
    }
}

/// After `preallocate_writes`, that many writes at any place never lack a node. Asking for many
/// writes does not fail on a small tree.
fn many_prepared_writes() {
    for n in [0, 1, 4, 17, 400] {
        for writes in [1, 2, 5, 30, 100] {
            let mut scene = Scene::new(n, 15);
            let items: Vec<_> = (0..writes).map(|_| scene.item()).collect();
            let mut oracle = scene.oracle.clone();
            let mut writer = scene.tree.get_mut();
            writer.preallocate_writes(writes).unwrap();
            with_node_budget(0, || {
                for (i, item) in (0..).zip(items) {
                    // At various places: splits, spans and ends.
                    let first = i * 7919 % (n * 15 + 50);
                    let last = if i % 7 == 3 { first + 200 } else { first + i % 4 };
                    if i % 5 == 4 {
                        writer.erase_range(first..=last).unwrap();
                        oracle.set(first, last, None);
                    } else {
                        writer.store_range(first..=last, item).unwrap();
                        oracle.set(first, last, Some(1 << 40));
                    }
                }
            });
            check(&mut writer, &oracle);
        }
    }
}
