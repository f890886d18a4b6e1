//! Faults, and the effects of calls on pages, on one CPU.

use crate::common::*;
use machine::{FrameSource, Translated, VirtAddr};
use mm::*;

fn unmapped(at: usize) -> FaultError {
    FaultError::Unmapped(VirtAddr::new(at as u64))
}

fn denied(at: usize, access: Access) -> FaultError {
    FaultError::Denied(VirtAddr::new(at as u64), access)
}

/// A fault on a page that is there drops its translation. So a call that brings pages in must not
/// fault on those.
#[test]
fn a_call_that_brings_pages_in_leaves_those_alone_that_are_there() {
    with_space(64, |sim, _, space| {
        let at = space.mmap(0, 8 * PAGE, 3, PRIVATE | MapFlags::POPULATE).unwrap();
        let before = sim.stats().flushes;
        space.madvise(at, 8 * PAGE, Advice::PopulateWrite).unwrap();
        space.madvise(at, 8 * PAGE, Advice::PopulateRead).unwrap();
        space.mlock(at, 8 * PAGE, false).unwrap();
        assert_eq!(sim.stats().flushes - before, 0);
        space.madvise(at + PAGE, PAGE, Advice::DontNeedLocked).unwrap();
        space.madvise(at, 8 * PAGE, Advice::PopulateRead).unwrap();
        space.madvise(at, 8 * PAGE, Advice::PopulateWrite).unwrap();
        assert_eq!(space.resident(at..at + 8 * PAGE), 8);
        store(sim, space, at + PAGE, 7).unwrap();
        assert_eq!(load(sim, space, at + PAGE), Ok(7));
    });
}

#[test]
fn touched_memory_is_zero_and_keeps_what_is_written() {
    with_space(2048, |sim, _, space| {
        let at = space.mmap(0, 3 * PAGE, 3, PRIVATE).unwrap();
        assert_eq!(space.resident(at..at + 3 * PAGE), 0);
        assert_eq!(load(sim, space, at), Ok(0));
        assert_eq!(store(sim, space, at + PAGE + 8, 7), Ok(()));
        assert_eq!(store(sim, space, at, 5), Ok(()));
        assert_eq!((load(sim, space, at), load(sim, space, at + PAGE + 8)), (Ok(5), Ok(7)));
        let mut present = [9; 3];
        space.mincore(at, &mut present).unwrap();
        assert_eq!(present, [1, 1, 0]);
        assert_eq!(load(sim, space, at - PAGE), Err(unmapped(at - PAGE)));
        assert_eq!(
            space.handle_fault(VirtAddr::new(at as u64), Access::Read),
            Ok(FaultOutcome::Spurious)
        );
        let top = VirtAddr::new(0xffff_8000_0000_0000);
        assert_eq!(space.handle_fault(top, Access::Read), Err(FaultError::Unmapped(top)));
    });
}

#[test]
fn unmapped_memory_is_gone() {
    with_space(2048, |sim, _, space| {
        let free = sim.free_frames();
        // More pages than one flush collects, over three tables.
        let pages = 1200;
        let at = space.mmap(0, pages * PAGE, 3, PRIVATE | MapFlags::POPULATE).unwrap();
        assert_eq!(space.resident(at..at + pages * PAGE), pages);
        space.munmap(at + PAGE, (pages - 2) * PAGE).unwrap();
        assert_eq!(space.resident(at..at + pages * PAGE), 2);
        assert_eq!(load(sim, space, at + PAGE), Err(unmapped(at + PAGE)));
        space.munmap(at, pages * PAGE).unwrap();
        assert!(sim.settle());
        assert!(sim.free_frames() + 16 >= free, "frames are kept");
    });
}

