//! What a writer keeps from write to write: nodes and a duplicate got ahead, and what leaves the tree, until there is a batch of it.

use super::{Bin, Disposal, Reserve};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::error::Error;
use grace::Reclaim;

/// What a writer has in hand for writes to come, and what is left of those that were.
pub(crate) struct Supplies<E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(crate) nodes: Reserve<A>,
    /// A duplicate made ahead, with the entry that it duplicates.
    pub(super) spare: Option<(Raw, Raw)>,
    /// What the writes removed.
    pub(crate) bin: Bin<E, R, A>,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Supplies<E, R, A> {
    pub(crate) const fn new(disposal: Disposal) -> Self {
        Supplies { nodes: Reserve::new(), spare: None, bin: Bin::new(disposal) }
    }

    /// Makes sure that there is a duplicate of `source`.
    ///
    /// # Safety
    /// As for [`Entry::try_dup`].
    pub(super) unsafe fn provide(&mut self, source: Raw) -> Result<(), Error> {
        if self.spare.is_none_or(|(of, _)| of != source) {
            // SAFETY: the caller's promise.
            let copy = unsafe { E::try_dup(source)? };
            self.drop_spare();
            self.spare = Some((source, copy));
        }
        Ok(())
    }

    /// Gives up the duplicate made ahead: its source is about to leave the tree, and another entry may
    /// come to have the same word.
    pub(crate) fn drop_spare(&mut self) {
        if let Some((_, copy)) = self.spare.take() {
            // SAFETY: the duplicate is ours alone.
            unsafe { drop_raw::<E>(copy) }
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Supplies<E, R, A> {
    fn drop(&mut self) {
        self.drop_spare();
    }
}
