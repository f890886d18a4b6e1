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

use common::{Sev, right};
use paging::{
    Aarch64, Aarch64G16, Aarch64G16L3, Aarch64G16Lpa2, Aarch64G64, Aarch64G64Lpa, Aarch64Lpa2,
    Sv39, Sv48, Sv57, X86_64L4, X86_64L5,
};
use sim::Failure;
use world::{Rng, World};

/// Most mutants are caught by one of the first thirty seeds.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 300 };

/// One run, on the machine that the seed selects.
fn mix(seed: u64) -> Result<(), Failure> {
    if Rng::new(seed).chance(3) {
        World::<X86_64L5>::run(seed)
    } else {
        World::<X86_64L4>::run(seed)
    }
}

/// As [`mix`], in a guest whose memory is encrypted.
fn encrypted(seed: u64) -> Result<(), Failure> {
    World::<Sev>::run(seed)
}

/// As [`mix`], on RISC-V.
fn riscv(seed: u64) -> Result<(), Failure> {
    match seed % 3 {
        0 => World::<Sv39>::run(seed),
        1 => World::<Sv48>::run(seed),
        _ => World::<Sv57>::run(seed),
    }
}

/// As [`mix`], on AArch64.
fn aarch64(seed: u64) -> Result<(), Failure> {
    match seed % 4 {
        0 => World::<Aarch64Lpa2>::run(seed),
        _ => World::<Aarch64>::run(seed),
    }
}

/// As [`mix`], with granules of 16 and 64 KiB.
fn granules(seed: u64) -> Result<(), Failure> {
    match seed % 8 {
        0..3 => World::<Aarch64G16>::run(seed),
        3 => World::<Aarch64G16L3>::run(seed),
        4 => World::<Aarch64G16Lpa2>::run(seed),
        5 | 6 => World::<Aarch64G64>::run(seed),
        _ => World::<Aarch64G64Lpa>::run(seed),
    }
}

#[test]
fn all_of_it_with_larger_granules() {
    right(SEEDS / 3, granules);
}

#[test]
fn all_of_it_on_aarch64() {
    right(SEEDS / 2, aarch64);
}

#[test]
fn all_of_it_on_riscv() {
    right(SEEDS / 2, riscv);
}

#[test]
fn all_of_it_in_an_encrypted_guest() {
    right(SEEDS / 3, encrypted);
}

#[test]
fn all_of_it_beside_all_of_it() {
    right(SEEDS, mix);
}
