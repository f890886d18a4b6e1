//! The writer of the stress test: each of two writers has every second group, and both write to the
//! tail.

use crate::space::{Dice, GROUPS, Group, TAIL};
use crate::{Limit, Tree, store};
use maple::Index;
use std::ops::RangeInclusive;

/// The number of writes of each kind.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    stores: u64,
    whole_blocks: u64,
    toggles: u64,
    erased: u64,
    blocks_erased: u64,
    tails: u64,
    cursors: u64,
    inserts: u64,
}

impl Writes {
    pub(crate) fn plus(self, other: Self) -> Self {
        Writes {
            stores: self.stores + other.stores,
            whole_blocks: self.whole_blocks + other.whole_blocks,
            toggles: self.toggles + other.toggles,
            erased: self.erased + other.erased,
            blocks_erased: self.blocks_erased + other.blocks_erased,
            tails: self.tails + other.tails,
            cursors: self.cursors + other.cursors,
            inserts: self.inserts + other.inserts,
        }
    }

    /// The count of the rarest write. Under Miri there are too few to expect each kind.
    pub(crate) fn least(&self) -> u64 {
        if cfg!(miri) {
            return self.stores;
        }
        let some = self.stores.min(self.whole_blocks).min(self.toggles).min(self.erased);
        some.min(self.blocks_erased).min(self.tails).min(self.cursors).min(self.inserts)
    }
}

/// Writes until the limit is reached.
pub(crate) fn run(tree: &Tree, limit: &Limit, half: Index) -> Writes {
    let mut dice = Dice(0x0abc_def0 + half as u64);
    let mut writes = Writes::default();
    let mut version = 0;
    let mut done = 0;
    while !limit.reached(done) {
        done += 1;
        version += 1;
        let group = Group(dice.roll(GROUPS / 2) * 2 + half);
        let (covered, toggled) = (group.covered(), group.toggled());
        match dice.roll(200) {
            0..70 => {
                store(tree, dice.piece(&covered), version);
                writes.stores += 1;
            }
            // A whole block at once: whole leaves go.
            70 => {
                store(tree, covered, version);
                writes.whole_blocks += 1;
            }
            71 => {
                tree.erase_range(toggled).unwrap();
                writes.blocks_erased += 1;
            }
            72 => {
                erase_span(tree, &toggled, version);
                writes.cursors += 1;
            }
            73..130 => {
                store(tree, dice.piece(&toggled), version);
                writes.toggles += 1;
            }
            130..150 => {
                let index = *dice.piece(&toggled).start();
                if let Some((range, erased)) = tree.erase(index).unwrap() {
                    erased.get().check(&range);
                    writes.erased += 1;
                }
            }
            150..170 => {
                tree.erase_range(dice.piece(&toggled)).unwrap();
                writes.erased += 1;
            }
            170..185 => {
                insert(tree, dice.piece(&toggled), version);
                writes.inserts += 1;
            }
            _ => {
                tail(tree, &mut dice, version);
                writes.tails += 1;
            }
        }
        if done.is_multiple_of(4096) {
            tree.validate().unwrap();
        }
    }
    writes
}

fn insert(tree: &Tree, range: RangeInclusive<Index>, version: u64) {
    let tag = Box::new(crate::Tag::new(&range, version));
    if let Err(refused) = tree.insert_range(range.clone(), tag) {
        // The error names the entry in the way.
        let maple::Error::Occupied { start, end } = refused.error else { panic!("{refused}") };
        assert!(start <= *range.end() && *range.start() <= end);
    }
}

/// Stores many small entries near the end of the index range, and sometimes one over all of them,
/// which removes every leaf on the right at once.
fn tail(tree: &Tree, dice: &mut Dice, version: u64) {
    for _ in 0..4 {
        let first = Index::MAX - dice.roll(1 << 20);
        store(tree, first..=first.saturating_add(dice.roll(1 << 12)), version);
    }
    if dice.roll(8) == 0 {
        let first = TAIL + dice.roll(1 << 20);
        store(tree, first..=Index::MAX, version);
    }
}

/// Under one lock, a cursor erases every second entry of the block and mostly stores a new one
/// there, in preallocated memory.
fn erase_span(tree: &Tree, toggled: &RangeInclusive<Index>, version: u64) {
    let mut writer = tree.lock();
    let mut cursor = writer.cursor(*toggled.start());
    let mut odd = false;
    while let Some((range, tag)) = cursor.find(*toggled.end()) {
        tag.check(&range);
        odd = !odd;
        if odd {
            cursor.erase().unwrap();
            if !version.is_multiple_of(3) {
                let half = *range.start()..=range.start() + (range.end() - range.start()) / 2;
                let tag = Box::new(crate::Tag::new(&half, version));
                cursor.preallocate(half.clone()).unwrap();
                cursor.store(half, tag).unwrap();
            }
        }
    }
}
