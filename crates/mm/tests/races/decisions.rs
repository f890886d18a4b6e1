//! Decisions that a call makes by a look, and that another call makes wrong before they are used.

use std::sync::{Arc, Mutex};

use crate::common::*;
use crate::half_way::{AT, Call, SEEDS, SHARED, meet};
use machine::Asid;
use mm::*;
use sim::Program;

/// Shared memory of one page, mapped.
fn mapped_memory(shared: &SharedPaging, space: &mut Space) -> Memfd {
    let memory = memfd(shared, 1);
    space.mmap_object(AT, PAGE, 3, SHARED, opened(&memory), 0).unwrap();
    memory
}

/// As [`mapped_memory`], with a page, which a map shows.
fn written_memory(shared: &SharedPaging, space: &mut Space) -> Memfd {
    let memory = mapped_memory(shared, space);
    space.write(AT, &[7; 8]).unwrap();
    memory
}

/// Another map takes the place of the memory.
fn map_over(space: &Space) {
    assert_eq!(space.mmap(AT, PAGE, 3, FIXED), Ok(AT));
}

fn watch(space: &Space, modes: UserFaultModes) {
    space.userfault_register(AT, PAGE, modes, Uffd::new(1)).unwrap();
}

/// Whether a monitor's call has failed because a page was there.
fn found_page(done: Result<(), mm::Resolved>) -> bool {
    done.is_err_and(|failed| failed.error == Error::UserFault(UserFaultError::Present))
}

/// The bytes of a hole do not come back, whether they are read or loaded.
#[test]
fn a_hole_a_read_and_a_load() {
    meet(
        written_memory,
        [
            |_, _, memory| memory.punch_hole(0..PAGE as u64).unwrap(),
            |sim, space, memory| {
                let mut byte = [9];
                assert_eq!(memory.read(0, &mut byte), 1);
                let word = load(sim, space, AT).unwrap();
                assert!(byte[0] == 7 || word == 0, "{} was read, then {word:#x}", byte[0]);
            },
        ],
        |_, _| {},
    );
}

/// A load finds the memory, or the map in its place: not the end of an object that was replaced.
#[test]
fn a_load_and_a_map_over_memory_that_becomes_smaller() {
    let load_it: Call<Memfd> = |sim, space, _| assert_eq!(load(sim, space, AT), Ok(0));
    meet(
        mapped_memory,
        [load_it, |_, space, memory| {
            map_over(space);
            memory.set_size(0).unwrap();
        }],
        |_, _| {},
    );
}

/// No page of an object is present that came in when something else was mapped.
#[test]
fn mincore_and_a_map_over_memory_that_gets_a_page() {
    let look: Call<Memfd> = |_, space, _| {
        let mut pages = [9];
        match space.mincore(AT, &mut pages) {
            Ok(()) => assert_eq!(pages, [0]),
            Err(error) => assert_eq!(error.errno(), 12),
        }
    };
    let calls: [Call<Memfd>; 2] = [
        |_, space, memory| {
            map_over(space);
            memory.write(0, &[1]).map(drop).unwrap();
        },
        |_, space, memory| {
            space.munmap(AT, PAGE).unwrap();
            memory.write(0, &[1]).map(drop).unwrap();
        },
    ];
    for call in calls {
        meet(mapped_memory, [look, call], |_, _| {});
    }
}

/// pagemap shows a page of an object as one, also where anonymous memory was that had no page.
#[test]
fn pagemap_and_an_object_in_the_place_of_untouched_memory() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        // The table is there, with a page of another map.
        space.mmap(AT + 8 * PAGE, PAGE, 3, FIXED).unwrap();
        space.write(AT + 8 * PAGE, &[1]).unwrap();
        map_over(space);
        memfd(shared, 1)
    };
    meet(
        prepare,
        [
            |_, space, _| {
                let entry = pagemap_entry(space, AT);
                let of_object = pagemap::PRESENT | pagemap::OF_OBJECT;
                assert!([0, of_object].contains(&(entry & of_object)), "{entry:#x}");
            },
            |sim, space, memory| {
                space.munmap(AT, PAGE).unwrap();
                space.mmap_object(AT, PAGE, 3, SHARED, opened(memory), 0).unwrap();
                assert_eq!(load(sim, space, AT), Ok(0));
            },
        ],
        |_, _| {},
    );
}

