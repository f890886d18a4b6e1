//! The memory that a host promises to its address spaces: overcommitment.
//!
//! Private memory that may be written needs a frame for each page at some time. Its VMAs are marked
//! ([`vma::VmFlags::ACCOUNT`]), and their sizes are what is promised. A call asks before it changes
//! anything, for what it adds; when it has ended, it gives back what its VMAs do not need. So the
//! promises of a space are always the size of its marked VMAs.
//!
//! # Correctness
//! Each CPU counts on a line of its own, and the sum is exact whenever no call is under way. A CPU
//! adds first and sums then. Of two CPUs that ask at once, the later one in the order of the
//! additions sees both, so the limit is never exceeded; both may be refused.
//!
//! Cost: one locked instruction on a line of this CPU; with a limit, also a load for each CPU.

use core::{
    fmt,
    sync::atomic::{AtomicIsize, Ordering},
};

use machine::{Machine, PerCpu, SharedAccess};

use crate::Shared;

/// How much a host promises, as `vm.overcommit_memory` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// 0: each call alone may not ask for more than `memory` bytes, all memory and swap of the
    /// host.
    Heuristic {
        /// In bytes.
        memory: usize,
    },
    /// 1: everything is promised.
    Always,
    /// 2: not more than `limit` bytes in all. The profile of the spaces says that MAP_NORESERVE is
    /// not honoured then ([`vma::Profile::honours_noreserve`]).
    Never {
        /// In bytes.
        limit: usize,
    },
}

/// The promises of a host, which its address spaces share.
///
/// ```
/// use machine::{Asid, PageSize};
/// use mm::*;
/// use paging::{Paging, X86_64L4};
/// use sim::{Config, Grace, Sim};
///
/// let sim = Sim::new(Config { cpus: 1, frames: 64, ..Config::default() }).unwrap();
/// let shared = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// sim.on_cpu(0, || {
///     let commitment = Commitment::try_new(&sim, Overcommit::Never { limit: 0x4000 }).unwrap();
///     let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
///     let mut space = AddressSpace::<Sim, X86_64L4, Grace>::try_new(
///         &shared, Asid(1), None, Profile::LINUX_6_18, layout,
///     )?;
///     space.set_commitment(&commitment);
///     let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
///     let at = space.mmap(0, 0x3000, 3, flags)?;
///     assert_eq!(space.mmap(0, 0x2000, 3, flags).unwrap_err().errno(), 12);
///     assert_eq!(commitment.promised(), 0x3000);
///     space.munmap(at, 0x3000)?;
///     assert_eq!(commitment.promised(), 0);
///     Ok::<(), Error>(())
/// }).unwrap();
/// ```
pub struct Commitment<M: Machine> {
    machine: M,
    rule: Overcommit,
    /// Bytes promised by each CPU, less those given back on it.
    counts: PerCpu<AtomicIsize>,
}

impl<M: Machine> Commitment<M> {
    /// Nothing is promised yet. Allocates.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](vma::Error::OutOfMemory).
    pub fn try_new(machine: &M, rule: Overcommit) -> Result<Shared<Self>, vma::Error> {
        let counts = PerCpu::try_new(machine.count(), |_| AtomicIsize::new(0));
        let counts = counts.map_err(|_| vma::Error::OutOfMemory)?;
        Shared::try_new(Commitment { machine: machine.clone(), rule, counts })
    }

    /// The bytes promised to all spaces (Committed_AS). Exact while no call is under way.
    pub fn promised(&self) -> usize {
        let sum = self.counts.iter().fold(0_isize, |sum, count| {
            self.machine.step(SharedAccess::Other);
            // SeqCst: see `add`.
            sum.wrapping_add(count.load(Ordering::SeqCst))
        });
        usize::try_from(sum).unwrap_or(0)
    }

    /// Whether MAP_NORESERVE has an effect.
    pub(crate) fn honours_noreserve(&self) -> bool {
        !matches!(self.rule, Overcommit::Never { .. })
    }

    fn add(&self, bytes: isize) {
        // A CPU that the machine does not have counts nowhere else than the first.
        let mut counts = self.counts.iter();
        let own = self.counts.get(self.machine.current()).or_else(|| counts.next());
        if let Some(count) = own {
            self.machine.step(SharedAccess::Other);
            // SeqCst, with the loads of `promised`: of two CPUs that add and then sum, one sees
            // both.
            count.fetch_add(bytes, Ordering::SeqCst);
        }
    }

    /// Promises so many bytes more. Returns false, and promises nothing, if they are too many.
    pub(crate) fn charge(&self, bytes: usize) -> bool {
        let Ok(more) = isize::try_from(bytes) else { return false };
        if matches!(self.rule, Overcommit::Heuristic { memory } if bytes > memory) {
            return false;
        }
        self.add(more);
        match self.rule {
            Overcommit::Never { limit } if self.promised() > limit => {
                self.add(-more);
                false
            }
            _ => true,
        }
    }

    /// Promises the memory of a forked child. The heuristic asks for each VMA alone, and each was
    /// promised to the parent.
    pub(crate) fn charge_child(&self, bytes: usize) -> bool {
        match self.rule {
            Overcommit::Heuristic { .. } => {
                self.settle(bytes as isize);
                true
            }
            _ => self.charge(bytes),
        }
    }

    /// Changes what is promised, whatever the limit.
    pub(crate) fn settle(&self, bytes: isize) {
        if bytes != 0 {
            self.add(bytes);
        }
    }
}

impl<M: Machine> fmt::Debug for Commitment<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commitment")
            .field("rule", &self.rule)
            .field("promised", &self.promised())
            .finish_non_exhaustive()
    }
}
