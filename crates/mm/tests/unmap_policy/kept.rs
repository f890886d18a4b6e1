//! Pins, huge pages and tables that wait.

use super::*;

/// A pinned page is pinned also while it waits, and afterwards.
#[test]
fn pins_outlive_the_wait() {
    let world = World::new(512, true);
    let at = world.cached(2, 7);
    world.on(0, |space| {
        let mut frames = [Frame::default(); 2];
        let pins = space.pin_pages(at, Access::Write, &mut frames).unwrap();
        space.munmap(at, 2 * PAGE).unwrap();
        assert!(space.waiting() >= 2);
        world.tick_others();
        space.poll();
        assert_eq!(space.waiting(), 0);
        drop(pins);
    });
    world.end();
}

#[test]
fn a_huge_page_waits() {
    let sim_frames = 4096;
    let world = World::new(sim_frames, true);
    world.space.set_huge_pages(HugePages::Always).unwrap();
    let at = world.on(0, |space| space.mmap(0, 2 << 20, 3, PRIVATE).unwrap());
    world.write(at..at + PAGE, 3);
    world.read_all(at, 1, 3);
    let before = world.ipis();
    world.unmap(at, 512);
    assert!(world.space().waiting() >= 512, "{} pages wait", world.space().waiting());
    world.read_all(at, 1, 3);
    world.tick();
    world.on(0, Space::poll);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before));
    // A part of one is split off at once, and does wait.
    let at = world.on(0, |space| space.mmap(0, 2 << 20, 3, PRIVATE).unwrap());
    world.write(at..at + 2 * PAGE, 3);
    world.read_all(at, 2, 3);
    world.unmap(at, 1);
    assert_eq!(world.read(at + PAGE), Ok(3));
    world.end();
}

#[test]
fn empty_tables_stay_for_the_next_maps() {
    let world = World::new(512, true);
    let root = world.tables();
    let mut at = world.cached(1, 1);
    let all = world.tables();
    assert!(all > root);
    for round in 0..6 {
        world.unmap(at, 1);
        assert_eq!(world.space().waiting(), 1 + round % 2, "no table waits");
        if round % 2 == 1 {
            world.tick();
        }
        at = world.cached(1, 1);
        assert_eq!(world.tables(), all);
    }
    world.unmap(at, 1);
    world.tick();
    // Elsewhere: the place used before stays empty for a period, and then its tables wait, too.
    for round in 0..3 {
        world.on(0, |space| space.mmap(FAR, PAGE, 3, FIXED).unwrap());
        world.cached_at(FAR, 1, 2);
        world.unmap(FAR, 1);
        let waiting = [1, 3, 1][round];
        assert_eq!(world.space().waiting(), waiting, "in round {round}");
        world.tick();
    }
    world.on(0, Space::poll);
    // The way to the other place is as long.
    assert_eq!(world.tables(), all);
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), root, "a flush unlinks all");
    world.end();
}

#[test]
fn no_table_stays_empty_that_a_fork_shares() {
    let world = World::new(512, true);
    let root = world.tables();
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), 2 * root, "the empty tables were unlinked before the fork");
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    assert!(world.space().waiting() > 1, "a table waits");
    world.on(0, |space| space.purge());
    assert_eq!(world.tables(), 2 * root);
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
}
