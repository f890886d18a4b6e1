//! Moves of a few words, one by one.
//!
//! Not by `memcpy` and `memmove`: those are calls, which for some ten words cost more than moving
//! them, and in a kernel without vectors several times as much (a move upwards is a string
//! instruction that runs backwards there). Reads are volatile so that the compiler does not make
//! such calls of them.

/// Copies `n` things, the first one first: to elsewhere, or to a lower place.
///
/// # Safety
/// As for [`core::ptr::copy`], but for places that overlap the wrong way.
#[inline(always)]
pub(super) unsafe fn copy<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's promise; what is still to be read is not written to yet.
    (0..n).for_each(|i| unsafe { to.add(i).write(from.add(i).read_volatile()) });
}

/// Copies `n` things, the last one first: to a higher place.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_up<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's promise; what is still to be read is not written to yet.
    (0..n).rev().for_each(|i| unsafe { to.add(i).write(from.add(i).read_volatile()) });
}
