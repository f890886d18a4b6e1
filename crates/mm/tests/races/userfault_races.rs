//! Write-protection during writes, and soft-dirty pages during their clearing, from many seeds.

use std::{
    mem::ManuallyDrop,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use crate::common::*;
use machine::Step;
use mm::*;
use sim::{Failure, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 8_000 };
const AT: usize = 0x4000_0000;

fn run(
    seed: u64,
    handler: Never,
    make: impl for<'a> FnOnce(&'a Sim, &'a Space) -> Vec<Program<'a>>,
) -> Result<(), Failure> {
    let (race, ()) = Race::with(racing(3, 96), None, |_, space| {
        space.set_userfault_handler(Arc::new(handler));
        space.mmap(AT, 4 * PAGE, 3, FIXED).unwrap();
        space.write(AT, &[0; 4 * PAGE]).unwrap();
        space.userfault_register(AT, 4 * PAGE, UserFaultModes::WP, Uffd::new(1)).unwrap();
    });
    seeded(&race.sim, seed, make(&race.sim, &race.space))?;
    race.end(())
}

/// Two CPUs write to pages; the third scans. A scan tells of each write that ended before it began,
/// unless an earlier scan told of it.
#[test]
fn a_scan_misses_no_write() {
    let scan = Scan {
        category_mask: PageCategories::WRITTEN | PageCategories::PRESENT,
        return_mask: PageCategories::WRITTEN,
        wp_matching: true,
        ..Scan::default()
    };
    each_seed(SEEDS, |seed| {
        // Counts of writes done, and those that a scan has told of.
        let done = Arc::new([const { AtomicU64::new(0) }; 2]);
        run(seed, Never { asynchronous: true, ..Never::default() }, move |sim, space| {
            let scan = scan;
            let writer = |cpu: usize| -> Program<'_> {
                let done = Arc::clone(&done);
                Box::new(move || {
                    activate(space);
                    for value in 1..5 {
                        store(sim, space, AT + cpu * PAGE, value).unwrap();
                        sim.step(machine::SharedAccess::Other);
                        done[cpu].store(value, SeqCst);
                    }
                    leave(space);
                })
            };
            let (first, second) = (writer(0), writer(1));
            let scanner: Program<'_> = Box::new(move || {
                let mut copies = [0; 2];
                for turn in 0..5 {
                    let before = [0, 1].map(|cpu: usize| {
                        sim.step(machine::SharedAccess::Other);
                        done[cpu].load(SeqCst)
                    });
                    let found = space.scan(AT..AT + 2 * PAGE, &scan).unwrap();
                    for cpu in 0..2 {
                        let at = AT + cpu * PAGE;
                        let told = found.regions.iter().any(|r| r.start <= at && at < r.end);
                        // A checkpoint copies the pages that it is told of.
                        if told || turn == 0 {
                            let word = word(space, at);
                            copies[cpu] = word;
                        }
                        assert!(copies[cpu] >= before[cpu], "a write was not told of");
                    }
                }
            });
            vec![first, second, scanner]
        })
    });
}

/// A page that `pagemap` shows as clean tells that all pages have been cleared.
#[test]
fn soft_dirty_pages_are_cleared_at_once() {
    each_seed(SEEDS, |seed| {
        run(seed, Never::default(), |_, space| {
            let is_dirty = |page: usize| {
                let mut entry = [0];
                space.pagemap(AT + page * PAGE, &mut entry);
                entry[0] & pagemap::SOFT_DIRTY != 0
            };
            vec![
                Box::new(|| space.clear_soft_dirty().unwrap()),
                Box::new(move || {
                    let found = [0, 1, 2, 3].map(is_dirty);
                    assert!(found.is_sorted_by(|a, b| a >= b), "cleared one by one: {found:?}");
                }),
            ]
        })
    });
}

/// After a page was write-protected, no write reaches it, also of faults that were under way.
#[test]
fn protection_holds_from_its_return_on() {
    each_seed(SEEDS, |seed| {
        let protected = Arc::new(AtomicU64::new(0));
        run(seed, Never::default(), move |sim, space| {
            let writer = |cpu: usize| -> Program<'_> {
                let protected = Arc::clone(&protected);
                Box::new(move || {
                    activate(space);
                    for value in 1..5 {
                        sim.step(machine::SharedAccess::Other);
                        let before = protected.load(SeqCst);
                        let done = store(sim, space, AT + cpu * 8, value);
                        assert!(before == 0 || done.is_err(), "written after the protection");
                    }
                    leave(space);
                })
            };
            let (first, second) = (writer(0), writer(1));
            let protector: Program<'_> = Box::new(move || {
                // Faults are under way.
                space.mprotect(AT, PAGE, 1, None).unwrap();
                space.mprotect(AT, PAGE, 3, None).unwrap();
                space.userfault_write_protect(AT, PAGE, true).unwrap();
                let mut before = [0; 16];
                space.read(AT, &mut before).unwrap();
                sim.step(machine::SharedAccess::Other);
                protected.store(1, SeqCst);
                let mut now = [0; 16];
                for _ in 0..3 {
                    space.read(AT, &mut now).unwrap();
                    assert_eq!(before, now);
                }
            });
            vec![first, second, protector]
        })
    });
}

