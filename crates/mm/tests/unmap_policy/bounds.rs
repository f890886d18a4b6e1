//! The ends of the wait: short memory, bounds, ticks, a poll, another policy.

use super::*;

#[test]
fn memory_that_is_short_ends_the_wait() {
    let world = World::new(64, true);
    let at = world.cached(32, 1);
    world.unmap(at, 32);
    assert!(world.space().waiting() >= 32);
    let before = world.ipis();
    let at = world.cached(32, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    world.unmap(at, 32);
    let reclaimed = world.on(0, |space| space.reclaim(8).unwrap());
    assert!(reclaimed.purged >= 32 && reclaimed.taken() >= 32, "{reclaimed:?}");
    // Calls that need tables: a fork, a move, and a cut of tables that a fork shares.
    for what in 0..3 {
        let at = world.cached(8, 3);
        let far = world.map(1);
        world.write(far..far + PAGE, 4);
        world.unmap(at, 8);
        assert!(world.space().waiting() > 0);
        let forks = || world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
        let child = (what == 2).then(forks);
        // All other frames are taken.
        let taken: Vec<_> = world.sim.on_cpu(0, || {
            assert!(world.sim.settle());
            world.shared.quick().drain();
            from_fn(|| world.sim.alloc(0, NodePolicy::Local).ok()).collect()
        });
        let request = RemapRequest::moving(far, PAGE, FAR);
        world.on(0, |space| {
            match what {
                0 => {
                    let child = space.fork(Asid(3));
                    drop(child.unwrap());
                }
                1 => assert_eq!(space.mremap(request), Ok(FAR)),
                _ => space.mprotect(far, PAGE, 1, None).unwrap(),
            }
            assert_eq!(space.waiting(), 0, "{what}");
        });
        world.sim.on_cpu(0, || {
            for frame in taken {
                // SAFETY: no other code has it.
                unsafe { world.sim.free(frame) }.unwrap();
            }
            drop(child.map(ManuallyDrop::into_inner));
        });
        world.on(0, |space| {
            for (at, pages) in [(at, 8), (far, 1), (FAR, 1)] {
                space.munmap(at, pages * PAGE).unwrap();
            }
            space.purge()
        });
    }
    world.end();
}

/// A call for which nothing is left but what waits.
struct Scarce {
    name: &'static str,
    /// Makes the memory of the call, at [`FAR`].
    prepare: fn(&World),
    call: fn(&World, &Space) -> Result<(), Error>,
}

fn map_far(world: &World) {
    world.on(0, |space| space.mmap(FAR, PAGE, 3, FIXED).map(drop)).unwrap();
}

fn watch_far(world: &World, modes: UserFaultModes) {
    map_far(world);
    world.on(0, |space| space.userfault_register(FAR, PAGE, modes, Uffd::new(1))).unwrap();
}

/// Maps shared memory whose pages count for a group without room.
fn share_far(world: &World) {
    let flags = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
    world.on(0, |space| space.mmap(FAR, PAGE, 3, flags).map(drop)).unwrap();
}

fn watch_for_copies(world: &World) {
    watch_far(world, UserFaultModes::MISSING);
}

fn copy_far(_: &World, space: &Space) -> Result<(), Error> {
    space.userfault_copy(FAR, &[7; PAGE], false).map_err(|failed| failed.error)
}

/// As faults do, calls get the frames that wait: when no other is left, and when the group of the
/// space has room for no more.
#[test]
fn each_call_finds_memory_that_waits() {
    const HUGE_FAR: usize = FAR & !(HUGE - 1);
    let of_frames = [
        Scarce { name: "a copy of a monitor", prepare: watch_for_copies, call: copy_far },
        Scarce {
            name: "a write-protection",
            prepare: |world| watch_far(world, UserFaultModes::WP),
            call: |_, space| space.userfault_write_protect(FAR, PAGE, true),
        },
        Scarce {
            name: "a guard page",
            prepare: map_far,
            call: |_, space| space.madvise(FAR, PAGE, Advice::GuardInstall),
        },
        Scarce {
            name: "a move that cuts a huge page",
            prepare: |world| {
                world.on(0, |space| {
                    space.set_huge_pages(HugePages::Always).unwrap();
                    space.mmap(HUGE_FAR, HUGE, 3, FIXED).unwrap();
                    space.write(HUGE_FAR, &[1]).unwrap();
                    // The target has its table.
                    space.mmap(HUGE_FAR - 2 * PAGE, PAGE, 3, FIXED).unwrap();
                    space.write(HUGE_FAR - 2 * PAGE, &[1]).unwrap();
                });
            },
            call: |_, space| {
                let request = RemapRequest::moving(HUGE_FAR, PAGE, HUGE_FAR - PAGE);
                space.mremap(request).map(drop)
            },
        },
    ];
    let of_groups = [
        Scarce { name: "a copy of a monitor", prepare: watch_for_copies, call: copy_far },
        Scarce {
            name: "a page of shared memory",
            prepare: share_far,
            call: |world, space| store(&world.sim, space, FAR, 1).map_err(Error::Fault),
        },
    ];
    let calls = of_frames.map(|call| (call, false)).into_iter();
    for (Scarce { name, prepare, call }, grouped) in calls.chain(of_groups.map(|call| (call, true)))
    {
        let mut world = World::new(1024, true);
        let handler = Never { marks_absent: true, ..Never::default() };
        world.space.set_userfault_handler(Arc::new(handler));
        if grouped {
            let group = FrameGroup::try_new(&world.sim, 8, Box::new(())).unwrap();
            world.space.set_group(&group).unwrap();
        }
        prepare(&world);
        let at = world.cached(8, 3);
        world.unmap(at, 8);
        let taken: Vec<_> = world.sim.on_cpu(0, || {
            assert!(world.sim.settle());
            world.shared.quick().drain();
            from_fn(|| (!grouped).then(|| world.sim.alloc(0, NodePolicy::Local).ok())?).collect()
        });
        world.on(0, |space| {
            assert!(space.waiting() > 0, "{name}");
            assert_eq!(call(&world, space), Ok(()), "{name}");
            assert_eq!(space.waiting(), 0, "{name}");
        });
        // SAFETY: no other code has them.
        let free = |frame| unsafe { world.sim.free(frame) }.unwrap();
        world.sim.on_cpu(0, || taken.into_iter().for_each(free));
        world.end();
    }
}

/// A CPU that never ticks: the bounds of pages and of ranges.
#[test]
fn the_bounds_force_a_flush() {
    let world = World::new(20_000, true);
    let before = world.ipis();
    let mut most = 0;
    for _ in 0..20 {
        let at = world.cached(1024, 1);
        world.unmap(at, 1024);
        most = most.max(world.space().waiting());
    }
    // 20,480 pages.
    assert_eq!(world.ipis(), before + 2);
    assert!((7000..=8192).contains(&most), "{most} pages have waited");
    world.on(0, |space| space.purge());
    let before = world.ipis();
    let at = world.cached(1200, 3);
    for page in (0..600).step_by(2) {
        world.unmap(at + page * PAGE, 1);
    }
    assert_eq!(world.ipis(), before + 1, "too many ranges");
    // Maps go next to them, or below, without a flush.
    let before = world.ipis();
    let waiting = world.space().waiting();
    for _ in 0..300 {
        world.cached(1, 4);
    }
    assert_eq!(world.space().waiting(), waiting);
    assert_eq!(world.ipis(), before);
    world.end();
}

#[test]
fn a_period_that_ticks_end_gives_back_at_the_bound() {
    let world = World::new(20_000, true);
    let before = world.ipis();
    for _ in 0..20 {
        let at = world.cached(1024, 1);
        world.unmap(at, 1024);
        (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.periods.tick()));
    }
    assert_eq!(world.ipis(), before);
    world.end();
}

