//! Two calls that meet half-way: the end is as if one had come before the other.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::*;
use machine::{Step, VirtAddr};
use mm::*;
use sim::Sim;

pub(crate) const SEEDS: u64 = if cfg!(debug_assertions) { 20 } else { 200 };
pub(crate) const AT: usize = 0x4000_0000;
pub(crate) const SHARED: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

/// A call, with what `prepare` has made.
pub(crate) type Call<T> = fn(&Sim, &Space, &T);

/// Makes both calls on two CPUs, so that they meet at each step, and looks at the end.
pub(crate) fn meet<T: Sync>(
    prepare: fn(&SharedPaging, &mut Space) -> T,
    [first, second]: [Call<T>; 2],
    end: fn(&Space, &T),
) {
    each_meeting(SEEDS, |meeting| {
        let (race, made) = Race::with(racing(2, 96), None, prepare);
        // A failure leaks it: there is no CPU on which it could be dropped.
        let made = ManuallyDrop::new(made);
        let (sim, space, known) = (&race.sim, &*race.space, &*made);
        let call = |call: Call<T>| race.active(move || call(sim, space, known));
        meeting.run(&race.sim, [call(first), call(second)])?;
        race.sim.on_cpu(0, || end(&race.space, &made));
        race.end(ManuallyDrop::into_inner(made))
    });
}

fn watch(space: &Space, pages: usize, modes: UserFaultModes) {
    space.userfault_register(AT, pages * PAGE, modes, Uffd::new(1)).unwrap();
}

/// Either the seal finds the map, or the map finds the seal.
#[test]
fn a_seal_and_a_writable_map() {
    let prepare = |shared: &SharedPaging, _: &mut Space| {
        (memfd(shared, 1), [const { AtomicBool::new(false) }; 2])
    };
    meet(
        prepare,
        [
            |_, _, (memory, done)| done[0].store(memory.add_seals(Seals::WRITE).is_ok(), SeqCst),
            |_, space, (memory, done)| {
                let mapped = space.mmap_object(AT, PAGE, 3, SHARED, opened(memory), 0);
                done[1].store(mapped.is_ok(), SeqCst);
            },
        ],
        |_, (_, done)| assert!(!done.iter().all(|done| done.load(SeqCst)), "sealed and mapped"),
    );
}

/// mincore tells of pages that are present, or that nothing is mapped.
#[test]
fn mincore_and_an_unmapping() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        space.write(AT, &[1; 2 * PAGE]).unwrap();
    };
    meet(
        prepare,
        [
            |_, space, ()| space.munmap(AT, 2 * PAGE).unwrap(),
            |_, space, ()| {
                let mut pages = [2; 2];
                match space.mincore(AT, &mut pages) {
                    Ok(()) => assert_eq!(pages, [1, 1]),
                    Err(error) => assert_eq!(error.errno(), 12),
                }
            },
        ],
        |_, ()| {},
    );
}

/// A page that comes in during a write-protection is protected, too.
#[test]
fn a_write_protection_and_a_first_touch() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(std::sync::Arc::new(Never {
            marks_absent: true,
            ..Never::default()
        }));
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        watch(space, 1, UserFaultModes::WP);
    };
    meet(
        prepare,
        [
            |_, space, ()| space.userfault_write_protect(AT, PAGE, true).unwrap(),
            |sim, space, ()| assert_eq!(load(sim, space, AT), Ok(0)),
        ],
        |space, ()| {
            let mut entry = [0];
            space.pagemap(AT, &mut entry);
            assert!(entry[0] & pagemap::WRITE_PROTECTED != 0, "{:#x}", entry[0]);
        },
    );
}

/// No page comes in without the monitor once the registration has returned.
#[test]
fn a_registration_and_a_first_touch() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(std::sync::Arc::new(Never::default()));
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        AtomicBool::new(false)
    };
    meet(
        prepare,
        [
            |_, space, absent| {
                watch(space, 1, UserFaultModes::MISSING);
                absent.store(space.resident(AT..AT + PAGE) == 0, SeqCst);
            },
            |sim, space, _| _ = load(sim, space, AT),
        ],
        |space, absent| {
            let came_later = absent.load(SeqCst) && space.resident(AT..AT + PAGE) == 1;
            assert!(!came_later, "a page came in without the monitor");
        },
    );
}

