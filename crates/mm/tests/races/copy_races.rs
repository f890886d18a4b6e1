//! Concurrent single steps of copy-on-write, from many seeds. The programs are short, so
//! that the seeds reach the interleavings that the long ones of `fork_races` rarely do.

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::common::*;
use machine::{Asid, Step};
use mm::*;
use sim::{Config, Failure, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 10_000 };
const AT: usize = 0x4000_0000;

/// A number that CPUs pass to each other.
struct Flag<'s>(&'s Sim, AtomicU64);

impl Flag<'_> {
    // SeqCst, here and below: the driver runs one CPU at a time.
    fn set(&self) {
        self.0.step(machine::SharedAccess::Other);
        self.1.store(1, SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.step(machine::SharedAccess::Other);
        self.1.load(SeqCst) == 1
    }

    fn wait(&self) {
        while !self.is_set() {
            self.0.relax();
        }
    }
}

/// Runs CPUs on a space with two written pages, which a fork shares if `forked`. `make` gets the
/// space and returns the programs; they activate it.
fn on_shared_pages(
    seed: u64,
    forked: bool,
    make: impl for<'a> FnOnce(&'a Sim, &'a Space) -> Vec<Program<'a>>,
) -> Result<(), Failure> {
    let config = Config { caches_absent: true, ..racing(3, 96) };
    let (race, child) = Race::with(config, None, |_, space| {
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        for page in [0, 1] {
            space.write(AT + page * PAGE, &[0]).unwrap();
        }
        forked.then(|| ManuallyDrop::new(space.fork(Asid(2)).unwrap()))
    });
    seeded(&race.sim, seed, make(&race.sim, &race.space))?;
    race.end(child.map(ManuallyDrop::into_inner))
}

/// One CPU has cached the old frame. Two others write to the page. The first sees the write that
/// has ended, though the flush is another CPU's.
#[test]
fn a_write_to_a_copy_is_seen_by_all() {
    each_seed(SEEDS, |seed| {
        on_shared_pages(seed, true, |sim, space| {
            let flags: [_; 2] = std::array::from_fn(|_| Flag(sim, AtomicU64::new(0)));
            let flags = std::sync::Arc::new(flags);
            let writer = |word: usize| {
                let flags = flags.clone();
                Box::new(move || {
                    activate(space);
                    flags[0].wait();
                    store(sim, space, AT + 8 * word, 1).unwrap();
                    if word == 2 {
                        flags[1].set();
                    }
                }) as Program<'_>
            };
            let (first, second) = (writer(1), writer(2));
            let reads = move || {
                activate(space);
                assert_eq!(load(sim, space, AT + 16), Ok(0));
                flags[0].set();
                for _ in 0..30 {
                    if flags[1].is_set() {
                        assert_eq!(load(sim, space, AT + 16), Ok(1), "a stale page");
                        break;
                    }
                    // Keeps the translation.
                    load(sim, space, AT + 16).unwrap();
                }
            };
            vec![first, second, Box::new(reads)]
        })
    });
}

/// mprotect takes the right to write while a copy is on its way. When it has returned, nothing is
/// written.
#[test]
fn a_copy_gets_no_right_that_is_gone() {
    each_seed(SEEDS, |seed| {
        on_shared_pages(seed, true, |sim, space| {
            let done = std::sync::Arc::new(Flag(sim, AtomicU64::new(0)));
            let protects = {
                let done = done.clone();
                move || {
                    activate(space);
                    space.mprotect(AT, PAGE, 1, None).unwrap();
                    done.set();
                }
            };
            let writes = move || {
                activate(space);
                let _may_fail = store(sim, space, AT, 1);
                done.wait();
                let refused = store(sim, space, AT, 2);
                assert!(matches!(refused, Err(FaultError::Denied(..))), "{refused:?}");
            };
            vec![Box::new(protects), Box::new(writes)]
        })
    });
}

/// Two CPUs write to two pages of one table while a third forks: each finds its own write.
#[test]
fn no_write_goes_to_a_table_that_was_left() {
    each_seed(SEEDS, |seed| {
        on_shared_pages(seed, seed.is_multiple_of(2), |sim, space| {
            let writer = |page: usize| {
                Box::new(move || {
                    activate(space);
                    for round in 1..=2 {
                        store(sim, space, AT + page * PAGE, round).unwrap();
                        assert_eq!(load(sim, space, AT + page * PAGE), Ok(round));
                    }
                    // By the tables, not by what this CPU has cached.
                    let found = word(space, AT + page * PAGE);
                    assert_eq!(found, 2, "a write is lost");
                }) as Program<'_>
            };
            let forks = || {
                let child = space.fork(Asid(3)).unwrap();
                let words = [0, 1].map(|page| word(&child, AT + page * PAGE));
                for _ in 0..8 {
                    sim.relax();
                }
                for (page, before) in words.into_iter().enumerate() {
                    let found = word(&child, AT + page * PAGE);
                    assert_eq!(found, before, "the child sees a later write");
                }
                drop(child);
            };
            vec![writer(0), writer(1), Box::new(forks)]
        })
    });
}
