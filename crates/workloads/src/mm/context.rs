//! The common state of all spaces of a run: the state of the tables, tags, and the file that loops
//! map.

use super::memory::PAGE;
use crate::error::Error;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, Ordering};
use machine::{Asid, Frame, FrameError, Machine, NodePolicy};
use paging::{Paging, X86_64L4};

pub(super) struct SpaceContext<M: Machine> {
    pub(super) paging: Arc<Paging<M, X86_64L4>>,
    /// The pages of the file, for baselines: a page cache that takes no lock and no search.
    pub(super) file: Vec<Frame>,
    asids: AtomicU16,
}

impl<M: Machine> SpaceContext<M> {
    /// With a file of so many pages.
    pub(super) fn new(
        paging: Arc<Paging<M, X86_64L4>>,
        pages: usize,
    ) -> Result<Arc<SpaceContext<M>>, Error> {
        let mut context = SpaceContext { paging, file: Vec::new(), asids: AtomicU16::new(0) };
        for _ in 0..pages {
            let frame = context.paging.machine().alloc(0, NodePolicy::Local)?;
            context.file.push(frame);
            let at = context.paging.machine().frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
            // SAFETY: the frame is ours alone, and a page long.
            unsafe {
                at.as_ptr().write_bytes(0, PAGE);
                at.as_ptr().write(1);
            }
        }
        Ok(Arc::new(context))
    }

    /// A tag for a new space. Nothing translates by these spaces, so tags may come again.
    pub(super) fn next_asid(&self) -> Asid {
        // Relaxed: only the number counts.
        let next = self.asids.fetch_add(1, Ordering::Relaxed);
        Asid(1 + next % (self.paging.machine().tags().min(4096) as u16).saturating_sub(1).max(1))
    }
}

impl<M: Machine> Drop for SpaceContext<M> {
    fn drop(&mut self) {
        for frame in self.file.drain(..) {
            // SAFETY: the spaces that mapped it are gone: each had a reference to this.
            let released = unsafe { self.paging.machine().release(frame) };
            debug_assert!(released.is_ok(), "{released:?}");
        }
    }
}
