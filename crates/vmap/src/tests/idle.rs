//! A CPU that enters and leaves idle, and whose hardware fills its TLB in between.

use super::{PAGE, World, on, race, right};
use crate::Options;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{Step, VirtAddr};
use sim::{Checks, Config, Failure, Sim, Want};
use std::sync::Arc;
use std::vec;

/// Waits for a turn that the other CPU sets.
fn wait(sim: &Sim, turn: &AtomicU64, wanted: u64) {
    while turn.load(SeqCst) < wanted {
        sim.relax();
    }
}

/// CPU 0 maps a page. While CPU 1 is idle, its hardware caches the translation. CPU 0 unmaps the
/// page and gets the same address again, without a wait for CPU 1. CPU 1 leaves idle and uses the
/// address.
fn idle(seed: u64) -> Result<(), Failure> {
    // A stale translation of an idle CPU is harmless until it leaves idle.
    let checks = Checks { check_reuse: false, ..Checks::ALL };
    let tick = Some(40).filter(|_| seed & 1 != 0);
    let config = Config { cpus: 3, frames: 512, tick, checks, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), u64::MAX);
    let (turn, at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    const ROUNDS: u64 = 4;
    let (turns, address) = (turn.clone(), at.clone());
    let mapper = move |world: &Arc<World>| {
        let vmap = world.vmap();
        for round in 0..ROUNDS {
            wait(&world.sim, &turns, 5 * round + 1);
            let first = vmap.vmalloc(PAGE).unwrap();
            world.store(first, 1);
            address.store(first.get(), SeqCst);
            turns.store(5 * round + 2, SeqCst);
            if seed & 2 != 0 {
                wait(&world.sim, &turns, 5 * round + 3);
            }
            // SAFETY: the other CPU has not accessed the memory.
            unsafe { vmap.vfree(first) }.unwrap();
            // By a broadcast, or by CPU 0's own flush.
            match seed & 4 {
                0 => vmap.purge(),
                _ => {
                    let target = world.tlb_grace.target();
                    while !world.tlb_grace.advance(target) {
                        world.tlb_grace.flush();
                    }
                    vmap.poll();
                }
            }
            let second = vmap.vmalloc(PAGE).unwrap();
            world.store(second, 2);
            address.store(second.get(), SeqCst);
            wait(&world.sim, &turns, 5 * round + 3);
            turns.store(5 * round + 4, SeqCst);
            wait(&world.sim, &turns, 5 * round + 5);
            // SAFETY: the other CPU does not use it any more.
            unsafe { vmap.vfree(second) }.unwrap();
        }
    };
    let idler = move |world: &Arc<World>| {
        for round in 0..ROUNDS {
            world.vmap().idle();
            // SAFETY: this CPU does not access memory of an area until it leaves idle.
            unsafe { world.tlb_grace.idle_enter() };
            turn.store(5 * round + 1, SeqCst);
            wait(&world.sim, &turn, 5 * round + 2);
            // A speculative TLB fill.
            let _ = world.sim.translate(VirtAddr::new(at.load(SeqCst)), Want::default());
            turn.store(5 * round + 3, SeqCst);
            if seed & 8 != 0 {
                wait(&world.sim, &turn, 5 * round + 4);
            }
            world.tlb_grace.idle_exit();
            while turn.load(SeqCst) < 5 * round + 4 {
                // Stands for its timer interrupt.
                world.tlb_grace.tick();
                world.sim.relax();
            }
            assert_eq!(world.load(VirtAddr::new(at.load(SeqCst))), 2);
            turn.store(5 * round + 5, SeqCst);
        }
    };
    let programs = |world: &Arc<World>| vec![on(world, mapper), on(world, idler)];
    race(seed, world, programs, |_| ())
}

#[test]
fn leaving_idle_flushes_old_translations() {
    right(idle);
}
