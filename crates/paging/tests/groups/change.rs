//! Changes of some pages of a group, and of all.

use super::*;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub(super) fn a_part_is_unmapped<F: OnSim>() {
    let n = count::<F>();
    // The first page of a group, the last, some in the middle, and pages of two groups.
    for (first, len) in [(n, 1), (2 * n - 1, 1), (n + 3, 5), (2 * n - 2, 4)] {
        let world = World::<F>::new();
        world.map(0, 4 * n, HOT);
        world.touch_all(4 * n);
        assert_eq!(world.unmap(part::<F>(first, len)) as u64, len);
        world.flushed();
        let cut: BTreeSet<_> = (first..first + len).map(|page| page / n).collect();
        let whole: Vec<_> = (0..4).filter(|number| !cut.contains(number)).collect();
        assert_eq!(world.groups(), whole);
        for page in 0..4 * n {
            let expected = match (first..first + len).contains(&page) {
                true => Err(FaultKind::NotPresent),
                false => Ok(world.frame(0, page)),
            };
            assert_eq!(world.touch(page, true), expected, "page {page}");
        }
        world.end();
    }
}

/// The flush of a whole group is pending, as that of other pages.
pub(super) fn a_whole_group_is_unmapped_without_a_break<F: OnSim>() {
    let world = World::<F>::new();
    let n = count::<F>();
    world.map(0, 4 * n, HOT);
    world.touch_all(4 * n);
    world.sim.on_cpu(0, || {
        let before = world.sim.stats();
        let pending = world.tables.unmap_own(part::<F>(n, 2 * n), |_| ()).unwrap();
        let stats = world.sim.stats() - before;
        assert_eq!(stats.flushes, 0, "a group was parted");
        pending.flush();
    });
    world.flushed();
    assert_eq!(world.groups(), [0, 3]);
    world.end();
}

/// Each call that changes a page parts its group, and no other.
pub(super) fn one_page_changes<F: OnSim>() {
    let n = count::<F>();
    let page = n + 5;
    let (one, last) = (part::<F>(page, 1), 2 * n - 1);
    let sweep = |world: &World<F>, change: SweepChange| {
        world.tables.swept(one, |_| change);
    };
    let clear = |world: &World<F>, range, room: u64| {
        let (mut pending, mut cleared) = (world.tables.no_flush(), 0);
        let gone = |_, _| (cleared < room, cleared += 1).0;
        // SAFETY: as for `Own`.
        let stop = unsafe { world.tables.sweep_clear(range, &mut pending, gone) }.unwrap();
        assert_eq!(stop, (cleared > room).then_some(at::<F>(page + room)));
        pending.flush();
    };
    let entry = |world: &World<F>, change: EntryChange| {
        let decide = |_| (change, ());
        world.tables.with_entry_own(&Grace::pin(), at::<F>(page), decide).unwrap().1.flush();
    };
    let other = |world: &World<F>| world.frame(1, page);
    type Change<'a, F> = (&'a dyn Fn(&World<F>), bool, Option<usize>);
    // With each: whether it parts the group, and the frame to which the page leads afterwards.
    let changes: &[Change<'_, F>] = &[
        (&|world| entry(world, EntryChange::Keep), false, Some(0)),
        (&|world| entry(world, EntryChange::Clear), true, None),
        (&|world| entry(world, EntryChange::Set(world.frame(0, page), HOT_RO)), true, Some(0)),
        (&|world| entry(world, EntryChange::Replace(other(world), HOT_RO)), true, Some(1)),
        (&|world| sweep(world, SweepChange::Keep), false, Some(0)),
        (&|world| sweep(world, SweepChange::Stop), false, Some(0)),
        (&|world| sweep(world, SweepChange::Clear), true, None),
        (&|world| clear(world, one, 1), true, None),
        // One page, although the range has more; and none.
        (&|world| clear(world, part::<F>(page, 3), 1), true, None),
        (&|world| clear(world, part::<F>(page, 3), 0), false, Some(0)),
        (&|world| sweep(world, SweepChange::Set(HOT_RO)), true, Some(0)),
        (&|world| sweep(world, SweepChange::Age), true, Some(0)),
        (&|world| sweep(world, SweepChange::Clean), true, Some(0)),
        (&|world| sweep(world, SweepChange::Replace(other(world), HOT_RO)), true, Some(1)),
        (
            &|world| world.tables.protect_own(one, Attrs::USER_RO.flags).unwrap().flush(),
            true,
            Some(0),
        ),
    ];
    for (change, parts, leads) in changes {
        let world = World::<F>::new();
        world.map(0, 4 * n, HOT);
        world.touch_all(4 * n);
        world.sim.on_cpu(0, || change(&world));
        world.flushed();
        assert_eq!(world.groups(), if *parts { vec![0, 2, 3] } else { vec![0, 1, 2, 3] });
        let frame = leads.map(|of| world.frame(of, page)).ok_or(FaultKind::NotPresent);
        assert_eq!(world.touch(page, false), frame);
        for page in [n, n + 4, n + 6, last] {
            assert_eq!(world.get(page).map(|page| page.attrs), Some(HOT));
            assert_eq!(world.touch(page, true), Ok(world.frame(0, page)));
        }
        world.end();
    }
}

