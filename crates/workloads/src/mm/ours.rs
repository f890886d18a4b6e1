//! The spaces of `mm`.

use super::context::SpaceContext;
use super::memory::{HEAP, Memory, PAGE, SharedMemory, TOP, VmaType};
use crate::error::Error;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use mm::{Access, AddressSpace, Backing, Layout, MapFlags, Profile, Shmem, UnmapPolicy};
use paging::{TlbGrace, X86_64L4};

pub(super) struct Ours<M: Machine, G: Concurrent> {
    space: AddressSpace<M, X86_64L4, G>,
    context: Arc<SpaceContext<M>>,
    file: mm::Shared<Shmem<M>>,
    /// If munmap waits for TLB grace periods.
    periods: Option<Arc<TlbGrace<M>>>,
}

impl<M: Machine, G: Concurrent> Ours<M, G> {
    pub(super) fn make(context: &Arc<SpaceContext<M>>) -> Result<SharedMemory, Error> {
        Ok(Arc::new(Self::new(context, None)?))
    }

    /// A space in which munmap waits for TLB grace periods.
    pub(super) fn make_waiting(context: &Arc<SpaceContext<M>>) -> Result<SharedMemory, Error> {
        let periods = TlbGrace::try_new(context.paging.machine().clone());
        let periods = periods.map_err(|_| FrameError::OutOfFrames { order: 0 })?;
        Ok(Arc::new(Self::new(context, Some(periods))?))
    }

    fn new(
        context: &Arc<SpaceContext<M>>,
        periods: Option<Arc<TlbGrace<M>>>,
    ) -> Result<Self, Error> {
        let layout = Layout { mmap_base: TOP, start_brk: HEAP, brk: HEAP, ..Layout::default() };
        let file = Shmem::memfd(&context.paging, "bench", 1)?;
        file.set_size((context.file.len() * PAGE) as u64)?;
        for page in 0..context.file.len() {
            file.write((page * PAGE) as u64, &[1])?;
        }
        let (asid, profile) = (context.next_asid(), Profile::LINUX_6_18);
        let space = AddressSpace::try_new(&context.paging, asid, None, profile, layout)?;
        if let Some(periods) = &periods {
            let policy = UnmapPolicy::Grace(Arc::clone(periods));
            // SAFETY: no CPU uses the space. `enter` takes part in the periods, and `leave` leaves
            // the space before it goes idle.
            unsafe { space.set_unmap_policy(policy) }?;
        }
        Ok(Ours { space, context: Arc::clone(context), file, periods })
    }
}

impl<M: Machine, G: Concurrent> Memory for Ours<M, G> {
    fn enter(&self) {
        self.space.enter();
    }

    fn leave(&self) {
        // SAFETY: no CPU translates by the space, and this one does not use it any more.
        unsafe { self.space.leave() }
        if let Some(periods) = &self.periods {
            // SAFETY: no tables whose memory waits for these periods are active here, and no areas
            // wait for them.
            unsafe { periods.idle_enter() };
        }
    }

    fn tick(&self) {
        if let Some(periods) = &self.periods {
            periods.tick();
        }
    }

    #[cfg(test)]
    fn walk(&self, at: VirtAddr) -> Option<paging::Mapping> {
        self.space.walk(&G::pin()).get(at)
    }

    fn map(&self, at: Option<usize>, len: usize, of: VmaType) -> Result<usize, Error> {
        let fixed = if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
        let (at, prot) = (at.unwrap_or(0), 3);
        let kind = if of == VmaType::SharedFile { MapFlags::SHARED } else { MapFlags::PRIVATE };
        Ok(match of {
            VmaType::Anonymous => {
                self.space.mmap(at, len, prot, kind | MapFlags::ANONYMOUS | fixed)?
            }
            _ => {
                let file = Backing::open(self.file.clone(), true)?;
                self.space.mmap_object(at, len, prot, kind | fixed, file, 0)?
            }
        })
    }

    fn unmap(&self, at: usize, len: usize) -> Result<(), Error> {
        Ok(self.space.munmap(at, len)?)
    }

    fn brk(&self, to: usize) -> Result<(), Error> {
        self.space.brk(to)?;
        Ok(())
    }

    fn fault(&self, at: usize) -> Result<(), Error> {
        self.space.handle_fault(VirtAddr::new(at as u64), Access::Write)?;
        Ok(())
    }

    fn fork(&self) -> Result<SharedMemory, Error> {
        let space = self.space.fork(self.context.next_asid())?;
        let (context, file) = (Arc::clone(&self.context), self.file.clone());
        let periods = self.periods.clone();
        Ok(Arc::new(Ours { space, context, file, periods }))
    }
}
