//! Requests that exceed the memory: they fail before they take any, leave some to other calls, and
//! keep no page-table pages.

use crate::common::*;
use machine::*;
use paging::Attrs;
use sim::Config;
use vmap::{Allocation, Contents, Error, Options, Request};

/// 16 MiB of memory, and far more addresses.
const FRAMES: u64 = 4096;

fn world(cpus: usize) -> World {
    let config = Config { cpus, frames: FRAMES, ..Config::default() };
    World::new(config, 256 << 10, Options::default())
}

/// Whether `f` allocates a frame.
fn takes_some(world: &World, f: impl FnOnce()) -> bool {
    world.sim.fail_alloc(1, false);
    f();
    world.sim.alloc_failed()
}

#[test]
fn an_impossible_request_takes_nothing() {
    world(2).test(|world, vmap| {
        let free_before = world.sim.free_count();
        for gib in [1, 60, 100] {
            let memory = Allocation::new(gib << 30);
            for memory in [memory, Allocation { huge: true, zero: true, ..memory }] {
                let request = Request::new(Contents::Memory(memory));
                let takes = takes_some(world, || {
                    let Err(Error::FewFrames { wanted, free }) = vmap.create(&request) else {
                        panic!("expected FewFrames")
                    };
                    assert!(wanted > gib << 18 && free <= FRAMES, "{wanted} of {free}");
                });
                assert!(!takes, "{gib} GiB");
            }
        }
        let at = vmap.vmalloc(5 * PAGE).unwrap();
        world.store(at, 3);
        let takes = takes_some(world, || {
            // SAFETY: the memory stays at its address.
            let moved = unsafe { vmap.vrealloc(at, 60 << 30) };
            assert!(matches!(moved, Err(Error::FewFrames { .. })), "{moved:?}");
        });
        assert_eq!((takes, world.load(at)), (false, 3));
        free(world, at);
        assert!(free_before - world.sim.free_count() <= 5 + 1, "one table, and what waits");
    });
}

#[test]
fn some_is_left_to_others() {
    world(1).test(|world, vmap| {
        let there = world.sim.free_count();
        let refused = vmap.vmalloc(there * PAGE);
        assert!(matches!(refused, Err(Error::FewFrames { .. })), "{refused:?}");
        let most = there - there / 16;
        let at = vmap.vmalloc(most * PAGE).unwrap();
        assert!(world.sim.free_count() > 60, "{} are left", world.sim.free_count());
        // Memory that was freed in an interrupt is available.
        {
            let _interrupt = world.sim.irqs_off();
            // SAFETY: no code uses it.
            unsafe { vmap.vfree_atomic(at) }.unwrap();
        }
        let at = vmap.vmalloc(most * PAGE).unwrap();
        free(world, at);
    });
}

/// Other calls take memory while a large request is in progress: it gives up before it has taken
/// the rest.
#[test]
fn a_late_request_gives_up_early() {
    world(1).test(|world, vmap| {
        // Requests just below the threshold of large ones, until memory runs out.
        let mut small = Vec::new();
        let error = loop {
            match vmap.vmalloc(300 * PAGE) {
                Ok(at) => small.push(at),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Frames(FrameError::OutOfFrames { .. })), "{error}");
        let left = world.sim.free_count();
        assert!(vmap.vmalloc(600 * PAGE).is_err());
        assert_eq!(world.sim.free_count(), left);
        small.into_iter().for_each(|at| free(world, at));
    });
}

/// A failed call gives back the page-table pages whose addresses are all its own. At most those at
/// its ends stay.
#[test]
fn tables_are_given_back() {
    world(2).test(|world, vmap| {
        let frame = world.frames(1);
        let large = frame.repeat(20 * 512);
        let settle = || {
            world.sim.settle();
            world.paging.quick().drain();
            world.sim.free_count()
        };
        let before = settle();
        // 8 of 20 page-table pages are available.
        let hoard: Vec<_> = (0..before - 8).map(|_| world.frames(1)[0]).collect();
        let mut left = Vec::new();
        for _ in 0..30 {
            let made = vmap.vmap(&large, Attrs::KERNEL_RW);
            assert!(matches!(made, Err(Error::Frames(_))), "{made:?}");
            left.push(settle());
        }
        assert!(left.iter().all(|left| *left >= 6), "of 8 frames these are left: {left:?}");
        world.release(&hoard);
        assert!(before - settle() <= 2);
        world.release(&frame);
    });
}

/// If the page-table page of a block cannot be allocated, those above it are given back.
#[test]
fn tables_on_the_way_to_a_block_are_given_back() {
    world(1).test(|world, vmap| {
        let frame = world.frames(1);
        let hoard: Vec<_> = (0..world.sim.free_count() - 1).map(|_| world.frames(1)[0]).collect();
        for _ in 0..5 {
            let made = vmap.vm_map_ram(&frame, Attrs::KERNEL_RW);
            assert!(matches!(made, Err(Error::Frames(_))), "{made:?}");
            assert!(world.sim.settle());
            world.paging.quick().drain();
            assert_eq!(world.sim.free_count(), 1, "the one that was free");
        }
        world.release(&hoard);
        let at = vmap.vm_map_ram(&frame, Attrs::KERNEL_RW).unwrap();
        vmap.end_ram(at, 1).unwrap();
        world.release(&frame);
    });
}
