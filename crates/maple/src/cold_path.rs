//! Functions of younger versions of the standard library.

use core::mem::MaybeUninit;

/// Says that the branch with this call runs rarely.
#[cold]
#[inline]
pub(crate) fn cold_path() {}

/// The values of a slice.
///
/// # Safety
/// All are initialised.
pub(crate) unsafe fn initialised<T>(values: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: promised by the caller; the layouts are the same.
    unsafe { &*(values as *const [MaybeUninit<T>] as *const [T]) }
}

/// As [`initialised`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn initialised_mut<T>(values: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: as above.
    unsafe { &mut *(values as *mut [MaybeUninit<T>] as *mut [T]) }
}
