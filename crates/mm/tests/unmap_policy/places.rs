//! Where maps go next to the ranges that wait, and the maps that flush first.

use super::*;

#[test]
fn maps_are_placed_during_what_waits() {
    let world = World::new(512, true);
    let first = world.cached(2, 1);
    let (before, top) = (world.ipis(), first + 2 * PAGE);
    for round in 1..=5 {
        world.unmap(first - (round - 1) * 2 * PAGE, 2);
        let next = world.cached(2, round as u64);
        assert_eq!(next, first - round * 2 * PAGE, "the highest place that does not wait");
    }
    // It fits into no hole above what waits. Aligned places are next to it, too.
    let huge = world.on(0, |space| space.mmap(0, 4 << 20, 3, PRIVATE).unwrap());
    assert!(huge + (4 << 20) <= first - 10 * PAGE);
    let low = world.on(0, |space| space.mmap(0, PAGE, 3, PRIVATE | MapFlags::BIT32).unwrap());
    assert!(low < first);
    assert_eq!(world.ipis(), before);
    world.unmap(first - 10 * PAGE, 2);
    world.tick();
    assert_eq!(world.map(2), top - 2 * PAGE, "the period has ended");
    world.end();
}

#[test]
fn a_map_that_finds_no_other_place_flushes() {
    let world = World::new(512, true);
    let at = world.cached(1, 9);
    world.unmap(at, 1);
    // All of the addresses below `at` are in use; above, only the bottom-up search looks.
    let all = world.on(0, |space| {
        space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        let taken = space.mmap(0x1_0000, at - PAGE - 0x1_0000, 0, FIXED);
        taken.unwrap();
        let above = (1 << 47) - PAGE - BASE;
        space.mmap(BASE, above, 0, FIXED).unwrap()
    });
    assert_eq!(all, BASE);
    let before = world.ipis();
    assert_eq!(world.map(1), at, "the only place");
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    assert_eq!(world.read(at), Ok(0));
    world.end();
}

/// Each call that maps at a given address.
#[test]
fn a_map_at_a_waiting_address_flushes_first() {
    type Call = fn(&World, usize);
    let calls: [(&str, Call); 7] = [
        ("fixed", |world, at| {
            world.on(0, |space| assert_eq!(space.mmap(at, 2 * PAGE, 3, FIXED), Ok(at)));
        }),
        ("noreplace", |world, at| {
            let flags = PRIVATE | MapFlags::FIXED_NOREPLACE;
            world.on(0, |space| assert_eq!(space.mmap(at, PAGE, 3, flags), Ok(at)));
        }),
        ("hint", |world, at| {
            world.on(0, |space| assert_eq!(space.mmap(at, PAGE, 3, PRIVATE), Ok(at)));
        }),
        ("move", |world, at| {
            world.on(0, |space| {
                space.mmap(FAR, PAGE, 3, FIXED).unwrap();
                let fixed = Some(at);
                let request = RemapRequest { fixed, ..RemapRequest::moving(FAR, PAGE, 0) };
                assert_eq!(space.mremap(request), Ok(at));
            });
        }),
        ("growth", |world, at| {
            world.on(0, |space| {
                space.mmap(at - PAGE, PAGE, 3, FIXED).unwrap();
                let request = RemapRequest {
                    may_move: false,
                    ..RemapRequest::resizing(at - PAGE, PAGE, 2 * PAGE)
                };
                assert_eq!(space.mremap(request), Ok(at - PAGE));
            });
        }),
        ("stack", |world, at| {
            world.on(0, |space| {
                let flags = FIXED | MapFlags::GROWSDOWN;
                space.mmap(at + PAGE, PAGE, 3, flags).unwrap();
                store(&world.sim, space, at, 0).unwrap();
            });
        }),
        ("shmat", |world, at| {
            world.on(0, |space| {
                let segment = Shmem::segment(&world.shared, 0, 7, PAGE as u64).unwrap();
                let request = AttachRequest {
                    addr: Some(at),
                    ..AttachRequest::new(Backing::open(segment, true).unwrap(), PAGE)
                };
                assert_eq!(space.shmat(request), Ok(at));
            });
        }),
    ];
    for (name, call) in calls {
        let world = World::new(512, true);
        let at = world.cached(2, 5);
        world.unmap(at, 2);
        let before = world.ipis();
        world.read_all(at, 2, 5);
        call(&world, at);
        assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1), "{name}");
        assert_eq!(world.read(at), Ok(0), "{name}: the old page is read");
        world.end();
    }
}

#[test]
fn the_heap_grows_where_nothing_waits() {
    let world = World::new(512, true);
    world.on(0, |space| space.brk(HEAP + PAGE).unwrap());
    world.write(HEAP..HEAP + PAGE, 1);
    // Unmapped by munmap, not by brk, which flushes at once.
    world.on(0, |space| assert_eq!(space.brk(HEAP + 2 * PAGE), Ok(HEAP + 2 * PAGE)));
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 6);
    world.read_all(HEAP + PAGE, 1, 6);
    let before = world.ipis();
    world.on(0, |space| space.munmap(HEAP + PAGE, PAGE).unwrap());
    assert_eq!(world.ipis(), before);
    world.on(0, |space| space.mmap(HEAP + PAGE, PAGE, 3, FIXED).unwrap());
    assert_eq!((world.read(HEAP + PAGE), world.ipis()), (Ok(0), before + 1));
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 6);
    world.read_all(HEAP + PAGE, 1, 6);
    let before = world.ipis();
    world.on(0, |space| assert_eq!(space.brk(HEAP + PAGE), Ok(HEAP + PAGE)));
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1), "brk does not wait");
    // When its end moves, the heap claims a range beyond it that munmap lets wait.
    world.on(0, |space| space.mmap(HEAP + PAGE, PAGE, 3, FIXED).unwrap());
    world.write(HEAP + PAGE..HEAP + 2 * PAGE, 8);
    world.read_all(HEAP + PAGE, 1, 8);
    world.on(0, |space| space.munmap(HEAP + PAGE, PAGE).unwrap());
    let before = world.ipis();
    world.on(0, |space| assert_eq!(space.brk(HEAP + 2 * PAGE), Ok(HEAP + 2 * PAGE)));
    assert_eq!((world.read(HEAP + PAGE), world.ipis()), (Ok(0), before + 1));
    world.end();
}
