//! A machine in software, to run and test page tables and virtual areas on any host.
//!
//! [`Sim`] implements the traits of the crate `machine` with CPUs, TLBs, page walkers and
//! interrupts made in software. The code under test is the same that runs in a kernel. What is
//! different is that this machine tells: where silicon goes on with a stale translation, or walks
//! into a table that has been freed, this one halts and says what, where, on which CPU, and who did
//! it when.
//!
//! # What is modelled
//! - *Memory* (`arena`) is a block of the host's, from 4 GiB on, with a [`machine::Frames`] as its
//!   frame source.
//! - *Page tables* (`format`, `walk`) are x86-64's, 4 or 5 levels, 4 KiB, 2 MiB and 1 GiB pages, in
//!   that memory. The walker reads an entry a step and sets accessed and dirty bits by compare and
//!   exchange, so walks race with writers as they do in silicon.
//! - *Caches* (`tlb`): each CPU has a TLB of limited size, with tags and global entries, and a
//!   cache of upper-level entries from which walks begin. Only flushes drop them; a flush drops no
//!   more than it must (a flush of pages leaves upper-level entries, unless it says that tables
//!   went).
//! - *Tags and global pages* (`tlb`): translations of other tags stay when a CPU changes to another
//!   space, and so do global ones, which belong to every space; a flush of one space leaves these.
//! - *Pages of two sizes for one address*: after a split a CPU may hold both, and uses the older
//!   one.
//! - *Interrupts* (`sim`, `flush`): flushes asked for by other CPUs, a timer, and handlers that
//!   tests send. They are taken at steps, held off while interrupts are off, and counted.
//! - *What a CPU may do unasked*: cache the neighbours of what it translates
//!   ([`Config::speculation`]); take a spurious fault after an entry has become more permissive.
//!
//! - *NUMA nodes* ([`Config::nodes`]): memory and CPUs are shared out among them; distance costs
//!   nothing.
//! - *Memory that gives out* ([`Sim::fail_alloc`]): the nth allocation of frames fails, once or
//!   from then on.
//!
//! Not modelled: memory that is reordered (what is stored is seen at once and in order; loom is
//! there for that), caches of data, protection keys, the time that things take.
//!
//! # Two drivers of the same machine
//! [`threads`]: a host thread for each CPU, for speed. [`seeded`]: all CPUs on one host thread, who
//! is next drawn from a seed at each step; [`explore`] tries many seeds, and the one that fails
//! replays exactly.
//!
//! [`Bare`] is another machine: memory and threads without hardware or checks, to measure what code
//! itself costs.
//!
//! # Grace periods
//! [`Grace`] is the engine for readers, as kernels use it, on the machine's own CPUs: it announces
//! at timer interrupts and when a program ends. [`Sim::settle`] brings all to its end.
//!
//! # What is checked
//! | checker | what it reports |
//! |---|---|
//! | stale translation (I5) | an access through a cached translation that the tables do not allow any more, or whose frame was freed |
//! | flushes (I5, I3) | [`Sim::check_flushed`], [`Sim::check_ways_flushed`], called by tests: any cached translation, or cached upper-level entry, that is out of date, used or not |
//! | spaces (I5) | a tag that a CPU uses for other tables while it keeps what it cached under it; a global page in a space that does not share its tables; two sizes for one address that lead to different frames |
//! | sizes (I5) | [`Sim::check_flushed`], too: a cached translation of another size than the tables have |
//! | marks | a store to a program's page that loses an accessed or dirty bit which hardware set since this CPU last read the entry; under the deterministic driver |
//! | tables (I3) | the walker, or code, in a frame that is no table any more; a table given up while a CPU has it active, has a way to it cached, or walks it; with [`Checks::walked`], while code on another CPU is in the section in which it was led there |
//! | hand-out (I4) | [`machine::Tlb::check_reuse`] of addresses that some TLB still translates |
//! | frames | freed while a reachable entry leads to it, or while pinned; an access to a frame that is free |
//! | constructed state (I6) | a page that enters or leaves a quicklist with a word that is not as constructed, or another list than it was constructed for |
//! | leaks | frames that were never given back ([`Sim::check_leaks`]) |
//!
//! Each has mutants in `tests/checkers/`, code in which one thing is left out, that some seed must
//! find: a flush, or half of it; a grace period cut short; an order of steps that a missing barrier
//! would allow. Barriers themselves are loom's: what this machine runs is sequentially consistent.
//!
//! Code tells the machine what frames are for by [`machine::FrameSource::set_owner`]: a frame is
//! [`Table`](machine::Owner::Table) from before its first entry is written until nobody can walk
//! it, then [`Quick`](machine::Owner::Quick) or free. It says when it has constructed a page of a
//! quicklist, by [`machine::FrameSource::note_constructed`], and changes entries through
//! [`machine::Entry`]. That is all there is to do.
//!
//! # Example
//! ```
//! use machine::{Asid, FrameSource, Memory, Owner, Place, Tlb, Translated, VirtAddr};
//! use sim::{Config, Sim};
//!
//! let sim = Sim::new(Config::default())?;
//! sim.on_cpu(0, || {
//!     // Four tables, one page.
//!     let frames: Vec<_> = (0..5).map(|_| sim.alloc(0, Place::Local).unwrap()).collect();
//!     for level in (0..4).rev() {
//!         // SAFETY: the frame is ours. What the arena has at its beginning is empty tables.
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
//!     assert_eq!((sim.counts().walks, sim.counts().hits), (2, 1));
//! });
//! # Ok::<(), sim::ConfigError>(())
//! ```
#![deny(missing_docs)]

mod arena;
mod attach;
mod bare;
mod checks;
mod config;
mod constructed;
mod counts;
mod cpu;
mod drive;
mod events;
mod flush;
mod format;
mod grace;
mod here;
mod marks;
mod report;
mod sim;
mod spaces;
mod tlb;
mod traits;
mod walk;

pub use bare::{Bare, BareCpus, BareGrace};
pub use config::{Checks, Config, ConfigError, Stale};
pub use counts::Counts;
pub use drive::{Cause, Explored, Failure, Program, Run, explore, seeded, threads};
pub use events::{Event, What};
pub use format::Want;
pub use grace::{Exclusive, Grace, SimCpus};
pub use report::{Leaked, Report, Violation};
pub use sim::{Sim, TickTaken};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
