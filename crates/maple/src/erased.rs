//! Entries that were erased but not yet dropped.

use crate::entry::{Entry, Raw, drop_raw};
use core::fmt;
use core::marker::PhantomData;
use grace::Reclaim;

/// An entry that was erased. It can still be read, and is dropped when no reader can see it any
/// more.
///
/// Dropping this hands the entry to the grace period, because readers may hold a reference to it.
/// An entry erased through `get_mut` has no readers: it is dropped at once, and
/// [`into_inner`](Erased::into_inner) returns it.
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
///
/// # Misuse
/// If it is forgotten, the entry leaks. It may be kept or sent elsewhere: the grace period begins
/// when it is dropped.
pub struct Erased<E: Entry, R: Reclaim> {
    raw: Raw,
    /// Whether readers may still hold a reference to it.
    shared: bool,
    _kinds: PhantomData<(E, fn() -> R)>,
}

// SAFETY: it owns an `E`, which is `Send`. Readers on other threads may still hold references to
// the `E`, which is `Sync`.
unsafe impl<E: Entry, R: Reclaim> Send for Erased<E, R> {}
// SAFETY: sharing an `Erased` shares its `E`, which is `Sync`.
unsafe impl<E: Entry, R: Reclaim> Sync for Erased<E, R> {}

impl<E: Entry, R: Reclaim> Erased<E, R> {
    /// The entry has left the tree and belongs to the caller. If not `shared`, no reader can see
    /// it.
    pub(crate) fn new(raw: Raw, shared: bool) -> Self {
        Erased { raw, shared, _kinds: PhantomData }
    }

    /// A reference to the entry.
    pub fn get(&self) -> E::Ref<'_> {
        // SAFETY: the entry is ours until `self` is dropped, and the reference borrows `self`.
        unsafe { E::borrow(self.raw) }
    }

    /// The entry itself, if no reader can see it or if it is a plain value.
    ///
    /// # Errors
    /// The same `Erased`, if readers may still hold a reference to the entry.
    pub fn into_inner(self) -> Result<E, Self> {
        if self.shared && E::NEEDS_DROP && E::owns(self.raw) {
            return Err(self);
        }
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: `ManuallyDrop` leaves out the drop, so the word is turned back only here.
        Ok(unsafe { E::from_raw(this.raw) })
    }
}

impl<E: Entry, R: Reclaim> Drop for Erased<E, R> {
    fn drop(&mut self) {
        if self.shared && E::NEEDS_DROP && E::owns(self.raw) {
            // SAFETY: the entry left the tree when it was erased. It is retired once, here.
            unsafe { R::retire(&R::pin(), self.raw, drop_raw::<E>) }
        } else {
            // SAFETY: no reader can see it, or dropping it does nothing.
            unsafe { drop_raw::<E>(self.raw) }
        }
    }
}

impl<E: Entry, R: Reclaim> fmt::Debug for Erased<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Erased").finish_non_exhaustive()
    }
}
