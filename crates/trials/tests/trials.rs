//! Each trial on the machine in software, with its checks on: on threads with 1, 2 and 4 CPUs,
//! whose timers look after TLB grace periods or do not; and under the deterministic driver.

mod common;

use common::{Way, passes};
use sim::Config;

/// On threads.
fn on_threads() -> impl Iterator<Item = Way> {
    [1, 2, 4].into_iter().flat_map(|cpus| [false, true].map(|ticking| Way::threads(cpus, ticking)))
}

/// Under the deterministic driver, from so many seeds.
fn from_seeds(seeds: u64) -> impl Iterator<Item = Way> {
    (0..seeds).map(|seed| Way::seeded(2 + (seed as usize & 1), seed))
}

#[test]
fn tree() {
    passes("tree", on_threads());
    passes("tree", from_seeds(8));
}

#[test]
fn quicklists() {
    passes("quicklists", on_threads());
    passes("quicklists", from_seeds(8));
}

#[test]
fn tables() {
    passes("tables", on_threads());
    passes("tables", from_seeds(4));
}

#[test]
fn vmap() {
    passes("vmap", on_threads());
    passes("vmap", from_seeds(2));
}

#[test]
fn gup() {
    passes("gup", on_threads());
    passes("gup", from_seeds(12));
}

#[test]
fn stale() {
    passes("stale", on_threads());
    passes("stale", from_seeds(3));
}

#[test]
fn exhausted() {
    // The machine looks through all tables when a frame is freed: so there are few.
    let few = |way: Way| {
        let frames = 900 + 300 * way.cpus as u64;
        Way { config: Config { frames, ..way.config }, ..way }
    };
    passes("exhausted", on_threads().map(few));
    passes("exhausted", from_seeds(3).map(few));
}
