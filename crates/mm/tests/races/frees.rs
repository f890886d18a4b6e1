//! A large munmap lets the engine free what is due, while another CPU finds its VMA. The frees take
//! steps of the machine, so a reader must not wait for them.

use crate::common::*;
use machine::Step;
use paging::{Paging, X86_64L4};
use sim::{Config, Failure, Grace, Program, Sim, seeded};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const MANY: usize = 0x1_0000_0000;
const ONE: usize = 0x5_0000_0000;
const VMAS: usize = 800;

fn run(seed: u64) -> Result<(), Failure> {
    let config =
        Config { cpus: 2, frames: 256, tick: Some(23), checks: RACING, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let shared = Paging::<Sim, X86_64L4>::try_new(sim.clone(), machine::PageSize::Size1G).unwrap();
    let space = sim.on_cpu(0, || ManuallyDrop::new(new_space(&shared, 1).unwrap()));
    sim.on_cpu(0, || {
        for i in 0..VMAS {
            space.mmap(MANY + i * PAGE, PAGE, 1 + 2 * (i as u32 % 2), FIXED).unwrap();
        }
        space.mmap(ONE, PAGE, 3, FIXED).unwrap();
        space.mmap(HEAP, PAGE, 3, FIXED).unwrap();
    });
    let ready = AtomicBool::new(false);
    // SAFETY: no other mapping is needed, and no other tables have the tag.
    let activate = || unsafe { space.activate() };
    let caller = || {
        activate();
        // A chain of tables waits for its grace period, and the period ends.
        store(&sim, &space, ONE, 1).unwrap();
        space.munmap(ONE, PAGE).unwrap();
        for _ in 0..40 {
            Grace::quiescent_state();
            sim.relax();
        }
        ready.store(true, SeqCst);
        space.munmap(MANY, VMAS * PAGE).unwrap();
        Grace::reclaim(usize::MAX);
    };
    let reader = || {
        activate();
        while !ready.load(SeqCst) {
            Grace::quiescent_state();
            sim.relax();
        }
        for _ in 0..3 {
            store(&sim, &space, HEAP, 1).unwrap();
            sim.relax();
        }
    };
    seeded(&sim, seed, vec![Box::new(caller) as Program, Box::new(reader)])?;
    sim.on_cpu(0, || {
        assert!(sim.settle());
        drop(ManuallyDrop::into_inner(space));
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
fn a_reader_beside_the_frees_of_a_large_munmap() {
    for seed in 0..40 {
        run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
