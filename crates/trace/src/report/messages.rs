//! Messages to the user, on standard error.
//!
//! Standard error may be full, or a pipe whose reader is gone. A write that fails there must end
//! neither this process nor a program that it follows, so nothing in this crate prints by the
//! macros of the standard library, which panic. The first failure is kept: a command reports it
//! by its exit code.

use std::{
    fmt,
    io::{self, Write},
    sync::OnceLock,
};

/// The first write to standard error that failed.
static FAILED: OnceLock<String> = OnceLock::new();

/// Writes one message: `samara: text`, and a line end.
pub fn tell(text: impl fmt::Display) {
    show(&format!("samara: {text}\n"));
}

/// Writes `text` as it is. One write, so that a reader has it in one piece.
pub fn show(text: &str) {
    note(io::stderr().lock().write_all(text.as_bytes()));
}

/// Keeps the first failure of a write to standard error that was made elsewhere.
pub fn note(written: io::Result<()>) {
    if let Err(error) = written {
        FAILED.get_or_init(|| error.to_string());
    }
}

/// The cause of the first failure to write to standard error, if any write failed.
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
