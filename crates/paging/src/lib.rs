//! Page tables: a cursor that changes them, lock-free walks, `get_user_pages_fast`, and quicklists.
//!
//! # One idea
//! Two kinds of readers of a page table cannot be made to wait: hardware page walkers, and
//! lock-free walks in software. So no page-table page is ever freed under a reader. After an entry
//! has changed, a reader that loaded it earlier may still follow the old value. A *TLB flush* ends
//! that for hardware, and a *grace period* ends it for software. An empty table is unlinked,
//! flushed, held for a grace period, and returned to a quicklist. It is still empty then, as its
//! next user needs it.
//!
//! # Where things are
//! A line uses only those below it. One exception: where tables or a flush end, the cursor leaves
//! tables that forks share.
//! ```text
//! gup     cursor     adopt   idle        lock-free pins; changes; boot tables; idle CPUs
//!   |       |   \
//!   |    pending, gather                 flushes to be done, and the tables to free after them
//!   |       |
//!   +--- tables <-> reclaim              one address space; memory when there is none
//!           |
//!        shared: quick, swap, tags       what all spaces of a machine share
//!           |
//!   lock, walk, block                    of one table; the lock-free reader; of frames
//!           |
//!        format, error                   entries, by architecture
//!
//! tlb_grace                              alone: the grace periods of TLBs
//! ```
//! | module | contents |
//! |---|---|
//! | `format` | entries, by architecture: [`Format`], [`X86_64`], [`Riscv`], [`Aarch64`], the second stages [`Ept`], [`Npt`] and [`Aarch64Stage2`]; [`Attrs`] |
//! | `walk` | the lock-free reader that all other code uses: [`Walk`] |
//! | `lock` | a lock for each table, in the state of its frame |
//! | `adopt` | [`PageTables::adopt`]: the kernel's tables that a boot loader has made |
//! | `tables` | [`PageTables`] of one address space, and the kernel's half that all spaces share |
//! | `cursor` | [`map`](PageTables::map), [`map_over`](PageTables::map_over), [`map_supervisor`](PageTables::map_supervisor), [`unmap`](PageTables::unmap), [`protect`](PageTables::protect), [`split`](PageTables::split), [`with_entry`](PageTables::with_entry), [`sweep`](PageTables::sweep), [`relocate`](PageTables::relocate), [`fork`](PageTables::fork) |
//! | `pending` | [`PendingFlush`]: a pending TLB flush, and the tables to free after it (Linux: `mmu_gather`) |
//! | `tlb_gather` | its range, its CPUs and its unlinked tables |
//! | `leave_table` | the end of a share of a table, which a fork has shared |
//! | `tlb_grace` | [`TlbGrace`]: grace periods after which no CPU holds an older translation |
//! | `reclaim` | finds memory for tables when the frame source is empty |
//! | `quick` | [`QuickLists`]: per-CPU lists of pages in their constructed state |
//! | `gup` | [`get_user_pages_fast`](PageTables::get_user_pages_fast), [`Pins`] |
//! | `shared` | [`Paging`]: the state that all page tables of a machine share |
//! | `tags` | tags that spaces share: more spaces than tags, without IPIs |
//! | `idle` | CPUs that have left a space for a while, which flushes pass over |
//! | `block`, `swap` | references to blocks of frames; [`Swap`], pages that are kept elsewhere |
//!
//! # Costs
//! | operation | cost |
//! |---|---|
//! | walk | one load per level; with the guard of `grace::quiescent`, no atomic instruction and no fence |
//! | map, unmap, protect | one walk and one lock for each table (2 MiB) of the range; a load and a store or swap for each page |
//! | `with_entry` | one walk and one lock; a store, or one more locked instruction if a page is changed |
//! | `sweep` | as unmap and protect, also for tables without pages; a lock for each upper table with holes |
//! | `fork` | a lock for each used top-level entry, and one flush, however much is mapped; each table that is changed later is copied once |
//! | take a table from a quicklist | three cache lines: one that is only read, one of this CPU's own, and the frame's state; no atomic instruction |
//! | `get_user_pages_fast` | one walk for each table; for each page two loads, and one locked instruction on the page's own count |
//!
//! No cost depends on the number of CPUs (I8), except that of the TLB flush: one IPI for each CPU
//! that uses the address space.
//!
//! # Example
//! ```
//! use machine::{Asid, FrameSource, PageSize, NodePolicy, Translated, VirtAddr, VirtRange};
//! use paging::{Attrs, Mapping, PageTables, Paging, X86_64L4};
//! use sim::{Config, Grace, Sim};
//!
//! let sim = Sim::new(Config::default()).unwrap();
//! let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
//! let tables = sim.on_cpu(0, || {
//!     let tables = PageTables::<_, _, Grace>::user(&paging, Asid(1), None).unwrap();
//!     let page = sim.alloc(0, NodePolicy::Local).unwrap();
//!     let range = VirtRange::new(VirtAddr::new(0x1000), 0x1000).unwrap();
//!     // SAFETY: the addresses are ours. The page is ours until the flush below is done.
//!     unsafe { tables.map(range, page, Attrs::USER_RW) }.unwrap();
//!     // SAFETY: this program needs no other mapping, and no other tables have this tag.
//!     unsafe { tables.activate() };
//!     // SAFETY: ordinary memory.
//!     unsafe { sim.store(range.start(), 42) }.unwrap();
//!
//!     let mut dirty = false;
//!     let gone = |page: Mapping| dirty = page.attrs.flags.contains(paging::Flags::DIRTY);
//!     // SAFETY: it unmaps the mapping made above, and flushes at once.
//!     unsafe { tables.unmap(range, gone) }.unwrap().flush();
//!     assert!(dirty, "hardware has marked it");
//!     // SAFETY: no translation to the page is left.
//!     unsafe { sim.release(page) }.unwrap();
//!     tables
//! });
//! // The CPU has stopped, so no tables are active on it.
//! sim.on_cpu(0, || drop(tables));
//! ```
//!
//! `no_std`; allocates from the heap only in [`Paging::try_new`] and [`TlbGrace::try_new`].
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
// The unit tests share helpers with the other tests.
#[cfg(all(test, not(loom)))]
extern crate self as paging;
#[cfg(any(test, doctest))]
extern crate std;

