//! What a writer keeps from write to write: nodes and a duplicate got ahead, and what leaves the
//! tree, until there is a batch of it.

use super::{Bin, Disposal, Reserve};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::error::Error;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
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

    /// Makes sure that there is a duplicate of `source`, for a write that stores `new` (null: a
    /// hole). On error
    /// `new` is still the caller's; if the duplication panics, it is dropped.
    ///
    /// # Safety
    /// As for [`Entry::try_dup`]; and `new` is nobody else's.
    pub(super) unsafe fn provide(&mut self, source: Raw, new: *mut ()) -> Result<(), Error> {
        if self.spare.is_none_or(|(of, _)| of != source) {
            let new = Dropped::<E>(new, PhantomData);
            // SAFETY: the caller's promise.
            let copy = unsafe { E::try_dup(source) };
            if let Ok(copy) = copy {
                let copy = Dropped::<E>(copy.as_ptr(), PhantomData);
                self.drop_spare();
                self.spare = NonNull::new(copy.keep()).map(|copy| (source, copy));
            }
            new.keep();
            copy?;
        }
        Ok(())
    }

    /// Gives up the duplicate made ahead: its source is about to leave the tree, and another entry
    /// may come to have the same word.
    pub(crate) fn drop_spare(&mut self) {
        if let Some((_, copy)) = self.spare.take() {
            // SAFETY: the duplicate is ours alone.
            unsafe { drop_raw::<E>(copy) }
        }
    }
}

/// An entry, or none, that is dropped where something panics before it is [kept](Dropped::keep).
struct Dropped<E: Entry>(*mut (), PhantomData<E>);

impl<E: Entry> Dropped<E> {
    fn keep(self) -> *mut () {
        ManuallyDrop::new(self).0
    }
}

impl<E: Entry> Drop for Dropped<E> {
    fn drop(&mut self) {
        if let Some(raw) = NonNull::new(self.0) {
            // SAFETY: it is in no tree, and nobody else's.
            unsafe { drop_raw::<E>(raw) }
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Supplies<E, R, A> {
    fn drop(&mut self) {
        self.drop_spare();
    }
}
