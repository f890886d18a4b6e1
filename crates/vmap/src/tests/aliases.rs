//! `vm_unmap_aliases`: when it returns, no CPU holds a translation of a range that was unmapped
//! before, even if other CPUs tick, wait or broadcast at the same time.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::Options;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{SharedAccess, Step, VirtAddr, VirtRange};
use paging::Attrs;
use sim::{Config, Failure, Want};
use std::sync::Arc;
use std::vec;

const ROUNDS: u64 = 5;

/// CPU 0 maps and unmaps; CPUs 1 and 2 use the mapping in between, and broadcast at random.
fn aliases(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 4);
    let world = World::ticking(config, 32, Options::default(), ticking);
    // The address while it may be used, and the number of its users.
    let at = Arc::new(AtomicU64::new(0));
    let users = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicU64::new(0));
    let (address, using, ended) = (at.clone(), users.clone(), done.clone());
    let owner = move |world: &Arc<World>| {
        let frame = world.frame();
        let vmap = world.vmap();
        for round in 0..ROUNDS {
            let small = round & 1 == 0;
            let mapped = match small {
                true => vmap.vm_map_ram(&[frame; 4], Attrs::KERNEL_RW),
                false => vmap.vmap(&[frame; 4], Attrs::KERNEL_RW),
            };
            let mapped = mapped.unwrap();
            address.store(mapped.get(), SeqCst);
            (0..60).for_each(|_| world.sim.step(SharedAccess::Other));
            address.store(0, SeqCst);
            while using.load(SeqCst) != 0 {
                world.sim.relax();
            }
            match small {
                true => vmap.end_ram(mapped, 4),
                false => vmap.end_vmap(mapped),
            }
            .unwrap();
            vmap.vm_unmap_aliases();
            let range = VirtRange::new(mapped, 4 * PAGE).unwrap();
            world.sim.check_flushed(vmap.tables().root(), None, range);
        }
        ended.store(1, SeqCst);
        world.release(&[frame]);
    };
    let user = |world: &Arc<World>| {
        let (at, users, done) = (at.clone(), users.clone(), done.clone());
        on(world, move |world| {
            while done.load(SeqCst) == 0 {
                users.fetch_add(1, SeqCst);
                let mapped = at.load(SeqCst);
                if mapped != 0 {
                    let _ = world.load(VirtAddr::new(mapped + PAGE));
                }
                users.fetch_sub(1, SeqCst);
                if seed & 1 != 0 {
                    world.vmap().vm_unmap_aliases();
                }
                world.sim.relax();
            }
        })
    };
    let programs = |world: &Arc<World>| vec![on(world, owner), user(world), user(world)];
    race(seed, world, programs, |_| ())
}

/// A translation that an idle CPU has cached speculatively is an alias, too: lines of the page may
/// enter the CPU's caches through it. So the broadcast includes idle CPUs, although addresses may
/// be reused without it.
#[test]
fn no_alias_is_left_on_an_idle_cpu() {
    let config = Config { cpus: 3, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    for small in [true, false] {
        let (frame, at) = world.sim.on_cpu(0, || {
            world.start();
            let frame = world.frame();
            let mapped = match small {
                true => world.vmap().vm_map_ram(&[frame], Attrs::KERNEL_RW),
                false => world.vmap().vmap(&[frame], Attrs::KERNEL_RW),
            };
            (frame, mapped.unwrap())
        });
        world.sim.on_cpu(1, || {
            world.start();
            world.stop();
            let _ = world.sim.translate(at, Want::default());
        });
        world.sim.on_cpu(0, || {
            world.start();
            let vmap = world.vmap();
            match small {
                true => vmap.end_ram(at, 1),
                false => vmap.end_vmap(at),
            }
            .unwrap();
            let before = world.sim.stats().ipis_sent;
            vmap.vm_unmap_aliases();
            assert_eq!(world.sim.stats().ipis_sent, before + 1, "CPU 1 is idle, CPU 2 never ran");
            world.sim.check_flushed(vmap.tables().root(), None, VirtRange::new(at, PAGE).unwrap());
            world.release(&[frame]);
            world.stop();
        });
    }
    (0..3).for_each(|cpu| world.on(cpu, || world.vmap().purge()));
    world.end().unwrap();
}

#[test]
fn no_alias_is_left() {
    right(aliases);
}
