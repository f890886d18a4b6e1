//! The preparations of a fault between two attempts, with nothing held.

use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use paging::{EntryChange, Format, Mapping};
use vma::VmFlags;

use crate::{
    AddressSpace, Backing, FaultError, ObjectError, fault::frame_ref::NoFrame,
    fault::new_frame::Unready,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Prepares a frame; makes room once if there is none. No guard is held.
    pub(super) fn prepare<E: Into<Unready>>(
        &self,
        at: VirtAddr,
        reclaimed: &mut bool,
        what: impl Fn() -> Result<(), E>,
    ) -> Result<(), FaultError> {
        while let Err(error) = what() {
            self.make_room(at, error.into(), reclaimed)?;
        }
        Ok(())
    }

    /// Lets the object behind an address bring its page in, unless a monitor brings it. Nothing is
    /// held meanwhile. Returns whether it has.
    pub(super) fn bring_in_object(
        &self,
        at: VirtAddr,
        reclaimed: &mut bool,
    ) -> Result<bool, FaultError> {
        let find = || {
            let guard = G::pin();
            let (_, vma) = self.core.vmas.lookup(&guard, at.get() as usize)?;
            Some((vma.file.clone()?, vma.offset_at(at.get() as usize) as u64))
        };
        // Otherwise the VMA has changed: the fault begins again.
        let Some((file, index)) = find() else { return Ok(false) };
        loop {
            match self.bring_in_page(at, &file, index) {
                Ok(is_in) => return Ok(is_in),
                Err(ObjectError::OutOfMemory(error)) => {
                    self.make_room(at, error.into(), reclaimed)?
                }
                Err(ObjectError::GroupLimit) if self.purge() > 0 => {}
                Err(ObjectError::GroupLimit) => return Err(FaultError::GroupLimit),
                // A call may have put another map there before the object has answered.
                Err(_) if find() != Some((file.clone(), index)) => return Ok(false),
                Err(error) => return Err(FaultError::Object(at, error)),
            }
        }
    }

    /// Shared memory gets the page with the lock of the table held that decides about the address,
    /// after a look at the VMA: a registration with a monitor passes that lock.
    fn bring_in_page(
        &self,
        at: VirtAddr,
        file: &Backing<M>,
        index: u64,
    ) -> Result<bool, ObjectError> {
        let Some(memory) = file.object().in_memory() else {
            return file.object().bring_in(index).map(|()| true);
        };
        let (mut is_in, mut failed) = (true, None);
        let done = memory.bring_in_when(index, &mut |put| {
            let guard = G::pin();
            let mut put_if_same = |_: Option<Mapping>| {
                let now = self.core.vmas.lookup(&guard, at.get() as usize);
                let same = now.is_some_and(|(_, vma)| {
                    file.has_page_at(index, vma, at.get() as usize)
                        && !vma.flags.contains(VmFlags::UFFD_MISSING)
                });
                is_in = same;
                (EntryChange::Keep, same && put())
            };
            let found = self.core.tables.walk(&guard).look(at);
            let mut has_table = found.has_table();
            let looked = loop {
                // SAFETY: the entry stays as it is. A lowest table that is made is pruned again.
                let looked = unsafe {
                    match has_table {
                        true => self.core.tables.with_found(&guard, &found, &mut put_if_same),
                        false => self.core.tables.with_large(&guard, at, &mut put_if_same),
                    }
                };
                match looked {
                    // The table has come meanwhile.
                    Err(failed)
                        if !has_table && matches!(failed.error, paging::Error::Occupied(_)) =>
                    {
                        has_table = true;
                    }
                    looked => break looked,
                }
            };
            if let Err(error) = looked {
                (is_in, failed) = (false, Some(error.error));
            }
        });
        match (done, failed) {
            (Ok(()), Some(paging::Error::Frames(error))) => Err(ObjectError::OutOfMemory(error)),
            // The fork has the mmap lock: it ends. A large page that has come is for the next
            // attempt.
            (Ok(()), None | Some(paging::Error::Fork | paging::Error::Occupied(_))) => Ok(is_in),
            // Corrupt tables are the next attempt's error.
            (Ok(()), Some(_)) => file.object().bring_in(index).map(|()| true),
            (Err(error), _) => Err(error),
        }
    }

    /// Makes room for a frame or a table, in the order that `space/shortage` says.
    #[cold]
    pub(super) fn make_room(
        &self,
        at: VirtAddr,
        error: Unready,
        reclaimed: &mut bool,
    ) -> Result<(), FaultError> {
        let error = match error {
            Unready::Lost => return Err(FaultError::Poisoned(at)),
            Unready::NoFrame(NoFrame::Source(error)) => error,
            Unready::NoFrame(NoFrame::Group { .. }) if self.purge() > 0 => return Ok(()),
            Unready::NoFrame(NoFrame::Group { needed }) => {
                let more = self.core.group().is_some_and(|group| group.make_room(needed));
                return if more { Ok(()) } else { Err(FaultError::GroupLimit) };
            }
        };
        if self.purge() > 0 {
            return Ok(());
        }
        if !core::mem::replace(reclaimed, true) {
            self.core.tables.reclaim();
            return Ok(());
        }
        let needed = match error {
            FrameError::OutOfFrames { order } => 1 << order,
            _ => return Err(FaultError::OutOfMemory(error)),
        };
        match self.core.shortage.get().is_some_and(|host| host.make_room(needed)) {
            true => Ok(()),
            false => Err(FaultError::OutOfMemory(error)),
        }
    }
}
