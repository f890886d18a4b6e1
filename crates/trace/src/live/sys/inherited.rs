//! What this process was started with, and a followed program must find: which standard streams
//! were closed, and which signals were ignored.
//!
//! The runtime of the standard library changes both before `main`: it ignores SIGPIPE, and opens
//! /dev/null for a standard stream that is closed. So they are read before it starts, by a
//! function that the C library calls first.

use std::{
    mem, ptr,
    sync::atomic::{AtomicU8, Ordering},
};

/// The signals that a write can raise, which this process or its runtime ignores.
const RAISED_BY_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Standard streams that were closed, a bit each.
static CLOSED: AtomicU8 = AtomicU8::new(0);
/// Signals of [`RAISED_BY_WRITES`] that were ignored, a bit each.
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
        // SAFETY: the struct is plain data for which zeroes are valid, and ours for the call.
        unsafe {
            let mut now: libc::sigaction = mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &mut now) == 0
                && now.sa_sigaction == libc::SIG_IGN
            {
                ignored |= 1 << bit;
            }
        }
    }
    // Relaxed: this runs before any other thread is started, which publishes it.
    CLOSED.store(closed, Ordering::Relaxed);
    IGNORED.store(ignored, Ordering::Relaxed);
}

/// Gives all of it back to this process, which is about to become another program.
///
/// # Safety
/// Only in a child just forked, whose standard streams nothing uses any more.
pub(super) unsafe fn restore() {
    // Relaxed: see `read`.
    let (closed, ignored) = (CLOSED.load(Ordering::Relaxed), IGNORED.load(Ordering::Relaxed));
    for fd in (0..3).filter(|fd| closed & 1 << fd != 0) {
        // SAFETY: it is the runtime's own /dev/null; the caller promises that nothing uses it.
        unsafe { libc::close(fd) };
    }
    for (bit, signal) in RAISED_BY_WRITES.into_iter().enumerate() {
        let action = if ignored & 1 << bit != 0 { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: async-signal-safe, and neither action is a handler.
        unsafe { libc::signal(signal, action) };
    }
}
