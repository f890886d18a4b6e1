//! Trials: stresses of the crates, written once for any machine.
//!
//! Each runs on all CPUs that take part at once, makes and takes away mappings, looks at them
//! through the CPUs' own translations, and compares. On the machine in software that finds errors
//! in trials, under its checkers; on silicon, and on what emulates it, trials find whether page
//! tables and TLBs are what the machine in software takes them for.
//!
//! | trial | what must hold |
//! |---|---|
//! | `tree` | what is in the tree throughout is always found, and whole (I1); at the end it is what its model is |
//! | `quicklists` | a page of a quicklist is in its constructed state, word for word (I6), and one CPU's |
//! | `tables` | loads and stores do what was mapped, protected, unmapped, split, whoever changes the same tables |
//! | `vmap` | areas of all kinds have what was written to them, wherever they are freed; what is listed of them is true |
//! | `gup` | what is pinned stays what it was, whatever becomes of the page, until it is unpinned |
//! | `stale` | no CPU uses a translation from before a flush, and no address that comes back shows what was there (I4, I5) |
//! | `exhausted` | without a free frame calls fail and say so, and nothing else changes (I7); with some they work again |
//!
//! A trial returns what it has seen, with the CPU, the address, what was expected and what was
//! found, and the seed. It never panics on what it looks for, and leaves the machine as it found
//! it: as many frames are free as before. One that has seen something may leave behind what it had
//! taken.
//!
//! `no_std`; allocates.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod areas;
mod crew;
mod exhausted;
mod ground;
mod gup;
mod own;
mod program;
mod quicklists;
mod sight;
mod space;
mod stale;
mod tables;
mod tree;

pub use ground::Ground;
pub use machine::{Host, Program};

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use grace::Concurrent;
use machine::{Machine, Translated};

/// A trial.
pub struct Trial<M: Machine, G: Concurrent> {
    /// Its name.
    pub name: &'static str,
    /// Runs it. What it has seen that should not be, if anything.
    pub run: fn(&Ground<'_, M, G>) -> Result<(), String>,
}

impl<M: Machine, G: Concurrent> Clone for Trial<M, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine, G: Concurrent> Copy for Trial<M, G> {}

impl<M: Machine, G: Concurrent> fmt::Debug for Trial<M, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All trials, in their order. A new one is a file and a line here: hosts read this list.
pub fn all<M: Machine + Translated, G: Concurrent>() -> Vec<Trial<M, G>> {
    Vec::from([
        Trial { name: "tree", run: tree::tree },
        Trial { name: "quicklists", run: quicklists::quicklists },
        Trial { name: "tables", run: tables::tables },
        Trial { name: "vmap", run: areas::vmap },
        Trial { name: "gup", run: gup::gup },
        Trial { name: "stale", run: stale::stale },
        Trial { name: "exhausted", run: exhausted::exhausted },
    ])
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
