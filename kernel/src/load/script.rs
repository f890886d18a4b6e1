//! Scripts: files whose first line is `#!`, a program and at most one argument.
//!
//! Only the first [`LOOK`] bytes are read, as in Linux. A line that is longer may lose the end of
//! its argument. A program whose name may be cut there is refused.

use crate::errno::Errno;
use crate::machine::Kernel;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EACCES, ENOEXEC, ENOMEM};
use mm::{Shared, Shmem};

/// The bytes of which the line is read.
const LOOK: usize = 256;

/// The first line of a script.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Line {
    program: Vec<u8>,
    argument: Option<Vec<u8>>,
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A text without blanks at its ends. Other white space belongs to it, as in Linux.
fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(*byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(*byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// The first line, if the file is a script.
///
/// # Errors
/// ENOEXEC: the line names no program, or its name is too long. EACCES: the file ends before a
/// name.
pub(super) fn read(file: &Shared<Shmem<Kernel>>) -> Result<Option<Line>, Errno> {
    let mut bytes = [0; LOOK];
    file.read(0, &mut bytes);
    let Some(text) = bytes.strip_prefix(b"#!") else { return Ok(None) };
    // A file that is shorter is followed by zeros, which end the line, too.
    let end = text.iter().position(|byte| matches!(byte, b'\n' | 0));
    let line = trimmed(&text[..end.unwrap_or(text.len())]);
    let name = line.iter().position(|byte| is_blank(*byte));
    let is_cut = end.is_none() && name.is_none();
    let (program, rest) = line.split_at(name.unwrap_or(line.len()));
    if program.is_empty() && end.is_some_and(|end| text[end] == 0) {
        // As in Linux, where the empty path is the working directory.
        return Err(Errno(EACCES));
    }
    if program.is_empty() || is_cut {
        return Err(Errno(ENOEXEC));
    }
    let argument = trimmed(rest);
    let argument = if argument.is_empty() { None } else { Some(copy(argument)?) };
    Ok(Some(Line { program: copy(program)?, argument }))
}

fn copy(text: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(text.len()).map_err(|_| Errno(ENOMEM))?;
    copy.extend_from_slice(text);
    Ok(copy)
}

impl Line {
    /// Replaces argument 0 by the program, its argument and the path of the script. Returns the
    /// path of the program.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn apply(
        self,
        script: Vec<u8>,
        arguments: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<u8>, Errno> {
        arguments.try_reserve(2).map_err(|_| Errno(ENOMEM))?;
        let path = copy(&self.program)?;
        let front = [Some(self.program), self.argument, Some(script)];
        arguments.splice(..arguments.len().min(1), front.into_iter().flatten());
        Ok(path)
    }
}
