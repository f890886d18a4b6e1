//! Guard pages beside faults, forks and lack of memory. The oracle compares their rules with Linux.

use std::{
    mem::ManuallyDrop,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::common::*;
use machine::{Asid, Step, VirtAddr};
use mm::*;
use sim::{Config, Failure, Grace, Program, Sim, explore, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 600 };
/// The last page of a table, and the first of the next one.
const AT: usize = 0x3fff_f000;
const LEN: usize = 2 * PAGE;

/// One CPU installs and removes guards, and says so by a count that is odd while they are there.
/// Accesses that begin and end in the same odd count fail.
fn beside_faults(seed: u64) -> Result<(), Failure> {
    let config =
        Config { cpus: 3, frames: 128, tick: Some(23), checks: RACING, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let shared = paging(&sim);
    let space = sim.on_cpu(0, || ManuallyDrop::new(new_space(&shared, 1).unwrap()));
    sim.on_cpu(0, || space.mmap(AT, LEN, 3, FIXED).unwrap());
    let count = AtomicU64::new(0);
    // SAFETY: no other mapping is needed, and no other tables have the tag.
    let activate = || unsafe { space.activate() };
    let look = || {
        sim.step(machine::SharedAccess::Other);
        // SeqCst: the driver runs one CPU at a time.
        count.load(SeqCst)
    };
    let installs = || {
        activate();
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
    };
    let touches = |own: usize| {
        let (space, sim, look, activate) = (&space, &sim, &look, &activate);
        Box::new(move || {
            activate();
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
        }) as Program
    };
    seeded(&sim, seed, vec![Box::new(installs), touches(0), touches(1)])?;
    sim.on_cpu(0, || {
        assert!(sim.settle());
        drop(ManuallyDrop::into_inner(space));
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
fn guards_beside_faults() {
    explore(SEEDS, beside_faults).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn guards_fork_move_and_refuse_copies() {
    let sim = Sim::new(Config { cpus: 1, frames: 128, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    let spaces = sim.on_cpu(0, || {
        let space = new_space(&shared, 1).unwrap();
        // SAFETY: the test needs no other mapping, and no other tables have the tag.
        unsafe { space.activate() };
        space.mmap(AT, LEN, 3, FIXED).unwrap();
        store(&sim, &space, AT, 1).unwrap();
        space.madvise(AT, PAGE, Advice::GuardInstall).unwrap();
        let guard = |at| Err(FaultError::Guard(VirtAddr::new(at as u64)));
        let child = space.fork(Asid(2)).unwrap();
        let request = RemapRequest::moving(AT, LEN, AT + 4 * PAGE);
        let at = space.mremap(request).unwrap();
        assert_eq!(load(&sim, &space, at), guard(at));
        assert_eq!(load(&sim, &space, at + PAGE), Ok(0));
        assert_eq!(space.read(at, &mut [0]).unwrap_err().error, guard(at).unwrap_err());
        let mut entries = [0; 2];
        space.pagemap(at, &mut entries);
        assert_eq!(entries[0], pagemap::GUARD | pagemap::SOFT_DIRTY);
        let populate = space.madvise(at, PAGE, Advice::PopulateWrite);
        assert_eq!(populate.unwrap_err().errno(), 14);
        // SAFETY: as above.
        unsafe { child.activate() };
        assert_eq!(store(&sim, &child, AT, 1), guard(AT).map(drop));
        child.madvise(AT, PAGE, Advice::GuardRemove).unwrap();
        assert_eq!(load(&sim, &child, AT), Ok(0));
        (space, child)
    });
    sim.on_cpu(0, || drop(spaces));
    all_given_back(&sim, &shared).unwrap();
}

/// Without memory for the guards' frame or for tables, the call says so. A part may have changed.
#[test]
fn each_allocation_of_an_installation_fails() {
    for nth in 1..20 {
        let sim = Sim::new(Config { cpus: 1, frames: 128, ..Config::default() }).unwrap();
        let shared = paging(&sim);
        let (failed, space) = sim.on_cpu(0, || {
            let space = new_space(&shared, 1).unwrap();
            space.mmap(AT, LEN, 3, FIXED).unwrap();
            sim.fail_alloc(nth, true);
            let outcome = space.madvise(AT, LEN, Advice::GuardInstall);
            let failed = sim.alloc_failed();
            sim.fail_alloc(0, false);
            assert_eq!(
                outcome.map_err(|error| error.errno()),
                if failed { Err(12) } else { Ok(()) }
            );
            space.madvise(AT, LEN, Advice::GuardInstall).unwrap();
            (failed, space)
        });
        sim.on_cpu(0, || drop(space));
        all_given_back(&sim, &shared).unwrap();
        if !failed {
            assert!(nth > 3, "only {nth} allocations");
            return;
        }
    }
    unreachable!("the call makes few allocations");
}
