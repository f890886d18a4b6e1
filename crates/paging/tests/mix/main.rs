//! Everything at once, from a seed: several CPUs map, unmap, protect, split, pin, walk and use the
//! same few addresses of a few spaces and of the kernel, which are neighbours in the same tables.
//! Spaces are dropped with pages in them, and their tags and frames are used again at once.
//!
//! # What is known
//! Changes of the same page by two CPUs at once are the caller's error, so a CPU claims the pages
//! that it changes (`space`), and knows what the tables must say about them. Looks, pins and
//! accesses claim nothing: they race with everything. Each frame says in its first word for which
//! page of which space it was mapped (`Tag`). So every access, pin and walk knows whether it has
//! reached the right frame, even where the address and the frame were both used again meanwhile.
//!
//! # What is drawn
//! The machine: four levels or five, one node or two, with tags or without, how often a timer
//! interrupt lands, whether frames are short; and whether interrupts are long. A long interrupt
//! lets the others run, and quiescent states pass, between two instructions of the CPU that it
//! landed on, as on a virtual CPU that its host preempts: so an operation that lacks its guard is
//! met by a whole grace period.
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

use common::right;
use paging::{X86_64L4, X86_64L5};
use sim::Failure;
use world::{Rng, World};

/// Most mutants are caught by one of the first thirty.
const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 300 };

/// One run, on the machine that the seed says.
fn mix(seed: u64) -> Result<(), Failure> {
    if Rng::new(seed).chance(3) {
        World::<X86_64L5>::run(seed)
    } else {
        World::<X86_64L4>::run(seed)
    }
}

#[test]
fn all_of_it_beside_all_of_it() {
    right(SEEDS, mix);
}
