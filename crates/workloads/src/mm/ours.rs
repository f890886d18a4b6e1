//! The spaces of `mm`.

use super::memory::{HEAP, Memory, Of, PAGE, Shared, TOP};
use super::world::World;
use crate::error::Error;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Machine, VirtAddr};
use mm::{Access, AddressSpace, Backing, Layout, MapFlags, Profile, Shmem};
use paging::{Mapping, X86_64L4};

pub(super) struct Ours<M: Machine, G: Concurrent> {
    space: AddressSpace<M, X86_64L4, G>,
    world: Arc<World<M>>,
    file: Arc<Shmem<M>>,
}

impl<M: Machine, G: Concurrent> Ours<M, G> {
    pub(super) fn make(world: &Arc<World<M>>) -> Result<Shared, Error> {
        let layout = Layout { mmap_base: TOP, start_brk: HEAP, brk: HEAP, ..Layout::default() };
        let file = Shmem::memfd(&world.paging, "bench", 1);
        file.set_size((world.file.len() * PAGE) as u64)?;
        for page in 0..world.file.len() {
            file.write((page * PAGE) as u64, &[1])?;
        }
        let (asid, profile) = (world.next_asid(), Profile::LINUX_6_18);
        let space = AddressSpace::try_new(&world.paging, asid, None, profile, layout)?;
        Ok(Arc::new(Ours::<M, G> { space, world: Arc::clone(world), file }))
    }
}

impl<M: Machine, G: Concurrent> Memory for Ours<M, G> {
    fn enter(&self) {
        self.space.enter();
    }

    fn leave(&self) {
        // SAFETY: no CPU translates by the space, and this one does not use it any more.
        unsafe { self.space.leave() }
    }

    fn walk(&self, at: VirtAddr) -> Option<Mapping> {
        self.space.walk(&G::pin()).get(at)
    }

    fn map(&self, at: Option<usize>, len: usize, of: Of) -> Result<usize, Error> {
        let fixed = if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
        let (at, prot) = (at.unwrap_or(0), 3);
        let kind = if of == Of::Shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        Ok(match of {
            Of::Nothing => self.space.mmap(at, len, prot, kind | MapFlags::ANONYMOUS | fixed)?,
            _ => {
                let file = Backing::open(self.file.clone(), true);
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

    fn fork(&self) -> Result<Shared, Error> {
        let space = self.space.fork(self.world.next_asid())?;
        let (world, file) = (Arc::clone(&self.world), Arc::clone(&self.file));
        Ok(Arc::new(Ours { space, world, file }))
    }
}
