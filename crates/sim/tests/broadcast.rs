//! Flushes that hardware broadcasts: no interrupt, and the same promise.

mod common;

use common::*;
use machine::*;
use sim::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const AT: u64 = 0x40_0000;

fn config(cpus: usize) -> Config {
    let checks = Checks { stale: Stale::Freed, freed_cached: true, ..Checks::ALL };
    Config { cpus, frames: 256, broadcast: true, checks, ..Config::default() }
}

/// A CPU maps a page and takes its table away again and again; the others use the page all the
/// time. A walk that a flush did not wait for would be in a table that is given up.
fn beside_walks(seed: u64) -> Result<SimStats, Failure> {
    let sim = Sim::new(config(3)).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    let done = AtomicBool::new(false);
    let (sim_, space_, done_) = (&sim, &space, &done);
    let changer = Box::new(move || {
        space_.activate(1);
        for _ in 0..6 {
            let frame = page(sim_);
            space_.map(AT, frame);
            space_.touch(AT);
            assert_eq!(space_.unmap(AT), frame);
            let table = space_.unlink(AT, 0);
            space_.flush(AT, 4096, true);
            free(sim_, frame);
            free(sim_, table);
        }
        done_.store(true, Relaxed);
    }) as Program;
    let user = || {
        Box::new(move || {
            space_.activate(1);
            while !done_.load(Relaxed) {
                space_.touch(AT);
            }
        }) as Program
    };
    seeded(&sim, seed, vec![changer, user(), user()])?;
    Ok(sim.stats())
}

#[test]
fn a_flush_waits_for_walks() {
    let run = |seed| {
        let stats = beside_walks(seed)?;
        assert_eq!((stats.ipis_sent, stats.ipis_taken), (0, 0));
        Ok(())
    };
    explore(300, run).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(beside_walks(0).unwrap().broadcasts >= 6);
}

/// A CPU frees a page again and again to which another CPU stores all the time.
fn beside_stores(sim: &Sim, rounds: u64) -> [Program<'_>; 2] {
    let space = sim.on_cpu(0, || Space::new(sim));
    let done = Arc::new(AtomicBool::new(false));
    let (space_, done_) = (space.clone(), Arc::clone(&done));
    let changer = move || {
        space_.activate(1);
        for round in 0..rounds {
            let frame = page(sim);
            space_.map(AT, frame);
            if round % 8 == 0 {
                std::thread::yield_now();
            }
            assert_eq!(space_.unmap(AT), frame);
            space_.flush(AT, 4096, false);
            // SAFETY: the frame is ours alone after the flush.
            let word = unsafe { sim.frame_ptr(frame).unwrap().cast::<u64>().as_mut() };
            *word = round;
            sim.relax();
            assert_eq!(*word, round, "a store came after the flush");
            free(sim, frame);
        }
        done_.store(true, Relaxed);
    };
    let user = move || {
        space.activate(1);
        while !done.load(Relaxed) {
            let _ = space.store(AT, u64::MAX);
        }
    };
    [Box::new(changer), Box::new(user)]
}

/// An access that was translated before the flush is made before the flush ends.
#[test]
fn a_flush_waits_for_accesses() {
    let run = |seed| {
        let sim = Sim::new(config(2)).unwrap();
        seeded(&sim, seed, beside_stores(&sim, 6).into()).map(drop)
    };
    explore(300, run).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_flush_waits_for_accesses_of_threads() {
    let sim = Sim::new(Config { events: 0, ..config(2) }).unwrap();
    threads(&sim, beside_stores(&sim, 2000).into()).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(sim.stats().ipis_sent, 0);
    assert!(!sim.on_cpu(0, || sim.interrupts()));
}