/// A call whose closure panics within a group.
pub(super) fn a_panic_leaves_single_pages<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    world.map(0, 4 * n, HOT);
    world.touch_all(4 * n);
    world.sim.on_cpu(0, || {
        let panics = |page: Mapping| assert!(page.page != at::<F>(n + 2), "as expected");
        let call = AssertUnwindSafe(|| {
            world.tables.unmap_own(part::<F>(n, n), panics).map(drop).map_err(drop)
        });
        assert!(catch_unwind(call).is_err());
    });
    world.flushed();
    assert_eq!(world.groups(), [0, 2, 3]);
    assert_eq!((n..2 * n).filter(|page| world.get(*page).is_some()).count() as u64, n - 3);
    assert_eq!(world.touch(n + 3, true), Ok(world.frame(0, n + 3)));
    world.end();
}

/// As above, for a call that empties the whole table. A table that is empty by then is unlinked.
pub(super) fn a_panic_in_a_collapse_leaves_single_pages<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let collapse = |last: u64| {
        let start = virt(2 * F::LARGE.bytes());
        world.sim.on_cpu(0, || {
            let tables = &world.tables;
            let call = AssertUnwindSafe(|| {
                let mut pending = tables.no_flush();
                let panics = |page: Mapping| assert!(page.page != at::<F>(last), "as expected");
                let frame = Frame::new(1 << 24).unwrap();
                // SAFETY: the pages are this test's, and the frames no memory.
                unsafe { tables.collapse(start, frame, HOT, &mut pending, panics) }
            });
            assert!(catch_unwind(call).is_err());
        });
        world.flushed();
    };
    world.map(0, 4 * n, HOT);
    world.touch_all(4 * n);
    collapse(n + 2);
    assert_eq!(world.groups(), [2, 3]);
    assert_eq!((0..4 * n).filter(|page| world.get(*page).is_some()).count() as u64, 3 * n - 3);
    assert_eq!(world.touch(n + 3, true), Ok(world.frame(0, n + 3)));
    collapse(4 * n - 1);
    assert_eq!(world.unmap(all::<F>()), 0);
    world.sim.on_cpu(0, || assert!(world.sim.settle()));
    assert_eq!(common::tables(&world.sim), 1);
    world.end();
}

pub(super) fn pages_of_groups_move<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    world.map(0, 4 * n, HOT);
    world.touch_all(4 * n);
    let (sim, tables) = (&world.sim, &world.tables);
    let to = at::<F>(8 * n);
    sim.on_cpu(0, || {
        let plan = tables.prepare_relocation(part::<F>(n - 1, n + 2), to).unwrap();
        tables.relocate_own(plan).unwrap();
    });
    world.flushed();
    assert_eq!(world.groups(), [3]);
    for page in 0..4 * n {
        let frame = Ok(world.frame(0, page));
        if (n - 1..2 * n + 1).contains(&page) {
            assert_eq!(world.touch(page, true), Err(FaultKind::NotPresent), "page {page}");
            assert_eq!(world.touch(8 * n + page - (n - 1), true), frame, "page {page}");
        } else {
            assert_eq!(world.touch(page, true), frame, "page {page}");
        }
    }
    sim.on_cpu(0, || {
        let range = pages_of::<F>(to.get(), n + 2);
        tables.unmap_own(range, |_| ()).unwrap().flush();
    });
    world.end();
}
