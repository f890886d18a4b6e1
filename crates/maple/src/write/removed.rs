//! The entries that a write within one leaf removes, from before the change to after it.

use super::{Removed, Target};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw};
use crate::layout::LEAF_SLOTS;
use crate::node::Body;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use grace::Reclaim;

/// The entries that a change removes.
pub(super) struct RemovedSlots {
    entries: [MaybeUninit<Raw>; LEAF_SLOTS],
    len: usize,
}

impl RemovedSlots {
    /// Those of a leaf from a rank on, so many; none if they mean nothing, or the caller has them.
    #[inline(always)]
    pub(super) fn of<E: Entry>(
        body: &Body,
        (rank, n): (usize, usize),
        removed: Removed,
    ) -> RemovedSlots {
        // Not as one expression, which would be a constant and copied.
        let mut gone = MaybeUninit::<RemovedSlots>::uninit();
        let place = gone.as_mut_ptr();
        // SAFETY: the entries beyond the first `len` need no value.
        let mut gone = unsafe {
            (&raw mut (*place).len).write(0);
            gone.assume_init()
        };
        if E::NEEDS_DROP && removed == Removed::Drop {
            for rank in rank..rank + n {
                if let Some(raw) = NonNull::new(body.word_of_rank(rank)) {
                    gone.entries[gone.len].write(raw);
                    gone.len += 1;
                }
            }
        }
        gone
    }

    fn entries(&self) -> &[Raw] {
        // SAFETY: `of` has written the first `len`.
        unsafe { self.entries[..self.len].assume_init_ref() }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Ends a write: what it removed goes.
    #[inline(always)]
    pub(super) fn finish(&mut self, gone: &RemovedSlots) {
        // A duplicate made ahead is for the next write only: its source may be gone by the one
        // after.
        self.supplies.drop_spare();
        self.drop_gone(gone);
    }

    /// What a write removed goes.
    #[inline(always)]
    pub(super) fn drop_gone(&mut self, gone: &RemovedSlots) {
        if E::NEEDS_DROP {
            for &raw in gone.entries() {
                // SAFETY: the entry left the tree, and only with this write.
                unsafe { self.supplies.bin.entry(raw) }
            }
        }
    }
}
