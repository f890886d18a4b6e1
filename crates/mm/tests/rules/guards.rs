//! Guard pages with concurrent faults, forks and lack of memory. The oracle compares their rules
//! with Linux.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::*;
use machine::{Asid, Step, VirtAddr};
use mm::*;
use sim::{Config, Failure, Grace, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 600 };
/// The last page of a table, and the first of the next one.
const AT: usize = 0x3fff_f000;
const LEN: usize = 2 * PAGE;

/// One CPU installs and removes guards, and says so by a count that is odd while they are there.
/// Accesses that begin and end in the same odd count fail.
fn during_faults(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), ..racing(3, 128) };
    let race = Race::new(config, |space| _ = space.mmap(AT, LEN, 3, FIXED).unwrap());
    let (sim, space) = (&race.sim, &*race.space);
    let count = AtomicU64::new(0);
    let look = || {
        sim.step(machine::SharedAccess::Other);
        // SeqCst: the driver runs one CPU at a time.
        count.load(SeqCst)
    };
    let installs = race.active(|| {
        for _ in 0..4 {
            space.madvise(AT, LEN, Advice::GuardInstall).unwrap();
            count.fetch_add(1, SeqCst);
            assert_eq!(space.resident(AT..AT + LEN), 0);
            // These leave guards alone.
            space.madvise(AT, LEN, Advice::DontNeed).unwrap();
            space.mprotect(AT, LEN, 1, None).unwrap();
            space.mprotect(AT, LEN, 3, None).unwrap();
            sim.step(machine::SharedAccess::Other);
            count.fetch_add(1, SeqCst);
            space.madvise(AT, LEN, Advice::GuardRemove).unwrap();
            Grace::reclaim(usize::MAX);
        }
    });
    let touches = |own: usize| {
        let look = &look;
        race.active(move || {
            for round in 0..12 {
                let (before, at) = (look(), AT + (round + own) % 2 * PAGE);
                let outcome = match round % 3 {
                    0 => load(sim, space, at).map(drop),
                    _ => store(sim, space, at, 1),
                };
                let there = before % 2 == 1 && look() == before;
                match outcome {
                    Ok(()) => assert!(!there, "a guard page was accessed"),
                    Err(FaultError::Guard(_)) => {}
                    // Between two calls of mprotect.
                    Err(FaultError::Denied(_, Access::Write)) => {}
                    Err(error) => panic!("{error}"),
                }
                if own == 1 && round % 4 == 0 {
                    drop(space.fork(Asid(2)).unwrap());
                }
                Grace::reclaim(usize::MAX);
            }
        })
    };
    seeded(sim, seed, vec![installs, touches(0), touches(1)])?;
    race.end(())
}

#[test]
fn guards_during_faults() {
    each_seed(SEEDS, during_faults);
}

#[test]
fn guards_fork_move_and_refuse_copies() {
    with_space(128, |sim, _, space| {
        space.mmap(AT, LEN, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        space.madvise(AT, PAGE, Advice::GuardInstall).unwrap();
        let guard = |at| Err(FaultError::Guard(VirtAddr::new(at as u64)));
        let child = space.fork(Asid(2)).unwrap();
        let at = space.mremap(RemapRequest::moving(AT, LEN, AT + 4 * PAGE)).unwrap();
        assert_eq!(load(sim, space, at), guard(at));
        assert_eq!(load(sim, space, at + PAGE), Ok(0));
        assert_eq!(space.read(at, &mut [0]).unwrap_err().error, guard(at).unwrap_err());
        assert_eq!(pagemap_entry(space, at), pagemap::GUARD | pagemap::SOFT_DIRTY);
        let populate = space.madvise(at, PAGE, Advice::PopulateWrite);
        assert_eq!(populate.unwrap_err().errno(), 14);
        activate(&child);
        assert_eq!(store(sim, &child, AT, 1), guard(AT).map(drop));
        child.madvise(AT, PAGE, Advice::GuardRemove).unwrap();
        assert_eq!(load(sim, &child, AT), Ok(0));
        activate(space);
        leave(&child);
    });
}

/// Without memory for the guards' frame or for tables, the call says so. A part may have changed.
#[test]
fn each_allocation_of_an_installation_fails() {
    each_allocation(3, |nth| {
        let mut any = false;
        with_space(128, |sim, _, space| {
            space.mmap(AT, LEN, 3, FIXED).unwrap();
            let install = || space.madvise(AT, LEN, Advice::GuardInstall);
            let (outcome, failed) = without_frames(sim, nth, true, install);
            let expected = if failed { Err(12) } else { Ok(()) };
            assert_eq!(outcome.map_err(|error| error.errno()), expected);
            install().unwrap();
            any = failed;
        });
        any
    });
}
