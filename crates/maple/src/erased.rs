//! An entry between the tree and its end.

use crate::entry::{Entry, Raw, drop_raw};
use core::fmt;
use core::marker::PhantomData;
use grace::Reclaim;

/// An entry that was erased: still to be looked at, and dropped when it is safe.
///
/// Readers may hold a look at it, so dropping this hands the entry to the grace period; without
/// readers (from `get_mut`) it is dropped at once, and [`into_inner`](Erased::into_inner) gives it
/// back.
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<Box<u64>>::new();
/// tree.get_mut().store_range(4..=7, Box::new(9)).unwrap();
/// let (_, erased) = tree.get_mut().erase(5).unwrap().unwrap();
/// assert_eq!(*erased.get(), 9);
/// let owned: Box<u64> = erased.into_inner().ok().unwrap();
/// assert_eq!(*owned, 9);
/// ```
pub struct Erased<E: Entry, R: Reclaim> {
    raw: Raw,
    /// Readers may still look at it.
    shared: bool,
    _kinds: PhantomData<(E, fn() -> R)>,
}

// SAFETY: it owns an `E`, which is `Send`; and readers on other threads may still look at that,
// which is `Sync`.
unsafe impl<E: Entry, R: Reclaim> Send for Erased<E, R> {}
// SAFETY: sharing it shares the `E`, which is `Sync`.
unsafe impl<E: Entry, R: Reclaim> Sync for Erased<E, R> {}

impl<E: Entry, R: Reclaim> Erased<E, R> {
    /// The entry has left the tree and is the caller's; if not `shared`, no reader looks at it.
    pub(crate) fn new(raw: Raw, shared: bool) -> Self {
        Erased { raw, shared, _kinds: PhantomData }
    }

    /// A look at the entry.
    pub fn get(&self) -> E::Ref<'_> {
        // SAFETY: the entry is ours until we are dropped, and the look borrows us.
        unsafe { E::borrow(self.raw) }
    }

    /// The entry itself, if no reader can be looking at it, or if it is a plain value.
    ///
    /// # Errors
    /// The same again, when readers may be looking.
    pub fn into_inner(self) -> Result<E, Self> {
        if self.shared && E::NEEDS_DROP {
            return Err(self);
        }
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: it is turned back once: the drop that would do so too is left out.
        Ok(unsafe { E::from_raw(this.raw) })
    }
}

impl<E: Entry, R: Reclaim> Drop for Erased<E, R> {
    fn drop(&mut self) {
        if self.shared && E::NEEDS_DROP {
            // SAFETY: the entry left the tree when it was erased, and is retired once.
            unsafe { R::retire(&R::pin(), self.raw, drop_raw::<E>) }
        } else {
            // SAFETY: nobody else looks at it, or dropping it means nothing.
            unsafe { drop_raw::<E>(self.raw) }
        }
    }
}

impl<E: Entry, R: Reclaim> fmt::Debug for Erased<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Erased").finish_non_exhaustive()
    }
}
