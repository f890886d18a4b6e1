//! Tests on the machine in software, with all its checks.

use super::*;
use crate::vmap::testing::{Kernel, START, kernel, nothing_left, touch, with_frames};
use machine::{FrameSource, Place, Translated};
use sim::{Config, Grace, Program, Sim, explore, seeded};
use std::sync::Mutex;
use std::vec;

/// Pages of the range: enough for some aligned blocks.
const ROOM: u64 = 5 * 1024;

fn whole() -> VirtRange {
    VirtRange::new(VirtAddr::new(START), ROOM * PAGE).unwrap()
}

/// Areas of which no more than so many pages may wait for a flush, for each bit of the number of
/// CPUs.
fn areas(kernel: &Kernel, lazy: u64) -> NodeAreas<Sim, Grace> {
    NodeAreas { lazy, ..NodeAreas::new(Arc::clone(kernel), whole()) }
}

#[test]
fn free_ranges_join_and_the_smallest_that_fits_is_taken() {
    let mut free = Free::new(whole());
    let all = free.total();
    let took = [4, 2, 8, 1].map(|pages| (free.take(pages * PAGE, PAGE).unwrap(), pages * PAGE));
    free.give(took[1].0, took[1].1);
    free.give(took[2].0 + PAGE, took[2].1 - PAGE);
    assert_eq!(free.take(2 * PAGE, PAGE), Some(took[1].0), "not from the end, which is larger");
    let aligned = free.take(16 * PAGE, 16 * PAGE).unwrap();
    assert_eq!(aligned % (16 * PAGE), 0);
    assert_eq!(free.take(ROOM * PAGE, PAGE), None);
    let back = [took[0], took[1], (took[2].0, PAGE), took[3], (aligned, 16 * PAGE)];
    back.into_iter().for_each(|(at, bytes)| free.give(at, bytes));
    assert_eq!(free.total(), all);
    assert_eq!(all, (ROOM * PAGE, ROOM * PAGE));
}

#[test]
fn an_address_comes_back_to_its_pool_after_one_flush_of_all() {
    let sim = Sim::new(Config { cpus: 2, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        // SAFETY: this test needs nothing else mapped.
        unsafe { kernel.activate() };
        let areas = areas(&kernel, 8);
        with_frames(&sim, 3, |frames| {
            let before = sim.stats().ipis_sent;
            // Each has 4 pages with the guard. On two CPUs 16 may wait, so the fifth flushes.
            let used: Vec<_> = (0..5)
                .map(|_| {
                    let at = areas.keep(frames).unwrap();
                    touch(&sim, at, 3, 7).unwrap();
                    areas.give_up(at).unwrap();
                    assert_eq!(areas.give_up(at), Err(Error::NoArea(at)));
                    at
                })
                .collect();
            assert_eq!(areas.waiting.load(Ordering::Relaxed), 0);
            let again = areas.keep(frames).unwrap();
            assert!(used.contains(&again), "{again} was not in the pool");
            assert_eq!(areas.list(), 1);
            areas.give_up(again).unwrap();
            // CPU 1 has never used the tables. Whether it gets an IPI is up to the machine.
            assert!(sim.stats().ipis_sent - before <= 1);
            areas.purge_all();
            assert_eq!((areas.list(), areas.info()), (0, (0, ROOM * PAGE)));
        });
    });
    nothing_left(&sim, kernel);
}

#[test]
fn short_maps_are_runs_of_a_block_which_goes_with_the_last() {
    let sim = Sim::new(Config { cpus: 1, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        // SAFETY: this test needs nothing else mapped.
        unsafe { kernel.activate() };
        let areas = areas(&kernel, 1 << 20);
        with_frames(&sim, 64, |frames| {
            let first = areas.vm_map_ram(&frames[..3]).unwrap();
            let next = areas.vm_map_ram(&frames[..4]).unwrap();
            assert_eq!(next.get(), first.get() + 4 * PAGE, "a run is a power of two of pages");
            areas.vm_unmap_ram(first, 3).unwrap();
            for _ in 0..2 * 1024 / 64 {
                let at = areas.vm_map_ram(frames).unwrap();
                touch(&sim, at, 64, at.get()).unwrap();
                areas.vm_unmap_ram(at, 64).unwrap();
            }
            assert!(areas.waiting.load(Ordering::Relaxed) >= 1024, "a block has gone");
            areas.vm_unmap_ram(next, 4).unwrap();
            areas.purge_all();
            assert_eq!((areas.list(), areas.info()), (0, (0, ROOM * PAGE)));
        });
    });
    nothing_left(&sim, kernel);
}

