//! Two CPUs unmap the same area at the same time: one succeeds, the other gets an error.

use super::{Ends, PAGE, World, machine, on, race, right};
use crate::{Error, Options};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{Access, Frame, Step, VirtAddr};
use paging::Attrs;
use sim::{Failure, Sim};
use spin::mutex::SpinMutex;
use std::sync::Arc;

type Unmap = fn(&World, VirtAddr) -> Result<(), Error>;

/// The call that maps an area, and the calls by which the CPUs unmap it.
#[derive(Clone, Copy)]
struct How {
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

fn hows() -> [How; 6] {
    let heap = |unmap| How { map: heap, unmap, frames: false };
    [
        How {
            map: |world, frames| world.vmap().vm_map_ram(frames, Attrs::KERNEL_RW),
            unmap: [run, run],
            frames: true,
        },
        How {
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
    let world = World::new(config, 32, Options::default(), ticking);
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
                        frames.iter().for_each(|frame| world.release(*frame));
                    }
                }
                meet(3);
                world.sim.step(Access::Shared);
            }
        })
    };
    let programs = |world: &Arc<World>| [0, 1].map(|cpu| program(world, cpu)).into();
    race(seed, world, programs, |_| ())
}

#[test]
fn one_of_two_unmaps() {
    right(twice);
}
