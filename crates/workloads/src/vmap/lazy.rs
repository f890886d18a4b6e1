//! Ours: [`Vmap`] under the operations that are measured.

use super::{Areas, Rig};
use crate::error::Error;
use ::vmap::{Options, TlbGrace, Vmap};
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Frame, Machine, SharedAccess, VirtAddr};
use paging::{Attrs, X86_64L4};

/// A space for areas, and the TLB grace periods of the machine.
pub(crate) struct LazyAreas<M: Machine, G: Concurrent> {
    vmap: Vmap<M, X86_64L4, G>,
    tlb_grace: Arc<TlbGrace<M>>,
}

impl<M: Machine, G: Concurrent> LazyAreas<M, G> {
    /// Areas in a part of the rig's addresses.
    pub(crate) fn new<R: Sync>(rig: &Rig<'_, '_, M, G, R>, part: u64) -> Result<Self, Error> {
        let space = rig.part(part)?;
        let tlb_grace = TlbGrace::try_new(rig.lab.host.machine.clone());
        let tlb_grace = tlb_grace.map_err(|_| ::vmap::Error::OutOfMemory)?;
        let vmap = rig.lab.on_first(|| {
            let tables = Arc::clone(rig.lab.kernel.tables);
            // SAFETY: the experiment has the machine to itself, and each CPU that takes part has
            // called `idle_exit`.
            unsafe { Vmap::try_new(tables, Arc::clone(&tlb_grace), space, Options::default()) }
        })?;
        Ok(LazyAreas { vmap, tlb_grace })
    }

    /// Calls `f` with areas in a part of the addresses, and drops them on a CPU afterwards.
    pub(crate) fn with<R: Sync>(
        rig: &Rig<'_, '_, M, G, R>,
        part: u64,
        f: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let areas = Self::new(rig, part)?;
        let result = f(&areas);
        areas.end(rig);
        result
    }

    /// Runs `f` while all CPUs report quiescent states at their timer interrupts. `None` if the
    /// machine has no timer.
    pub(crate) fn ticking<R, T>(
        &self,
        rig: &Rig<'_, '_, M, G, R>,
        f: impl FnOnce() -> T,
    ) -> Option<T> {
        let ticks = rig.lab.kernel.ticks?;
        let tlb_grace = Arc::clone(&self.tlb_grace);
        ticks(Some(Arc::new(move || tlb_grace.tick())));
        let result = f();
        ticks(None);
        Some(result)
    }

    /// Frees what CPUs keep for themselves, and drops the space.
    pub(crate) fn end<R: Sync>(self, rig: &Rig<'_, '_, M, G, R>) {
        rig.settle(&self);
        rig.lab.on_first(|| drop(self));
    }
}

impl<M: Machine, G: Concurrent> Areas for LazyAreas<M, G> {
    fn enter(&self) {
        self.tlb_grace.idle_exit();
    }

    fn leave(&self) {
        self.vmap.idle();
        // SAFETY: the experiments use areas between `enter` and `leave` only.
        unsafe { self.tlb_grace.idle_enter() };
    }

    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        Ok(self.vmap.vm_map_ram(frames, Attrs::KERNEL_RW)?)
    }

    fn unmap(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        // SAFETY: as in `free`.
        Ok(unsafe { self.vmap.vm_unmap_ram(at, pages) }?)
    }

    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error> {
        Ok(self.vmap.vmalloc((pages as u64) << 12)?)
    }

    fn free(&self, at: VirtAddr) -> Result<(), Error> {
        // SAFETY: the caller has the area from the CPU that allocated it, and no other CPU has;
        // there is no reference to its memory.
        Ok(unsafe { self.vmap.vfree(at) }?)
    }

    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        Ok(self.vmap.vmap(frames, Attrs::KERNEL_RW)?)
    }

    fn give_up(&self, at: VirtAddr) -> Result<(), Error> {
        // SAFETY: as in `free`.
        Ok(unsafe { self.vmap.vunmap(at) }?)
    }

    fn list(&self) -> usize {
        let (machine, mut count) = (self.vmap.machine(), 0);
        self.vmap.vmallocinfo(|info| {
            core::hint::black_box(info);
            machine.step(SharedAccess::Other);
            count += 1;
        });
        count
    }

    fn info(&self) -> (u64, u64) {
        let info = self.vmap.get_vmalloc_info();
        (info.used, info.largest_free)
    }

    fn purge(&self) {
        self.vmap.purge();
    }
}
