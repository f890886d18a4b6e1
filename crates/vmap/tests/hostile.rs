//! Unusual uses of safe calls: from within closures, with panics, with numbers that no call
//! returned, and in interrupts. The calls keep working, and the machine's checkers report nothing.

mod common;

use common::*;
use machine::*;
use paging::Attrs;
use sim::Config;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vmap::{AreaState, Options, Request};

fn world(cpus: usize) -> World {
    let options = Options { bytes_per_interrupt: 100 * PAGE, ..Options::default() };
    World::new(Config { cpus, frames: 4096, ..Config::default() }, 16, options)
}

/// Maps and unmaps by all calls, and lets addresses come back.
fn works(world: &World) {
    let (vmap, frames) = (world.vmap(), world.frames(70));
    for round in 0..40 {
        let small = vmap.vm_map_ram(&frames[..4], Attrs::KERNEL_RW).unwrap();
        let large = vmap.vm_map_ram(&frames, Attrs::KERNEL_RW).unwrap();
        let memory = vmap.vzalloc(9 * PAGE).unwrap();
        world.store(small, round);
        assert_eq!((world.load(large), world.load(memory)), (round, 0));
        vmap.end_ram(small, 4).unwrap();
        vmap.end_ram(large, 70).unwrap();
        free(world, memory);
    }
    vmap.purge();
    world.release(&frames);
}

#[test]
fn a_listing_that_calls_back_and_panics() {
    world(2).test(|world, vmap| {
        let areas: Vec<_> = (0..100).map(|_| vmap.vmalloc(PAGE).unwrap()).collect();
        let mut listed = 0;
        vmap.vmallocinfo(|info| {
            listed += 1;
            if info.state == AreaState::Live {
                assert_eq!(vmap.find_vm_area(info.range.start()).as_ref(), Some(info));
            }
            if listed % 20 == 0 {
                works(world);
                vmap.vmallocinfo(|_| vmap.poll());
                vmap.idle();
                vmap.vm_unmap_aliases();
                world.tlb_grace.tick();
            }
        });
        assert!(listed >= 100);
        for panics in [1, 63, 64, 65, 100] {
            let mut listed = 0;
            let listing = catch_unwind(AssertUnwindSafe(|| {
                vmap.vmallocinfo(|_| {
                    listed += 1;
                    assert_ne!(listed, panics, "on purpose");
                });
            }));
            assert!(listing.is_err());
            works(world);
        }
        areas.into_iter().for_each(|at| free(world, at));
    });
}

/// Periods with numbers that no call returned begin like others, and do not end early.
#[test]
fn periods_out_of_the_air() {
    let world = world(3);
    (0..2).for_each(|cpu| world.sim.on_cpu(cpu, || world.start()));
    world.sim.on_cpu(0, || {
        world.start();
        let tlb_grace = &world.tlb_grace;
        for period in [u64::MAX, u64::MAX - 1, 1 << 63, 1000, 0] {
            let over = period == 0;
            assert_eq!(tlb_grace.is_over(period), over);
            for _ in 0..3 {
                assert_eq!(tlb_grace.advance(period), over);
                tlb_grace.expedite(period);
                assert_eq!(tlb_grace.is_over(period), over);
            }
            // The unmapped address waits for the other CPU, which has it cached, regardless of the
            // requested periods.
            let at = world.vmap().vmalloc(PAGE).unwrap();
            world.store(at, 7);
            let other = tlb_grace.clone();
            world.sim.interrupt(1, move || other.flush());
            free(&world, at);
            let target = tlb_grace.target();
            assert!(!tlb_grace.is_over(target));
            assert!(tlb_grace.behind(target).contains(CpuId::new(1).unwrap()));
            assert!(!tlb_grace.behind(u64::MAX).contains(CpuId::new(2).unwrap()), "it is idle");
        }
        assert!(!tlb_grace.is_over(1000), "{:?} ran ahead", tlb_grace);
    });
    world.sim.on_cpu(1, || world.sim.step(SharedAccess::Other));
    world.on(0, || works(&world));
    world.sim.on_cpu(1, || world.stop());
    world.end().unwrap();
}

/// All calls that interrupt handlers may make, in interrupts between any two steps of other calls.
#[test]
fn safe_calls_in_interrupts() {
    let world = Arc::new(world(2));
    world.sim.on_cpu(1, || world.start());
    world.on(0, || {
        let keep = world.vmap().create(&Request::memory(3 * PAGE)).unwrap();
        for _ in 0..200 {
            let there = world.clone();
            let looks = move || {
                let (tlb_grace, vmap) = (&there.tlb_grace, there.vmap());
                tlb_grace.idle_exit();
                tlb_grace.tick();
                tlb_grace.flush();
                tlb_grace.advance(tlb_grace.target());
                assert!(!tlb_grace.is_idle() && tlb_grace.stats().quiescent_states > 0);
                assert_eq!(vmap.find_vm_area(keep).unwrap().pages, 3);
                assert!(vmap.get_vmalloc_info().areas > 0 && vmap.vmalloc_to_page(keep).is_some());
                vmap.vmallocinfo(|info| assert!(vmap.space().covers(&info.range)));
            };
            world.sim.interrupt(0, looks);
            works_a_little(&world);
        }
        free(&world, keep);
    });
    world.sim.on_cpu(1, || world.stop());
    let Ok(world) = Arc::try_unwrap(world) else { panic!("an interrupt was not taken") };
    world.end().unwrap();
}

fn works_a_little(world: &World) {
    let at = world.vmap().vmalloc(2 * PAGE).unwrap();
    world.store(at, 1);
    free(world, at);
    world.sim.step(SharedAccess::Other);
}
