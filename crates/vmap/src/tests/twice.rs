//! Two CPUs unmap the same area, or make an area at the same address, at the same time: one
//! succeeds, the other gets an error.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{Error, Options, Request};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{Frame, SharedAccess, Step, VirtAddr};
use paging::Attrs;
use sim::{Failure, Sim};
use spin::mutex::SpinMutex;
use std::sync::Arc;

type Unmap = fn(&World, VirtAddr) -> Result<(), Error>;

/// The call that maps an area, and the calls by which the CPUs unmap it.
#[derive(Clone, Copy)]
struct Unmappings {
    map: fn(&World, &[Frame]) -> Result<VirtAddr, Error>,
    unmap: [Unmap; 2],
    /// Whether the caller supplies the frames.
    frames: bool,
}

const PAGES: usize = 3;

fn free(world: &World, at: VirtAddr) -> Result<(), Error> {
    // SAFETY: no code uses it.
    unsafe { world.vmap().vfree(at) }
}

fn free_later(world: &World, at: VirtAddr) -> Result<(), Error> {
    // SAFETY: no code uses it.
    unsafe { world.vmap().vfree_atomic(at) }
}

/// A moved area is freed at its new address.
fn moved(world: &World, at: VirtAddr) -> Result<(), Error> {
    // SAFETY: no code uses it.
    let at = unsafe { world.vmap().vrealloc(at, 9 * PAGE) }?;
    free(world, at).unwrap();
    Ok(())
}

fn heap(world: &World, _: &[Frame]) -> Result<VirtAddr, Error> {
    world.vmap().vmalloc(PAGES as u64 * PAGE)
}

fn run(world: &World, at: VirtAddr) -> Result<(), Error> {
    world.vmap().end_ram(at, PAGES)
}

fn hows() -> [Unmappings; 6] {
    let heap = |unmap| Unmappings { map: heap, unmap, frames: false };
    [
        Unmappings {
            map: |world, frames| world.vmap().vm_map_ram(frames, Attrs::KERNEL_RW),
            unmap: [run, run],
            frames: true,
        },
        Unmappings {
            map: |world, frames| world.vmap().vmap(frames, Attrs::KERNEL_RW),
            unmap: [|world, at| world.vmap().end_vmap(at); 2],
            frames: true,
        },
        heap([free, free]),
        heap([free, free_later]),
        heap([moved, free]),
        heap([moved, moved]),
    ]
}

/// A reusable barrier for both CPUs.
fn meet(sim: &Sim, count: &AtomicU64, round: u64) {
    count.fetch_add(1, SeqCst);
    while count.load(SeqCst) < 2 * round {
        sim.relax();
    }
}

#[derive(Default)]
struct Shared {
    met: AtomicU64,
    at: AtomicU64,
    done: SpinMutex<[Option<Result<(), Error>>; 2]>,
}

fn twice(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 2);
    let world = World::ticking(config, 32, Options::default(), ticking);
    let shared = Arc::new(Shared::default());
    let program = |world: &Arc<World>, cpu: usize| {
        let shared = shared.clone();
        on(world, move |world| {
            let hows = (0..3).flat_map(|_| hows());
            for (round, how) in (0..).zip(hows) {
                let meet = |part| meet(&world.sim, &shared.met, 3 * round + part);
                let mut frames = [Frame::default(); PAGES];
                if cpu == 0 {
                    if how.frames {
                        frames = [(); PAGES].map(|()| world.frame());
                    }
                    let at = (how.map)(world, &frames).unwrap();
                    world.store(at, round);
                    shared.at.store(at.get(), SeqCst);
                }
                meet(1);
                let done = how.unmap[cpu](world, VirtAddr::new(shared.at.load(SeqCst)));
                shared.done.lock()[cpu] = Some(done);
                meet(2);
                if cpu == 0 {
                    let done = shared.done.lock().map(Option::unwrap);
                    let won = done.iter().filter(|done| done.is_ok()).count();
                    assert_eq!(won, 1, "{done:?}: one unmaps it");
                    for done in done {
                        let late =
                            matches!(done, Ok(()) | Err(Error::Twice(_) | Error::NotMapped(_)));
                        assert!(late, "{done:?}");
                    }
                    if how.frames {
                        world.release(&frames);
                    }
                }
                meet(3);
                world.sim.step(SharedAccess::Other);
            }
        })
    };
    let programs = |world: &Arc<World>| [0, 1].map(|cpu| program(world, cpu)).into();
    race(seed, world, programs, |_| ())
}

/// Both CPUs make an area at the address of one that has just been freed. One gets it, with no
/// stale translation (I4); the other one is told that it is in the way.
fn placed_twice(seed: u64) -> Result<(), Failure> {
    let (config, ticking) = machine(seed, 2);
    let world = World::ticking(config, 32, Options::default(), ticking);
    let shared = Arc::new(Shared::default());
    let program = |world: &Arc<World>, cpu: usize| {
        let shared = shared.clone();
        on(world, move |world| {
            for round in 0..6 {
                let meet = |part| meet(&world.sim, &shared.met, 3 * round + part);
                if cpu == 0 {
                    let at = heap(world, &[]).unwrap();
                    world.store(at, round);
                    shared.at.store(at.get(), SeqCst);
                    free(world, at).unwrap();
                }
                meet(1);
                let at = VirtAddr::new(shared.at.load(SeqCst));
                // The ranges differ, and overlap.
                let bytes = (2 + cpu as u64) * PAGE;
                let request = Request { at: Some(at), ..Request::memory(bytes) };
                let made = world.vmap().create(&request);
                if made.is_ok() {
                    (0..bytes / PAGE).for_each(|page| {
                        world.store(VirtAddr::new(at.get() + page * PAGE), cpu as u64);
                    });
                }
                shared.done.lock()[cpu] = Some(made.map(drop));
                meet(2);
                if cpu == 0 {
                    let done = shared.done.lock().map(Option::unwrap);
                    let won = done.iter().filter(|done| done.is_ok()).count();
                    let lost = done.iter().find_map(|done| done.err());
                    assert!(won == 1 && matches!(lost, Some(Error::InTheWay(_))), "{done:?}");
                    free(world, at).unwrap();
                }
                meet(3);
                world.sim.step(SharedAccess::Other);
            }
        })
    };
    let programs = |world: &Arc<World>| [0, 1].map(|cpu| program(world, cpu)).into();
    race(seed, world, programs, |_| ())
}

#[test]
fn one_of_two_is_placed() {
    right(placed_twice);
}

#[test]
fn one_of_two_unmaps() {
    right(twice);
}