#[test]
fn a_fixed_map_over_another_one_is_empty() {
    with_space(2048, |sim, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        (0..4).for_each(|page| store(sim, space, at + page * PAGE, 1 + page as u64).unwrap());
        assert_eq!(space.mmap(at + PAGE, 2 * PAGE, 3, FIXED), Ok(at + PAGE));
        let found: Vec<_> = (0..4).map(|page| load(sim, space, at + page * PAGE)).collect();
        assert_eq!(found, [Ok(1), Ok(0), Ok(0), Ok(4)]);
    });
}

#[test]
fn protection_takes_effect_at_once_and_first_writes_are_seen() {
    with_space(2048, |sim, _, space| {
        let at = space.mmap(0, 2 * PAGE, 3, PRIVATE).unwrap();
        store(sim, space, at, 5).unwrap();
        assert_eq!(load(sim, space, at + PAGE), Ok(0));
        space.mprotect(at, 2 * PAGE, 1, None).unwrap();
        assert_eq!(store(sim, space, at, 6), Err(denied(at, Access::Write)));
        assert_eq!(load(sim, space, at), Ok(5));
        space.mprotect(at, 2 * PAGE, 0, None).unwrap();
        assert_eq!(load(sim, space, at), Err(denied(at, Access::Read)));
        space.mprotect(at, 2 * PAGE, 3, None).unwrap();
        // The page that was only read is not writable without a fault: its first write is seen.
        let second = VirtAddr::new((at + PAGE) as u64);
        // SAFETY: the program's memory.
        assert!(unsafe { sim.store(second, 1) }.is_err());
        assert_eq!(store(sim, space, at + PAGE, 8), Ok(()));
        // SAFETY: as above.
        assert!(unsafe { sim.store(VirtAddr::new(at as u64), 6) }.is_ok());
        let fetch = space.handle_fault(VirtAddr::new(at as u64), Access::Execute);
        assert_eq!(fetch, Err(denied(at, Access::Execute)));
    });
}

#[test]
fn heap_and_advice() {
    with_space(2048, |sim, _, space| {
        assert_eq!(space.brk(HEAP + 4 * PAGE), Ok(HEAP + 4 * PAGE));
        (0..4).for_each(|page| store(sim, space, HEAP + page * PAGE, 9).unwrap());
        assert_eq!(space.brk(HEAP + PAGE), Ok(HEAP + PAGE));
        assert_eq!(load(sim, space, HEAP + PAGE), Err(unmapped(HEAP + PAGE)));
        assert_eq!(space.brk(HEAP + 3 * PAGE), Ok(HEAP + 3 * PAGE));
        assert_eq!([load(sim, space, HEAP), load(sim, space, HEAP + PAGE)], [Ok(9), Ok(0)]);
        space.madvise(HEAP, 2 * PAGE, Advice::DontNeed).unwrap();
        assert_eq!(space.resident(HEAP..HEAP + 3 * PAGE), 0);
        assert_eq!(load(sim, space, HEAP), Ok(0));
        space.madvise(HEAP, 3 * PAGE, Advice::PopulateWrite).unwrap();
        assert_eq!(space.resident(HEAP..HEAP + 3 * PAGE), 3);
        assert!(matches!(
            space.mmap(0, PAGE, 3, PRIVATE | MapFlags::HUGETLB),
            Err(Error::NotSupported(_))
        ));
    });
}

#[test]
fn a_stack_grows_where_it_is_touched() {
    with_space(2048, |sim, _, space| {
        let top = 0x6000_0000;
        space.mmap(top, 2 * PAGE, 3, FIXED | MapFlags::GROWSDOWN).unwrap();
        assert_eq!(store(sim, space, top - 3 * PAGE, 4), Ok(()));
        assert_eq!(load(sim, space, top - PAGE), Ok(0));
        assert_eq!(load(sim, space, top - 3 * PAGE), Ok(4));
        let far = top - (9 << 20);
        assert_eq!(load(sim, space, far), Err(unmapped(far)));
    });
}