#[test]
fn all_or_nothing_when_memory_gives_out() {
    let sim = Sim::new(Config { cpus: 1, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        let areas = areas(&kernel, 8);
        for nth in 1.. {
            sim.fail_alloc(nth, true);
            let made = areas.alloc(60);
            let failed = sim.alloc_failed();
            assert_eq!(made.is_err(), failed, "{nth}");
            if let Ok(at) = made {
                areas.free(at).unwrap();
            }
            areas.purge_all();
            assert_eq!(areas.info(), (0, ROOM * PAGE), "{nth}");
            if !failed {
                assert!(nth > 60);
                break;
            }
        }
        assert!(matches!(areas.alloc(ROOM as usize), Err(Error::Full { .. } | Error::Tables(_))));
    });
    nothing_left(&sim, kernel);
}

/// Each CPU maps, uses and unmaps areas, and takes over an area that another has allocated.
/// Addresses that come back were flushed everywhere.
#[test]
fn nothing_is_stale_in_any_order() {
    let run = |seed| {
        let config = Config { cpus: 3, frames: 512, speculation: 100, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let kernel = sim.on_cpu(0, || kernel(&sim));
        // Two areas cause a flush, so addresses come back soon.
        let areas = areas(&kernel, 2);
        let left = Mutex::new(None);
        let frames: Vec<_> =
            sim.on_cpu(0, || (0..2).map(|_| sim.alloc(0, Place::Local).unwrap()).collect());
        let program = |cpu: u64| {
            let (areas, sim, left, frames, kernel) = (&areas, &sim, &left, &frames, &kernel);
            move || {
                // SAFETY: this test needs nothing else mapped.
                unsafe { kernel.activate() };
                for turn in 0..3 {
                    let at = areas.alloc(2).unwrap();
                    touch(sim, at, 2, cpu << 8 | turn).unwrap();
                    let other = left.lock().unwrap().replace(at);
                    other.into_iter().for_each(|at| areas.free(at).unwrap());
                    let at = areas.vm_map_ram(frames).unwrap();
                    // The frames are shared, so only the write is tested. SAFETY: ordinary memory
                    // of the machine.
                    unsafe { sim.store(at, turn) }.unwrap();
                    areas.vm_unmap_ram(at, 2).unwrap();
                }
            }
        };
        let programs: Vec<_> = (0..3).map(|cpu| Box::new(program(cpu)) as Program<'_>).collect();
        let ran = seeded(&sim, seed, programs);
        // The tables of a machine that has halted are never dropped.
        ran.inspect_err(|_| core::mem::forget(Arc::clone(&kernel)))?;
        let last = left.into_inner().unwrap().unwrap();
        sim.on_cpu(0, || {
            areas.free(last).unwrap();
            areas.purge_all();
            sim.check_flushed(kernel.root(), None, whole());
            // SAFETY: nothing leads to them any more.
            frames.iter().for_each(|frame| unsafe { sim.free(*frame) }.unwrap());
            assert_eq!(areas.info(), (0, ROOM * PAGE));
        });
        drop(areas);
        nothing_left(&sim, kernel);
        Ok(())
    };
    explore(100, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// A mutant without the flush: the machine's checks must notice it.
#[test]
fn a_purge_without_its_flush_is_caught() {
    let sim = Sim::new(Config { cpus: 1, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sim.on_cpu(0, || {
            // SAFETY: this test needs nothing else mapped.
            unsafe { kernel.activate() };
            let areas = areas(&kernel, 1 << 20);
            let frames = vec![sim.alloc(0, Place::Local).unwrap()];
            let at = areas.keep(&frames).unwrap();
            touch(&sim, at, 1, 7).unwrap();
            areas.give_up(at).unwrap();
            // As `purge_nodes`, but without the flush.
            let gone = lock(&sim, &areas.node_of(at.get()).lazy.0).pop().unwrap();
            lock(&sim, &areas.nodes[gone.home].pools.0)[gone.pages].push(gone.start);
            let _ = areas.keep(&frames);
        });
    }));
    core::mem::forget(kernel);
    assert!(caught.is_err(), "the machine did not notice that a stale address was reused");
}