/// A monitor maps a page, or hears that the object has none.
#[test]
fn a_page_that_a_monitor_maps_and_a_hole() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = mapped_memory(shared, space);
        memory.write(0, &[7]).unwrap();
        space.set_userfault_handler(Arc::new(Never::default()));
        watch(space, UserFaultModes::MINOR);
        memory
    };
    meet(
        prepare,
        [
            |_, space, _| assert!(!found_page(space.userfault_continue(AT, PAGE, false))),
            |_, _, memory| memory.punch_hole(0..PAGE as u64).unwrap(),
        ],
        |_, _| {},
    );
}

/// A monitor brings a page into private memory, into the shared memory that takes its place, or
/// hears that the memory is not registered.
#[test]
fn a_page_of_a_monitor_and_another_map() {
    let fills: [Call<Memfd>; 2] = [
        |_, space, _| assert!(!found_page(space.userfault_copy(AT, &[7; PAGE], false))),
        |_, space, _| assert!(!found_page(space.userfault_zeropage(AT, PAGE))),
    ];
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        map_over(space);
        space.set_userfault_handler(Arc::new(Never::default()));
        watch(space, UserFaultModes::MISSING);
        memfd(shared, 1)
    };
    let replace: Call<Memfd> = |_, space, memory| {
        space.mmap_object(AT, PAGE, 3, SHARED, opened(memory), 0).unwrap();
        watch(space, UserFaultModes::MISSING);
    };
    for fill in fills {
        meet(prepare, [fill, replace], |_, _| {});
    }
}

/// A monitor brings a page into a private map, or hears that the object ends before it.
#[test]
fn a_page_of_a_monitor_and_a_truncation() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = memfd(shared, 1);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        space.mmap_object(AT, PAGE, 3, flags, opened(&memory), 0).unwrap();
        space.set_userfault_handler(Arc::new(Never::default()));
        watch(space, UserFaultModes::MISSING);
        memory
    };
    let fills: [Call<Memfd>; 3] = [
        |_, space, _| assert!(!found_page(space.userfault_copy(AT, &[7; PAGE], false))),
        |_, space, _| assert!(!found_page(space.userfault_zeropage(AT, PAGE))),
        |_, space, _| assert!(!found_page(space.userfault_poison(AT, PAGE))),
    ];
    for fill in fills {
        meet(prepare, [fill, |_, _, memory| memory.set_size(0).unwrap()], |_, _| {});
    }
}

/// A page is in memory once mlock has locked it, whatever becomes of the next one.
#[test]
fn mlock_and_an_unmapping_next_to_it() {
    meet(
        |_, space| _ = space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap(),
        [
            |_, space, ()| {
                if space.mlock(AT, 2 * PAGE, false).is_ok() {
                    assert_eq!(space.resident(AT..AT + PAGE), 1);
                }
            },
            |_, space, ()| space.munmap(AT + PAGE, PAGE).unwrap(),
        ],
        |_, ()| {},
    );
}

fn is_locked(space: &Space, at: usize) -> bool {
    let mut locked = false;
    space.for_each_vma(|range, flags| {
        locked |= range.contains(&at) && flags.contains(vma::VmFlags::LOCKED);
    });
    locked
}

