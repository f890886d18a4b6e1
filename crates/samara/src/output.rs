//! The destination of a result: standard output, or a file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::replay::RECORDING;

/// The destination of a result.
pub(crate) enum Lines<'a> {
    Nowhere,
    Stdout,
    File(File, &'a Path),
}

/// Opens the destination: `-` is standard output. Do it before the work, which takes minutes. A
/// recording is never overwritten by a result.
pub(crate) fn open(result: Option<&Path>) -> Result<Lines<'_>, String> {
    match result {
        None => Ok(Lines::Nowhere),
        Some(path) if path == Path::new("-") => Ok(Lines::Stdout),
        Some(path) if is_recording(path) => {
            let path = path.display();
            Err(format!("the result would overwrite the recording {path}; name another file, or -"))
        }
        Some(path) => match File::create(path) {
            Ok(file) => Ok(Lines::File(file, path)),
            Err(error) => Err(format!("cannot write {}: {error}", path.display())),
        },
    }
}

/// Whether a file is a recording.
pub(crate) fn is_recording(path: &Path) -> bool {
    let mut start = Vec::new();
    path.is_file()
        && File::open(path)
            .and_then(|file| file.take(RECORDING.len() as u64).read_to_end(&mut start))
            .is_ok_and(|_| start == RECORDING)
}

/// Refuses two results, each with its option, that would overwrite each other in one file.
pub(crate) fn refuse_one_file<'a>(
    results: impl Iterator<Item = (&'a str, Option<&'a Path>)>,
) -> Result<(), String> {
    let mut places: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in results {
        let Some(place) = path.and_then(place_of) else { continue };
        if let Some((other, _)) = places.iter().find(|(_, other)| *other == place) {
            let place = place.display();
            return Err(format!("{other} and {option} name one file, {place}: name two"));
        }
        places.push((option, place));
    }
    Ok(())
}

/// Where a file is, or will be. `None` for what holds nothing: standard output, devices, pipes.
fn place_of(path: &Path) -> Option<PathBuf> {
    if path == Path::new("-") {
        return None;
    }
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return None;
    }
    match fs::canonicalize(path) {
        Ok(found) => Some(found),
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        }
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
