//! All operations at once, from a seed. Several CPUs map, unmap, protect, split, pin, walk and
//! access the same few addresses, neighbours in the same tables, in a few user spaces and in the
//! kernel. Spaces are dropped with mapped pages, and their tags and frames are reused at once.
//!
//! # How results are checked
//! Concurrent changes of one page are a caller's error. So a CPU claims the pages that it changes
//! (`space`), and knows the right contents of the tables for them. Reads, pins and accesses claim
//! nothing: they race with everything. The first word of each frame names the page and the space
//! for which it was mapped (`Tag`). So every access, pin and walk can tell whether it has reached
//! the right frame, even if both the address and the frame have been reused meanwhile.
//!
//! # Random choices
//! The machine: the granule, the levels, one or two nodes, with or without tags, the rate of timer
//! interrupts, whether frames are scarce, and whether interrupts are long. A long interrupt lets
//! the other CPUs run, and pass quiescent states, between two instructions of the interrupted CPU,
//! as when a host preempts a virtual CPU. So a whole grace period can pass within an operation that
//! lacks its guard.
//!
//! The mutants that this must catch are in `campaign/mutants.d/paging.toml`.

#[path = "../common/mod.rs"]
mod common;

mod change;
mod large;
mod look;
mod small;
mod space;
mod world;

use common::{OnSim, Sev, right};
use paging::{
    Aarch64, Aarch64G16, Aarch64G16L3, Aarch64G16Lpa2, Aarch64G64, Aarch64G64Lpa, Aarch64Lpa2,
    Sv39, Sv48, Sv57, X86_64L4, X86_64L5,
};
use sim::Failure;
use world::{Rng, World};

/// Most mutants are caught by one of the first thirty seeds.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 300 };

/// One run, on a machine that the seed selects.
fn run<F: OnSim>(seed: u64) -> Result<(), Failure> {
    World::<F>::run(seed)
}

#[test]
fn all_of_it_with_larger_granules() {
    right(SEEDS / 3, |seed| match seed % 8 {
        0..3 => run::<Aarch64G16>(seed),
        3 => run::<Aarch64G16L3>(seed),
        4 => run::<Aarch64G16Lpa2>(seed),
        5 | 6 => run::<Aarch64G64>(seed),
        _ => run::<Aarch64G64Lpa>(seed),
    });
}

#[test]
fn all_of_it_on_aarch64() {
    right(SEEDS / 2, |seed| match seed % 4 {
        0 => run::<Aarch64Lpa2>(seed),
        _ => run::<Aarch64>(seed),
    });
}

#[test]
fn all_of_it_on_riscv() {
    right(SEEDS / 2, |seed| match seed % 3 {
        0 => run::<Sv39>(seed),
        1 => run::<Sv48>(seed),
        _ => run::<Sv57>(seed),
    });
}

#[test]
fn all_of_it_in_an_encrypted_guest() {
    right(SEEDS / 3, run::<Sev>);
}

#[test]
fn all_of_it_at_once() {
    right(SEEDS, |seed| match Rng::new(seed).chance(3) {
        true => run::<X86_64L5>(seed),
        false => run::<X86_64L4>(seed),
    });
}
