//! The processor time of this thread, and the heap it uses.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Processor time that this thread has used: what other programs take meanwhile does not count.
pub(crate) fn thread_time() -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to a `timespec` that the call fills.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(result, 0, "a thread has a clock");
    // SAFETY: the call succeeded, so it is filled.
    let time = unsafe { time.assume_init() };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes that the C library's allocator has given out and not got back, its own headers included.
pub(crate) fn heap_in_use() -> usize {
    // SAFETY: it only reads the allocator's counts.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}
