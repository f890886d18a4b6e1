//! Maps of objects: shared memory of forks, seals, segments, syncs, and errors.

use crate::common::*;
use machine::{Asid, FrameSource, VirtAddr};
use mm::*;
use sim::{Config, Sim};

const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::ANONYMOUS);

#[test]
fn a_fork_shares_anonymous_shared_memory() {
    with_space(256, |sim, _, space| {
        let near = space.mmap(0, 2 * PAGE, 3, SHARED).unwrap();
        store(sim, space, near, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        store(sim, space, near + PAGE, 2).unwrap();
        activate(&child);
        assert_eq!(load(sim, &child, near), Ok(1));
        assert_eq!(load(sim, &child, near + PAGE), Ok(2));
        store(sim, &child, near, 3).unwrap();
        activate(space);
        leave(&child);
        assert_eq!(load(sim, space, near), Ok(3));
        let maps = listing(space);
        assert!(maps.contains("rw-s") && maps.contains("/dev/zero (deleted)"), "{maps}");
    });
}

#[test]
fn shared_memory_has_one_place_in_all_spaces() {
    with_space(256, |_, shared, space| {
        let private = space.mmap(0, PAGE, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS).unwrap();
        assert_eq!(space.shared_place(private), None);
        assert_eq!(space.shared_place(private + PAGE), None);
        let memory = memfd(shared, 4);
        let map = |flags, offset| {
            space.mmap_object(0, 2 * PAGE, 3, flags, opened(&memory), offset).unwrap()
        };
        let (first, second) = (map(MapFlags::SHARED, 0), map(MapFlags::SHARED, PAGE));
        let place = space.shared_place(first + PAGE + 4).unwrap();
        assert_eq!(place.1, PAGE as u64 + 4);
        assert_eq!(space.shared_place(second + 4), Some(place));
        assert_ne!(space.shared_place(second), Some(place));
        assert_eq!(space.shared_place(map(MapFlags::PRIVATE, 0) + 4), None);
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(child.shared_place(first + PAGE + 4), Some(place));
        let other = space.mmap(0, PAGE, 3, SHARED).unwrap();
        assert_ne!(space.shared_place(other).map(|place| place.0), Some(place.0));
    });
}

#[test]
fn the_rest_of_the_last_page_becomes_zeros() {
    with_space(256, |sim, shared, space| {
        let memory = memfd(shared, 2);
        let near = space.mmap_object(0, 2 * PAGE, 3, MapFlags::SHARED, opened(&memory), 0).unwrap();
        for word in [0, 8, PAGE] {
            store(sim, space, near + word, 7).unwrap();
        }
        memory.set_size(8).unwrap();
        assert_eq!(load(sim, space, near), Ok(7));
        assert_eq!(load(sim, space, near + 8), Ok(0));
        let beyond =
            FaultError::Object(VirtAddr::new((near + PAGE) as u64), ObjectError::BeyondEnd);
        assert_eq!(load(sim, space, near + PAGE), Err(beyond));
        memory.set_size(2 * PAGE as u64).unwrap();
        assert_eq!(load(sim, space, near + PAGE), Ok(0));
    });
}

#[test]
fn seals_forbid_what_they_say() {
    with_space(256, |sim, shared, space| {
        let memory = memfd(shared, 1);
        let open = || opened(&memory);
        let map = |prot, flags| space.mmap_object(0, PAGE, prot, flags, open(), 0);
        let writable = map(3, MapFlags::SHARED).unwrap();
        assert_eq!(memory.add_seals(Seals::WRITE), Err(ObjectError::Sealed));
        assert_eq!(memory.seals(), Seals::default());
        space.munmap(writable, PAGE).unwrap();
        memory.add_seals(Seals::WRITE).unwrap();
        memory.add_seals(Seals::SHRINK).unwrap();
        assert_eq!(map(3, MapFlags::SHARED).unwrap_err().errno(), 1);
        let private = map(3, MapFlags::PRIVATE).unwrap();
        store(sim, space, private, 1).unwrap();
        assert_eq!(memory.write(0, &[1]), Err(ObjectError::Sealed));
        assert_eq!(memory.set_size(0), Err(ObjectError::Sealed));
        memory.set_size(2 * PAGE as u64).unwrap();
        memory.add_seals(Seals::SEAL).unwrap();
        assert_eq!(memory.add_seals(Seals::GROW), Err(ObjectError::Sealed));
    });
}

#[test]
fn msync_says_what_linux_says() {
    with_space(256, |_, _, space| {
        let near = space.mmap(0, 3 * PAGE, 3, SHARED).unwrap();
        space.munmap(near + PAGE, PAGE).unwrap();
        let errno = |flags| space.msync(near, 3 * PAGE, flags).map_err(|error| error.errno());
        assert_eq!(errno(SyncFlags::SYNC), Err(12));
        assert_eq!(errno(SyncFlags::ASYNC), Err(12));
        assert_eq!(errno(SyncFlags::SYNC | SyncFlags::ASYNC), Err(22));
        assert!(space.msync(near, PAGE, SyncFlags::SYNC).is_ok());
        // Rounded up to 0.
        assert!(space.msync(near, usize::MAX, SyncFlags::SYNC).is_ok());
        let longest = usize::MAX - PAGE + 1;
        assert_eq!(space.msync(near, longest, SyncFlags::SYNC).unwrap_err().errno(), 12);
        space.mlock(near, PAGE, false).unwrap();
        assert_eq!(errno(SyncFlags::INVALIDATE), Err(16));
        assert_eq!(space.msync(near + 1, PAGE, SyncFlags::SYNC).unwrap_err().errno(), 22);
    });
}

#[test]
fn a_page_of_an_object_is_in_core_though_it_is_not_mapped() {
    with_space(256, |sim, _, space| {
        let near = space.mmap(0, 2 * PAGE, 3, SHARED).unwrap();
        store(sim, space, near, 1).unwrap();
        space.madvise(near, PAGE, Advice::DontNeed).unwrap();
        let mut found = [9; 2];
        space.mincore(near, &mut found).unwrap();
        assert_eq!((found, space.resident(near..near + 2 * PAGE)), ([1, 0], 0));
        assert_eq!(load(sim, space, near), Ok(1));
    });
}

#[test]
fn a_mount_that_forbids_execution_is_obeyed() {
    with_space(64, |_, shared, space| {
        let memory = memfd(shared, 1);
        let file = Backing::open_noexec(memory.clone(), true).unwrap();
        let map = |prot| space.mmap_object(0, PAGE, prot, MapFlags::SHARED, file.clone(), 0);
        assert_eq!(map(5).unwrap_err().errno(), 1);
        let at = map(1).unwrap();
        assert_eq!(space.mprotect(at, PAGE, 5, None).unwrap_err().errno(), 13);
        space.mmap_object(0, PAGE, 5, MapFlags::SHARED, opened(&memory), 0).unwrap();
    });
}

#[test]
fn an_object_of_another_machine_is_refused() {
    with_space(256, |_, _, space| {
        let other = Sim::new(Config::default()).unwrap();
        let memory = Shmem::memfd(&paging(&other), "name", 1).unwrap();
        let refused = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, opened(&memory), 0);
        assert_eq!(refused, Err(Error::Object(ObjectError::Foreign)));
    });
}

