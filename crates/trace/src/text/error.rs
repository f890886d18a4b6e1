//! What is wrong with a trace, and where.

use std::{borrow::Cow, fmt, io};

/// A trace that cannot be read. Displays as `file:line: expected ..., found ...`, or as
/// `file: cannot read: ...` if the operating system refused.
///
/// ```
/// use trace::text::Parser;
///
/// let error = Parser::new(&b"Q 1\n"[..], "a.vmtrace").err().unwrap();
/// assert_eq!(error.to_string(), "a.vmtrace:1: expected the header \"# vmtrace 1 ...\" of a recording, found \"Q 1\"");
/// ```
#[derive(Debug)]
pub struct Error {
    /// The file, as the user named it.
    pub file: String,
    /// Line number, from 1; one past the last line if the file ends too early.
    pub line: usize,
    /// What should have been there.
    pub expected: Cow<'static, str>,
    /// What was there, shortened; empty at the end of the file.
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

/// Why a line is not a record: what was expected in it.
pub(super) type Expected = Cow<'static, str>;

/// The start of `line`, short enough for a message.
pub(super) fn shorten(line: &str) -> String {
    const MOST: usize = 80;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_string(),
    }
}
