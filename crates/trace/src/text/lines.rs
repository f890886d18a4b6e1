//! Lines with their numbers, none longer than a listing's can be.

use std::{
    borrow::Cow,
    io::{self, BufRead, Read},
};

/// Longest line accepted, bytes: a path of 4096 bytes, each escaped to four, leaves ample room.
const LONGEST: u64 = 64 << 10;

/// Why there is no next line.
pub(super) enum NoLine {
    End,
    TooLong,
    NotText,
    /// The last line lacks its end: the file was cut.
    Cut,
    Failed(io::Error),
}

/// The lines of a reader. One buffer, reused.
pub(super) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Number of the newest line, from 1.
    pub(super) number: usize,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Lines { reader, buffer: Vec::new(), number: 0 }
    }

    /// Goes to the next line.
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

    /// The newest line. A byte that is no text is shown as U+FFFD.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.buffer)
    }
}
