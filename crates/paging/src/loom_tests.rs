//! Loom models of page tables: the code of this crate, on the machine for models
//! ([`sim::Model`]).
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-paging --lib
//! loom`
//!
//! Walks, locks, the cursor, forks and pins run as they are: loom sees each access to an entry, to
//! a lock word and to the counts of a frame. The tables have three levels, and eight entries each.
//! The models that do not say `None` bound the number of preemptions, by which loom tries fewer
//! orders: all those with so few switches.
//!
//! The mutants are in `campaign/mutants.d/paging.toml`; those of the caller's part are tests here.

mod breaks;
mod faults;
mod first_space;
mod groups;
mod links;
mod pins;
mod sharing;
mod world;
