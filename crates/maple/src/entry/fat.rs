//! Values that are larger than a word, in counted boxes. A duplicate counts, so it cannot fail, and
//! duplicates of a tree share nodes.

use super::{Entry, Raw, RefCounted, RefCountedRef};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

/// Moves a value to a box. Allocates.
///
/// # Errors
/// The value, if there is no memory.
pub(super) fn store<T: Send + Sync + 'static>(value: T) -> Result<Raw, T> {
    let mut value = ManuallyDrop::new(value);
    // SAFETY: the closure runs once. If it does not run, the value is still in its place.
    match RefCounted::<T>::new_with(|| unsafe { ManuallyDrop::take(&mut value) }) {
        Ok(counted) => Ok(counted.into_word()),
        Err(_) => Err(ManuallyDrop::into_inner(value)),
    }
}

/// The value, as its box's user.
///
/// # Safety
/// The word came from [`store`] or [`dup`] for this type, and is not used again.
pub(super) unsafe fn take<T: Clone + Send + Sync + 'static>(raw: Raw) -> T {
    // SAFETY: the caller's promise.
    let counted = unsafe { RefCounted::<T>::from_raw(raw) };
    let value = T::clone(&counted);
    drop(counted);
    value
}

/// # Safety
/// As for [`Entry::borrow`].
pub(super) unsafe fn get<'g, T: Send + Sync + 'static>(raw: Raw) -> &'g T {
    // SAFETY: the caller's promise.
    let counted: RefCountedRef<'g, T> = unsafe { RefCounted::<T>::borrow(raw) };
    counted.get()
}

/// Counts another user of the box, whose word is the same.
///
/// # Safety
/// As for [`Entry::try_dup`].
pub(super) unsafe fn dup<T: Send + Sync + 'static>(raw: Raw) -> Raw {
    let raw: NonNull<()> = raw;
    // SAFETY: the caller's promise. The reference that belongs to the word stays with it.
    let held = ManuallyDrop::new(unsafe { RefCounted::<T>::from_raw(raw) });
    RefCounted::clone(&held).into_word()
}
