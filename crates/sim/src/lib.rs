//! A machine in software, to run and test page tables and virtual areas on any host.
//!
//! [`Sim`] implements the traits of the crate `machine` with CPUs, TLBs, page walkers and
//! interrupts in software. The code under test is the code that runs in a kernel. Silicon silently
//! uses a stale translation, or walks a freed table; this machine halts and reports what happened,
//! where, on which CPU, and which CPU caused it when.
//!
//! # What is modelled
//! - *Memory* (`arena`): a block of the host's memory, from physical address 4 GiB on, with a
//!   [`machine::Frames`] as its frame source.
//! - *Page tables* (`format`, `walk`): those of an architecture ([`Arch`]) in that memory, with
//!   pages of 4 KiB, 2 MiB and 1 GiB, or those of AArch64 with granules of 16 and 64 KiB. The
//!   walker reads one entry per step and sets accessed and dirty bits by compare-and-exchange. So
//!   walks race with writers as they do in silicon.
//! - *Caches* (`tlb`): each CPU has a TLB of limited size, with tags and global entries, and a
//!   cache of upper-level entries from which walks begin. Only flushes drop entries, and no more
//!   than they must: a flush of pages keeps upper-level entries, unless it says that tables were
//!   unlinked.
//! - *Tags and global pages* (`tlb`): translations of other tags stay when a CPU switches to
//!   another space. So do global ones, which belong to every space; a flush of one space keeps
//!   them.
//! - *Pages of two sizes for one address*: after a split a CPU may hold both, and uses the older
//!   one.
//! - *Interrupts* (`interrupts`, `flush`): flushes requested by other CPUs, a timer, and handlers
//!   that tests send. They are taken at steps, deferred while interrupts are disabled, and counted.
//! - *Speculation* ([`Config::speculation`]): a CPU may cache the neighbours of a page that it
//!   translates. *Spurious faults*: a CPU may fault once after an entry has become more permissive.
//! - *NUMA nodes* ([`Config::nodes`]): memory and CPUs are divided among them; distance costs
//!   nothing.
//! - *Exhausted memory* ([`Sim::fail_alloc`]): the nth allocation of frames fails, once or from
//!   then on.
//!
//! Not modelled: memory reordering (a store is visible at once and in order; use loom for that),
//! data caches, protection keys, and time.
//!
//! # Three drivers of the same machine
//! [`threads`] gives each CPU a host thread, for speed. [`seeded`] runs all CPUs on one host
//! thread, and draws the next CPU from a seed at each step. [`stopped`] stops one CPU at a step,
//! and lets the others run whole. [`explore`] tries many seeds, or steps; one that fails replays
//! exactly.
//!
//! [`Bare`] is another machine: memory and threads without hardware or checks. It measures the cost
//! of the code itself.
//!
//! # Grace periods
//! [`Grace`] is the grace-period engine that kernels use, on the machine's own CPUs. A CPU passes a
//! quiescent state at timer interrupts and when its program ends. [`Sim::settle`] completes all
//! pending grace periods.
//!
//! # Where things are
//! A module uses those below it:
//!
//! ```text
//!     drive: threads, seeded, stopped    run the programs of the CPUs
//!       |
//!     traits                             the traits of `machine`, for `Sim`
//!       |
//!     walk, flush, attach                page walks; flushes; starts of CPUs
//!     interrupts, grace                  steps and interrupts; grace periods
//!       |
//!     checks, entry_checks, breaks       the checks, which report violations
//!     spaces, groups
//!       |
//!     sim, current_cpu                   the machine; the CPU that a host thread is
//!       |
//!     constructed, reverse_map           state of checkers; `cached_absent` has the barriers
//!     accessed_dirty, cached_absent      after an entry becomes valid
//!     alloc_failure                      exhausted memory
//!       |
//!     tables                             the page tables in memory
//!       |
//!     cpu, tlb, arena, stats, config     the parts of the machine
//!     events, report                     the log; violations
//!       |
//!     format                             the entries of each architecture
//!
//!     bare, model                        machines without checks, and for loom
//! ```
//!
//! The words of `model` are placed by `machine::word`.
//!
//! # What is checked
//! | checker | reports |
//! |---|---|
//! | stale translation (I5) | an access by a cached translation that the tables no longer allow, or whose frame was freed |
//! | flushes (I5, I3) | [`Sim::check_flushed`] and [`Sim::check_upper_flushed`], called by tests: any outdated translation or upper-level entry in a cache, used or not |
//! | spaces (I5) | a tag that a CPU uses for other tables while it keeps its old cached entries; a global page in a space that does not share its tables; two sizes for one address that lead to different frames |
//! | sizes (I5) | also [`Sim::check_flushed`]: a cached translation of another size than in the tables |
//! | breaks | where the architecture demands break-before-make: a valid entry replaced by a conflicting one, or a new one stored while a CPU has still cached the old one |
//! | accessed and dirty bits | a store to the entry of a user page that loses an accessed or dirty bit that hardware has set since this CPU last read the entry; under the deterministic driver |
//! | tables (I3) | the walker, or code, in a frame that is not a table any more; a table given up while a CPU has it active, has an upper-level entry of it cached, or walks it; with [`Checks::walked`], while code on another CPU is in the section in which it reached the table |
//! | reuse (I4) | [`machine::Checker::check_reuse`] of addresses that some TLB still translates |
//! | frames | freed while a reachable entry leads to it, or while pinned; an access to a free frame |
//! | constructed state (I6) | a page that enters or leaves a quicklist with a changed word, or enters another list than it was constructed for |
//! | leaks | frames that were never given back ([`Sim::check_leaks`]) |
//!
//!
//! Each checker has mutants in `tests/checkers/`: code with one step left out, which some seed must
//! detect. The step is a flush or half of one, the wait for a grace period, or the order of two
//! operations as a missing barrier would allow. Barriers themselves are left to loom: this machine
//! is sequentially consistent.
//!
//! The code under test does three things for the machine:
//! - It names the owner of each frame, by [`machine::FrameSource::set_owner`]. A frame is
//!   [`Table`](machine::Owner::Table) from before its first entry is written until no CPU can walk
//!   it, then [`Quick`](machine::Owner::Quick) or free.
//! - It reports each page that it has constructed for a quicklist, by
//!   [`machine::Checker::note_constructed`].
//! - It changes entries through [`machine::Entry`].
//!
//! # Example
//! ```
//! use machine::{Asid, FrameSource, Memory, Owner, NodePolicy, Tlb, Translated, VirtAddr};
//! use sim::{Config, Sim};
//!
//! let sim = Sim::new(Config::default())?;
//! sim.on_cpu(0, || {
//!     // Four tables, one page.
//!     let frames: Vec<_> = (0..5).map(|_| sim.alloc(0, NodePolicy::Local).unwrap()).collect();
//!     for level in (0..4).rev() {
//!         // SAFETY: the frame is ours. The arena begins with zeroed frames: empty tables.
//!         unsafe { sim.set_owner(frames[level], Owner::Table(level as u8)) }.unwrap();
//!     }
//!     let page = frames[4];
//!     for level in (0..4).rev() {
//!         let next = if level == 0 { page } else { frames[level - 1] };
//!         // SAFETY: the frame is a table.
//!         unsafe { sim.entry(frames[level], 1) }.unwrap().store(next.start().get() | 3);
//!     }
//!     let at = VirtAddr::new(1 << 39 | 1 << 30 | 1 << 21 | 1 << 12);
//!     // SAFETY: the page is ordinary memory, and the table maps all that this test needs.
//!     unsafe {
//!         sim.activate(frames[3], Asid(1), false);
//!         sim.store(at, 42).unwrap();
//!         assert_eq!(sim.load(at), Ok(42));
//!         assert!(sim.load(VirtAddr::new(0)).is_err());
//!     }
//!     assert_eq!((sim.stats().walks, sim.stats().hits), (2, 1));
//! });
//! # Ok::<(), sim::ConfigError>(())
//! ```
#![deny(missing_docs)]

mod accessed_dirty;
mod alloc_failure;
mod arena;
mod attach;
mod bare;
mod breaks;
mod cached_absent;
mod checks;
mod config;
mod constructed;
mod cpu;
mod current_cpu;
mod drive;
mod entry_checks;
mod events;
mod flush;
mod format;
mod grace;
mod groups;
mod interrupts;
mod lock;
#[cfg(loom)]
mod model;
mod report;
mod reverse_map;
mod sim;
mod spaces;
mod stats;
mod tables;
mod tlb;
mod traits;
mod walk;

pub use bare::{Bare, BareCpus, BareGrace};
pub use config::{Checks, Config, ConfigError, Stale};
pub use drive::{Cause, Explored, Failure, Program, Run, explore, seeded, stopped, threads};
pub use events::{Event, EventKind};
pub use format::{Arch, Want};
pub use grace::{Exclusive, Grace, SimCpus};
pub use interrupts::TickTaken;
#[cfg(loom)]
pub use model::{MODEL_CPUS, MODEL_FRAMES, Model, ModelGrace, ModelThread, model};
pub use report::{Leaked, Report, Violation};
pub use sim::Sim;
pub use stats::SimStats;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
