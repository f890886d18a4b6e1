//! Announcements and broadcasts, and CPUs whose hardware caches what it likes, and that come and
//! go.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{Error, Options};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use machine::{Flush, SharedAccess, Step, Tlb, VirtAddr};
use paging::Attrs;
use sim::{Config, Failure, Want};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};
use std::vec;
use std::vec::Vec;

/// An access that hardware may speculate, at the address that another CPU has mapped.
fn cache(world: &World, at: &AtomicU64) {
    let at = at.load(SeqCst);
    if at != 0 {
        let _ = world.sim.translate(VirtAddr::new(at), Want::default());
    }
}

/// CPU 1 flushes in its own way and reports that. Right after its flush, its hardware caches the
/// page that CPU 0 maps, unmaps, and maps again once a period has ended.
fn reported_beside(seed: u64) -> Result<(), Failure> {
    let config = Config { cpus: 2, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    let (at, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (address, over) = (at.clone(), done.clone());
    let mapper = move |world: &Arc<World>| {
        let vmap = world.vmap();
        for _ in 0..6 {
            let first = vmap.vmalloc(PAGE).unwrap();
            address.store(first.get(), SeqCst);
            (0..seed % 9).for_each(|_| world.sim.step(SharedAccess::Other));
            // SAFETY: the other CPU only caches it.
            unsafe { vmap.vfree(first) }.unwrap();
            let target = world.tlb_grace.target();
            while !world.tlb_grace.advance(target) {
                world.tlb_grace.tick();
                world.sim.relax();
            }
            vmap.poll();
        }
        over.store(true, SeqCst);
    };
    let reporter = move |world: &Arc<World>| {
        while !done.load(SeqCst) {
            let flush = || {
                world.sim.flush(Flush::All);
                cache(world, &at);
                world.sim.step(SharedAccess::Other);
            };
            // SAFETY: it drops everything; entries cached afterwards were valid after the flush.
            unsafe { world.tlb_grace.quiescent_state(flush) };
            world.sim.relax();
        }
    };
    let programs = |world: &Arc<World>| vec![on(world, mapper), on(world, reporter)];
    race(seed, world, programs, |_| ())
}

#[test]
fn a_report_begins_before_its_flush() {
    right(reported_beside);
}

/// CPU 0 ends periods by broadcasts. At some step of a broadcast, CPU 1 leaves idle, and its
/// hardware caches the page that CPU 2 unmaps then, and maps again after the period.
fn broadcast_beside(seed: u64) -> Result<(), Failure> {
    const ROUNDS: u64 = 4;
    let config = Config { cpus: 3, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    let at = Arc::new(AtomicU64::new(0));
    // In each round: mapped, idle, cached, unmapped, mapped again.
    let turn = Arc::new(AtomicU64::new(0));
    let wait = |world: &World, turn: &AtomicU64, wanted: u64| {
        while turn.load(SeqCst) < wanted {
            world.sim.relax();
        }
    };
    let turns = turn.clone();
    let sender = move |world: &Arc<World>| {
        for round in 0..ROUNDS {
            wait(world, &turns, 5 * round + 2);
            if seed & 1 != 0 {
                // The next period cannot begin while CPU 2 has not passed this one.
                world.tlb_grace.advance(world.tlb_grace.target());
            }
            while turns.load(SeqCst) < 5 * round + 5 {
                world.tlb_grace.expedite(world.tlb_grace.target());
                world.sim.relax();
            }
        }
    };
    let (turns, address) = (turn.clone(), at.clone());
    let idler = move |world: &Arc<World>| {
        for round in 0..ROUNDS {
            // SAFETY: this CPU uses no area until it leaves idle, and has no blocks.
            unsafe { world.tlb_grace.idle_enter() };
            wait(world, &turns, 5 * round + 1);
            turns.store(5 * round + 2, SeqCst);
            (0..(seed / 2 + round) % 32).for_each(|_| world.sim.step(SharedAccess::Other));
            // The sender stops between two of its steps, until CPU 2 has unmapped the page.
            let (sim, held_up) = (world.sim.clone(), turns.clone());
            world.sim.interrupt(0, move || {
                while held_up.load(SeqCst) < 5 * round + 4 {
                    sim.relax();
                }
            });
            world.tlb_grace.idle_exit();
            cache(world, &address);
            turns.store(5 * round + 3, SeqCst);
            wait(world, &turns, 5 * round + 5);
        }
    };
    let mapper = move |world: &Arc<World>| {
        let vmap = world.vmap();
        let page = vmap.vmalloc(PAGE).unwrap();
        at.store(page.get(), SeqCst);
        for round in 0..ROUNDS {
            turn.store(5 * round + 1, SeqCst);
            wait(world, &turn, 5 * round + 3);
            // SAFETY: the other CPU only caches it.
            unsafe { vmap.vfree(page) }.unwrap();
            let target = world.tlb_grace.target();
            turn.store(5 * round + 4, SeqCst);
            // The sender ends it.
            while !world.tlb_grace.is_over(target) {
                world.sim.relax();
            }
            vmap.poll();
            assert_eq!(vmap.vmalloc(PAGE).unwrap(), page, "another address is reused");
            turn.store(5 * round + 5, SeqCst);
        }
        // SAFETY: as above.
        unsafe { vmap.vfree(page) }.unwrap();
    };
    let programs =
        |world: &Arc<World>| vec![on(world, sender), on(world, idler), on(world, mapper)];
    race(seed, world, programs, |_| ())
}

#[test]
fn a_broadcast_reaches_a_cpu_that_leaves_idle() {
    right(broadcast_beside);
}

/// Two CPUs want to end the same period by a broadcast: one does.
fn two_broadcasts(seed: u64) -> Result<(), Failure> {
    let config = Config { cpus: 3, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    let arrived = Arc::new(AtomicU64::new(0));
    let meet = |arrived: &AtomicU64, world: &World, number: u64| {
        arrived.fetch_add(1, SeqCst);
        while arrived.load(SeqCst) < 3 * number {
            world.sim.relax();
        }
    };
    let program = |cpu: usize| {
        let arrived = arrived.clone();
        move |world: &Arc<World>| {
            for round in 0..4 {
                meet(&arrived, world, 3 * round + 1);
                let target = world.tlb_grace.target();
                let before = world.tlb_grace.stats().broadcasts;
                meet(&arrived, world, 3 * round + 2);
                if cpu != 2 {
                    world.tlb_grace.expedite(target);
                    assert!(world.tlb_grace.is_over(target));
                }
                meet(&arrived, world, 3 * round + 3);
                let sent = world.tlb_grace.stats().broadcasts - before;
                assert_eq!(sent, 1, "one broadcast would have done");
            }
        }
    };
    let programs = |world: &Arc<World>| (0..3).map(|cpu| on(world, program(cpu))).collect();
    race(seed, world, programs, |_| ())
}

#[test]
fn two_broadcasts_are_one() {
    right(two_broadcasts);
}

/// Two CPUs unmap areas of one zone, while a third begins and ends periods: the areas wait in the
/// order of their periods, which the zone asserts.
fn waits_in_order(seed: u64) -> Result<(), Failure> {
    let config = Config { cpus: 3, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    let made = Arc::new(Mutex::new(Vec::<VirtAddr>::new()));
    let done = Arc::new(AtomicU64::new(0));
    world.on(0, || {
        let map = |_| world.vmap().vmalloc(PAGE).unwrap();
        made.lock().unwrap().extend((0..24).map(map));
    });
    let unmapper = |done: Arc<AtomicU64>| {
        let made = made.clone();
        move |world: &Arc<World>| {
            loop {
                let next = made.lock().unwrap().pop();
                let Some(at) = next else { break };
                // SAFETY: no code uses it.
                unsafe { world.vmap().vfree(at) }.unwrap();
                world.tlb_grace.tick();
            }
            done.fetch_add(1, SeqCst);
        }
    };
    let unmappers = (unmapper(done.clone()), unmapper(done.clone()));
    let ends = move |world: &Arc<World>| {
        while done.load(SeqCst) < 2 {
            world.tlb_grace.advance(world.tlb_grace.target());
            world.tlb_grace.tick();
            world.sim.relax();
        }
    };
    let programs =
        |world: &Arc<World>| vec![on(world, unmappers.0), on(world, unmappers.1), on(world, ends)];
    race(seed, world, programs, |_| ())
}

#[test]
fn areas_wait_in_the_order_of_their_periods() {
    right(waits_in_order);
}

/// CPU 0 frees areas that were freed in an interrupt, while CPU 1 tries to free them again.
fn freed_again(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 2);
    let world = World::ticking(config, 32, Options::default(), ticking);
    let (at, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (address, over) = (at.clone(), done.clone());
    let owner = move |world: &Arc<World>| {
        let vmap = world.vmap();
        for _ in 0..6 {
            let area = vmap.vmalloc(3 * PAGE).unwrap();
            // SAFETY: no code uses it any more.
            unsafe { vmap.vfree_atomic(area) }.unwrap();
            address.store(area.get(), SeqCst);
            vmap.poll();
            address.store(0, SeqCst);
            (0..9).for_each(|_| world.sim.step(SharedAccess::Other));
        }
        over.store(true, SeqCst);
    };
    let other = move |world: &Arc<World>| {
        while !done.load(SeqCst) {
            world.sim.step(SharedAccess::Other);
            let area = at.load(SeqCst);
            if area != 0 {
                // SAFETY: no code uses it; it must be refused.
                let freed = unsafe { world.vmap().vfree(VirtAddr::new(area)) };
                // The address may have been given out again; not within these few steps.
                let known = matches!(freed, Err(Error::Twice(_) | Error::NotMapped(_)));
                assert!(known || at.load(SeqCst) != area, "it was freed twice");
            }
        }
    };
    let programs = |world: &Arc<World>| vec![on(world, owner), on(world, other)];
    race(seed, world, programs, |_| ())
}

#[test]
fn an_area_freed_in_an_interrupt_is_not_freed_again() {
    right(freed_again);
}

/// A CPU that goes idle leaves its blocks, with what waits in them, to others.
#[test]
fn an_idle_cpu_has_nothing_that_waits() {
    let config = Config { cpus: 2, frames: 512, ..Config::default() };
    let world = World::ticking(config, 32, Options::default(), 0);
    let frame = world.sim.on_cpu(0, || world.frame());
    let world = ManuallyDrop::new(world);
    // The other CPU takes part, and reports nothing: no period ends.
    world.sim.on_cpu(1, || world.start());
    world.on(0, || {
        let vmap = world.vmap();
        let waiting = || vmap.local.with(|local| local.blocks.waiting().0).unwrap();
        let kept = vmap.vm_map_ram(&[frame], Attrs::KERNEL_RW).unwrap();
        let at = vmap.vm_map_ram(&[frame; 7], Attrs::KERNEL_RW).unwrap();
        vmap.end_ram(at, 7).unwrap();
        vmap.poll();
        assert_eq!(waiting(), 7 * PAGE);
        for round in 0..3 {
            vmap.idle();
            assert_eq!(waiting(), 0, "round {round}");
            // It adopts the block, and all that waits there.
            let at = vmap.vm_map_ram(&[frame], Attrs::KERNEL_RW).unwrap();
            assert_eq!(waiting(), 7 * PAGE, "round {round}");
            vmap.end_ram(at, 1).unwrap();
        }
        vmap.end_ram(kept, 1).unwrap();
    });
    world.sim.on_cpu(1, || world.stop());
    world.on(0, || world.release(&[frame]));
    for cpu in [0, 1] {
        world.on(cpu, || world.vmap().purge());
    }
    ManuallyDrop::into_inner(world).end().unwrap();
}
