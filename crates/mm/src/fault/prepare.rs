//! The preparations of a fault between two attempts, with nothing held.

use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use paging::Format;

use crate::{
    AddressSpace, FaultError, ObjectError, fault::frame_ref::NoFrame, fault::new_frame::Unready,
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

    /// Lets the object behind an address bring its page in. Nothing is held meanwhile.
    pub(super) fn bring_in_object(
        &self,
        at: VirtAddr,
        reclaimed: &mut bool,
    ) -> Result<(), FaultError> {
        let found = self.core.vmas.lookup(&G::pin(), at.get() as usize).and_then(|(_, vma)| {
            Some((vma.file.clone()?, vma.offset_at(at.get() as usize) as u64))
        });
        // Otherwise the VMA has changed: the fault begins again.
        let Some((file, index)) = found else { return Ok(()) };
        loop {
            match file.object().bring_in(index) {
                Ok(()) => return Ok(()),
                Err(ObjectError::OutOfMemory(error)) => {
                    self.make_room(at, error.into(), reclaimed)?
                }
                Err(ObjectError::GroupLimit) => return Err(FaultError::GroupLimit),
                Err(error) => return Err(FaultError::Object(at, error)),
            }
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