#[test]
fn segments_are_attached_and_detached() {
    with_space(256, |sim, shared, space| {
        let segment = Shmem::segment(shared, 0x2a, 3, 2 * PAGE as u64).unwrap();
        let attach = |addr, read_only| {
            space.shmat(AttachRequest {
                addr,
                read_only,
                ..AttachRequest::new(Backing::open(segment.clone(), true).unwrap(), 2 * PAGE)
            })
        };
        let first = attach(None, false).unwrap();
        let second = attach(None, true).unwrap();
        store(sim, space, first + PAGE, 5).unwrap();
        assert_eq!(load(sim, space, second + PAGE), Ok(5));
        let denied = FaultError::Denied(VirtAddr::new(second as u64), Access::Write);
        assert_eq!(store(sim, space, second, 5), Err(denied));
        space.shmdt(first).unwrap();
        assert_eq!(space.shmdt(first).unwrap_err().errno(), 22);
        assert_eq!(load(sim, space, second + PAGE), Ok(5));
        let maps = listing(space);
        assert!(maps.contains("/SYSV0000002a (deleted)"), "{maps}");
    });
}

/// Each allocation of a call fails in turn, and nothing has changed.
#[test]
fn calls_on_objects_fail_whole() {
    each_allocation(8, |nth| {
        let mut any = false;
        with_space(256, |sim, shared, space| {
            let memory = memfd(shared, 2);
            let (near, far) = (0x3fff_f000, 0x55_0000_0000);
            let map = |at, flags| {
                let flags = flags | MapFlags::FIXED;
                space.mmap_object(at, 2 * PAGE, 3, flags, opened(&memory), 0)
            };
            map(near, MapFlags::PRIVATE).unwrap();
            let before = listing(space);
            let calls = || {
                [
                    map(far, MapFlags::SHARED).map(drop),
                    load(sim, space, near).map(drop).map_err(Error::from),
                    store(sim, space, near + PAGE, 1).map_err(Error::from),
                    memory.write(PAGE as u64, &[1]).map(drop).map_err(Error::from),
                ]
            };
            let (outcomes, failed) = without_frames(sim, nth, true, calls);
            assert!(failed || outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            if outcomes[0].is_err() {
                assert_eq!(listing(space), before);
            }
            for error in outcomes.into_iter().filter_map(Result::err) {
                assert_eq!(error.errno(), 12, "{error}");
            }
            // Nothing takes memory: the object becomes shorter, the maps go.
            let cut = || {
                memory.set_size(0).unwrap();
                memory.set_size(PAGE as u64).unwrap();
            };
            assert!(!without_frames(sim, 1, true, cut).1, "a truncation asked for memory");
            assert_eq!(load(sim, space, near), Ok(0));
            any = failed;
        });
        any
    });
}

/// A page that a fork shares, whose frame has no more references to give, cannot be copied: the
/// fault says so, and does not try without end.
#[test]
fn a_shared_page_with_too_many_references_fails() {
    with_space(256, |sim, _, space| {
        let near = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        store(sim, space, near, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        let mut frames = [machine::Frame::default()];
        let pins = space.pin_pages(near, Access::Read, &mut frames).unwrap();
        let (frame, info) = (pins.frames()[0], sim.info(pins.frames()[0]).unwrap());
        // The copy of the table takes its reference first.
        let write =
            |space: &Space| space.handle_fault(VirtAddr::new(near as u64), Access::Write).map(drop);
        let taken: u32 = (0..32).rev().map(|bit| 1 << bit).filter(|pins| info.try_pin(*pins)).sum();
        assert!(matches!(write(&child), Err(FaultError::OutOfMemory(_))));
        for bit in (0..32).filter(|bit| taken >> bit & 1 != 0) {
            // SAFETY: these pins were taken above.
            unsafe { sim.unpin(frame, 1 << bit) }.unwrap();
        }
        drop(pins);
        assert_eq!(write(&child), Ok(()));
        drop(child);
    });
}

/// A frame has no more references to give: the fault says so, and does not try without end.
#[test]
fn a_page_with_too_many_references_fails() {
    with_space(256, |sim, shared, space| {
        let memory = Shmem::memfd(shared, "name", 1).unwrap();
        memory.write(0, &[1]).unwrap();
        let frame = memory.page(0).unwrap();
        let info = sim.info(frame).unwrap();
        let pins: u32 = (0..32).rev().map(|bit| 1 << bit).filter(|pins| info.try_pin(*pins)).sum();
        let near = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, opened(&memory), 0).unwrap();
        let failed = space.handle_fault(VirtAddr::new(near as u64), Access::Read);
        assert!(matches!(failed, Err(FaultError::OutOfMemory(_))), "{failed:?}");
        for bit in (0..32).filter(|bit| pins >> bit & 1 != 0) {
            // SAFETY: these pins were taken above.
            unsafe { sim.unpin(frame, 1 << bit) }.unwrap();
        }
        // SAFETY: `page` took this reference.
        unsafe { sim.release(frame) }.unwrap();
        assert_eq!(load(sim, space, near), Ok(1));
    });
}
