//! A large munmap lets the engine free what is due, while another CPU finds its VMA. The frees take
//! steps of the machine, so a reader must not wait for them.

use crate::common::*;
use machine::Step;
use sim::{Config, Failure, Grace, seeded};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MANY: usize = 0x1_0000_0000;
const ONE: usize = 0x5_0000_0000;
const VMAS: usize = 800;

fn run(seed: u64) -> Result<(), Failure> {
    let race = Race::new(Config { tick: Some(23), ..racing(2, 256) }, |space| {
        for i in 0..VMAS {
            space.mmap(MANY + i * PAGE, PAGE, 1 + 2 * (i as u32 % 2), FIXED).unwrap();
        }
        space.mmap(ONE, PAGE, 3, FIXED).unwrap();
        space.mmap(HEAP, PAGE, 3, FIXED).unwrap();
    });
    let (sim, space) = (&race.sim, &*race.space);
    let ready = AtomicBool::new(false);
    let caller = race.active(|| {
        // A chain of tables waits for its grace period, and the period ends.
        store(sim, space, ONE, 1).unwrap();
        space.munmap(ONE, PAGE).unwrap();
        for _ in 0..40 {
            Grace::quiescent_state();
            sim.relax();
        }
        ready.store(true, SeqCst);
        space.munmap(MANY, VMAS * PAGE).unwrap();
        Grace::reclaim(usize::MAX);
    });
    let reader = race.active(|| {
        while !ready.load(SeqCst) {
            Grace::quiescent_state();
            sim.relax();
        }
        for _ in 0..3 {
            store(sim, space, HEAP, 1).unwrap();
            sim.relax();
        }
    });
    seeded(sim, seed, vec![caller, reader])?;
    race.end(())
}

#[test]
fn a_reader_during_the_frees_of_a_large_munmap() {
    each_seed(40, run);
}
