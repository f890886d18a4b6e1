//! Forks concurrently with threads of the parent and of the child, from seeds on the machine in
//! software.
//!
//! A thread of the parent counts up a word in each page, and publishes what it has begun and ended.
//! Another CPU forks. The values that the child finds in these words lie between those that had
//! ended before the fork and those that had begun after it, and do not change any more. Two threads
//! of the child write to the same pages; the parent must not see it, also when it unmaps and maps
//! its own. Then the child forks, too.

use std::{
    mem::ManuallyDrop,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use crate::common::*;
use machine::{Asid, Step};
use mm::*;
use sim::{Config, Failure, Grace, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 600 };
/// The last page of a table, and the first of the next one.
const AT: usize = 0x3fff_f000;
const PAGES: usize = 2;
/// The parent does not touch the third page, so that the child finds no page there.
const LEN: usize = (PAGES + 1) * PAGE;

/// The values that the thread of the parent has begun and ended to write to each page.
#[derive(Default)]
struct Written {
    begun: [AtomicU64; PAGES],
    ended: [AtomicU64; PAGES],
}

/// The state that the CPUs of a run share.
struct World<'s> {
    sim: &'s Sim,
    parent: &'s Space,
    child: OnceLock<Space>,
    grandchild: OnceLock<Space>,
    written: Written,
    /// The last round that each thread of the child has ended for each page.
    rounds: [[AtomicU64; PAGES + 1]; 3],
    /// Whether the second thread of the child has ended.
    ended: AtomicU64,
}

impl World<'_> {
    // SeqCst, here and below: the driver runs one CPU at a time.
    fn look(&self, word: &AtomicU64) -> u64 {
        self.sim.step(machine::SharedAccess::Other);
        word.load(SeqCst)
    }

    fn set(&self, word: &AtomicU64, value: u64) {
        self.sim.step(machine::SharedAccess::Other);
        word.store(value, SeqCst);
    }
}

fn word(page: usize, of: usize) -> usize {
    AT + page * PAGE + 8 * of
}

/// The thread of the parent: counts up word 0 of each page. The others' words stay 0.
fn parent(world: &World<'_>) {
    let (sim, space) = (world.sim, world.parent);
    for round in 1..=10 {
        for page in 0..PAGES {
            world.set(&world.written.begun[page], round);
            store(sim, space, word(page, 0), round).unwrap();
            world.set(&world.written.ended[page], round);
            let found = [0, 1, 2].map(|of| load(sim, space, word(page, of)).unwrap());
            assert_eq!(found, [round, 0, 0], "page {page} of the parent");
        }
        // After the fork its pages come and go.
        if world.child.get().is_some() {
            space.munmap(AT, LEN).unwrap();
            assert_eq!(space.resident(AT..AT + LEN), 0, "a page is left in a hole");
            assert_eq!(space.mmap(AT, LEN, 3, FIXED), Ok(AT));
        }
        Grace::reclaim(usize::MAX);
    }
}

/// A thread of the child: counts up a word of its own, and sees the parent's words unchanged.
fn thread(world: &World<'_>, space: &Space, own: usize, seen: &mut [Option<u64>; PAGES + 1]) {
    let sim = world.sim;
    for round in 1..=5 {
        for (page, seen) in seen.iter_mut().enumerate() {
            while let Err(error) = store(sim, space, word(page, own), round) {
                // The other thread has taken the right to write for a moment.
                assert!(matches!(error, FaultError::Denied(_, Access::Write)), "{error}");
                sim.relax();
            }
            let found = load(sim, space, word(page, own));
            assert_eq!(found, Ok(round), "page {page} of the child");
            world.set(&world.rounds[own][page], round);
            let ended = world.look(&world.rounds[3 - own][page]);
            let other = load(sim, space, word(page, 3 - own)).unwrap();
            assert!(other >= ended, "page {page} is stale: {other} of {ended} rounds");
            let of_parent = load(sim, space, word(page, 0)).unwrap();
            let first = *seen.get_or_insert(of_parent);
            assert_eq!(of_parent, first, "the child's page {page} has changed");
        }
        Grace::reclaim(usize::MAX);
    }
}

/// Forks, and checks what the child finds.
fn fork(world: &World<'_>, what: Exit) {
    let (sim, written) = (world.sim, &world.written);
    let ended = [0, 1].map(|page| world.look(&written.ended[page]));
    let child = world.parent.fork(Asid(2)).unwrap();
    let begun = [0, 1].map(|page| world.look(&written.begun[page]));
    activate(&child);
    let mut seen = [None; PAGES + 1];
    for (page, seen) in seen[..PAGES].iter_mut().enumerate() {
        let found = load(sim, &child, word(page, 0)).unwrap();
        let range = ended[page]..=begun[page];
        assert!(range.contains(&found), "{found} in page {page} of the child, not in {range:?}");
        *seen = Some(found);
    }
    assert!(world.child.set(child).is_ok());
    let child = world.child.get().unwrap();
    thread(world, child, 2, &mut seen);
    if let Exit::Protects = what {
        protect(sim, child);
    }
    let grandchild = child.fork(Asid(3)).unwrap();
    activate(&grandchild);
    for (page, seen) in seen.iter().enumerate() {
        let found = [0, 2].map(|of| load(sim, &grandchild, word(page, of)));
        assert_eq!(found, [Ok(seen.unwrap()), Ok(5)], "page {page} of the grandchild");
    }
    match what {
        Exit::Whole | Exit::Protects => {}
        Exit::Unmaps => grandchild.munmap(word(1, 0), PAGE).unwrap(),
        Exit::Discards => grandchild.madvise(AT, PAGE, Advice::DontNeed).unwrap(),
    }
    store(sim, &grandchild, AT, 77).unwrap();
    assert!(world.grandchild.set(grandchild).is_ok());
    Grace::reclaim(usize::MAX);
}

