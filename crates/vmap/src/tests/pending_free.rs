//! Areas that are freed in interrupts, which hit CPUs that map and free, with or without the zone's
//! lock held.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{Error, Options};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use machine::Step;
use paging::Attrs;
use sim::Failure;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// CPU 0 maps and frees. CPU 1 maps areas and sends interrupts to all CPUs, which free them. CPU 2
/// polls.
fn pending_free(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 3);
    let world = World::ticking(config, 32, Options::default(), ticking);
    let done = Arc::new(AtomicBool::new(false));
    let ended = done.clone();
    let allocator = move |world: &Arc<World>| {
        let frame = world.frame();
        while !ended.load(SeqCst) {
            let vmap = world.vmap();
            let at = vmap.vmalloc(2 * PAGE).unwrap();
            world.store(at, 1);
            let run = vmap.vm_map_ram(&[frame; 4], Attrs::KERNEL_RW).unwrap();
            world.store(run, 2);
            // SAFETY: no code uses it any more.
            unsafe { vmap.vfree(at) }.unwrap();
            vmap.end_ram(run, 4).unwrap();
        }
        world.release(&[frame]);
    };
    let ended = done.clone();
    let sender = move |world: &Arc<World>| {
        let taken = Arc::new(AtomicUsize::new(0));
        for round in 0..5 {
            let at: Vec<_> =
                (1..4).map(|pages| world.vmap().vmalloc(pages * PAGE).unwrap()).collect();
            at.iter().for_each(|at| world.store(*at, round));
            let twice = at[0];
            for at in at.into_iter().chain([twice]) {
                let (interrupted, taken) = (world.clone(), taken.clone());
                let free = move || {
                    // SAFETY: no code uses it any more, on either CPU.
                    let freed = unsafe { interrupted.vmap().vfree_atomic(at) };
                    let known =
                        at == twice && matches!(freed, Err(Error::Twice(_) | Error::NotMapped(_)));
                    assert!(freed == Ok(()) || known, "{freed:?}");
                    taken.fetch_add(1, SeqCst);
                };
                world.sim.interrupt((round % 3) as usize, free);
                (0..8).for_each(|_| world.sim.relax());
            }
            // After this round, other areas may have these addresses.
            while taken.load(SeqCst) < 4 * (round as usize + 1) {
                world.sim.relax();
            }
        }
        ended.store(true, SeqCst);
    };
    let ended = done.clone();
    let looker = move |world: &Arc<World>| {
        while !ended.load(SeqCst) {
            world.vmap().poll();
            world.sim.relax();
        }
    };
    let programs =
        |world: &Arc<World>| vec![on(world, allocator), on(world, sender), on(world, looker)];
    race(seed, world, programs, |_| ())
}

#[test]
fn freed_in_interrupts() {
    right(pending_free);
}