/// Locked memory that a call has made is there, whatever is unlocked next to it.
#[test]
fn locked_memory_that_grows_and_an_unlocking_next_to_it() {
    let prepares: [fn(&SharedPaging, &mut Space); 3] = [
        |_, space| {
            space.mmap(AT, PAGE, 3, FIXED).unwrap();
            space.mlock(AT, PAGE, false).unwrap();
        },
        |_, space| space.mlockall(LockAll { future: true, ..LockAll::default() }).unwrap(),
        |_, space| space.mlockall(LockAll { future: true, ..LockAll::default() }).unwrap(),
    ];
    let calls: [[Call<()>; 2]; 3] = [
        [
            |_, space, ()| {
                assert_eq!(space.mremap(RemapRequest::resizing(AT, PAGE, 2 * PAGE)), Ok(AT));
                assert!(
                    !is_locked(space, AT + PAGE) || space.resident(AT + PAGE..AT + 2 * PAGE) == 1
                );
            },
            |_, space, ()| _ = space.munlock(AT, PAGE),
        ],
        [
            |_, space, ()| {
                space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
                assert_eq!(space.resident(AT + PAGE..AT + 2 * PAGE), 1);
            },
            |_, space, ()| _ = space.munlock(AT, PAGE),
        ],
        [
            |_, space, ()| {
                space.brk(HEAP + 2 * PAGE).unwrap();
                assert_eq!(space.resident(HEAP + PAGE..HEAP + 2 * PAGE), 1);
            },
            |_, space, ()| _ = space.munlock(HEAP, PAGE),
        ],
    ];
    for (prepare, calls) in prepares.into_iter().zip(calls) {
        meet(prepare, calls, |_, ()| {});
    }
}

/// All pages are there that a call has populated, or it says that it could not.
#[test]
fn populating_and_a_call_in_the_middle() {
    let others: [Call<()>; 2] = [
        |_, space, ()| space.munmap(AT + PAGE, PAGE).unwrap(),
        |_, space, ()| space.mprotect(AT + PAGE, PAGE, 0, None).unwrap(),
    ];
    for other in others {
        let populate: Call<()> =
            |_, space, ()| match space.madvise(AT, 3 * PAGE, Advice::PopulateRead) {
                Ok(()) => assert_eq!(space.resident(AT + 2 * PAGE..AT + 3 * PAGE), 1),
                Err(error) => assert!([12, 22].contains(&error.errno()), "{error:?}"),
            };
        meet(
            |_, space| _ = space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap(),
            [populate, other],
            |_, ()| {},
        );
    }
}

/// A monitor's move that fails has moved nothing, also if a fork leaves no memory. Each of its
/// tables has other pages, so the move leaves none to spare.
#[test]
fn a_move_of_a_monitor_and_a_fork_without_memory() {
    const FAR: usize = 0x55_0000_0000;
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(Arc::new(Never::default()));
        for at in [FAR, AT - 2 * PAGE] {
            space.mmap(at, 4 * PAGE, 3, FIXED).unwrap();
            space.write(at, &[7; 4 * PAGE]).unwrap();
        }
        space.madvise(AT - PAGE, 2 * PAGE, Advice::DontNeed).unwrap();
        let modes = UserFaultModes::MISSING;
        space.userfault_register(AT - PAGE, 2 * PAGE, modes, Uffd::new(1)).unwrap();
        shared.quick().drain();
        (shared.machine().clone(), Mutex::new(None))
    };
    meet(
        prepare,
        [
            |_, space, _| {
                if let Err(failed) = space.userfault_move(AT - PAGE, FAR, 2 * PAGE, false) {
                    let pages = [FAR, AT - PAGE].map(|at| space.resident(at..at + 2 * PAGE));
                    assert_eq!((failed.done, pages), (0, [2, 0]), "{failed}");
                }
            },
            |sim, space, (_, child)| {
                *child.lock().unwrap() = Some(space.fork(Asid(2)).unwrap());
                sim.fail_alloc(1, true);
            },
        ],
        |_, (sim, _)| sim.fail_alloc(0, false),
    );
}

