//! The state that a writer keeps between writes: preallocated nodes, a spare duplicate, and the
//! nodes and entries that left the tree.

use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::error::Error;
use crate::write::{Bin, Disposal, Reserve};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use grace::Reclaim;

/// Memory for future writes, and the objects that past writes removed.
pub(crate) struct Supplies<E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(crate) nodes: Reserve<A>,
    /// An entry, and a duplicate of it that was made before it is needed: the spare duplicate.
    pub(in crate::write) spare: Option<(Raw, Raw)>,
    /// The nodes and entries that writes removed.
    pub(crate) bin: Bin<E, R, A>,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Supplies<E, R, A> {
    #[inline(always)]
    pub(crate) const fn new(disposal: Disposal) -> Self {
        Supplies { nodes: Reserve::new(), spare: None, bin: Bin::new(disposal) }
    }

    /// Makes sure that there is a spare duplicate of `source`, for a write that stores `new` (null
    /// for a hole). On error `new` still belongs to the caller. If the duplication panics, `new` is
    /// dropped.
    ///
    /// # Safety
    /// As for [`Entry::try_dup`]; and `new` has no other owner.
    pub(in crate::write) unsafe fn provide(
        &mut self,
        source: Raw,
        new: *mut (),
    ) -> Result<(), Error> {
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

    /// Drops the spare duplicate: its source is about to leave the tree, and another entry may
    /// later have the same word.
    pub(crate) fn drop_spare(&mut self) {
        if let Some((_, copy)) = self.spare.take() {
            // SAFETY: the duplicate is ours alone.
            unsafe { drop_raw::<E>(copy) }
        }
    }
}

/// An entry, or null, that is dropped unless it is [kept](Dropped::keep): for panics.
struct Dropped<E: Entry>(*mut (), PhantomData<E>);

impl<E: Entry> Dropped<E> {
    fn keep(self) -> *mut () {
        ManuallyDrop::new(self).0
    }
}

impl<E: Entry> Drop for Dropped<E> {
    fn drop(&mut self) {
        if let Some(raw) = NonNull::new(self.0) {
            // SAFETY: it is in no tree, and has no other owner.
            unsafe { drop_raw::<E>(raw) }
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Supplies<E, R, A> {
    fn drop(&mut self) {
        self.drop_spare();
    }
}
