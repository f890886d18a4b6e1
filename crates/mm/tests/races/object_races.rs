//! Truncation and holes during faults, copies, moves and forks, from seeds on the
//! machine in software.
//!
//! One CPU makes an object shorter and longer, again and again, and says so by a count that is odd
//! while the object has no page. Others use maps of it: shared and private ones, in the space, in a
//! fork of it, at a place that moves. An access that begins and ends in the same odd count fails;
//! otherwise a page was left in some space, or a translation in some TLB. The machine checks that
//! no frame is given back while a TLB leads to it, and that none is left.

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::common::*;
use machine::{Asid, Step};
use mm::*;
use sim::{Config, Failure, Grace, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 500 };
/// Maps of two pages each, on both sides of the border of two tables.
const SHARED: usize = 0x3fff_f000;
const PRIVATE: usize = SHARED + 4 * PAGE;
const MOVES: [usize; 2] = [SHARED + 8 * PAGE, 0x55_0000_0000];
const PAGES: u64 = 2;
const LEN: usize = PAGES as usize * PAGE;
const ROUNDS: u64 = 6;

struct World<'s> {
    sim: &'s Sim,
    space: &'s Space,
    memory: mm::Shared<Shmem<Sim>>,
    /// Odd while the object has no page.
    count: AtomicU64,
}

impl World<'_> {
    // SeqCst, here and below: the driver runs one CPU at a time.
    fn count(&self) -> u64 {
        self.sim.step(machine::SharedAccess::Other);
        self.count.load(SeqCst)
    }

    /// An access, by this CPU's translations, with faults.
    fn access(&self, space: &Space, at: usize, write: bool) {
        let before = self.count();
        let outcome = match write {
            true => store(self.sim, space, at, 7),
            false => load(self.sim, space, at).map(drop),
        };
        let same = self.count() == before;
        match outcome {
            Ok(()) => {
                assert!(!same || before.is_multiple_of(2), "{at:#x} is accessible without a page")
            }
            // Also while the object becomes shorter or longer.
            Err(FaultError::Object(_, ObjectError::BeyondEnd)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn touch(&self, space: &Space, at: usize) {
        for page in 0..PAGES as usize {
            for write in [false, true] {
                self.access(space, at + page * PAGE, write);
            }
        }
    }

    /// Makes the object shorter and longer, with a hole in between.
    fn truncate(&self) {
        for round in 0..ROUNDS {
            self.memory.set_size(0).unwrap();
            self.sim.step(machine::SharedAccess::Other);
            self.count.fetch_add(1, SeqCst);
            for at in [SHARED, PRIVATE] {
                assert_eq!(self.space.resident(at..at + LEN), 0, "a page is left at {at:#x}");
            }
            self.sim.step(machine::SharedAccess::Other);
            self.count.fetch_add(1, SeqCst);
            self.memory.set_size(PAGES * PAGE as u64).unwrap();
            if round % 2 == 1 {
                self.memory.punch_hole(0..PAGE as u64).unwrap();
            }
            Grace::reclaim(usize::MAX);
        }
    }

    /// Touches maps of the space, and moves one of them.
    fn touch_and_move(&self) {
        let mut at = MOVES[0];
        for round in 0..ROUNDS as usize {
            self.touch(self.space, at);
            let to = MOVES[(round + 1) % 2];
            let request = RemapRequest::moving(at, LEN, to);
            self.space.mremap(request).unwrap();
            at = to;
            self.touch(self.space, at);
            self.access(self.space, SHARED, round % 2 == 0);
            Grace::reclaim(usize::MAX);
        }
    }

    /// Touches the maps in forks of the space.
    fn fork_and_touch(&self) {
        for round in 0..3 {
            self.touch(self.space, PRIVATE);
            let child = self.space.fork(Asid(2)).unwrap();
            activate(&child);
            for at in [PRIVATE, SHARED] {
                self.access(&child, at, round == 0);
                self.touch(&child, at);
            }
            activate(self.space);
            leave(&child);
            drop(child);
            Grace::reclaim(usize::MAX);
        }
    }
}

fn run(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), speculation: 100, ..racing(3, 160) };
    let (race, memory) = Race::with(config, None, |shared, space| {
        let memory = memfd(shared, PAGES as usize);
        let kinds = [(SHARED, MapFlags::SHARED), (PRIVATE, MapFlags::PRIVATE)];
        // The memory that moves is shared in one half of the runs.
        let moves = if seed.is_multiple_of(2) { MapFlags::SHARED } else { MapFlags::PRIVATE };
        for (at, kind) in kinds.into_iter().chain([(MOVES[0], moves)]) {
            let flags = kind | MapFlags::FIXED;
            assert_eq!(space.mmap_object(at, LEN, 3, flags, opened(&memory), 0), Ok(at));
        }
        memory
    });
    let count = AtomicU64::new(0);
    let world = ManuallyDrop::new(World { sim: &race.sim, space: &race.space, memory, count });
    let programs = vec![
        race.active(|| world.truncate()),
        race.active(|| world.touch_and_move()),
        race.active(|| world.fork_and_touch()),
    ];
    seeded(&race.sim, seed, programs)?;
    let World { memory, .. } = ManuallyDrop::into_inner(world);
    race.end(memory)
}

