//! Preallocated memory is enough, and not much more than enough: with full nodes, with nodes shared
//! with a duplicate, and with bounds of both widths.

use super::Dice;
use crate::Index;
use crate::testing::{Flaky, KINDS, Owned, with_vectors};
use crate::{Entry, MapleTree, RefCounted, Writer};
use grace::{Epoch, Reclaim, Single};
use std::boxed::Box;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::vec::Vec;

type Tree<E, R> = MapleTree<E, R, Flaky>;

/// The number of entries of a tree whose nodes are full on three levels, if built in ascending
/// order.
const FULL: usize = 16 * 16 * 19 + 40;

/// The first index of cell `i`. Cells form groups that lie far apart, some at odd indices. So a
/// leaf at the border of two groups has wide bounds, and other leaves have narrow ones.
fn start(i: usize) -> Index {
    const GROUP: usize = 60;
    let far = Index::BITS - 16;
    let (group, i) = ((i / GROUP) as Index, (i % GROUP) as Index);
    (group << far) + i * 0x1000 + group % 2
}

fn range(from: usize, to: usize) -> RangeInclusive<Index> {
    start(from)..=start(to + 1) - 1
}

/// Runs a write that may use only preallocated memory.
fn with_nothing<R: Reclaim, E: Entry>(
    writer: &mut Writer<'_, E, R, Flaky>,
    write: impl FnOnce(&mut Writer<'_, E, R, Flaky>),
) {
    Flaky::failing_after(0, || write(writer));
    writer.validate().unwrap();
}

/// One write anywhere after `preallocate_writes(1)`; with a duplicate of the tree, if there is one.
fn anywhere<R: Reclaim, E: Entry>(
    writer: &mut Writer<'_, E, R, Flaky>,
    dice: &mut Dice,
    cells: usize,
    entry: E,
) {
    writer.preallocate_writes(1).unwrap();
    write_anywhere(writer, dice, cells, entry);
}

/// One write anywhere that may use only preallocated memory.
fn write_anywhere<R: Reclaim, E: Entry>(
    writer: &mut Writer<'_, E, R, Flaky>,
    dice: &mut Dice,
    cells: usize,
    entry: E,
) {
    let from = dice.roll(cells);
    // Some ranges within a leaf, some over a few leaves, some over many.
    let longest = [2, 30, 60, cells][dice.roll(4)];
    let to = (from + dice.roll(longest)).min(cells - 1);
    // Part of a cell at both ends, so that the entries there are cut.
    let range = range(from, to).start() + dice.roll(3)..=range(from, to).end() - dice.roll(3);
    let hole = dice.roll(3) == 0;
    with_nothing(writer, |writer| {
        if hole {
            writer.erase_range(range).unwrap();
        } else {
            writer.store_range(range, entry).map_err(|refused| refused.error).unwrap();
        }
    });
}

/// Fills a tree again, so that most writes find full nodes.
fn fill<R: Reclaim, E: Entry>(
    writer: &mut Writer<'_, E, R, Flaky>,
    cells: usize,
    entry: impl Fn(usize) -> E,
) {
    for i in 0..cells {
        // Existing entries stay.
        let _ = writer.insert_range(range(i, i), entry(i));
    }
}

/// A tree that shares nodes with duplicates, and its writer.
type Shared<R> = Tree<RefCounted<u64>, R>;
type SharedWriter<'t, R> = Writer<'t, RefCounted<u64>, R, Flaky>;

/// The cells of a tree that shares nodes.
const SHARED_CELLS: usize = 1200;

/// The course of a test on trees that share nodes.
#[derive(Clone, Copy)]
struct Course {
    rounds: usize,
    /// The tree is filled again each time this number of rounds has passed.
    fill_every: usize,
    /// A duplicate is made each time this number of rounds has passed.
    duplicate_every: usize,
    /// The number of duplicates that are kept.
    keep: usize,
}

impl Course {
    /// Calls `write` in each round, on a tree with one owner and on one with readers.
    fn run(
        self,
        seed: u64,
        single: fn(&mut SharedWriter<'_, Single>, &mut Dice),
        epoch: fn(&mut SharedWriter<'_, Epoch>, &mut Dice),
    ) {
        self.run_on::<Single>(seed, |tree| tree.get_mut(), single);
        self.run_on::<Epoch>(seed + 1, |tree| tree.lock(), epoch);
    }

    fn run_on<R: Reclaim>(
        self,
        seed: u64,
        lock: impl for<'t> Fn(&'t mut Shared<R>) -> SharedWriter<'t, R>,
        write: fn(&mut SharedWriter<'_, R>, &mut Dice),
    ) {
        let mut dice = Dice(seed);
        let mut tree = Shared::<R>::new_in();
        let mut others = VecDeque::new();
        for round in 0..self.rounds {
            let mut writer = lock(&mut tree);
            if round % self.fill_every == 0 {
                fill(&mut writer, SHARED_CELLS, |i| RefCounted::new(i as u64).unwrap());
            }
            if round % self.duplicate_every == 0 {
                others.push_back(writer.duplicate().unwrap());
                if others.len() > self.keep {
                    others.pop_front();
                }
            }
            write(&mut writer, &mut dice);
        }
    }
}

/// Trees that share all nodes with a duplicate at each write.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_write_anywhere_that_shares() {
    fn write<R: Reclaim>(writer: &mut SharedWriter<'_, R>, dice: &mut Dice) {
        anywhere(writer, dice, SHARED_CELLS, RefCounted::new(7).unwrap());
    }
    let rounds = if cfg!(samara_small_nodes) { 100 } else { 700 };
    Course { rounds, fill_every: 60, duplicate_every: 1, keep: 3 }.run(3, write, write);
}

/// The writes of a move, in trees that share nodes with a duplicate: some are neighbours,
/// and the first of them may have filled or emptied the nodes of the next.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn five_writes_anywhere_that_share() {
    fn write<R: Reclaim>(writer: &mut SharedWriter<'_, R>, dice: &mut Dice) {
        const WRITES: usize = 5;
        writer.preallocate_writes(WRITES).unwrap();
        let near = dice.roll(SHARED_CELLS);
        for value in 0..WRITES {
            let entry = RefCounted::new(value as u64).unwrap();
            if dice.roll(2) == 0 {
                write_anywhere(writer, dice, SHARED_CELLS, entry);
                continue;
            }
            // A part of one entry, so that each write adds two.
            let cell = (near + dice.roll(4)).min(SHARED_CELLS - 1);
            let at = range(cell, cell).start() + 0x10 + 0x20 * dice.roll(100);
            with_nothing(writer, |writer| {
                writer.store_range(at..=at + 7, entry).map_err(|refused| refused.error).unwrap();
            });
        }
    }
    let rounds = if cfg!(samara_small_nodes) { 40 } else { 200 };
    Course { rounds, fill_every: 20, duplicate_every: 1, keep: 3 }.run(5, write, write);
}

/// Trees whose entries cannot be shared, so that each tree has its own nodes.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_write_anywhere() {
    const CELLS: usize = 1200;
    for seed in 1..3 {
        let mut dice = Dice(seed);
        let tree = Tree::<Box<u64>, Epoch>::new_in();
        let mut writer = tree.lock();
        for round in 0..if cfg!(samara_small_nodes) { 100 } else { 500 } {
            if round % 40 == 0 {
                fill(&mut writer, CELLS, |i| Box::new(i as u64));
            }
            anywhere(&mut writer, &mut dice, CELLS, Box::new(1));
        }
    }
}

