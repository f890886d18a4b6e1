//! A CPU that is idle takes part in the grace periods again before a mapping call gives it
//! addresses (I4), regardless of how the run comes back meanwhile.

use crate::common::{World, virt};
use machine::Step;
use paging::Attrs;
use sim::{Config, Want};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use vmap::Options;

/// CPU 0 maps a run and enters idle, and its hardware caches the run's translations. CPU 1 unmaps
/// the run and ends the grace period without CPU 0. Then CPU 0 maps again until it gets the same
/// addresses.
fn maps_again(meanwhile: fn(&World), idle: bool) {
    let config = Config { cpus: 2, frames: 4096, ..Config::default() };
    let world = World::new(config, 16, Options::default());
    let frames = world.sim.on_cpu(0, || world.frames(8));
    let (turn, at) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait = |reached| {
        while turn.load(SeqCst) < reached {
            world.sim.relax();
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            world.sim.on_cpu(0, || {
                world.start();
                let vmap = world.vmap();
                let first = vmap.vm_map_ram(&frames[..4], Attrs::KERNEL_RW).unwrap();
                world.store(first, 1);
                // Keeps the block in use.
                let stays = vmap.vm_map_ram(&frames[..1], Attrs::KERNEL_RW).unwrap();
                if idle {
                    vmap.idle();
                }
                // SAFETY: this CPU uses no area until a mapping call makes it leave idle.
                unsafe { world.tlb_grace.idle_enter() };
                // Hardware may walk the tables at any moment.
                let _ = world.sim.translate(first, Want::default());
                at.store(first.get(), SeqCst);
                turn.store(1, SeqCst);
                wait(2);
                meanwhile(&world);
                turn.store(3, SeqCst);
                wait(4);
                let mut made = Vec::new();
                for _ in 0..600 {
                    let again = vmap.vm_map_ram(&frames[4..], Attrs::KERNEL_RW).unwrap();
                    assert!(!world.tlb_grace.is_idle(), "it was given addresses while it is idle");
                    made.push(again);
                    if again == first {
                        break;
                    }
                }
                for again in made {
                    // SAFETY: only this test has used it.
                    unsafe { vmap.vm_unmap_ram(again, 4) }.unwrap();
                }
                // SAFETY: as above.
                unsafe { vmap.vm_unmap_ram(stays, 1) }.unwrap();
                turn.store(5, SeqCst);
            });
        });
        scope.spawn(|| {
            world.sim.on_cpu(1, || {
                world.start();
                wait(1);
                // SAFETY: CPU 0 does not use it any more.
                unsafe { world.vmap().vm_unmap_ram(virt(at.load(SeqCst)), 4) }.unwrap();
                turn.store(2, SeqCst);
                wait(3);
                let target = world.tlb_grace.target();
                for _ in 0..6 {
                    world.tlb_grace.advance(target);
                    world.tlb_grace.flush();
                }
                assert!(world.tlb_grace.is_over(target), "CPU 0 is idle");
                turn.store(4, SeqCst);
                wait(5);
            });
        });
    });
    // Everything is unmapped, and waiting addresses have been flushed.
    world.on(0, || {
        world.vmap().vm_unmap_aliases();
        world.release(&frames);
    });
    world.end().unwrap();
}

#[test]
fn a_poll_while_idle_hands_out_nothing_stale() {
    maps_again(|world| world.vmap().poll(), false);
}

#[test]
fn a_block_adopted_while_idle_hands_out_nothing_stale() {
    maps_again(|world| world.vmap().purge(), true);
}