/// A page beyond the end of an object does not stay poisoned.
#[test]
fn a_poisoning_and_a_truncation() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = memfd(shared, 2);
        space.set_userfault_handler(std::sync::Arc::new(Never::default()));
        space.mmap_object(AT, 2 * PAGE, 3, SHARED, opened(&memory), 0).unwrap();
        watch(space, 2, UserFaultModes::MISSING);
        memory
    };
    meet(
        prepare,
        [
            |_, space, _| _ = space.userfault_poison(AT + PAGE, PAGE),
            |_, _, memory| memory.set_size(PAGE as u64).unwrap(),
        ],
        |space, memory| {
            memory.set_size(2 * PAGE as u64).unwrap();
            let found = space.handle_fault(VirtAddr::new((AT + PAGE) as u64), Access::Read);
            assert!(!matches!(found, Err(FaultError::Poisoned(_))), "{found:?}");
        },
    );
}

/// A fault asks only the monitor that is there for it, when the memory is registered anew.
#[test]
fn a_fault_and_another_registration() {
    /// The one monitor brings pages in, the other one protects them.
    struct Two;

    impl UserFaultHandler for Two {
        fn handle(&self, fault: UserFault) -> bool {
            let expected = [UserFaultKind::Missing, UserFaultKind::WriteProtected];
            assert_eq!(fault.kind, expected[fault.uffd as usize - 1], "of {}", fault.uffd);
            false
        }
    }

    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(std::sync::Arc::new(Two));
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        watch(space, 1, UserFaultModes::MISSING);
    };
    meet(
        prepare,
        [
            |_, space, ()| {
                space.userfault_unregister(AT, PAGE).unwrap();
                let uffd = Uffd::new(2);
                space.userfault_register(AT, PAGE, UserFaultModes::WP, uffd).unwrap();
            },
            |sim, space, ()| _ = load(sim, space, AT),
        ],
        |_, ()| {},
    );
}

/// No huge page comes in once MADV_NOHUGEPAGE has returned.
#[test]
fn an_advice_against_huge_pages_and_a_first_touch() {
    each_meeting(SEEDS, |meeting| {
        let race = Race::new(racing(2, 1 << 11), |space| {
            space.set_huge_pages(HugePages::Always).unwrap();
            space.mmap(AT, HUGE, 3, FIXED).unwrap();
        });
        let (sim, space, absent) = (&race.sim, &*race.space, AtomicBool::new(false));
        let advises = race.active(|| {
            space.madvise(AT, HUGE, Advice::NoHugePage).unwrap();
            absent.store(space.resident(AT..AT + HUGE) == 0, SeqCst);
        });
        let touches = race.active(|| store(sim, space, AT, 1).unwrap());
        meeting.run(sim, [advises, touches])?;
        let huge = sim.on_cpu(0, || space.usage(AT..AT + HUGE).huge);
        assert!(huge == 0 || !absent.load(SeqCst), "a huge page came later");
        race.end(())
    });
}

/// A page of shared memory is promised once, also if a fault brings it in while the object becomes
/// shorter and longer.
#[test]
fn a_page_beyond_the_end_is_promised_once() {
    let prepare = |shared: &SharedPaging, _: &mut Space| {
        let memory = memfd(shared, 2);
        let promises = Commitment::try_new(shared.machine(), Overcommit::Always).unwrap();
        memory.set_commitment(&promises).unwrap();
        (memory, promises)
    };
    meet(
        prepare,
        [
            |_, _, (memory, _)| _ = memory.bring_in(1),
            |_, _, (memory, _)| {
                memory.set_size(PAGE as u64).unwrap();
                memory.write(PAGE as u64, &[1]).unwrap();
            },
        ],
        |_, (memory, promises)| {
            assert_eq!(memory.size(), PAGE as u64 + 1);
            assert_eq!(promises.promised(), 2 * PAGE);
        },
    );
}

/// A source that is not to be written once the file has become shorter.
struct Disk {
    sim: Sim,
    grown: AtomicBool,
    is_cut: AtomicBool,
    written: AtomicBool,
}

impl Disk {
    fn new(shared: &SharedPaging) -> Self {
        let [grown, is_cut, written] = [const { AtomicBool::new(false) }; 3];
        Disk { sim: shared.machine().clone(), grown, is_cut, written }
    }
}

impl PageSource for Disk {
    crate::named!(1, "/disk");

    fn read(&self, _: u64, _: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8; PAGE]) -> Result<(), ObjectError> {
        // It takes a while.
        (0..8).for_each(|_| self.sim.relax());
        self.written.fetch_or(self.is_cut.load(SeqCst), SeqCst);
        Ok(())
    }
}

