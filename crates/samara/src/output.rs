//! The destination of a result: standard output, or a file.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The destination of a result.
pub(crate) enum Lines<'a> {
    Nowhere,
    Stdout,
    File(File, &'a Path),
}

/// Opens the destination: `-` is standard output. Do it before the work, which takes minutes.
pub(crate) fn open(json: Option<&Path>) -> Result<Lines<'_>, String> {
    match json {
        None => Ok(Lines::Nowhere),
        Some(path) if path == Path::new("-") => Ok(Lines::Stdout),
        Some(path) => match File::create(path) {
            Ok(file) => Ok(Lines::File(file, path)),
            Err(error) => Err(format!("cannot write {}: {error}", path.display())),
        },
    }
}

impl Lines<'_> {
    /// Whether the result is written anywhere.
    pub(crate) fn is_wanted(&self) -> bool {
        !matches!(self, Lines::Nowhere)
    }

    /// Writes all of a result there.
    pub(crate) fn write(self, text: &str) -> Result<(), String> {
        match self {
            Lines::Nowhere => Ok(()),
            Lines::Stdout => {
                let mut out = io::stdout().lock();
                let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                written.map_err(|error| format!("cannot write to standard output: {error}"))
            }
            Lines::File(mut file, path) => {
                let written = file.write_all(text.as_bytes());
                written.map_err(|error| format!("cannot write {}: {error}", path.display()))
            }
        }
    }
}
