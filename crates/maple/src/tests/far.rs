//! Ranges that lie far apart: leaves that become wide or narrow, are split for that, or are joined
//! with a leaf of another form.

use super::Dice;
use crate::Index;
use crate::testing::{Flaky, KINDS, with_vectors};
use crate::{MapleTree, Writer};
use grace::{Epoch, Reclaim, Single};
use std::collections::BTreeMap;

const STEPS: usize = if cfg!(miri) { 24 } else { 1500 };
const PAGE: Index = 0x1000;

/// Where the ranges lie.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// At random pages below 2^47. A leaf spans about as much as narrow bounds reach.
    Spread,
    /// At random indices.
    Keys,
    /// In clusters of pages, far from each other.
    Clusters,
}

impl Layout {
    /// A range.
    fn range(self, dice: &mut Dice) -> (Index, Index) {
        let (start, unit) = match self {
            Layout::Spread => (dice.roll(1 << (Index::BITS - 30)) * PAGE, PAGE),
            Layout::Keys => (dice.roll(1 << 50) << (Index::BITS - 50) | dice.roll(99), 1),
            Layout::Clusters => {
                let cluster = dice.roll(6) << (Index::BITS - 17);
                (cluster + dice.roll(400) * PAGE, PAGE)
            }
        };
        (start, start + unit * (1 + dice.roll(4)) - 1)
    }
}

/// The ranges by their starts, with their ends and values.
type Model = BTreeMap<Index, (Index, u64)>;

/// The range that begins last at or before an index, if it ends at or after another one.
fn overlaps(model: &Model, first: Index, last: Index) -> bool {
    model.range(..=last).next_back().is_some_and(|(_, &(end, _))| end >= first)
}

fn check<R: Reclaim>(writer: &Writer<'_, u32, R, Flaky>, model: &Model) {
    writer.validate().unwrap();
    let found = writer.iter(0..=Index::MAX);
    let found = found.map(|(range, value)| (*range.start(), (*range.end(), u64::from(value))));
    assert!(found.eq(model.iter().map(|(&start, &rest)| (start, rest))));
}

/// Grows the tree to some ranges, and shrinks it again, over and over.
fn run<R: Reclaim>(writer: &mut Writer<'_, u32, R, Flaky>, layout: Layout, seed: u64) {
    let mut dice = Dice(seed);
    let (mut model, mut grows) = (Model::new(), true);
    for step in 0..STEPS {
        grows = if model.len() > 150 { false } else { grows || model.len() < 3 };
        let (first, last) = layout.range(&mut dice);
        let value = step as u32;
        if grows && dice.roll(8) > 0 {
            if !overlaps(&model, first, last) {
                // The nodes allocated ahead must be enough.
                let ahead = dice.roll(3) == 0;
                if ahead {
                    writer.preallocate(first..=last).unwrap();
                }
                let mut store = || writer.insert_range(first..=last, value).map_err(|no| no.error);
                if ahead { Flaky::failing_after(0, store) } else { store() }.unwrap();
                model.insert(first, (last, value.into()));
            }
        } else if let Some((&start, &(end, old))) = model.range(first..).next() {
            if dice.roll(4) == 0 {
                let room = model.range(end + 1..).next().map_or(Index::MAX, |(&next, _)| next - 1);
                let to = end.saturating_add(PAGE * dice.roll(3)).min(room);
                assert_eq!(writer.set_end(end, to).unwrap(), Some(start..=to));
                model.insert(start, (to, old));
            } else {
                let (range, value) = writer.erase(end).unwrap().unwrap();
                assert_eq!((range, u64::from(value.get())), (start..=end, old));
                model.remove(&start);
            }
        }
        if step % 16 == 0 {
            check(writer, &model);
        }
    }
    check(writer, &model);
}

/// A write far away from a dense leaf cuts it once, whichever side the write is on.
#[test]
fn a_far_write_cuts_once() {
    let base = (1 as Index) << 44;
    for far in [0x1000, 1 << 46] {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..17 {
            writer.insert_range(base + i * PAGE..=base + i * PAGE + PAGE - 1, 1).unwrap();
        }
        writer.insert_range(far..=far + PAGE - 1, 9).unwrap();
        writer.validate().unwrap();
        assert_eq!(writer.iter(0..=Index::MAX).count(), 18);
        if !cfg!(samara_small_nodes) {
            assert!(writer.stats().leaves <= 2, "{:?}", writer.stats());
        }
    }
}

#[test]
fn leaves_change_their_form() {
    for kind in 0..KINDS {
        for (seed, layout) in (1..).zip([Layout::Spread, Layout::Keys, Layout::Clusters]) {
            // Under Miri, each layout with vectors of one kind.
            if cfg!(miri) && seed % KINDS as u64 != kind as u64 {
                continue;
            }
            with_vectors(kind, || {
                let mut tree = MapleTree::<u32, Single, Flaky>::new_in();
                run(&mut tree.get_mut(), layout, seed);
                let tree = MapleTree::<u32, Epoch, Flaky>::new_in();
                run(&mut tree.lock(), layout, seed + 10);
            });
        }
    }
}