/// Where memory runs out, the fault says so and nothing has changed; unmapping works, and then
/// there is memory again.
#[test]
fn without_memory_nothing_changes() {
    with_space(96, |sim, _, space| {
        let at = space.mmap(0, 400 * PAGE, 3, PRIVATE).unwrap();
        let mut touched = 0;
        let error = loop {
            match store(sim, space, at + touched * PAGE, touched as u64) {
                Ok(()) => touched += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, FaultError::OutOfMemory(_)), "{error}");
        assert!(touched > 40);
        assert_eq!(space.resident(at..at + 400 * PAGE), touched);
        for page in 0..touched {
            assert_eq!(load(sim, space, at + page * PAGE), Ok(page as u64));
        }
        space.munmap(at, 8 * PAGE).unwrap();
        assert!(sim.settle());
        assert_eq!(store(sim, space, at + touched * PAGE, 3), Ok(()));
    });
}

/// As in Linux, memory is locked also if there is not enough for its pages.
#[test]
fn mlock_without_memory_says_try_again() {
    with_space(64, |sim, _, space| {
        let at = space.mmap(0, 400 * PAGE, 3, PRIVATE).unwrap();
        let error = space.mlock(at, 400 * PAGE, false).unwrap_err();
        assert!(matches!(error, Error::NotBroughtIn(FaultError::OutOfMemory(_))), "{error}");
        assert_eq!(error.errno(), 11);
        let locked = |flags: vma::VmFlags| flags.contains(vma::VmFlags::LOCKED);
        space.for_each_vma(|_, flags| assert!(locked(flags)));
        space.munlock(at, 400 * PAGE).unwrap();
        space.munmap(at, 400 * PAGE).unwrap();
        assert!(sim.settle());
    });
}

/// A hole at the end is no error, whatever is mapped behind it.
#[test]
fn memory_behind_a_range_to_populate_does_not_count() {
    with_space(64, |_, _, space| {
        let at = space.mmap(0, 3 * PAGE, 3, PRIVATE).unwrap();
        space.munmap(at + PAGE, PAGE).unwrap();
        for prot in [3, 0] {
            space.mprotect(at + 2 * PAGE, PAGE, prot, None).unwrap();
            assert_eq!(space.populate(at, 2 * PAGE), Ok(()));
            assert_eq!(space.resident(at..at + 3 * PAGE), 1);
        }
    });
}

/// Each allocation of a fault fails, and all after it: the fault says so, and nothing has changed.
/// One that fails alone is made again after a reclaim.
#[test]
fn each_allocation_of_a_fault_fails() {
    for lasting in [true, false] {
        // A fault makes a frame and three tables.
        each_allocation(3, |nth| {
            let mut any = false;
            with_space(2048, |sim, _, space| {
                let far = 0x55_0000_0000;
                space.mmap(far, 2 * PAGE, 3, FIXED).unwrap();
                let near = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
                store(sim, space, near, 1).unwrap();
                let write = || store(sim, space, far, 2);
                let (stored, failed) = without_frames(sim, nth, lasting, write);
                match stored {
                    Err(error) => {
                        assert!(failed && lasting, "{error} though memory is left");
                        assert!(matches!(error, FaultError::OutOfMemory(_)), "{error}");
                        assert_eq!(space.resident(far..far + 2 * PAGE), 0);
                    }
                    Ok(()) => assert!(!(failed && lasting), "a frame came from nowhere"),
                }
                assert_eq!(store(sim, space, far, 3), Ok(()));
                assert_eq!([load(sim, space, far), load(sim, space, near)], [Ok(3), Ok(1)]);
                any = failed;
            });
            any
        });
    }
}

/// A format without protection keys refuses them before anything changes.
#[test]
fn keys_that_the_tables_lack_are_refused() {
    with_space_of::<paging::Sv48>(sim::Arch::RiscV, 256, |_, _, space| {
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        let refused = space.mprotect(at, PAGE, 1, Some(3)).unwrap_err();
        assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
        space.for_each_vma(|_, flags| assert!(flags.contains(vma::VmFlags::WRITE)));
        space.mprotect(at, PAGE, 1, Some(0)).unwrap();
    });
}