#[test]
fn poll_gives_back_without_a_call() {
    let world = World::new(512, true);
    let at = world.cached(3, 1);
    world.unmap(at, 3);
    let before = world.ipis();
    for _ in 0..3 {
        world.on(0, Space::poll);
        (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.periods.tick()));
    }
    world.on(0, Space::poll);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before));
    world.end();
}

#[test]
fn one_cpu_does_not_wait() {
    let world = World::new(512, true);
    let at = world.map(2);
    world.write(at..at + 2 * PAGE, 1);
    world.unmap(at, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, 0));
    assert_eq!(world.map(2), at);
    world.end();
}

#[test]
fn the_policy_can_be_taken_back() {
    let world = World::new(512, true);
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    let before = world.ipis();
    world.on(0, |space| {
        // SAFETY: there is nothing to promise.
        unsafe { space.set_unmap_policy(UnmapPolicy::Immediate) }.unwrap();
        assert_eq!(space.waiting(), 0);
    });
    assert_eq!(world.ipis(), before + 1);
    let at = world.cached(1, 1);
    world.unmap(at, 1);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 2));
    let other = TlbGrace::try_new(world.sim.clone()).unwrap();
    world.on(0, |space| {
        // SAFETY: it is refused.
        let refused = unsafe { space.set_unmap_policy(UnmapPolicy::Grace(other)) };
        assert!(matches!(refused, Err(Error::NotSupported(_))));
    });
    world.end();
}
