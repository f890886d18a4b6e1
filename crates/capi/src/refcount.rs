//! References that the program counts: those that a write takes and gives up.
//!
//! Each range of a tree holds one reference to its entry. A write over some indices gives up the
//! references of the ranges inside, keeps those of ranges that extend beyond one end, and needs a
//! further one for a range that it splits in two.

use crate::Writer;
use crate::errno::Errno;
use crate::queue::{Piece, Queue};
use crate::tree::samara_tree;
use core::ptr::NonNull;

impl samara_tree {
    /// The piece that releases an entry; `None` if there is no callback.
    pub(crate) fn release_of(&self, entry: NonNull<()>) -> Option<Piece> {
        let release = self.fixed.release?;
        Some(Piece::Call(release, self.fixed.ctx, entry.as_ptr().cast()))
    }

    /// Performs a write over `first..=last`, with the references that it takes and gives up.
    /// If it fails, none has changed.
    ///
    /// Cost: without callbacks nothing. With callbacks, a step for each range.
    pub(crate) fn replace<'t, T>(
        &self,
        writer: &mut Writer<'t>,
        queue: *mut Queue,
        first: usize,
        last: usize,
        write: impl FnOnce(&mut Writer<'t>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if !self.has_callbacks() {
            return write(writer);
        }
        let staged = self.stage(writer, queue, first, last);
        let result = staged.and_then(|split| Ok((split, write(writer)?)));
        // SAFETY: this thread writes the tree. The writer uses the queue during calls only.
        let queue = unsafe { &mut *queue };
        match result {
            Ok((split, value)) => {
                queue.commit();
                if let Some(entry) = split {
                    self.retain(entry);
                }
                Ok(value)
            }
            Err(error) => {
                queue.unstage();
                Err(error)
            }
        }
    }

    /// Stages the releases. Returns the entry that is split.
    fn stage(
        &self,
        writer: &Writer<'_>,
        queue: *mut Queue,
        first: usize,
        last: usize,
    ) -> Result<Option<NonNull<()>>, Errno> {
        let mut split = None;
        for (range, entry) in writer.iter(first..=last) {
            match (*range.start() < first, *range.end() > last) {
                (true, true) => split = Some(entry),
                (false, false) => {
                    if let Some(piece) = self.release_of(entry) {
                        // SAFETY: as above.
                        unsafe { &mut *queue }.stage(piece)?;
                    }
                }
                _ => {}
            }
        }
        Ok(split)
    }
}
