//! Each trial on the machine in software, with its checks on: on threads with 1, 2 and 4 CPUs, whose timers look after TLB grace periods or
//! do not; and under the deterministic driver.

mod common;

use common::{Way, passes};

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
    passes("tree", from_seeds(4));
}

#[test]
fn quicklists() {
    passes("quicklists", on_threads());
    passes("quicklists", from_seeds(4));
}

#[test]
fn tables() {
    passes("tables", on_threads());
    passes("tables", from_seeds(4));
}

#[test]
fn gup() {
    passes("gup", on_threads());
    passes("gup", from_seeds(4));
}

#[test]
fn stale() {
    passes("stale", on_threads());
    passes("stale", from_seeds(1));
}
