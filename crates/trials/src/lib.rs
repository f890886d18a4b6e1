//! Stress tests of the crates, called trials, for any machine.
//!
//! A trial runs on all CPUs at once. It makes and removes mappings, reads and writes through the
//! CPUs' own translations, and compares. On the machine in software and under its checkers, this
//! finds errors of the trials. On silicon and on emulators, it finds whether page tables and TLBs
//! behave as the machine in software assumes.
//!
//! | trial | invariant |
//! |---|---|
//! | `tree` | an entry that stays in the tree is always found, and whole (I1); in the end the tree equals its model |
//! | `quicklists` | a page of a quicklist is in its constructed state, word for word (I6), and belongs to one CPU |
//! | `tables` | loads and stores follow the mappings, however many CPUs change the same tables |
//! | `vmap` | areas of all kinds keep their contents, wherever they are freed, and the listing is right |
//! | `gup` | a pinned frame keeps its contents until it is unpinned, even if its page is unmapped |
//! | `stale` | no CPU uses a translation from before a flush, and an address that is reused never shows old contents (I4, I5) |
//! | `exhausted` | without a free frame, calls fail with the right error and change nothing (I7); with free frames they work again |
//!
//! A trial returns the first error, with the CPU, the address, the expected and the found value,
//! and the seed. It never panics on such an error. It leaves the machine as it found it, with as
//! many free frames as before; after an error it may leave frames allocated.
//!
//! ```text
//!    tree  quicklists  tables  areas (vmap)  gup  stale  exhausted      the trials
//!      │        │        │         │          │     │        │
//!      │        │        │         └──────────┴─────┴────────┤
//!      │        │        │              program: a program's tables; space: one for areas
//!      └────────┴────────┴─────────────────┬─────────────────┘
//!                  checked: accesses, compared with what must be there
//!                  own: calls that change page tables
//!                                          ▼
//!      environment: the machine, parts of the addresses, the count of free frames
//!                                          ▼
//!      worker: a CPU of a trial, its barrier, its errors
//! ```
//!
//! `no_std`; allocates.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod areas;
mod checked;
mod environment;
mod exhausted;
mod gup;
mod own;
mod program;
mod quicklists;
mod space;
mod stale;
mod tables;
mod tree;
mod worker;

pub use environment::{Environment, unit};
pub use machine::{Host, Program};

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use grace::Concurrent;
use machine::{Machine, Translated};
use paging::Format;

/// A trial.
pub struct Trial<M: Machine, F: Format, G: Concurrent> {
    /// Its name.
    pub name: &'static str,
    /// Runs it. Returns the error that it found, if any.
    pub run: fn(&Environment<'_, M, F, G>) -> Result<(), String>,
}

impl<M: Machine, F: Format, G: Concurrent> Clone for Trial<M, F, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Machine, F: Format, G: Concurrent> Copy for Trial<M, F, G> {}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Trial<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All trials, in their order. A new one is a file and a line here: hosts read this list. Those of
/// areas compile for a granule of 4 KiB only: see [`of_tables`].
pub fn all<M: Machine + Translated, F: Format, G: Concurrent>() -> Vec<Trial<M, F, G>> {
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

/// The trials that need page tables only, no areas: for formats of any granule. `stale` leaves out
/// the addresses that areas reuse.
pub fn of_tables<M: Machine + Translated, F: Format, G: Concurrent>() -> Vec<Trial<M, F, G>> {
    Vec::from([
        Trial { name: "tree", run: tree::tree },
        Trial { name: "quicklists", run: quicklists::quicklists },
        Trial { name: "tables", run: tables::tables },
        Trial { name: "gup", run: gup::gup },
        Trial { name: "stale", run: stale::stale_pages },
    ])
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
