//! A CPU that lacks memory, while another maps in the same 2 MiB: a failed call must not give
//! back page-table pages that the other CPU is about to use.

use super::{Ends, PAGE, World, on, race, right};
use crate::{Error, Options};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use machine::{Frame, FrameSource, NodePolicy, SharedAccess, Step};
use paging::Attrs;
use sim::{Config, Failure};
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

/// The number of frames that a call maps before it runs out of memory.
const SOME: usize = 64;

fn scarce(seed: u64) -> Result<(), Failure> {
    let config = Config {
        cpus: 2,
        frames: 128,
        tick: Some(60).filter(|_| seed & 1 != 0),
        speculation: [0, 300][(seed >> 1 & 1) as usize],
        ..Config::default()
    };
    // One zone, and one page-table page of PTEs.
    let world = World::ticking(config, 2, Options::default(), u64::MAX);
    let failed = Arc::new(AtomicBool::new(false));
    let done = failed.clone();
    let failing = move |world: &Arc<World>| {
        let take = || world.sim.alloc(0, NodePolicy::Local);
        // All frames except those.
        let mut hoard: Vec<Frame> = core::iter::from_fn(|| take().ok()).collect();
        hoard.drain(..(SOME + 2).min(hoard.len())).for_each(|frame| world.release(&[frame]));
        for _ in 0..4 {
            let made = world.vmap().vmalloc((SOME as u64 + 6) * PAGE);
            assert!(matches!(made, Err(Error::Frames(_))), "{made:?}");
            (0..seed % 7).for_each(|_| world.sim.step(SharedAccess::Other));
        }
        done.store(true, SeqCst);
        hoard.into_iter().for_each(|frame| world.release(&[frame]));
    };
    let frame = world.sim.on_cpu(1, || world.frame());
    let mapping = move |world: &Arc<World>| {
        let mut round = 0;
        while !failed.load(SeqCst) {
            round += 1;
            match world.vmap().vmap(&[frame], Attrs::KERNEL_RW) {
                Ok(at) => {
                    world.store(at, round);
                    assert_eq!(world.load(at), round);
                    world.vmap().end_vmap(at).unwrap();
                }
                Err(error) => {
                    // No frame for a page-table page, or no addresses.
                    assert!(matches!(error, Error::Frames(_) | Error::NoSpace(_)), "{error}");
                    world.sim.relax();
                }
            }
        }
        world.release(&[frame]);
    };
    let programs = |world: &Arc<World>| vec![on(world, failing), on(world, mapping)];
    race(seed, world, programs, |_| ())
}

#[test]
fn tables_of_others_stay() {
    right(scarce);
}
