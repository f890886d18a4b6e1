//! Groups in tables that spaces share.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// After a fork, both spaces have the pages of the group for reading. A write takes the table.
pub(super) fn forks_keep_groups_until_a_write<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let exclusive = HOT.with_share(Share::Exclusive);
    world.map_counted(2 * n, exclusive);
    world.touch_all(2 * n);
    let (sim, tables) = (&world.sim, &world.tables);
    let child = sim.on_cpu(0, || world.fork(false));
    world.flushed();
    assert_eq!((world.groups(), groups_of(sim, &child)), (vec![0, 1], vec![0, 1]));
    for page in [0, 3, n - 1, n] {
        assert_eq!(world.touch(page, true), Err(FaultKind::Protection));
        assert_eq!(touch_on(sim, 1, &child, page, false), Ok(world.frame(0, page)));
    }
    // The child copies the page.
    sim.on_cpu(0, || {
        assert!(world.paging.hold_entry(world.frame(1, 3)));
        let replace = EntryChange::Replace(world.frame(1, 3), exclusive);
        let decide = |_| (replace, ());
        child.with_entry_own(&Grace::pin(), at::<F>(3), decide).unwrap().1.flush();
        // SAFETY: the child's entry held it, and leads elsewhere.
        unsafe { world.paging.release_entry(world.frame(0, 3)) };
    });
    sim.check_flushed(child.root(), child.space(), all::<F>());
    assert_eq!(groups_of(sim, &child), [1], "the copy of a table has the other groups");
    assert_eq!(world.groups(), [0, 1]);
    assert_eq!(touch_on(sim, 0, &child, 3, true), Ok(world.frame(1, 3)));
    assert_eq!(touch_on(sim, 0, &child, 4, false), Ok(world.frame(0, 4)));
    assert_eq!(world.touch(3, false), Ok(world.frame(0, 3)));
    // The parent is alone with the old table.
    sim.on_cpu(0, || {
        let set = EntryChange::Set(world.frame(0, 3), exclusive);
        tables.with_entry_own(&Grace::pin(), at::<F>(3), |_| (set, ())).unwrap().1.flush();
    });
    assert_eq!(world.groups(), [1]);
    assert_eq!(world.touch(3, true), Ok(world.frame(0, 3)));
    assert_eq!(world.touch(n, false), Ok(world.frame(0, n)));
    world.flushed();
    world.end_fork(child);
    world.end();
}

/// A space has left a table, and its flush is pending. Meanwhile another CPU parts a group of the
/// copy: no CPU finds the group in the old table any more.
pub(super) fn groups_of_a_table_that_was_left<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let sim = &world.sim;
    let exclusive = HOT.with_share(Share::Exclusive);
    world.map_counted(2 * n, exclusive);
    let child = sim.on_cpu(0, || world.fork(false));
    assert_eq!(touch_on(sim, 1, &child, 0, false), Ok(world.frame(0, 0)));
    let set = |page: u64| {
        let change = EntryChange::Set(world.frame(0, page), HOT_RO.with_share(Share::CopyOnWrite));
        child.with_entry_own(&Grace::pin(), at::<F>(page), |_| (change, ())).unwrap().1
    };
    let left = sim.on_cpu(0, || set(n));
    assert_eq!(groups_of(sim, &child), [0]);
    sim.on_cpu(0, || set(3).flush());
    assert_eq!(groups_of(sim, &child), []);
    let before = sim.stats().walks;
    for page in [4, 5, 6] {
        assert_eq!(touch_on(sim, 1, &child, page, false), Ok(world.frame(0, page)));
    }
    assert_eq!(sim.stats().walks - before, 3, "a walk has found the group");
    sim.on_cpu(0, || left.flush());
    sim.check_flushed(child.root(), child.space(), all::<F>());
    world.flushed();
    world.end_fork(child);
    world.end();
}

/// No memory for a reference, in the middle of a group: its pages are alike, and nothing is lost.
pub(super) fn a_copy_fails_within_a_group<F: OnSim>() {
    /// References to a block must be fewer.
    const LIMIT: u32 = 1 << 30;
    let n = count::<F>();
    let world = World::<F>::new();
    let sim = &world.sim;
    world.map_counted(2 * n, HOT.with_share(Share::Exclusive));
    let child = sim.on_cpu(0, || world.fork(false));
    sim.on_cpu(0, || {
        let info = sim.info(world.frames[0]).unwrap();
        let refs = info.refs();
        let room = n as u32 + n as u32 / 2;
        let pins = LIMIT - 1 - refs - room;
        assert!(info.try_pin(pins));
        let set = EntryChange::Set(world.frame(0, 3), HOT_RO);
        let failed = child.with_entry_own(&Grace::pin(), at::<F>(3), |_| (set, ()));
        assert!(matches!(failed.map(drop).map_err(|failed| failed.error), Err(Error::Frames(_))));
        assert_eq!(info.refs(), refs + pins, "a page of the copy that failed holds its reference");
        // SAFETY: taken above.
        unsafe { sim.unpin(world.frames[0], pins) }.unwrap();
    });
    assert_eq!((world.groups(), groups_of(sim, &child)), (vec![0, 1], vec![0, 1]));
    for page in 0..2 * n {
        assert_eq!(world.get(page).unwrap().attrs, world.get(0).unwrap().attrs, "page {page}");
        assert_eq!(touch_on(sim, 1, &child, page, false), Ok(world.frame(0, page)));
    }
    world.end_fork(child);
    world.end();
}

