//! An entry that comes and goes, as the top of a heap does: after a few rounds it changes one leaf
//! only, in every layout. So it neither splits nor joins leaves each time.

use super::Dice;
use crate::layout::INNER_SLOTS;
use crate::testing::Flaky;
use crate::write::SHORTCUTS;
use crate::{Index, MapleTree};
use grace::Single;
use std::ops::RangeInclusive;
use std::vec::Vec;

type Tree = MapleTree<u32, Single, Flaky>;

/// A tree of `count` entries of half a step from `base`, and of two far below, as a program lies
/// far below its mappings. Some trees grow upwards, some downwards, and some in no order.
fn tree(base: Index, step: Index, count: usize, dice: &mut Dice) -> Tree {
    let mut tree = Tree::new_in();
    let mut places: Vec<_> = (0..count as Index).map(|i| base + i * step).collect();
    match dice.roll(3) {
        0 => {}
        1 => places.reverse(),
        _ => (1..count).for_each(|i| places.swap(i, dice.roll(i + 1))),
    }
    for at in [step, 4 * step].into_iter().chain(places) {
        tree.get_mut().store_range(at..=at + step / 2 - 1, 1).unwrap();
    }
    tree
}

/// Lets an entry come and go in a hole.
fn toggle(tree: &mut Tree, range: RangeInclusive<Index>, count: usize) {
    let mut round = || {
        let mut writer = tree.get_mut();
        writer.store_range(range.clone(), 2)?;
        writer.erase_range(range.clone())
    };
    for _ in 0..3 {
        round().unwrap();
    }
    // A leaf is changed in place, so nothing is allocated.
    let done = Flaky::failing_after(0, round);
    assert_eq!(done, Ok(()), "{count} entries, {range:x?}");
}

#[test]
fn an_entry_that_comes_and_goes_changes_one_leaf() {
    // Leaves of two or three entries have no slack; without shortcuts, the plan makes nodes.
    if INNER_SLOTS == 4 || Index::BITS < 64 || !SHORTCUTS {
        return;
    }
    let mut dice = Dice(7);
    let counts = if cfg!(miri) { 12..14 } else { 1..70 };
    for count in counts {
        let layouts = [(0x7f00_0000_0000, 0x10000), (1 << 20, 0x4000), (999, 8)];
        for (base, step) in layouts {
            let len = step / 4;
            // Each hole among them, in one tree.
            let mut among = tree(base, step, count, &mut dice);
            for i in 0..count as Index {
                let at = base + i * step + step / 2;
                toggle(&mut among, at..=at + len - 1, count);
            }
            among.get_mut().validate().unwrap();
            // Next to all of them, near and far.
            let above = base + count as Index * step;
            for at in [2 * step, base - 3 * step, above, base + (255 << 32), Index::MAX - step + 1]
            {
                let mut near = tree(base, step, count, &mut dice);
                toggle(&mut near, at..=at + len - 1, count);
                near.get_mut().validate().unwrap();
            }
        }
    }
}