/// A host whose monitor has not read the event of a fork yet.
#[derive(Default)]
struct Forks {
    changing: AtomicU64,
}

impl UserFaultHandler for Forks {
    fn handle(&self, _: UserFault) -> bool {
        false
    }

    fn events(&self, _: u64) -> UserFaultEvents {
        UserFaultEvents::FORK
    }

    fn begin_change(&self, _: u64) {
        self.changing.fetch_add(1, SeqCst);
    }

    fn is_changing(&self, _: u64) -> bool {
        self.changing.load(SeqCst) > 0
    }

    fn make_child(&self, uffd: u64) -> Option<u64> {
        Some(uffd + 1)
    }
}

/// A monitor copies pages during a fork. Each page that it has copied the child has,
/// too; the monitor hears of the others that it must copy them twice.
#[test]
fn no_copy_is_lost_between_a_fork_and_its_event() {
    each_seed(SEEDS / 4, |seed| {
        let (race, ()) = Race::with(racing(2, 128), None, |_, space| {
            space.set_userfault_handler(Arc::new(Forks::default()));
            space.mmap(AT, 8 * PAGE, 3, FIXED).unwrap();
            let uffd = Uffd { follows_fork: true, ..Uffd::new(1) };
            space.userfault_register(AT, 8 * PAGE, UserFaultModes::MISSING, uffd).unwrap();
        });
        let (sim, space) = (&race.sim, &*race.space);
        let (copied, child) = (AtomicU64::new(0), std::sync::Mutex::new(None));
        let monitor: Program<'_> = Box::new(|| {
            for page in 0..8 {
                match space.userfault_copy(AT + page * PAGE, &[3; PAGE], false) {
                    Ok(()) => copied.fetch_or(1 << page, SeqCst),
                    Err(failed) => {
                        assert_eq!(failed.error, UserFaultError::Changing.into());
                        break;
                    }
                };
            }
        });
        let program: Program<'_> = Box::new(|| {
            *child.lock().unwrap() = Some(ManuallyDrop::new(space.fork(machine::Asid(2)).unwrap()));
        });
        seeded(sim, seed, vec![monitor, program])?;
        sim.on_cpu(0, || {
            let child = ManuallyDrop::into_inner(child.into_inner().unwrap().unwrap());
            for page in 0..8 {
                let mut byte = [0];
                let has = child.read(AT + page * PAGE, &mut byte).is_ok();
                assert_eq!(has, copied.load(SeqCst) & 1 << page != 0, "page {page}");
            }
        });
        race.end(())
    });
}

/// A page that is pinned does not move: a pin that comes while the monitor moves it either finds it
/// gone, or the move finds the pin.
#[test]
fn a_pinned_page_does_not_move() {
    each_seed(SEEDS / 8, |seed| {
        let (race, ()) = Race::with(racing(2, 96), None, |_, space| {
            space.set_userfault_handler(Arc::new(Never::default()));
            space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
            space.write(AT, &[7]).unwrap();
            let uffd = Uffd::new(1);
            space.userfault_register(AT, 2 * PAGE, UserFaultModes::MISSING, uffd).unwrap();
        });
        let (sim, space) = (&race.sim, &*race.space);
        let moved = AtomicU64::new(0);
        let mover: Program<'_> = Box::new(|| {
            let done = space.userfault_move(AT + PAGE, AT, PAGE, false);
            moved.store(1 + u64::from(done.is_ok()), SeqCst);
        });
        let pinner: Program<'_> = Box::new(|| {
            let mut frames = [machine::Frame::default()];
            let pins = space.pin_pages(AT, Access::Read, &mut frames);
            while moved.load(SeqCst) == 0 {
                sim.relax();
            }
            assert!(pins.is_err() || moved.load(SeqCst) == 1, "a pinned page has moved");
        });
        seeded(sim, seed, vec![mover, pinner])?;
        race.end(())
    });
}
