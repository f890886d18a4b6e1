//! Reads lines, counts them, and limits their length.

use std::{
    borrow::Cow,
    io::{self, BufRead, Read},
};

/// The longest line in bytes. A path of 4096 bytes, with four characters for each, fits.
const LONGEST: u64 = 64 << 10;

/// The reason why there is no next line.
pub(super) enum NoLine {
    End,
    TooLong,
    NotText,
    /// The last line has no newline: the file was truncated.
    Cut,
    Failed(io::Error),
}

/// The lines of a reader. It reuses one buffer.
pub(super) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// The number of the newest line, from 1.
    pub(super) number: usize,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Lines { reader, buffer: Vec::new(), number: 0 }
    }

    /// Advances to the next line.
    pub(super) fn advance(&mut self) -> Result<&str, NoLine> {
        self.number += 1;
        self.buffer.clear();
        self.reader
            .by_ref()
            .take(LONGEST)
            .read_until(b'\n', &mut self.buffer)
            .map_err(NoLine::Failed)?;
        match self.buffer.pop() {
            None => Err(NoLine::End),
            Some(b'\n') => str::from_utf8(&self.buffer).map_err(|_| NoLine::NotText),
            Some(_) if self.buffer.len() as u64 + 1 == LONGEST => Err(NoLine::TooLong),
            Some(last) => {
                self.buffer.push(last);
                Err(NoLine::Cut)
            }
        }
    }

    /// The newest line. A byte that is not UTF-8 becomes U+FFFD.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.buffer)
    }
}
