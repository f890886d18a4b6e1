//! The processor time of a thread.

use std::mem::MaybeUninit;

/// The processor time of this thread in nanoseconds, which leaves out other programs. Cost: a
/// system call.
pub(crate) fn thread_time() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to a `timespec`, which the call fills.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(result, 0, "a thread has a clock");
    // SAFETY: the call succeeded, so it is filled.
    let time = unsafe { time.assume_init() };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
