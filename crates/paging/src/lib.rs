//! Page tables: a cursor that changes them, walks that take no lock, `get_user_pages_fast`, and
//! quicklists.
//!
//! # One idea
//! A page table has two kinds of readers that nobody can make wait: hardware, and walks in software
//! that take no lock. So nothing is ever taken away under them. An entry that is changed leads, for
//! everyone who read it before, to what it led to; that ends for hardware with a *flush*, and for
//! software with a *grace period*. A table becomes empty, is unlinked, is flushed, waits for the
//! grace period, and goes back to a quicklist: empty, as it has to be for its next use.
//!
//! # What is where
//! | module | what |
//! |---|---|
//! | `format` | entries, by architecture: [`Format`], [`X86_64`], [`Riscv`]; [`Attrs`] |
//! | `walk` | the lockless reader of everything: [`Walk`] |
//! | `lock` | a lock for each table, in the state of its frame |
//! | `tables` | [`PageTables`] of one address space, and the kernel's half that all share |
//! | `cursor` | [`map`](PageTables::map), [`unmap`](PageTables::unmap), [`protect`](PageTables::protect), [`split`](PageTables::split) |
//! | `pending` | what is owed afterwards: [`PendingFlush`], a flush and the tables that wait for it |
//! | `reclaim` | where tables are found when memory gives out |
//! | `quick` | [`QuickLists`]: pages in their constructed state, of each CPU |
//! | `gup` | [`get_user_pages_fast`](PageTables::get_user_pages_fast), [`Pins`] |
//! | `paging` | [`Paging`], what the tables of a machine share |
//!
//! # What each costs
//! | operation | cost |
//! |---|---|
//! | a walk | one load a level; with the guard of `grace::quiescent`, no atomic instruction and no fence |
//! | map, unmap, protect | a walk and one lock for each table (2 MiB) of the range; a load and a store or swap for each page |
//! | a table taken from a quicklist | two cache lines, one of them written by nobody, and that of the frame's state; no atomic instruction |
//! | `get_user_pages_fast` | a walk for each table; for each page two loads, and one locked instruction on its own count |
//!
//! None depends on the number of CPUs (I8), but for the flush that is owed: one interrupt for each
//! CPU that uses the space.
//!
//! # Example
//! ```
//! use machine::{Asid, FrameSource, PageSize, Place, Translated, VirtAddr, VirtRange};
//! use paging::{Attrs, Mapping, PageTables, Paging, X86_64L4};
//! use sim::{Config, Grace, Sim};
//!
//! let sim = Sim::new(Config::default()).unwrap();
//! let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
//! let tables = sim.on_cpu(0, || {
//!     let tables = PageTables::<_, _, Grace>::user(&paging, Asid(1), None).unwrap();
//!     let page = sim.alloc(0, Place::Local).unwrap();
//!     let range = VirtRange::new(VirtAddr::new(0x1000), 0x1000).unwrap();
//!     // SAFETY: the addresses are ours, and so is the page until the flush below.
//!     unsafe { tables.map(range, page, Attrs::USER_RW) }.unwrap();
//!     // SAFETY: the test needs nothing mapped but this, and no other tables have the tag.
//!     unsafe { tables.activate() };
//!     // SAFETY: ordinary memory.
//!     unsafe { sim.store(range.start(), 42) }.unwrap();
//!
//!     let mut dirty = false;
//!     let gone = |page: Mapping| dirty = page.attrs.flags.contains(paging::Flags::DIRTY);
//!     // SAFETY: what we have mapped; it is flushed at once.
//!     unsafe { tables.unmap(range, gone) }.unwrap().flush();
//!     assert!(dirty, "hardware has marked it");
//!     // SAFETY: nobody translates to it any more.
//!     unsafe { sim.release(page) }.unwrap();
//!     tables
//! });
//! // The CPU has stopped: nothing is active there.
//! sim.on_cpu(0, || drop(tables));
//! ```
//!
//! `no_std`; allocates from the heap only in [`Paging::try_new`].
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod cursor;
mod format;
mod gup;
mod kept;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod paging;
mod pending;
mod quick;
mod reclaim;
mod sync;
mod tables;
mod walk;

pub use cursor::{Error, Failed, Leaf, Supply};
pub use format::{
    Attrs, Cache, Decoded, Flags, Format, FormatError, PAT, Riscv, Sv39, Sv48, X86_64, X86_64L4,
    X86_64L5, level_of, size_at,
};
pub use gup::{GupError, GupStats, Pins, unpin};
pub use paging::Paging;
pub use pending::{DeferredFlush, PendingFlush};
pub use quick::{
    Construct, NR_QUICK, QUICK_FRACTION, QUICK_MAX, QUICK_ROOT, QUICK_TABLE, QuickLists,
    QuickStats, TableLists, Zeroed,
};
pub use tables::PageTables;
pub use walk::{Mapping, Pages, Walk};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
