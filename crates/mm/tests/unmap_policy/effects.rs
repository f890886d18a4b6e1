//! Calls that promise an effect, ends of spaces, and forks.

use super::*;

/// Calls that promise an effect at their return, under the policy.
#[test]
fn other_calls_flush_at_once() {
    let world = World::new(512, true);
    let at = world.cached(1, 4);
    world.on(0, |space| space.madvise(at, PAGE, Advice::DontNeed).unwrap());
    assert_eq!(world.read(at), Ok(0), "MADV_DONTNEED has returned");
    world.write(at..at + PAGE, 5);
    world.read_all(at, 1, 5);
    world.on(0, |space| space.mprotect(at, PAGE, 0, None).unwrap());
    assert!(matches!(world.read(at), Err(FaultError::Denied(..))));
    world.on(0, |space| space.mprotect(at, PAGE, 3, None).unwrap());
    world.read_all(at, 1, 5);
    world.on(0, |space| space.mmap(at, PAGE, 3, FIXED).unwrap());
    assert_eq!(world.read(at), Ok(0), "the map over it");
    world.write(at..at + PAGE, 6);
    world.read_all(at, 1, 6);
    let far = RemapRequest::moving(at, PAGE, FAR);
    world.on(0, |space| space.mremap(far).unwrap());
    assert!(world.read(at).is_err(), "mremap has returned");
    assert_eq!(world.space().waiting(), 0);
    // An object's pages do not wait: it may write them back, or be truncated.
    let flags = MapFlags::SHARED | MapFlags::ANONYMOUS;
    let at = world.on(0, |space| space.mmap(0, PAGE, 3, flags).unwrap());
    world.write(at..at + PAGE, 6);
    world.read_all(at, 1, 6);
    let before = world.ipis();
    world.unmap(at, 1);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    world.end();
}

/// The program that unmaps has no translation any more, though others are not interrupted.
#[test]
fn the_calling_cpu_flushes_at_once() {
    let world = World::new(512, true);
    let at = world.cached(3, 4);
    let before = world.ipis();
    world.unmap(at, 2);
    assert_eq!((world.space().waiting() > 0, world.ipis()), (true, before));
    let here = world.on(0, |space| load(&world.sim, space, at));
    assert!(matches!(here, Err(FaultError::Unmapped(_))), "{here:?}");
    world.read_all(at, 2, 4);
    world.end();
}

#[test]
fn exec_and_the_end_leave_nothing_waiting() {
    let world = World::new(512, true);
    let at = world.cached(2, 3);
    world.unmap(at, 2);
    world.read_all(at, 2, 3);
    world.on(0, |space| space.exec(Layout { mmap_base: BASE, ..Layout::default() }).unwrap());
    assert_eq!(world.space().waiting(), 0);
    world.nothing_cached(at..at + 2 * PAGE);
    let at = world.cached(2, 3);
    world.unmap(at, 2);
    assert!(world.space().waiting() > 0);
    world.end();
}

/// A child shares the tables from which the waiting pages were removed.
#[test]
fn a_child_does_not_find_what_waits() {
    let world = World::new(512, true);
    let at = world.cached(4, 2);
    let before = world.ipis();
    world.unmap(at, 2);
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    assert_eq!(child.waiting(), 0);
    assert!(world.space().waiting() > 0);
    world.sim.on_cpu(0, || {
        activate(&child);
        assert!(load(&world.sim, &child, at).is_err());
        // It may map there at once, and has the policy.
        child.mmap(at, PAGE, 3, FIXED).unwrap();
        assert_eq!(load(&world.sim, &child, at), Ok(0));
        assert_eq!(load(&world.sim, &child, at + 2 * PAGE), Ok(2));
    });
    // fork flushes for the pages that it shares.
    assert_eq!(world.ipis(), before + 1);
    world.sim.on_cpu(1, || {
        activate(&child);
        assert_eq!(load(&world.sim, &child, at + 3 * PAGE), Ok(2));
    });
    world.sim.on_cpu(0, || {
        activate(&child);
        store(&world.sim, &child, at + 3 * PAGE, 8).unwrap();
        child.munmap(at + 3 * PAGE, PAGE).unwrap();
        assert!(child.waiting() > 0, "the child has the policy");
    });
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
}

/// A munmap interrupts where it changes entries that must not stay cached: those of a huge page
/// that it cuts, and those that lead to tables shared with a child.
#[test]
fn a_cut_huge_page_and_shared_tables_are_flushed_at_once() {
    let world = World::new(2048, true);
    world.space.set_huge_pages(HugePages::Always).unwrap();
    let huge = world.on(0, |space| space.mmap(0, 4 << 20, 3, PRIVATE).unwrap());
    let huge = world.cached_at(huge.next_multiple_of(2 << 20), 2, 1);
    let before = world.ipis();
    world.unmap(huge, 1);
    assert_eq!(world.ipis(), before + 1, "it cuts a huge page");
    world.read_all(huge + PAGE, 1, 1);
    world.space.set_huge_pages(HugePages::Never).unwrap();
    let at = world.cached(4, 2);
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    world.read_all(at, 4, 2);
    let before = world.ipis();
    world.unmap(at, 2);
    assert_eq!(world.ipis(), before + 1, "tables are shared");
    world.read_all(at + 2 * PAGE, 2, 2);
    let before = world.ipis();
    world.unmap(at + 2 * PAGE, 1);
    assert_eq!(world.ipis(), before, "the tables are this space's own now");
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
}

/// A frame that waits keeps its reference: a sibling does not take it over, and its group pays.
#[test]
fn a_waiting_frame_counts() {
    let mut world = World::new(512, true);
    let group = FrameGroup::try_new(&world.sim, 3, Box::new(())).unwrap();
    world.space.set_group(&group).unwrap();
    let at = world.cached(3, 1);
    world.unmap(at, 3);
    let used = world.on(0, |_| group.used());
    assert_eq!(used, 3);
    // The limit is reached: the fault gives back what waits.
    let before = world.ipis();
    let at = world.cached(3, 2);
    assert_eq!((world.space().waiting(), world.ipis()), (0, before + 1));
    let child = world.on(0, |space| ManuallyDrop::new(space.fork(Asid(2)).unwrap()));
    world.read_all(at, 1, 2);
    world.unmap(at, 1);
    world.sim.on_cpu(0, || {
        activate(&child);
        // The limit is reached again, by a page that only the child maps, and one that waits.
        let written = store(&world.sim, &child, at, 9);
        assert_eq!(written, Err(FaultError::GroupLimit), "it copies, and does not take over");
    });
    assert!(world.space().waiting() > 0);
    world.sim.on_cpu(0, || drop(ManuallyDrop::into_inner(child)));
    world.end();
    drop(group);
}
