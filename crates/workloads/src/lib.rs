//! The experiments: what was replaced, honestly written, beside what replaces it, on any machine.
//!
//! Each experiment is a function of a [`Lab`]: a machine, and what it takes to measure there. It
//! returns a [`Report`](report::Report) of rows and targets, which prints as tables and as JSON
//! lines. A hosted program gives it threads and processor time, a kernel its CPUs and its clock.
//!
//! | experiment | what was replaced | what replaces it |
//! |---|---|---|
//! | [`quicklist()`] | a page from the frame source, cleared | a page that is already as it has to be |
//! | [`vmap()`], [`vmap_flushes`], [`vmap_counts`], [`vmap_work`] | areas in a list under one lock, flushed everywhere at each unmap; and nodes with pools, as Linux today | lazy flushes, blocks of each CPU |
//! | [`vmallocinfo()`] | readers of all areas that take that lock | readers without a lock |
//! | [`calls()`] | single calls, as Linux does them in the same emulator | the same calls of ours |
//! | [`gup()`] | the address space's lock, then each page with its table's lock | a walk without a lock |
//!
//! # How it is measured
//! What is compared is measured in turns, in one run, and each figure is the median of the rounds.
//! Times are processor time of the CPU that does the work, so that neighbours on a host do not
//! count. What takes a few nanoseconds ([`quicklist()`]) is measured by the clock on the wall,
//! which is read without a system call, and the batch in the middle counts; the longest single
//! operation finds the host's interrupts, too. What depends on no clock is counted, if the lab can
//! count: instructions, locked instructions, cache lines of one operation.
//!
//! On a busy host times may come out as nonsense: of nothing, or far apart. Such a round is
//! repeated, three times as often as rounds are wanted; if that does not help there is no figure,
//! the target counts as not measured, and a [note](report::Note) says why, with the host's context
//! switches. What is counted stands for itself. A measure whose baseline waits for others has a
//! limit ([`Scale::limit`]); one that was cut by it says so in a note.
//!
//! `no_std`; allocates.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod calls;
mod error;
mod experiment;
mod gup;
mod lab;
mod mean;
mod meeting;
mod quicklist;
mod space;
#[cfg(test)]
mod tests;
mod vmallocinfo;
mod vmap;

pub use error::Error;
pub use experiment::{Experiment, Measure, MeasureWork, Needs, Part, Size, Sizes};
pub use lab::{Count, Counted, Disturbed, KernelHalf, Lab, Scale, Tick};
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
    R: RawRwLockFair + Send + Sync,
{
    Vec::from([
        calls::experiment(),
        quicklist::experiment(),
        gup::experiment(),
        vmap::experiment(),
        vmallocinfo::experiment(),
    ])
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