#[test]
fn an_object_takes_its_pages_back_from_all() {
    each_seed(SEEDS, run);
}

/// CPUs fill the same page of an object, and new nodes of its index, at the same time; others make
/// it shorter. Each sees the words of all.
#[test]
fn pages_are_filled_once() {
    each_seed(SEEDS, |seed| {
        let sim = Sim::new(Config { cpus: 3, frames: 64, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let memory = Shmem::memfd(&shared, "test", 1).unwrap();
        sim.on_cpu(0, || memory.set_size(1 << 32).unwrap());
        let writer = |own: u64| {
            let memory = memory.clone();
            Box::new(move || {
                for page in [0, 600, 300_000] {
                    let at = page * PAGE as u64 + 8 * own;
                    memory.write(at, &(own + page).to_le_bytes()).unwrap();
                    let mut found = [0; 8];
                    memory.read(at, &mut found);
                    assert_eq!(u64::from_le_bytes(found), own + page);
                }
            }) as Program
        };
        seeded(&sim, seed, (0..3).map(writer).collect())?;
        sim.on_cpu(0, || {
            for (page, own) in [0, 600, 300_000].into_iter().flat_map(|p| [0, 1, 2].map(|o| (p, o)))
            {
                let mut found = [0; 8];
                memory.read(page * PAGE as u64 + 8 * own, &mut found);
                assert_eq!(u64::from_le_bytes(found), own + page);
            }
            drop(memory);
        });
        Ok(all_given_back(&sim, &shared)?)
    });
}

/// A fault beyond the end leaves no page behind, also during a truncation.
#[test]
fn nothing_is_left_beyond_the_end() {
    each_seed(SEEDS, |seed| {
        let sim = Sim::new(Config { cpus: 2, frames: 64, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let memory = Shmem::memfd(&shared, "test", 1).unwrap();
        sim.on_cpu(0, || memory.set_size(1 << 20).unwrap());
        let brings = || {
            for page in [0, 1, 2, 1] {
                let _beyond = memory.bring_in(page);
            }
        };
        let cuts = || {
            memory.set_size(0).unwrap();
            memory.set_size(PAGE as u64).unwrap();
            memory.set_size(0).unwrap();
        };
        seeded(&sim, seed, vec![Box::new(brings), Box::new(cuts)])?;
        sim.on_cpu(0, || {
            memory.set_size(1 << 20).unwrap();
            let left = (0..256).filter(|page| memory.is_present(*page)).count();
            assert_eq!(left, 0, "pages beyond the end");
            drop(memory);
        });
        Ok(all_given_back(&sim, &shared)?)
    });
}

/// A read of an object finds its page, or zeros, but never a page of another object that has got
/// the frame.
#[test]
fn a_read_finds_no_other_objects_page() {
    each_seed(40 * SEEDS, |seed| {
        let sim = Sim::new(Config { cpus: 2, frames: 16, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let [read, other] = [1, 2].map(|inode| Shmem::memfd(&shared, "test", inode).unwrap());
        let fill = |memory: &Shmem<Sim>, value: u64| memory.write(0, &value.to_le_bytes()).unwrap();
        let comes_and_goes = || {
            for _ in 0..4 {
                fill(&read, 1);
                read.set_size(0).unwrap();
                fill(&other, 2);
                other.set_size(0).unwrap();
            }
        };
        let reads = || {
            for _ in 0..8 {
                let mut found = [0; 8];
                read.read(0, &mut found);
                let found = u64::from_le_bytes(found);
                assert!(found < 2, "a page of another object");
                sim.relax();
            }
        };
        seeded(&sim, seed, vec![Box::new(comes_and_goes), Box::new(reads)])?;
        sim.on_cpu(0, || drop((read, other)));
        Ok(all_given_back(&sim, &shared)?)
    });
}

/// A fault that found a page, and finds the entry empty with the lock held, does not take it for
/// anonymous memory.
#[test]
fn a_discarded_page_comes_from_the_object_again() {
    each_seed(40 * SEEDS, |seed| {
        let (race, memory) = Race::with(racing(2, 64), None, |shared, space| {
            let memory = memfd(shared, 1);
            memory.write(0, &7_u64.to_le_bytes()).unwrap();
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            space.mmap_object(SHARED, PAGE, 1, flags, opened(&memory), 0).unwrap();
            memory
        });
        let (sim, space) = (&race.sim, &*race.space);
        let calls = race.active(|| {
            for _ in 0..4 {
                space.mprotect(SHARED, PAGE, 0, None).unwrap();
                space.mprotect(SHARED, PAGE, 1, None).unwrap();
                space.madvise(SHARED, PAGE, Advice::DontNeed).unwrap();
                let _present = load(sim, space, SHARED);
            }
        });
        let loads = race.active(|| {
            for _ in 0..8 {
                match load(sim, space, SHARED) {
                    Ok(found) => assert_eq!(found, 7, "not the object's page"),
                    Err(error) => assert!(matches!(error, FaultError::Denied(..)), "{error}"),
                }
            }
        });
        seeded(sim, seed, vec![calls, loads])?;
        race.end(memory)
    });
}

/// A fault replaces the page table, which a fork shares, by a copy, at the moment when the object
/// takes its pages back.
#[test]
fn no_page_is_left_in_a_copy_of_a_table() {
    let other = SHARED - 2 * PAGE;
    each_seed(10 * SEEDS, |seed| {
        let config = Config { tick: Some(23), ..racing(2, 96) };
        let (race, (memory, child)) = Race::with(config, None, |shared, space| {
            let memory = memfd(shared, 1);
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            space.mmap_object(SHARED, PAGE, 3, flags, opened(&memory), 0).unwrap();
            space.mmap(other, PAGE, 3, FIXED).unwrap();
            for at in [SHARED, other] {
                space.handle_fault(machine::VirtAddr::new(at as u64), Access::Write).unwrap();
            }
            (memory, ManuallyDrop::new(space.fork(Asid(2)).unwrap()))
        });
        let cuts = || {
            memory.set_size(0).unwrap();
            for space in [&race.space, &child] {
                assert_eq!(space.resident(SHARED..SHARED + PAGE), 0, "a page is left");
            }
        };
        let copies = race.active(|| store(&race.sim, &race.space, other, 1).unwrap());
        seeded(&race.sim, seed, vec![Box::new(cuts), copies])?;
        race.end((ManuallyDrop::into_inner(child), memory))
    });
}

/// A CPU of a child that shares the table loses its translation, too.
#[test]
fn a_truncation_flushes_the_cpus_of_a_fork() {
    each_seed(SEEDS, |seed| {
        let (race, (memory, child)) = Race::with(racing(2, 96), None, |shared, space| {
            let memory = memfd(shared, 1);
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            space.mmap_object(SHARED, PAGE, 3, flags, opened(&memory), 0).unwrap();
            space.handle_fault(machine::VirtAddr::new(SHARED as u64), Access::Write).unwrap();
            (memory, ManuallyDrop::new(space.fork(Asid(2)).unwrap()))
        });
        let loads = || {
            activate(&child);
            for _ in 0..12 {
                let _beyond = load(&race.sim, &child, SHARED);
            }
            leave(&child);
        };
        let cuts = race.active(|| memory.set_size(0).unwrap());
        seeded(&race.sim, seed, vec![cuts, Box::new(loads)])?;
        race.end((ManuallyDrop::into_inner(child), memory))
    });
}
