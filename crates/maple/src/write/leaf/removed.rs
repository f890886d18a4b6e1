//! The entries that a write within one leaf removes. They are noted before the change and dropped
//! after it.

use crate::alloc::NodeAlloc;
use crate::cold_path::initialised;
use crate::entry::{Entry, Raw};
use crate::layout::LEAF_SLOTS;
use crate::node::Body;
use crate::write::{Removed, Target};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use grace::Reclaim;

/// The entries that a change removes.
pub(in crate::write) struct RemovedSlots {
    entries: [MaybeUninit<Raw>; LEAF_SLOTS],
    len: usize,
}

impl RemovedSlots {
    /// The `n` entries of a leaf from rank `rank` on. None if they need no drop, or if the caller
    /// keeps them.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn of<E: Entry>(
        body: &Body,
        (rank, n): (usize, usize),
        removed: Removed,
    ) -> RemovedSlots {
        // Not as one expression: the compiler would copy it from a constant.
        let mut gone = MaybeUninit::<RemovedSlots>::uninit();
        let place = gone.as_mut_ptr();
        // SAFETY: the entries beyond the first `len` need not be initialised.
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
        // SAFETY: `of` has initialised the first `len`.
        unsafe { initialised(&self.entries[..self.len]) }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Ends a write: drops the spare duplicate and the removed entries.
    #[inline(always)]
    pub(in crate::write) fn finish(&mut self, gone: &RemovedSlots) {
        // A spare duplicate is for the next write only: its source may be freed by the write after
        // that.
        self.supplies.drop_spare();
        self.drop_gone(gone);
    }

    /// Drops the removed entries, or hands them to the grace period.
    #[inline(always)]
    pub(in crate::write) fn drop_gone(&mut self, gone: &RemovedSlots) {
        if E::NEEDS_DROP {
            for &raw in gone.entries() {
                // SAFETY: the entry left the tree with this write, and only once.
                unsafe { self.supplies.bin.entry(raw) }
            }
        }
    }
}
