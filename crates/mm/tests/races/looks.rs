//! Looks that take no lock, from seeds: what they tell was so at some moment of the look, and never
//! half of a call.

use std::mem::ManuallyDrop;

use crate::common::*;
use crate::half_way::{AT, SEEDS};
use machine::{Asid, VirtAddr};
use mm::*;
use sim::seeded;

/// From each seed, makes both calls on two CPUs. They get a parent with a page that a child shares,
/// and the child. A second page, in the same table, is absent in both.
fn meet_forked(calls: [&(dyn Fn(&Space, &Space) + Sync); 2]) {
    each_seed(10 * SEEDS, |seed| {
        let (race, child) = Race::with(racing(2, 96), None, |_, space| {
            space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
            space.write(AT, &[1]).unwrap();
            ManuallyDrop::new(space.fork(Asid(2)).unwrap())
        });
        let spaces = (&*race.space, &*child);
        let programs = calls.map(|call| race.active(move || call(spaces.0, spaces.1)));
        seeded(&race.sim, seed, programs.into())?;
        race.end(ManuallyDrop::into_inner(child))
    });
}

/// The child leaves the table, which becomes the parent's.
fn leave_table(child: &Space) {
    child.write(AT, &[2]).unwrap();
}

/// A page that the parent gets after the child has left the table is not the child's.
#[test]
fn no_look_shows_a_page_of_another_space() {
    let looks: [fn(&Space); 3] = [
        |child| {
            let mut pages = [9];
            child.mincore(AT + PAGE, &mut pages).unwrap();
            assert_eq!(pages, [0], "mincore");
        },
        |child| assert_eq!(child.resident(AT..AT + 2 * PAGE), 1, "the pages of a range"),
        |child| assert_eq!(child.totals().resident, PAGE, "the totals"),
    ];
    for look in looks {
        meet_forked([&|_, child| (0..8).for_each(|_| look(child)), &|parent, child| {
            leave_table(child);
            parent.write(AT + PAGE, &[3]).unwrap();
        }]);
    }
}

/// A guard page that the parent installs is none of the child's.
#[test]
fn a_guard_page_of_another_space_stops_no_fault() {
    meet_forked([
        &|_, child| {
            let found = child.handle_fault(VirtAddr::new((AT + PAGE) as u64), Access::Read);
            assert!(found.is_ok(), "{found:?}");
        },
        &|parent, child| {
            leave_table(child);
            parent.madvise(AT + PAGE, PAGE, Advice::GuardInstall).unwrap();
        },
    ]);
}
