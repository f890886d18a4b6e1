//! The traits that a host implements to run Samara, and the types in their signatures.
//!
//! A host is a kernel, a hypervisor or a simulated machine. `paging` and `vmap` use nothing else
//! of it. Each trait is small and independent, so code requires only the traits it needs, and
//! a host can implement them one after the other.
//!
//! | trait | contents | needed by |
//! |---|---|---|
//! | [`Cpus`] | the number of CPUs, and the current one | per-CPU data |
//! | [`Irqs`] | sections with interrupts disabled | per-CPU lists, lockless walks |
//! | [`Tlb`] | TLB flushes on this CPU and on others; the active page table | code that changes page tables |
//! | [`Memory`] | the bytes of a frame; the [`Entry`]s of a page table | page tables |
//! | [`FrameSource`] | blocks of frames, with a [`FrameInfo`] for each frame | code that allocates memory |
//! | [`Step`] | a hook before each shared access, and in each waiting loop | all of the above, and locks |
//! | [`Translated`] | loads and stores through the active translations | tests, experiments, `vread` |
//!
//! [`Machine`] combines all of them except `Translated`. Every type that implements them implements
//! it. To port Samara to your own kernel, read `kernel/IMPLEMENTING.md` in the repository: it goes
//! through the traits one by one, with the source of an implementation.
//!
//! The types: [`VirtAddr`], [`PhysAddr`] and [`Frame`], and ranges of them ([`VirtRange`],
//! [`PhysRange`], [`FrameRange`]); [`PageSize`]; [`CpuId`], [`CpuSet`], [`AtomicCpuSet`]; [`Asid`],
//! [`Flush`]; [`NodeId`], [`NodePolicy`].
//!
//! Ready-made parts for hosts: [`PerCpu`] and [`CpuLocal`], per-CPU storage; [`Frames`], a frame
//! source on a buddy allocator with per-CPU caches; [`Ranges`], an allocator of addresses for many
//! CPUs; [`CrossCall`], calls on other CPUs by IPI, for TLB shootdowns; and [`Host`], which runs
//! programs on all CPUs, for tests and experiments.
//!
//! # Where things are
//!
//! A module uses those below it:
//!
//! ```text
//!     host                              programs on all CPUs
//!     cross_call, ranges                requests between CPUs; addresses for many CPUs
//!       |
//!       |   frames                      a frame source: `buddy` allocator, `node`s, `cache`s
//!       |     |
//!       |   frame_source                the trait of sources
//!       |     |
//!       |   accounts                    the frames of groups of users
//!       +-----+---- percpu, storage     per-CPU storage; tables before there is a heap
//!       |     |
//!       |   frame_info, numa            references, pins, owner of a frame; nodes
//!       |     |
//!       |   word <---- memory           words of lockless walks; entries of page tables
//!       |                |
//!     lock ----------- step --- checker points of interference; the hooks of checkers
//!       |
//!     irq, cpu                          sections with interrupts disabled; CPUs and sets of them
//!
//!     tlb, translated                   flushes, tags, barriers; accesses through the MMU
//!     span, frame, page, addr           ranges, frames, sizes of pages, addresses
//!     sync, mutant                      the words of loom; orderings that its models weaken
//! ```
//!
//! # A machine is a handle
//!
//! The traits' methods take `&self`, and structures store the machine by value. So a machine is a
//! small handle that can be cloned. All clones stand for the same machine. A kernel uses a unit
//! struct, a simulated machine a reference-counted pointer.
//!
//! # Shared accesses
//!
//! Every access to shared memory without a lock goes through [`Entry`], or calls [`Step::step`]
//! first. Every waiting loop calls [`Step::relax`]. On hardware, `step` does nothing and `relax` is
//! a pause instruction. The simulated machine switches CPUs at exactly these points, and so finds
//! errors that depend on interleaving. [`lock()`] takes a spin lock by these rules.
//!
//! The crate is `no_std`. It allocates only where [`PerCpu`], [`CpuLocal`] and [`Frames`] document
//! it.
#![no_std]
extern crate alloc;
#[cfg(any(test, doctest, loom))]
extern crate std;

mod accounts;
mod addr;
mod checker;
mod cpu;
mod cross_call;
mod frame;
mod frame_info;
mod frame_source;
mod frames;
mod host;
mod irq;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod mutant;
mod numa;
mod page;
#[cfg(test)]
#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
mod percpu;
mod ranges;
mod span;
mod step;
mod storage;
mod sync;
#[cfg(test)]
mod testing;
mod tlb;
mod translated;
#[cfg(not(loom))]
#[expect(unreachable_pub, reason = "it is public for models")]
mod word;
#[cfg(loom)]
pub mod word;

pub use accounts::{Account, Accounts, MAX_ACCOUNTS};
pub use addr::{PhysAddr, VirtAddr};
pub use checker::Checker;
pub use cpu::{AtomicCpuSet, CpuId, CpuSet, Cpus, MAX_CPUS};
pub use cross_call::CrossCall;
pub use frame::Frame;
pub use frame_info::{FrameInfo, Owner};
pub use frame_source::{FrameError, FrameSource};
#[cfg(loom)]
pub use frames::ModelFrames;
pub use frames::{CACHE_BATCH, CACHE_FRAMES, Frames, FramesError, FramesOn, MAX_ORDER};
pub use host::{Host, Program};
pub use irq::{IrqOff, Irqs};
pub use lock::lock;
pub use memory::{ENTRIES, Entries, Entry, Memory};
pub use numa::{MAX_NODES, NodeId, NodePolicy};
pub use page::PageSize;
pub use percpu::{CpuLocal, PerCpu};
pub use ranges::{Ranges, RangesError};
pub use span::{FrameRange, PhysRange, Point, Span, VirtRange};
pub use step::{EntryOp, SharedAccess, Step};
pub use sync::after_update;
pub use tlb::{Asid, Flush, Tlb};
pub use translated::{Fault, FaultKind, Translated};
pub use word::FrameWord;

/// All traits that a host implements, in one bound: a handle that can be cloned, stored and sent to
/// other CPUs.
pub trait Machine:
    Cpus + Irqs + Tlb + Memory + FrameSource + Step + Clone + Send + Sync + 'static
{
}

impl<M> Machine for M where
    M: Cpus + Irqs + Tlb + Memory + FrameSource + Step + Clone + Send + Sync + 'static
{
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
