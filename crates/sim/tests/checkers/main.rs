//! Every checker against correct code, which passes with all seeds, and against mutants: the same
//! code with one step left out, which some seed detects.

#[path = "../common/mod.rs"]
mod common;
mod frames;
mod pages;
mod spaces;
mod tables;

use common::*;
use grace::Reclaim;
use machine::*;
use sim::{Checks, Config, Failure, Grace, Program, Report, Sim, Violation, explore, seeded};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

const AT: u64 = 0x40_0000_1000;
const SEEDS: u64 = 300;
/// An upper bound: a mutant takes far fewer.
const MANY: u64 = 2000;

fn config() -> Config {
    Config { frames: 64, speculation: 30, ..Config::default() }
}

/// Asserts that all seeds pass.
fn right(run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(SEEDS, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Asserts that some seed fails, and fails in the same way when it is replayed.
fn caught(run: impl Fn(u64) -> Result<(), Failure> + Sync) -> Report {
    let failure = explore(MANY, &run).expect_err("the mutant was not caught");
    let seed = failure.seed.expect("explore knows the seed");
    let report = failure.report().unwrap_or_else(|| panic!("{failure}")).clone();
    for _ in 0..2 {
        let again = run(seed).expect_err("the replay of the seed passed");
        assert_eq!(again.report(), Some(&report), "the replay of the seed differs");
    }
    let text = failure.to_string();
    assert!(text.contains(&format!("SAMARA_SEED={seed} ")), "{text}");
    report
}

fn wait(sim: &Sim, until: impl Fn() -> bool) {
    while !until() {
        sim.relax();
    }
}

fn alone(program: impl FnOnce(&Sim) + Send) -> Violation {
    alone_if(program).expect("nothing was noticed")
}

fn alone_if(program: impl FnOnce(&Sim) + Send) -> Option<Violation> {
    alone_with(Config { cpus: 1, frames: 256, ..Config::default() }, program)
}

/// A space with one page, at [`AT`]. Called as a CPU.
fn mapped(sim: &Sim) -> (Space, Frame) {
    let (space, frame) = (Space::new(sim), page(sim));
    space.map(AT, frame);
    (space, frame)
}

/// A space with the tables for [`AT`], but no page.
fn with_tables(sim: &Sim) -> Space {
    sim.on_cpu(0, || {
        let space = Space::new(sim);
        space.set(AT, 0, 0);
        space
    })
}

/// Gives back the tables of a space of which nothing is mapped, and looks for leaks.
fn finish(sim: &Sim, space: &Space) -> Result<(), Failure> {
    sim.on_cpu(0, || space.destroy_all());
    Ok(sim.check_leaks()?)
}
