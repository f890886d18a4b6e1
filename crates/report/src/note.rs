//! Notes on measurements that were cut short or refused.

use alloc::format;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A note on one measurement: why there is no figure, or one from fewer rounds than requested.
///
/// ```
/// let note = report::Note::new("gup", "alone", 2, 16, "cut after 3 of 9 rounds");
/// assert_eq!(note.to_string(), "gup, alone, 16 on 2 CPUs: cut after 3 of 9 rounds");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// The experiment.
    pub experiment: String,
    /// The case, as in its rows.
    pub case: String,
    /// The number of CPUs that took part.
    pub cpus: usize,
    /// The size, as in its rows.
    pub size: usize,
    /// The text of the note.
    pub note: String,
}

impl Note {
    /// A note on the rows of this case.
    pub fn new(
        experiment: &str,
        case: &str,
        cpus: usize,
        size: usize,
        note: impl Into<String>,
    ) -> Note {
        Note { experiment: experiment.into(), case: case.into(), cpus, size, note: note.into() }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note { experiment, case, cpus, size, note } = self;
        write!(f, "{experiment}, {case}, {size} on {cpus} CPUs: {note}")
    }
}

/// Writes a list of notes.
pub(crate) fn list(f: &mut fmt::Formatter<'_>, notes: &[Note]) -> fmt::Result {
    let lines: String = notes.iter().map(|note| format!("- {note}\n")).collect();
    write!(f, "\n**Notes**\n\n{lines}")
}
