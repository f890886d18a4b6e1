//! `pthread_cancel`, put off while a call waits.
//!
//! A cancelled thread ends in the next function that is a cancellation point, such as `nanosleep`.
//! Its stack is unwound, and an unwinding that Rust did not begin aborts the process at the border
//! of a call. So the library puts cancellation off around each such function. The thread then ends
//! at a cancellation point after the call.

#[cfg(not(target_os = "android"))]
use core::ffi::c_int;

// Crate `libc` has this function for few systems.
/// cbindgen:ignore
#[allow(unused_doc_comments)]
#[cfg(not(target_os = "android"))]
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as it exists, the calling thread is not cancelled. Android has no cancellation.
pub(crate) struct Uncancelled {
    #[cfg(not(target_os = "android"))]
    before: c_int,
}

impl Uncancelled {
    #[cfg(not(target_os = "android"))]
    pub(crate) fn begin() -> Uncancelled {
        /// `PTHREAD_CANCEL_DISABLE`.
        const DISABLE: c_int = if cfg!(target_vendor = "apple") { 0 } else { 1 };
        let mut before = DISABLE;
        // SAFETY: a valid state, and a place for the one before.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled { before }
    }

    #[cfg(target_os = "android")]
    pub(crate) fn begin() -> Uncancelled {
        Uncancelled {}
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state of before, and a place for the present one.
        #[cfg(not(target_os = "android"))]
        unsafe {
            pthread_setcancelstate(self.before, &mut 0);
        }
    }
}
