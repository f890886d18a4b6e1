//! Writes the results: tables, JSON lines, a file.

use report::Report;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The destination of the JSON lines.
pub(crate) enum Lines<'a> {
    Nowhere,
    Stdout,
    File(File, &'a Path),
}

/// Opens the destination before anything is measured, because that takes minutes.
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

pub(crate) fn write(report: &Report, lines: Lines<'_>) -> Result<(), String> {
    let text = match lines {
        Lines::Stdout => report.json_lines(),
        _ => report.to_string(),
    };
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write to standard output: {error}"))?;
    if let Lines::File(mut file, path) = lines {
        let written = file.write_all(report.json_lines().as_bytes());
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
