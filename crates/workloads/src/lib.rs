//! Experiments that compare Samara with the code that it replaces, on any machine.
//!
//! An [`Experiment`] runs in a [`Lab`]: a machine, its clocks, and the means to run programs on its
//! CPUs. It returns a [`Report`](report::Report) of rows and targets, which prints as tables and as
//! JSON lines. [`all()`] is the list of experiments.
//!
//! | experiment | baseline | ours |
//! |---|---|---|
//! | `quicklist` | a frame of the frame source, cleared | a page of a quicklist, already in its constructed state |
//! | `gup` | the address space's lock, then the table's lock for each page | a lockless walk |
//! | `vmap` | a list of areas under one lock, with a flush on all CPUs at each unmap; and nodes with pools, as in today's Linux | lazy flushes, per-CPU blocks |
//! | `vmallocinfo` | readers that take the lock of the areas | lockless readers |
//! | `mm` | address spaces with one lock, and with counted VMAs, on the same page tables | ours |
//! | `reclaim` | FIFO and LRU, on the same accesses | the clock of `mm` |
//! | `calls` | single calls of Linux, measured in the same emulator | the same calls of ours |
//!
//! ```text
//!      calls   vmallocinfo     gup  quicklist  mm  reclaim      the experiments
//!        |  \      |           |     (each uses what is below)
//!        |   '-- vmap          |
//!        '-------------------- space
//!   experiment --> lab <-- barrier: CPUs that begin together     a machine, its clocks, its CPUs
//!                     timing: batches, medians, spreads; error
//! ```
//!
//! The baselines are `mm/locked` (Linux before 6.4) and `mm/counted` (since then), `vmap/one_lock`
//! (before 2008) and `vmap/nodes` (since 6.9).
//!
//! # How it is measured
//! An experiment measures its baseline and ours in turns, in one run. Each figure is the median of
//! the rounds. Times are processor time of the CPU that does the work, so other programs on the
//! host do not count.
//!
//! An operation of a few nanoseconds (`quicklist`) is timed by the wall clock, which is read
//! without a system call. The median batch counts. The longest single operation includes the host's
//! interrupts.
//!
//! Instructions, locked instructions and cache lines of one operation depend on no clock. They are
//! counted if the lab can count.
//!
//! On a busy host, a round may be shorter than the clock can tell, or the rounds may lie far apart.
//! The experiment then repeats rounds, up to three times as many as it needs. If that does not
//! help, it reports no figure, the target counts as not measured, and a [note](report::Note) gives
//! the reason and the host's context switches. Counts are not affected. A baseline that waits for
//! other CPUs has a time limit ([`Scale::limit`]). A note says where the limit cut a measurement.
//!
//! `no_std`; allocates.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod barrier;
mod calls;
mod error;
mod experiment;
mod gup;
mod lab;
mod mm;
mod quicklist;
mod reclaim;
mod space;
#[cfg(test)]
mod tests;
mod timing;
mod vmallocinfo;
mod vmap;

pub use error::Error;
pub use experiment::{Experiment, Measure, MeasureWork, Needs, Part, Size, Sizes};
pub use lab::{Disturbed, KernelHalf, Lab, MeasureCost, OpCost, Scale, Tick};
pub use machine::{Host, Program};

use alloc::vec::Vec;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::{Machine, Translated};

/// All experiments, in their order. A new one is a file and a line here: commands and kernels read
/// this list.
pub fn all<M, G, R>() -> Vec<Experiment<M, G, R>>
where
    M: Machine + Translated,
    G: Concurrent,
    R: RawRwLockFair + Send + Sync + 'static,
{
    Vec::from([
        calls::experiment(),
        quicklist::experiment(),
        gup::experiment(),
        vmap::experiment(),
        vmallocinfo::experiment(),
        mm::experiment(),
        reclaim::experiment(),
    ])
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
