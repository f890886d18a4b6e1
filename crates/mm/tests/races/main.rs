//! Concurrent calls, in orders that a seed chooses.

#[path = "../common/mod.rs"]
mod common;

mod copy_races;
mod decisions;
mod fork_races;
mod frees;
mod half_way;
mod huge_races;
mod looks;
mod object_races;
mod spaces;
mod unexplained;
mod unmap_races;
mod userfault_races;
