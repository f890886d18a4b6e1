//! The first touch of a page of anonymous memory, and the second look of all faults.

use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::{EntryChange, Error as TableError, Failed, Format, Found, Share};
use vma::Vma;

use crate::{
    AddressSpace, Backing, FaultError,
    fault::Step,
    fault::fresh::Fresh,
    fault::rights::{self, Want},
    monitor::track::marked,
};

/// The first look of a fault.
pub(crate) struct Look<'g, M: Machine, G: Concurrent> {
    pub(crate) guard: &'g G::Guard,
    /// The address of the access.
    pub(crate) at: VirtAddr,
    /// The start of its page.
    pub(crate) addr: usize,
    pub(crate) vma: &'g Vma<Backing<M>>,
    /// The count of changes before the look.
    pub(crate) seen: u64,
}

/// The step after the tables have refused a change.
pub(crate) fn refused<M: Machine, F: Format, G: Concurrent>(
    failed: Failed<'_, M, F, G>,
    at: VirtAddr,
) -> Result<Step, FaultError> {
    let error = failed.error;
    drop(failed);
    match error {
        TableError::Frames(error) => Ok(Step::NeedsMemory(error)),
        // The fork has the write right.
        TableError::Fork => Ok(Step::NeedsRight),
        // A huge page came first, or small ones.
        TableError::Occupied(_) => Ok(Step::Again),
        TableError::NotCanonical(_) | TableError::Kernel(_) => Err(FaultError::Unmapped(at)),
        error => Err(FaultError::Tables(error)),
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The second look, with the table's lock held: whether the VMA of the first look still decides
    /// about the page. Cost: a load, if no call has swept pages since; otherwise a descent.
    #[inline]
    pub(crate) fn is_current(&self, look: &Look<'_, M, G>) -> bool {
        let (machine, changes) = (self.core.tables.machine(), &self.core.changes);
        changes.is(machine, look.seen) || self.core.vmas.is_current(look.guard, look.addr, look.vma)
    }

    /// The fault at an absent page of anonymous memory that the VMA allows: a write gets a frame of
    /// zeros, a read the zero frame. The VMA of a write has an anon_vma. With `marks`, the entry is
    /// that of an absent page with a mark (`absent`), and the page gets these marks.
    #[inline]
    pub(crate) fn first_touch(
        &self,
        look: &Look<'_, M, G>,
        place: &Found<'_>,
        want: Want,
        fresh: &Fresh<'_, M>,
        marks: Option<u16>,
    ) -> Result<Step, FaultError> {
        let (frame, share, step) = if want.writes() {
            fresh.want_zeros();
            // With memory at hand, this attempt goes on. Without, the guard must go first: a
            // reclaim waits for it.
            if fresh.prepare().is_err() {
                return Ok(Step::NeedsFrame);
            }
            (fresh.zeros(), Share::Exclusive, Step::MappedFresh)
        } else {
            (self.core.zero.get(), Share::CopyOnWrite, Step::Mapped)
        };
        let Some(frame) = frame else { return Ok(Step::NeedsZeroFrame) };
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped, and then the
        // page's until it is unmapped and flushed; the zero frame outlives the tables. A range is
        // flushed before it gets another VMA.
        let done = unsafe {
            self.core.tables.with_found(look.guard, place, |now| {
                let same = match marks {
                    None => now.is_none(),
                    Some(_) => now.is_some_and(|page| self.core.is_mark(&page)),
                };
                if !same || !self.is_current(look) {
                    return (EntryChange::Keep, Step::Again);
                }
                let mut attrs = rights::attrs(look.vma.flags, share);
                attrs.flags |= want.leaves();
                match marks {
                    None => (EntryChange::Set(frame, attrs), step),
                    Some(marks) => (EntryChange::Replace(frame, marked(attrs, marks)), step),
                }
            })
        };
        match done {
            Ok((step, pending)) => {
                pending.flush();
                Ok(step)
            }
            Err(failed) => refused(failed, look.at),
        }
    }
}