mod adopt;
pub mod block;
#[cfg(all(test, not(loom)))]
#[path = "../tests/common/mod.rs"]
mod common;
mod cursor;
mod error;
mod fallible_alloc;
mod format;
mod gup;
mod idle;
mod kept_chains;
mod leave_table;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod pending;
mod quick;
mod reclaim;
mod shared;
mod swap;
mod sync;
mod tables;
mod tags;
mod tlb_gather;
mod tlb_grace;
mod walk;

pub use adopt::{AdoptError, EntryFault};
pub use cursor::{EntryChange, Failed, Leaf, Logging, Relocation, Reserve, Supply, SweepChange};
pub use error::Error;
pub use format::{
    Aarch64, Aarch64G16, Aarch64G16L3, Aarch64G16Lpa2, Aarch64G64, Aarch64G64Lpa, Aarch64Lpa2,
    Aarch64Stage2, Attrs, Cache, Decoded, Encrypted, Ept, Ept4, Ept5, Extended, Flags, Format,
    FormatError, Geometry, LongMode, MAIR, Nested, Npt, Npt4, Npt5, PAT, Riscv, Share, Stage1,
    Stage2, Sv39, Sv39Napot, Sv48, Sv48Napot, Sv57, Sv57Napot, Vmsa, VmsaKind, X86, X86_64,
    X86_64L4, X86_64L5, X86Kind,
};
pub use gup::{GupError, GupStats, Pins, unpin};
pub use pending::{DeferredFlush, PendingFlush};
pub use quick::{
    Construct, NR_QUICK, QUICK_FRACTION, QUICK_MAX, QUICK_ROOT, QUICK_TABLE, QuickLists,
    QuickStats, TableLists, Zeroed,
};
pub use shared::Paging;
pub use swap::Swap;
pub use tables::PageTables;
pub use tags::Tag;
pub use tlb_grace::{TlbGrace, TlbGraceStats};
pub use walk::{Found, Mapping, Pages, Walk};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