/// One more entry in a tree whose nodes are full up to the root: a node on each level is split.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn one_more_where_all_is_full() {
    let tree = || {
        let tree = Tree::<Owned, Epoch>::new_in();
        let mut writer = tree.lock();
        for i in 0..FULL {
            let at = i as Index * 10;
            writer.store_range(at..=at + 9, Owned::new(i as u64)).unwrap();
        }
        drop(writer);
        tree
    };
    let places: Vec<Index> = (0..24).map(|i| (i * FULL / 24 + 5) as Index).collect();
    for kind in 0..KINDS {
        with_vectors(kind, || {
            let full = tree();
            for &place in &places {
                // Each write gets a tree that is as full as the first.
                let tree = full.duplicate().unwrap();
                let mut writer = tree.lock();
                let between = place * 10 + 8..=place * 10 + 11;
                let inside = place * 10 + 3..=place * 10 + 4;
                for range in [between, inside] {
                    writer.preallocate(range.clone()).unwrap();
                    let entry = Owned::new(1);
                    with_nothing(&mut writer, |writer| writer.store_range(range, entry).unwrap());
                }
            }
        });
    }
}

/// A hole or an erase after `preallocate` of its range, also over leaves of two parents.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn holes_of_all_lengths() {
    const CELLS: Index = 2500;
    for seed in 1..4 {
        let mut dice = Dice(seed);
        let tree = Tree::<Owned, Epoch>::new_in();
        let mut writer = tree.lock();
        for round in 0..600 {
            if round % 100 == 0 {
                // In random order, so that nodes are two thirds full.
                for i in 0..CELLS {
                    let i = i * 1409 % CELLS;
                    let _ = writer.insert_range(i * 10..=i * 10 + 6, Owned::new(i as u64));
                }
            }
            let from = dice.roll(CELLS - 70);
            let range = from * 10..=(from + dice.roll([2, 30, 70][round % 3])) * 10 + 9;
            writer.preallocate(range.clone()).unwrap();
            with_nothing(&mut writer, |writer| {
                if round % 4 == 0 {
                    drop(writer.erase(*range.start()).unwrap());
                } else {
                    writer.erase_range(range).unwrap();
                }
            });
        }
    }
}

/// An erase of the entry that holds an index, after `preallocate` of that index alone: entries of
/// all lengths, with holes of all lengths next to them, also in nodes shared with a duplicate.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn an_erase_by_any_index() {
    fn write<R: Reclaim>(writer: &mut SharedWriter<'_, R>, dice: &mut Dice) {
        let from = dice.roll(SHARED_CELLS - 100);
        let longest = [1, 3, 40, 100][dice.roll(4)];
        let wide = range(from, from + dice.roll(longest));
        match dice.roll(3) {
            0 => drop(writer.erase_range(wide)),
            1 => drop(writer.store_range(wide, RefCounted::new(7).unwrap())),
            _ => {}
        }
        let index = start(dice.roll(SHARED_CELLS));
        writer.preallocate(index..=index).unwrap();
        with_nothing(writer, |writer| drop(writer.erase(index).unwrap()));
    }
    let rounds = if cfg!(samara_small_nodes) { 300 } else { 3000 };
    Course { rounds, fill_every: 200, duplicate_every: 3, keep: 1 }.run(5, write, write);
}
