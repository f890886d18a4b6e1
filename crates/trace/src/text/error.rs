//! The error of reading a trace: the place and the cause.

use std::{borrow::Cow, fmt, io};

/// Why a trace cannot be read. Displays as `file:line: expected ..., found ...`, or as `file:
/// cannot read: ...` if the operating system failed.
///
/// ```
/// use trace::text::Parser;
///
/// let error = Parser::new(&b"Q 1\n"[..], "a.vmtrace").err().unwrap();
/// let expected = "expected the header \"# vmtrace 1 ...\" of a recording";
/// assert_eq!(error.to_string(), format!("a.vmtrace:1: {expected}, found \"Q 1\""));
/// ```
#[derive(Debug)]
pub struct Error {
    /// The file, as the user named it.
    pub file: String,
    /// The line number, from 1. One past the last line if the file ends too early.
    pub line: usize,
    /// The expected text.
    pub expected: Cow<'static, str>,
    /// The text in its place, shortened. Empty at the end of the file.
    pub found: String,
    /// The operating system's error, if reading failed.
    pub source: Option<io::Error>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = &self.source {
            return write!(f, "{}: cannot read: {source}", self.file);
        }
        write!(f, "{}:{}: ", self.file, self.line)?;
        write!(f, "expected {}, found ", self.expected)?;
        if self.found.is_empty() {
            f.write_str("the end of the file")
        } else {
            write!(f, "{:?}", self.found)
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// The reason why a line is not a record: a description of the expected text.
pub(super) type Expected = Cow<'static, str>;

/// The start of `line`, short enough for a message.
pub(super) fn shorten(line: &str) -> String {
    const MOST: usize = 80;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_string(),
    }
}
