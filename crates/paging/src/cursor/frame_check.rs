//! The check of frames that are to be mapped as user pages.
//!
//! It checks for bad input, not for permission: no state of a frame names the space that owns it.
//! It costs one load of the frame's state for each block of frames. The allocation of the frame has
//! just written that state.
//!
//! The kernel's half is not checked: its direct map contains page tables and free frames, as it
//! contains all memory.

use super::Error;
use crate::block::{MAX_ORDER, head_of, left_in};
use crate::format::Format;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Frame, FrameInfo, Machine, Owner, VirtAddr};

/// The block of frames that was checked last.
#[derive(Clone, Copy, Default)]
pub(super) struct CheckedBlock {
    first: u64,
    len: u64,
}

impl CheckedBlock {
    fn covers(&self, frame: Frame) -> bool {
        frame.number().wrapping_sub(self.first) < self.len
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Checks that `count` frames from `first` on can be pages of these tables, at `at`.
    ///
    /// # Errors
    /// [`Error::Frame`]: a user page would be a page table, a page of a quicklist, or free.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn check_frames(
        &self,
        lent: &mut CheckedBlock,
        at: VirtAddr,
        first: Frame,
        count: u64,
    ) -> Result<(), Error> {
        // The common case: a page of 4 KiB that begins its block.
        let is_page = || self.machine().info(first).is_some_and(FrameInfo::is_page);
        if self.space().is_none() || (count == 1 && is_page()) {
            return Ok(());
        }
        self.check_blocks(lent, at, first, count)
    }

    /// As `check_frames`, block by block.
    #[cold]
    fn check_blocks(
        &self,
        lent: &mut CheckedBlock,
        at: VirtAddr,
        first: Frame,
        count: u64,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < count {
            let Some(frame) = first.checked_add(done) else { break };
            if !lent.covers(frame) {
                *lent = self.block_of(frame).map_err(|owner| Error::Frame(at, frame, owner))?;
            }
            done += lent.first + lent.len - frame.number();
        }
        Ok(())
    }

    /// The block that contains a frame, or the frame's owner if the frame cannot be a page.
    fn block_of(&self, frame: Frame) -> Result<CheckedBlock, Owner> {
        let machine = self.machine();
        // A frame that is not memory of the frame source is a device.
        let one = CheckedBlock { first: frame.number(), len: 1 };
        let Some(info) = machine.info(frame) else { return Ok(one) };
        match info.owner() {
            _ if info.is_page() => {
                Ok(CheckedBlock { first: frame.number(), len: 1 << info.order() })
            }
            Owner::Free if !info.is_memory() => Ok(one),
            // Or it lies within a block, whose state is kept at its first frame.
            Owner::Free => self.block_around(frame),
            owner => Err(owner),
        }
    }

    /// The block that contains a frame that does not begin one.
    #[cold]
    fn block_around(&self, frame: Frame) -> Result<CheckedBlock, Owner> {
        let around = (1..=MAX_ORDER).find_map(|order| {
            let head = head_of(frame, order)?;
            let info = self.machine().info(head)?;
            let left = left_in(head, info.order(), frame)?;
            (info.refs() != 0).then_some((info.owner(), left as u64))
        });
        match around {
            None => Err(Owner::Free),
            Some((owner @ (Owner::Table(_) | Owner::Quick(_)), _)) => Err(owner),
            Some((_, len)) => Ok(CheckedBlock { first: frame.number(), len }),
        }
    }
}
