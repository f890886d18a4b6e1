//! The choice of a space between munmap with IPIs and munmap by TLB grace periods, and the calls
//! that give back what waits. `deferred_unmap` says why that is right.

use alloc::sync::Arc;
use core::fmt;

use grace::Concurrent;
use machine::Machine;
use paging::{Format, TlbGrace};

use crate::{AddressSpace, Error};

/// The effect of munmap(2) of private anonymous memory by the time it returns
/// ([`AddressSpace::set_unmap_policy`]).
///
/// ```
/// # use machine::{Asid, PageSize};
/// # use mm::*;
/// # use paging::{Paging, TlbGrace, X86_64L4};
/// # use sim::{Config, Grace, Sim};
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// # sim.on_cpu(0, || {
/// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
/// # let profile = Profile::LINUX_6_18;
/// # let tag = Asid(1);
/// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, tag, None, profile, layout)?;
/// let periods = TlbGrace::try_new(sim.clone()).unwrap();
/// // SAFETY: no CPU has activated the space, and these are the machine's periods.
/// unsafe { space.set_unmap_policy(UnmapPolicy::Grace(periods)) }?;
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
pub enum UnmapPolicy<M: Machine> {
    /// No CPU has a translation of the range, and its frames are given back. The default.
    Immediate,
    /// No CPU is interrupted; the calling one has no translation of the range. The frames and the
    /// addresses wait for a TLB grace period, unless only this CPU uses the space. Until then
    /// another CPU may use the memory that it has cached, as if it had run before the call; it is
    /// not used for anything else.
    Grace(Arc<TlbGrace<M>>),
}

impl<M: Machine> fmt::Debug for UnmapPolicy<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnmapPolicy::Immediate => "Immediate",
            UnmapPolicy::Grace(_) => "Grace",
        })
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Sets what munmap(2) of private anonymous memory has done when it returns, for this space and
    /// for children forked from now on. At first it is [`UnmapPolicy::Immediate`]. Waits for the
    /// mmap lock. Setting `Immediate` flushes what waits.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the space has had other grace periods. Nothing has changed.
    ///
    /// # Safety
    /// With [`UnmapPolicy::Grace`]:
    /// - the periods are those of this machine: each CPU that has the space, or a child of it,
    ///   active takes part in them. [`activate`](Self::activate) and [`enter`](Self::enter) see to
    ///   that from now on; a CPU on which it is active now has called [`TlbGrace::idle_exit`];
    /// - a CPU on which the space or a child is active does not
    ///   [go idle](TlbGrace::idle_enter).
    pub unsafe fn set_unmap_policy(&self, policy: UnmapPolicy<M>) -> Result<(), Error> {
        let _lock = self.core.writer();
        if !self.core.waiting.set(policy) {
            return Err(Error::NotSupported("other TLB grace periods than the space has had"));
        }
        if !self.core.waiting.is_on() {
            self.core.waiting.flush(&self.core.tables);
        }
        Ok(())
    }

    /// The pages that were unmapped and wait for a TLB grace period, with their tables
    /// ([`UnmapPolicy::Grace`]). A snapshot; one load.
    pub fn waiting(&self) -> usize {
        self.core.waiting.pages()
    }

    /// Gives back what waits for TLB grace periods that have ended, and begins the next one if
    /// needed. Calls of the space give it back, too: this is for a host that wants it from a space
    /// that makes none. Sends no IPI; does nothing if a call is under way.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    pub fn poll(&self) {
        let Some(period) = self.core.waiting.newest() else { return };
        if let Some(periods) = self.core.waiting.periods() {
            periods.advance(period);
        }
        let Some(lock) = self.core.vmas.try_write() else { return };
        let over = self.core.waiting.take_over(&self.core.tables);
        drop(lock);
        if let Some(over) = over {
            over.give_back(&self.core.tables);
        }
    }

    /// Gives back all that waits for TLB grace periods, by one flush of the CPUs that use the
    /// space. Returns the pages. Faults and [`reclaim`](Self::reclaim) do it when memory is short.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    pub fn purge(&self) -> usize {
        if !self.core.waiting.has_any() {
            return 0;
        }
        let _lock = self.core.writer();
        self.core.waiting.flush(&self.core.tables)
    }
}
