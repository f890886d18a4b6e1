//! Looks that take no lock: they tell of some moment during the look, and never of half a call.

use std::mem::ManuallyDrop;

use crate::common::*;
use crate::half_way::{AT, Call, SEEDS, meet};
use machine::{Asid, VirtAddr};
use mm::*;
use sim::Program;

/// Where a page of another map lies, in another table.
const FAR: usize = 0x55_0000_0000;

/// What a CPU does with a parent and its child.
type OfBoth<'a> = &'a (dyn Fn(&Space, &Space) + Sync);

/// Makes both calls on two CPUs, so that they meet at each step. They get a parent with a page that
/// a child shares, and the child. A second page, in the same table, is absent in both.
fn meet_forked(calls: [OfBoth<'_>; 2]) {
    each_meeting(SEEDS, |meeting| {
        let (race, child) = Race::with(racing(2, 96), None, |_, space| {
            space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
            space.write(AT, &[1]).unwrap();
            ManuallyDrop::new(space.fork(Asid(2)).unwrap())
        });
        let spaces = (&*race.space, &*child);
        let programs = calls.map(|call| race.active(move || call(spaces.0, spaces.1)));
        meeting.run(&race.sim, programs)?;
        race.end(ManuallyDrop::into_inner(child))
    });
}

/// The space leaves the table, which becomes the other one's.
fn leave_table(space: &Space) {
    space.write(AT, &[2]).unwrap();
}

/// Looks at a space whose first page is present, and whose second one is absent.
const LOOKS: [fn(&Space); 3] = [
    |space| {
        let mut pages = [9];
        space.mincore(AT + PAGE, &mut pages).unwrap();
        assert_eq!(pages, [0], "mincore");
    },
    |space| assert_eq!(space.resident(AT..AT + 2 * PAGE), 1, "the pages of a range"),
    |space| assert_eq!(space.totals().resident, PAGE, "the totals"),
];

/// A page that the parent gets after the child has left the table is not the child's.
#[test]
fn no_look_shows_a_page_of_another_space() {
    for look in LOOKS {
        meet_forked([&|_, child| (0..8).for_each(|_| look(child)), &|parent, child| {
            leave_table(child);
            parent.write(AT + PAGE, &[3]).unwrap();
        }]);
    }
}

/// A page that a child gets is not the parent's, whose table the child has got by a fork during the
/// look.
#[test]
fn no_look_shows_a_page_of_a_space_that_is_forked_meanwhile() {
    for look in LOOKS {
        each_meeting(SEEDS, |meeting| {
            let (race, ()) = Race::with(racing(2, 128), None, |_, space| {
                space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
                space.write(AT, &[1]).unwrap();
            });
            let (parent, child) = (&*race.space, Forked::default());
            let programs: [Program<'_>; 2] = [
                Box::new(|| (0..3).for_each(|_| look(parent))),
                Box::new(|| {
                    let child = child.make(parent);
                    leave_table(parent);
                    child.write(AT + PAGE, &[3]).unwrap();
                }),
            ];
            meeting.run(&race.sim, programs)?;
            race.end(child.end())
        });
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

/// pagemap tells of a page that is present, or of a hole.
#[test]
fn pagemap_and_an_unmapping() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        space.write(AT, &[1]).unwrap();
    };
    meet(
        prepare,
        [
            |_, space, ()| space.munmap(AT, PAGE).unwrap(),
            |_, space, ()| {
                let entry = pagemap_entry(space, AT);
                assert!(entry == 0 || entry & pagemap::PRESENT != 0, "{entry:#x}");
            },
        ],
        |_, ()| {},
    );
}

/// Two pages that are present, one of which moves to the place of the other.
fn two_maps(_: &SharedPaging, space: &mut Space) {
    for at in [AT, FAR] {
        space.mmap(at, PAGE, 3, FIXED).unwrap();
        space.write(at, &[1]).unwrap();
    }
}

fn move_over(space: &Space) {
    assert_eq!(space.mremap(RemapRequest::moving(FAR, PAGE, AT)), Ok(AT));
}

/// The place of a move over another map is never without a page.
#[test]
fn mincore_and_a_move_over_another_map() {
    meet(
        two_maps,
        [
            |_, space, ()| move_over(space),
            |_, space, ()| {
                let mut pages = [9];
                let done = space.mincore(AT, &mut pages);
                assert_eq!((done, pages), (Ok(()), [1]));
            },
        ],
        |_, ()| {},
    );
}

#[test]
fn pagemap_and_a_move_over_another_map() {
    meet(
        two_maps,
        [
            |_, space, ()| move_over(space),
            |_, space, ()| {
                let entry = pagemap_entry(space, AT);
                assert!(entry & pagemap::PRESENT != 0, "{entry:#x}");
            },
        ],
        |_, ()| {},
    );
}

#[test]
fn a_copy_and_a_move_over_another_map() {
    meet(
        two_maps,
        [|_, space, ()| move_over(space), |_, space, ()| assert_eq!(byte(space, AT), 1)],
        |_, ()| {},
    );
}

/// The zero page does not count, also where it comes for the first time, nor does a guard page.
#[test]
fn the_totals_and_the_first_special_page() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
    };
    let comes: [Call<()>; 2] = [
        |sim, space, ()| assert_eq!(load(sim, space, AT), Ok(0)),
        |_, space, ()| space.madvise(AT, PAGE, Advice::GuardInstall).unwrap(),
    ];
    for comes in comes {
        let counts: Call<()> = |_, space, ()| assert_eq!(space.totals().resident, 0);
        meet(prepare, [counts, comes], |_, ()| {});
    }
}

/// The huge zero page counts no more than the small one.
#[test]
fn the_totals_and_the_first_huge_zero_page() {
    each_meeting(SEEDS, |meeting| {
        let race = Race::new(racing(2, 1 << 11), |space| {
            space.set_huge_pages(HugePages::Always).unwrap();
            space.mmap(AT, HUGE, 3, FIXED).unwrap();
        });
        let (sim, space) = (&race.sim, &*race.space);
        let counts = race.active(|| assert_eq!(space.totals().resident, 0));
        let reads = race.active(|| assert_eq!(load(sim, space, AT), Ok(0)));
        meeting.run(sim, [counts, reads])?;
        race.end(())
    });
}

/// Shared memory where another map of it moves is there all the time.
#[test]
fn calls_that_take_no_lock_and_a_move_over_another_map() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let file = opened(&memfd(shared, 1));
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        for at in [AT, FAR] {
            space.mmap_object(at, PAGE, 3, flags, file.clone(), 0).unwrap();
        }
    };
    meet(
        prepare,
        [
            |_, space, ()| move_over(space),
            |_, space, ()| {
                assert_eq!(space.msync(AT, PAGE, SyncFlags::SYNC), Ok(()));
                assert!(space.shared_place(AT).is_some());
                assert_eq!(space.madvise(AT, PAGE, Advice::PopulateRead), Ok(()));
            },
        ],
        |_, ()| {},
    );
}
