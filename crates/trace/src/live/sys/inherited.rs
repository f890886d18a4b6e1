//! The state that this process was started with and that a followed program must find: closed
//! standard streams and ignored signals.
//!
//! The runtime of the standard library changes both before `main`: it ignores SIGPIPE, and opens
//! /dev/null for a closed standard stream. So a function that the C library calls earlier reads
//! them.

use std::{
    mem, ptr,
    sync::atomic::{AtomicU8, Ordering},
};

/// The signals that a write can raise and that this process or its runtime ignores.
const RAISED_BY_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// The standard streams that were closed, one bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// The signals of [`RAISED_BY_WRITES`] that were ignored, one bit each.
static IGNORED: AtomicU8 = AtomicU8::new(0);

#[used]
// SAFETY: the section holds addresses of functions that are called once, before `main`.
#[unsafe(link_section = ".init_array")]
static READ_FIRST: extern "C" fn() = read;

extern "C" fn read() {
    let mut closed = 0;
    for fd in 0..3 {
        // SAFETY: no memory is passed.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            closed |= 1 << fd;
        }
    }
    let mut ignored = 0;
    for (bit, signal) in RAISED_BY_WRITES.into_iter().enumerate() {
        // SAFETY: the struct is plain data for which zeroes are valid, and this function owns it.
        unsafe {
            let mut now: libc::sigaction = mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &mut now) == 0
                && now.sa_sigaction == libc::SIG_IGN
            {
                ignored |= 1 << bit;
            }
        }
    }
    // Relaxed: this runs before any other thread starts, and a thread's start publishes it.
    CLOSED.store(closed, Ordering::Relaxed);
    IGNORED.store(ignored, Ordering::Relaxed);
}

/// Restores all of it in this process, which is about to become the program.
///
/// # Safety
/// Only in a newly forked child whose standard streams are no longer used.
pub(super) unsafe fn restore() {
    // Relaxed: see `read`.
    let (closed, ignored) = (CLOSED.load(Ordering::Relaxed), IGNORED.load(Ordering::Relaxed));
    for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
        // SAFETY: it is the runtime's own /dev/null. By the caller's contract it is not used.
        unsafe { libc::close(fd) };
    }
    for (bit, signal) in RAISED_BY_WRITES.into_iter().enumerate() {
        let action = if ignored & 1 << bit != 0 { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: async-signal-safe, and neither action is a handler.
        unsafe { libc::signal(signal, action) };
    }
}