/// A file that has become longer meanwhile waits for its sync, too, before it becomes shorter.
#[test]
fn a_truncation_and_a_sync_of_a_file_that_grows() {
    let prepare = |shared: &SharedPaging, _: &mut Space| {
        File::try_new(shared, Disk::new(shared), PAGE as u64).unwrap()
    };
    meet(
        prepare,
        [
            |_, _, file| {
                file.set_size(PAGE as u64).unwrap();
                let disk = file.source();
                disk.is_cut.store(disk.grown.load(SeqCst), SeqCst);
            },
            |_, _, file| {
                file.set_size(2 * PAGE as u64).unwrap();
                file.source().grown.store(true, SeqCst);
                let _cut = file.write(PAGE as u64, &[1]);
                file.sync(0..2).unwrap();
            },
        ],
        |_, file| assert!(!file.source().written.load(SeqCst), "written beyond the end"),
    );
}

/// A read of shared memory that is cut off finds what was there, or its end.
#[test]
fn a_read_of_shared_memory_and_a_truncation() {
    let prepare = |shared: &SharedPaging, _: &mut Space| {
        let memory = memfd(shared, 1);
        memory.write(0, &[7; 8]).unwrap();
        memory
    };
    meet(
        prepare,
        [
            |_, _, memory| memory.set_size(4).unwrap(),
            |_, _, memory| {
                let mut found = [9; 8];
                let len = memory.read(0, &mut found);
                assert!([4, 8].contains(&len), "{len}");
                assert_eq!(found[..len], [7; 8][..len]);
            },
        ],
        |_, _| {},
    );
}

/// The same of a file.
#[test]
fn a_read_of_a_file_and_a_truncation() {
    let prepare = |shared: &SharedPaging, _: &mut Space| {
        let file = File::try_new(shared, Disk::new(shared), PAGE as u64).unwrap();
        file.write(0, &[7; 8]).unwrap();
        file
    };
    meet(
        prepare,
        [
            |_, _, file| file.set_size(0).unwrap(),
            |_, _, file| {
                let mut found = [9; 8];
                let len = file.read(0, &mut found).unwrap();
                assert!([0, 8].contains(&len), "{len}");
                assert_eq!(found[..len], [7; 8][..len]);
            },
        ],
        |_, _| {},
    );
}

/// A page that moves while pages become unreferenced is one of them.
#[test]
fn unreferenced_pages_and_a_move() {
    const FAR: usize = 0x55_0000_0000;
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.mmap(FAR, PAGE, 3, FIXED).unwrap();
        space.write(FAR, &[1]).unwrap();
        assert_eq!(space.usage(FAR..FAR + PAGE).referenced, PAGE);
    };
    meet(
        prepare,
        [
            |_, space, ()| space.clear_referenced().unwrap(),
            |_, space, ()| {
                assert_eq!(space.mremap(RemapRequest::moving(FAR, PAGE, AT)), Ok(AT));
            },
        ],
        |space, ()| assert_eq!(space.usage(AT..AT + PAGE).referenced, 0),
    );
}

/// No page of shared memory comes in without the monitor once the registration has returned.
#[test]
fn a_registration_and_a_first_touch_of_shared_memory() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = memfd(shared, 1);
        space.set_userfault_handler(std::sync::Arc::new(Never::default()));
        space.mmap_object(AT, PAGE, 3, SHARED, opened(&memory), 0).unwrap();
        (memory, AtomicBool::new(false))
    };
    meet(
        prepare,
        [
            |_, space, (memory, absent)| {
                watch(space, 1, UserFaultModes::MISSING);
                absent.store(!memory.is_present(0), SeqCst);
            },
            |sim, space, _| _ = load(sim, space, AT),
        ],
        |_, (memory, absent)| {
            let came_later = absent.load(SeqCst) && memory.is_present(0);
            assert!(!came_later, "a page came in without the monitor");
        },
    );
}

/// No page beyond the end is there once a truncation has returned, also if one was on its way.
#[test]
fn a_truncation_and_a_page_on_its_way() {
    let prepare = |shared: &SharedPaging, _: &mut Space| memfd(shared, 1);
    meet(
        prepare,
        [
            |_, _, memory| {
                memory.set_size(0).unwrap();
                for _ in 0..8 {
                    assert!(!memory.is_present(0), "a page beyond the end");
                }
            },
            |_, _, memory| _ = memory.bring_in(0),
        ],
        |_, _| {},
    );
}
