//! Tests on the machine in software, with all its checks.

use super::*;
use crate::vmap::testing::{Kernel, START, kernel, nothing_left, touch, with_frames};
use sim::{Config, Grace, Program, Sim, explore, seeded};
use std::sync::Mutex;

fn areas(kernel: &Kernel, pages: u64) -> OldAreas<Sim, Grace> {
    let range = VirtRange::new(VirtAddr::new(START), pages << 12).unwrap();
    OldAreas::new(Arc::clone(kernel), range)
}

/// Page `page` of the range.
fn page(page: u64) -> VirtAddr {
    VirtAddr::new(START + (page << 12))
}

#[test]
fn the_first_hole_with_a_guard_behind_it() {
    let sim = Sim::new(Config::default()).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        // SAFETY: this test needs nothing else mapped.
        unsafe { kernel.activate() };
        let areas = areas(&kernel, 16);
        with_frames(&sim, 4, |frames| {
            let map = |pages: usize| areas.keep(&frames[..pages]);
            assert_eq!([map(4), map(2), map(4)], [Ok(page(0)), Ok(page(5)), Ok(page(8))]);
            assert_eq!(areas.info(), (13 << 12, 3 << 12));
            touch(&sim, page(0), 4, 7).unwrap();
            assert_eq!(touch(&sim, page(4), 1, 7).unwrap_err().address, page(4), "a guard");
            areas.give_up(page(5)).unwrap();
            assert_eq!(areas.give_up(page(5)), Err(Error::NoArea(page(5))));
            assert_eq!(areas.give_up(page(1)), Err(Error::NoArea(page(1))));
            // Three pages, with the guard, fit neither into the hole of two nor at the end.
            assert_eq!(map(3), Err(Error::Full { pages: 3 }));
            assert_eq!([map(2), map(1)], [Ok(page(5)), Ok(page(13))]);
            let list = lock(&sim, &areas.list);
            let all: Vec<_> =
                list.iter().map(|area| (VirtAddr::new(area.start), area.pages)).collect();
            drop(list);
            assert_eq!(all, [(page(0), 4), (page(5), 2), (page(8), 4), (page(13), 1)]);
            all.into_iter().for_each(|(at, _)| areas.give_up(at).unwrap());
            assert_eq!(areas.info(), (0, 16 << 12));
        });
    });
    nothing_left(&sim, kernel);
}

#[test]
fn all_or_nothing_when_memory_gives_out() {
    let sim = Sim::new(Config { cpus: 1, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        let areas = areas(&kernel, 1024);
        for nth in 1.. {
            sim.fail_alloc(nth, true);
            let made = areas.alloc(600);
            let failed = sim.alloc_failed();
            assert_eq!(made.is_err(), failed, "{nth}");
            if let Ok(at) = made {
                areas.free(at).unwrap();
            }
            assert_eq!(areas.info(), (0, 1024 << 12), "{nth}");
            if !failed {
                assert!(nth > 600);
                break;
            }
        }
    });
    nothing_left(&sim, kernel);
}

/// Each CPU maps, uses and unmaps areas, and takes over an area that another has allocated.
#[test]
fn nothing_is_stale_in_any_order() {
    let run = |seed| {
        let config = Config { cpus: 3, frames: 256, speculation: 100, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let kernel = sim.on_cpu(0, || kernel(&sim));
        // Room for four areas of two pages, so addresses come back at once.
        let areas = areas(&kernel, 12);
        let left = Mutex::new(None);
        let program = || {
            // SAFETY: this test needs nothing else mapped.
            unsafe { kernel.activate() };
            for _ in 0..3 {
                let at = areas.alloc(2).unwrap();
                touch(&sim, at, 2, 7).unwrap();
                let other = left.lock().unwrap().replace(at);
                other.into_iter().for_each(|at| {
                    touch(&sim, at, 2, 7).unwrap();
                    areas.free(at).unwrap();
                });
            }
        };
        let ran = seeded(&sim, seed, (0..3).map(|_| Box::new(program) as Program<'_>).collect());
        // The tables of a machine that has halted are never dropped.
        ran.inspect_err(|_| core::mem::forget(Arc::clone(&kernel)))?;
        let last = left.into_inner().unwrap().unwrap();
        sim.on_cpu(0, || {
            areas.free(last).unwrap();
            sim.check_flushed(kernel.root(), None, range_of(page(0), 12).unwrap());
        });
        drop(areas);
        nothing_left(&sim, kernel);
        Ok(())
    };
    explore(100, run).unwrap_or_else(|failure| panic!("{failure}"));
}
