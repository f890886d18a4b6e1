//! Results of calls: 0 or a negative errno, and the message that explains misuse.

use crate::cancel::Uncancelled;
use core::ffi::c_int;
use core::fmt::{self, Write};
use maple::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const NO_MEMORY: Errno = Errno(libc::ENOMEM);
    pub(crate) const NO_ENTRY: Errno = Errno(libc::ENOENT);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        Errno(match error {
            Error::OutOfMemory => libc::ENOMEM,
            Error::NoSpace => libc::ENOSPC,
            Error::Occupied { .. } => libc::EEXIST,
            _ => libc::EINVAL,
        })
    }
}

/// Runs the body of a call, and turns its result into the number that C gets.
///
/// No panic crosses the border. The code behind it has none that a caller can cause. If one
/// happens, it is a bug of the library, and the call returns `-ENOTRECOVERABLE`.
#[inline(always)]
pub(crate) fn border(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Errno(errno))) => -errno,
        Err(payload) => {
            // Dropping the payload could panic again.
            core::mem::forget(payload);
            -libc::ENOTRECOVERABLE
        }
    }
}

/// A line for stderr. It needs no heap.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is for the end of the line.
        let room = self.bytes.len() - 1 - self.len;
        let text = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..][..text.len()].copy_from_slice(text);
        self.len += text.len();
        Ok(())
    }
}

/// Reports misuse. In debug builds, stderr gets a line with the call and the cause.
#[cold]
#[inline(never)]
pub(crate) fn misuse(errno: c_int, call: &str, cause: &str) -> Errno {
    if cfg!(debug_assertions) {
        let mut line = Line { bytes: [0; 256], len: 0 };
        let _ = write!(line, "samara: {call}: {cause}");
        line.bytes[line.len] = b'\n';
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the buffer has that many bytes. A failed write loses the message only.
        unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len + 1) };
    }
    Errno(errno)
}

/// Refuses a null pointer.
pub(crate) fn not_null(is_null: bool, call: &str, cause: &str) -> Result<(), Errno> {
    if is_null { Err(misuse(libc::EINVAL, call, cause)) } else { Ok(()) }
}
