//! Messages to the user, on standard error.
//!
//! Standard error may be full, or a pipe without a reader. A failed write must end neither this
//! process nor the program that it follows. So this crate does not print with the macros of the
//! standard library, which panic. The first failure is kept, and the command reports it with its
//! exit code.

use std::{
    fmt,
    io::{self, Write},
    sync::OnceLock,
};

/// The first write to standard error that failed.
static FAILED: OnceLock<String> = OnceLock::new();

/// Writes one message: `samara: text` and a newline.
pub fn tell(text: impl fmt::Display) {
    show(&format!("samara: {text}\n"));
}

/// Writes `text` unchanged. One write, so that a reader gets it in one piece.
pub fn show(text: &str) {
    note(io::stderr().lock().write_all(text.as_bytes()));
}

/// Records the result of another write to standard error. The first failure is kept.
pub fn note(written: io::Result<()>) {
    if let Err(error) = written {
        FAILED.get_or_init(|| error.to_string());
    }
}

/// The cause of the first failed write to standard error, if any.
///
/// ```
/// use trace::report::messages;
/// messages::note(Ok(()));
/// assert_eq!(messages::failure(), None);
/// messages::note(Err(std::io::ErrorKind::BrokenPipe.into()));
/// assert_eq!(messages::failure(), Some("broken pipe"));
/// ```
pub fn failure() -> Option<&'static str> {
    FAILED.get().map(String::as_str)
}
