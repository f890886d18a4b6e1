//! CPUs that map and unmap concurrently, under the deterministic driver. These tests catch the
//! races in `campaign/mutants.d/vmap.toml`.

use common::{Ends, PAGE, World};
use machine::{SharedAccess, Step};
use sim::{Config, Failure, Program, explore, seeded};
use std::boxed::Box;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::vec::Vec;

mod aliases;
#[path = "../../tests/common/mod.rs"]
mod common;
mod idle;
mod mix;
mod pending_free;
mod periods;
mod readers;
mod scarce;
mod twice;

/// The number of seeds of each test, unless the environment asks for more. A release build is about
/// ten times as fast.
const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 400 };

/// The machine for a seed: TLBs of different sizes, speculative TLB fills or none, timers or none;
/// and the CPUs whose timer interrupts flush.
fn machine(seed: u64, cpus: usize) -> (Config, u64) {
    let pick = |every: u64, of: [u64; 4]| of[(seed / every % 4) as usize];
    let config = Config {
        cpus,
        frames: 1024,
        tlb_entries: pick(1, [64, 4, 8, 2]) as usize,
        speculation: pick(4, [0, 300, 60, 1000]) as u32,
        tick: Some(pick(16, [0, 61, 250, 61])).filter(|steps| *steps != 0),
        ..Config::default()
    };
    (config, pick(16, [0, u64::MAX, u64::MAX, 0b101]))
}

/// Runs one program on each of the first CPUs. Then `finish` gives back what they have left, and
/// the machine must be empty.
fn race(
    seed: u64,
    world: World,
    programs: impl FnOnce(&Arc<World>) -> Vec<Program<'static>>,
    finish: impl FnOnce(&World),
) -> Result<(), Failure> {
    // Leaked if the run fails: there is no CPU on which it could be dropped.
    let world = ManuallyDrop::new(Arc::new(world));
    seeded(&world.sim, seed, programs(&world))?;
    let cpus = 0..world.sim.config().cpus;
    // Delivers pending interrupts.
    cpus.clone().for_each(|cpu| world.sim.on_cpu(cpu, || world.sim.step(SharedAccess::Other)));
    world.on(0, || finish(&world));
    for _ in 0..2 {
        cpus.clone().for_each(|cpu| world.on(cpu, || world.vmap().purge()));
    }
    let world = Arc::into_inner(ManuallyDrop::into_inner(world));
    Ok(world.unwrap_or_else(|| panic!("an interrupt was not taken")).end()?)
}

/// A program that uses areas until it ends.
fn on(world: &Arc<World>, run: impl FnOnce(&Arc<World>) + Send + 'static) -> Program<'static> {
    let world = world.clone();
    Box::new(move || {
        world.start();
        run(&world);
        world.stop();
    })
}

fn right(run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(SEEDS, run).unwrap_or_else(|failure| panic!("{failure}"));
}
