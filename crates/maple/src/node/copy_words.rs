//! Copies of a few words, one by one.
//!
//! `memcpy` and `memmove` are calls. For some ten words a call costs more than the copy. In a
//! kernel without SIMD it costs several times as much: there, a move upwards is a string
//! instruction that runs backwards. The reads are volatile so that the compiler does not turn the
//! loops into such calls.
//!
//! Cost: one load and one store per element.

/// Copies `n` elements, the first one first. The places may overlap if `to` is the lower one.
///
/// # Safety
/// As for [`core::ptr::copy`], except that `to` must not lie inside the source.
#[inline(always)]
pub(super) unsafe fn copy<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's promise; no element is overwritten before it is read.
    (0..n).for_each(|i| unsafe { to.add(i).write(from.add(i).read_volatile()) });
}

/// Copies `n` elements, the last one first. The places may overlap if `to` is the higher one.
///
/// # Safety
/// As for [`core::ptr::copy`], except that `from` must not lie inside the destination.
#[inline(always)]
pub(crate) unsafe fn copy_up<T: Copy>(from: *const T, to: *mut T, n: usize) {
    // SAFETY: the caller's promise; no element is overwritten before it is read.
    (0..n).rev().for_each(|i| unsafe { to.add(i).write(from.add(i).read_volatile()) });
}