/// Takes the right to write from the child's pages for a moment, concurrently with its other
/// thread.
fn protect(sim: &Sim, child: &Space) {
    for _ in 0..3 {
        child.mprotect(AT, LEN, 1, None).unwrap();
        let words = || [0, 1, 2].map(|page| load(sim, child, word(page, 1)).unwrap());
        let before = words();
        sim.relax();
        assert_eq!(words(), before, "written after mprotect returned");
        child.mprotect(AT, LEN, 3, None).unwrap();
    }
}

/// The last call of the child or the grandchild, if any.
#[derive(Clone, Copy)]
enum Exit {
    Whole,
    Protects,
    Unmaps,
    Discards,
}

fn run(seed: u64, what: Exit) -> Result<(), Failure> {
    let config = Config { tick: Some(23), speculation: 100, ..racing(3, 128) };
    let race = Race::new(config, |space| _ = space.mmap(AT, LEN, 3, FIXED).unwrap());
    if seed.is_multiple_of(2) {
        race.sim.on_cpu(0, race.active(|| store(&race.sim, &race.space, AT, 0).unwrap()));
    }
    let world = ManuallyDrop::new(World {
        sim: &race.sim,
        parent: &race.space,
        child: OnceLock::new(),
        grandchild: OnceLock::new(),
        written: Written::default(),
        rounds: Default::default(),
        ended: AtomicU64::new(0),
    });
    let of_child = || {
        let child = loop {
            match world.child.get() {
                Some(child) => break child,
                None => world.sim.relax(),
            }
        };
        activate(child);
        thread(&world, child, 1, &mut [None; PAGES + 1]);
        world.set(&world.ended, 1);
    };
    let programs: Vec<Program> = vec![
        race.active(|| parent(&world)),
        Box::new(of_child),
        race.active(|| fork(&world, what)),
    ];
    seeded(&race.sim, seed, programs)?;
    assert_eq!(world.ended.load(SeqCst), 1);
    let World { child, grandchild, .. } = ManuallyDrop::into_inner(world);
    race.end((child, grandchild))
}

/// Two CPUs write to words of their own in pages that a fork shares again and again. A third one
/// only reads: it sees each write that has ended, also if it has cached the page before it was
/// copied.
fn copies_during_a_reader(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), ..racing(3, 128) };
    let race = Race::new(config, |space| _ = space.mmap(AT, LEN, 3, FIXED).unwrap());
    let (sim, space) = (&race.sim, &*race.space);
    let ended = &[AtomicU64::new(0), AtomicU64::new(0)];
    let writer = |own: usize| {
        race.active(move || {
            for round in 1..=16 {
                store(sim, space, word(0, own), round).unwrap();
                sim.step(machine::SharedAccess::Other);
                // SeqCst: the driver runs one CPU at a time.
                ended[own].store(round, SeqCst);
                Grace::reclaim(usize::MAX);
            }
        })
    };
    let reader = race.active(|| {
        for _ in 0..5 {
            drop(space.fork(Asid(2)).unwrap());
            let child = ManuallyDrop::new(space.fork(Asid(2)).unwrap());
            for _ in 0..4 {
                for (own, ended) in ended.iter().enumerate() {
                    sim.step(machine::SharedAccess::Other);
                    // SeqCst: as above.
                    let least = ended.load(SeqCst);
                    let found = load(sim, space, word(0, own)).unwrap();
                    assert!(found >= least, "{found} is stale: {least} was written");
                }
            }
            drop(ManuallyDrop::into_inner(child));
            Grace::reclaim(usize::MAX);
        }
    });
    seeded(sim, seed, vec![writer(0), writer(1), reader])?;
    race.end(())
}

#[test]
fn a_copy_is_not_written_before_the_flush() {
    each_seed(SEEDS, copies_during_a_reader);
}

#[test]
fn forks_while_threads_write() {
    each_seed(SEEDS, |seed| run(seed, Exit::Whole));
}

#[test]
fn forks_and_mprotect_while_threads_write() {
    each_seed(SEEDS, |seed| run(seed, Exit::Protects));
}

#[test]
fn a_grandchild_unmaps_or_discards_a_part() {
    for what in [Exit::Unmaps, Exit::Discards] {
        each_seed(SEEDS, |seed| run(seed, what));
    }
}
