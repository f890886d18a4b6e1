//! What a host implements so that Samara can run on it, and the types they speak in.
//!
//! A kernel, a hypervisor or a machine in software implements these traits; `paging`, `vmap` and
//! `vma` use nothing else of it. Each is small and stands alone, so that a piece of code asks for
//! what it needs, and a host can begin with what is asked for first.
//!
//! | trait | what it says | who needs it |
//! |---|---|---|
//! | [`Cpus`] | how many CPUs, which one is this | whatever is per CPU |
//! | [`Irqs`] | sections that no interrupt enters | per-CPU lists, lockless walks |
//! | [`Tlb`] | drop translations here or there; make a table active | whoever changes page tables |
//! | [`Memory`] | the bytes of a frame; the [`Entry`]s of a table | page tables |
//! | [`FrameSource`] | blocks of frames, with a [`FrameInfo`] each | whoever needs memory |
//! | [`Step`] | a hook before each shared access, and in each waiting loop | all of the above, and locks |
//! | [`Translated`] | loads and stores through the active translations | tests, experiments, `vread` |
//!
//! [`Machine`] is all of them together but `Translated`; whatever implements them implements it.
//! `kernel/IMPLEMENTING.md` in the repository goes through them one by one, for who has a kernel of
//! his own, with the source of one that does it.
//!
//! What they speak in: [`VirtAddr`], [`PhysAddr`], [`Frame`] and ranges of each ([`VirtRange`],
//! [`PhysRange`], [`FrameRange`]); [`PageSize`]; [`CpuId`], [`CpuSet`], [`AtomicCpuSet`]; [`Asid`],
//! [`Flush`]; [`NodeId`], [`Place`]. What a host need not write itself: [`PerCpu`] and [`CpuLocal`]
//! storage; [`Frames`], a frame source on a buddy allocator with a cache for each CPU;
//! [`CrossCall`], requests between CPUs, for shootdowns.
//!
//! # A machine is a handle
//!
//! The traits' methods take `&self`, and structures keep the machine by value: so it is something
//! small to clone, that stands for the same machine ever after. A kernel's is a unit struct; that
//! of a machine in software a counted pointer. Clones are the same machine in every respect.
//!
//! # What runs where
//!
//! All that is done to shared memory without a lock goes through [`Entry`], or is announced by
//! [`Step::step`]; all waiting goes through [`Step::relax`]. On hardware the first is nothing and
//! the second a pause; the machine in software changes from CPU to CPU at exactly these points, and
//! so finds what can go wrong between any two of them. [`lock()`] takes a spin lock by these rules.
//!
//! `no_std`; allocates only where [`PerCpu`], [`CpuLocal`] and [`Frames`] say so.
#![no_std]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod addr;
mod cpu;
mod cross_call;
mod frame;
mod frames;
mod host;
mod info;
mod irq;
mod lock;
#[cfg(all(test, loom))]
mod loom_tests;
mod memory;
mod mutant;
mod page;
mod percpu;
mod source;
mod span;
mod step;
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

pub use addr::{PhysAddr, VirtAddr};
pub use cpu::{AtomicCpuSet, CpuId, CpuSet, Cpus, MAX_CPUS};
pub use cross_call::CrossCall;
pub use frame::Frame;
pub use frames::{CACHE_BATCH, CACHE_FRAMES, Frames, FramesError, MAX_ORDER};
pub use host::{Host, Program};
pub use info::{FrameInfo, Owner};
pub use irq::{IrqOff, Irqs};
pub use lock::lock;
pub use memory::{ENTRIES, Entries, Entry, Memory};
pub use page::PageSize;
pub use percpu::{CpuLocal, PerCpu};
pub use source::{FrameError, FrameSource, MAX_NODES, NodeId, Place};
pub use span::{FrameRange, PhysRange, Point, Span, VirtRange};
pub use step::{Access, EntryOp, Step};
pub use tlb::{Asid, Flush, Tlb};
pub use translated::{Fault, FaultKind, Translated};

/// All that a host implements, in one bound: a handle that can be cloned, kept and sent to other
/// CPUs.
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