/// Pinned pages stay exclusive, and the others of their group do not.
pub(super) fn pinned_pages_of_a_group_are_copied<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let (sim, tables) = (&world.sim, &world.tables);
    let exclusive = HOT.with_share(Share::Exclusive);
    world.map_counted(2 * n, exclusive);
    world.touch_all(2 * n);
    let child = sim.on_cpu(0, || {
        let mut frame = [Frame::default()];
        let pins = tables.get_user_pages_fast(at::<F>(3), true, &mut frame, |_, _| false);
        let pins = pins.unwrap();
        let child = world.fork(true);
        drop(pins);
        child
    });
    world.flushed();
    let page = world.get(3).unwrap();
    assert_eq!((page.frame, page.attrs.share()), (world.frame(0, 3), Share::Exclusive));
    assert_eq!(world.groups(), [], "the pinned pages of the block are left out of the copy");
    // A write of the parent makes its way its own.
    sim.on_cpu(0, || {
        let set = EntryChange::Set(page.frame, exclusive);
        tables.with_entry_own(&Grace::pin(), at::<F>(3), |_| (set, ())).unwrap().1.flush();
    });
    assert_eq!(world.touch(3, true), Ok(world.frame(0, 3)), "it is the parent's");
    let copy = sim.on_cpu(LOOKS, || child.walk(&Grace::pin()).get(at::<F>(3))).unwrap().frame;
    assert_ne!(copy, world.frame(0, 3));
    assert_eq!(touch_on(sim, 1, &child, 3, false), Ok(copy));
    world.end_fork(child);
    world.end();
}

/// An object takes pages back from a table that two spaces share.
pub(super) fn pages_are_taken_back_from_all<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let (sim, tables) = (&world.sim, &world.tables);
    world.map_counted(2 * n, HOT_RO.with_share(Share::Object));
    let child = sim.on_cpu(0, || world.fork(false));
    for page in 0..2 * n {
        assert_eq!(touch_on(sim, 1, &child, page, false), Ok(world.frame(0, page)));
        assert_eq!(world.touch(page, false), Ok(world.frame(0, page)));
    }
    sim.on_cpu(0, || {
        let mut pending = tables.no_flush();
        let range = part::<F>(n + 1, 2);
        // SAFETY: the pages are this test's.
        let next = unsafe { tables.take_back(range, &mut pending, |_| SweepChange::Clear) };
        assert_eq!(next, Ok(None));
        pending.flush();
        for page in [n + 1, n + 2] {
            // SAFETY: the entry held it, in the table of both.
            unsafe { world.paging.release_entry(world.frame(0, page)) };
        }
    });
    world.flushed();
    sim.check_flushed(child.root(), child.space(), all::<F>());
    for page in [0, n, n + 1, n + 2, n + 3] {
        let expected = match [n + 1, n + 2].contains(&page) {
            true => Err(FaultKind::NotPresent),
            false => Ok(world.frame(0, page)),
        };
        assert_eq!(touch_on(sim, 1, &child, page, false), expected);
        assert_eq!(world.touch(page, false), expected);
    }
    assert_eq!((world.groups(), groups_of(sim, &child)), (vec![0], vec![0]));
    world.end_fork(child);
    world.end();
}

/// The pages that a call has taken back before its closure panicked are gone for all.
pub(super) fn a_panic_takes_pages_back_from_all<F: OnSim>() {
    let n = count::<F>();
    let world = World::<F>::new();
    let (sim, tables) = (&world.sim, &world.tables);
    world.map_counted(2 * n, Attrs::USER_RO.with_share(Share::Object));
    let child = sim.on_cpu(0, || world.fork(false));
    for page in 0..2 * n {
        assert_eq!(touch_on(sim, 1, &child, page, false), Ok(world.frame(0, page)));
    }
    sim.on_cpu(0, || {
        let call = AssertUnwindSafe(|| {
            let mut pending = tables.no_flush();
            let change = |page: Mapping| {
                assert!(page.page != at::<F>(2), "as expected");
                SweepChange::Clear
            };
            // SAFETY: the pages are this test's.
            unsafe { tables.take_back(all::<F>(), &mut pending, change) }
        });
        assert!(catch_unwind(call).is_err());
    });
    world.flushed();
    sim.check_flushed(child.root(), child.space(), all::<F>());
    assert_eq!(touch_on(sim, 1, &child, 1, false), Err(FaultKind::NotPresent));
    assert_eq!(touch_on(sim, 1, &child, 2, false), Ok(world.frame(0, 2)));
    sim.on_cpu(0, || {
        for page in [0, 1] {
            // SAFETY: the entry held it, in the table of both.
            unsafe { world.paging.release_entry(world.frame(0, page)) };
        }
    });
    world.end_fork(child);
    world.end();
}