/// A scan tells of all pages before its end, also if a fork leaves no memory while it splits a huge
/// page.
#[test]
fn a_scan_that_splits_a_page_and_a_fork_without_memory() {
    const FAR: usize = 0x55_0000_0000;
    each_meeting(SEEDS, |meeting| {
        let (race, ()) = Race::with(racing(2, 1536), None, |shared, space| {
            let asynchronous = true;
            space.set_userfault_handler(Arc::new(Never { asynchronous, ..Never::default() }));
            space.set_huge_pages(HugePages::Always).unwrap();
            for (at, len) in [(AT - PAGE, PAGE + HUGE), (FAR, PAGE)] {
                space.mmap(at, len, 3, FIXED).unwrap();
                space.userfault_register(at, len, UserFaultModes::WP, Uffd::new(1)).unwrap();
                space.write(at, &[1]).unwrap();
            }
            space.write(AT, &[1]).unwrap();
            assert_eq!(space.usage(AT..AT + HUGE).huge, HUGE);
            shared.quick().drain();
        });
        let (sim, space, child) = (&race.sim, &*race.space, Forked::default());
        let programs: [Program<'_>; 2] = [
            Box::new(|| {
                let what = Scan {
                    category_mask: PageCategories::WRITTEN | PageCategories::PRESENT,
                    wp_matching: true,
                    max_pages: 11,
                    ..Scan::default()
                };
                if let Ok(found) = space.scan(AT - PAGE..FAR + PAGE, &what) {
                    let told = |region: &PageRegion| (region.end - region.start) / PAGE;
                    let told: usize = found.regions.iter().map(told).sum();
                    assert!(told == 11 || told == 1 && found.walk_end == AT, "{found:x?}");
                }
            }),
            Box::new(|| {
                child.make(space);
                sim.fail_alloc(1, true);
            }),
        ];
        meeting.run(sim, programs)?;
        sim.fail_alloc(0, false);
        race.end(child.end())
    });
}

/// A read that begins within a file does not fail because the file ends there for a moment.
#[test]
fn a_read_of_a_file_that_shrinks_and_grows() {
    let prepare =
        |shared: &SharedPaging, _: &mut Space| File::try_new(shared, Zeros, PAGE as u64).unwrap();
    meet(
        prepare,
        [
            |_, _, file| {
                let mut found = [9; 8];
                let len = file.read(0, &mut found).unwrap();
                assert_eq!(found[..len], [0; 8][..len]);
            },
            |_, _, file| {
                file.set_size(0).unwrap();
                file.set_size(PAGE as u64).unwrap();
            },
        ],
        |_, _| {},
    );
}

/// An object finds a child while the fork takes pages out of it that the child is not to have.
#[test]
fn a_truncation_and_a_fork_that_leaves_pages_out() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = written_memory(shared, space);
        for far in [AT + PAGE, AT + HUGE] {
            space.mmap(far, PAGE, 3, FIXED).unwrap();
            space.write(far, &[1]).unwrap();
            space.madvise(far, PAGE, Advice::DontFork).unwrap();
        }
        memory
    };
    meet(
        prepare,
        [
            |_, space, _| drop(space.fork(Asid(2)).unwrap()),
            |_, _, memory| {
                (0..4).for_each(|_| {
                    memory.set_size(0).unwrap();
                    memory.set_size(PAGE as u64).unwrap();
                })
            },
        ],
        |_, _| {},
    );
}

/// A group has room for the frames that a CPU has freed, also while that CPU takes some of them.
#[test]
fn a_limit_of_frames_and_some_that_were_freed() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let group = FrameGroup::try_new(shared.machine(), 4, Box::new(())).unwrap();
        space.set_group(&group).unwrap();
        space.mmap(AT, 16 * PAGE, 3, FIXED).unwrap();
        space.write(AT, &[1; 3 * PAGE]).unwrap();
        space.madvise(AT, 3 * PAGE, Advice::DontNeed).unwrap();
        group
    };
    meet(
        prepare,
        [
            |_, space, _| space.write(AT, &[1]).unwrap(),
            |_, space, _| space.write(AT + 8 * PAGE, &[1; 3 * PAGE]).unwrap(),
        ],
        |_, group| assert_eq!(group.used(), 4),
    );
}
