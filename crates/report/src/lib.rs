//! What an experiment has found: rows, and targets with their bounds.
//!
//! An experiment makes a [`Report`]. It is data first: [`Report::json_lines`] has one object a
//! line, for each row `experiment`, `case`, `implementation`, `cpus`, `size`, `metric`, `value` and
//! `unit`, for each target `experiment`, `target`, `value`, `bound` and `met`, for each note
//! `experiment`, `case`, `cpus`, `size` and `note`. Its `Display` is tables in Markdown: for each
//! experiment and metric a line for each case, size and number of CPUs, with a column for each
//! implementation; then the targets, met or missed by how much.
//!
//! `no_std`; allocates.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;

mod note;
mod statistics;
mod table;
mod target;

pub use note::Note;
pub use statistics::{median, spread};
pub use table::{Table, figure};
pub use target::Target;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was tried.
    pub experiment: String,
    /// In which way.
    pub case: String,
    /// Of what: ours, what it replaces, a published figure.
    pub implementation: String,
    /// On how many CPUs at once.
    pub cpus: usize,
    /// How large: pages, ranges; 0 where there is no size.
    pub size: usize,
    /// What was measured or counted.
    pub metric: String,
    /// How much.
    pub value: f64,
    /// Of what unit.
    pub unit: String,
}

impl Row {
    /// A row without a figure yet: see [`with`](Row::with).
    pub fn new(
        experiment: &str,
        case: &str,
        implementation: &str,
        cpus: usize,
        size: usize,
    ) -> Row {
        Row {
            experiment: experiment.into(),
            case: case.into(),
            implementation: implementation.into(),
            cpus,
            size,
            metric: String::new(),
            value: f64::NAN,
            unit: String::new(),
        }
    }

    /// This row with a figure.
    ///
    /// ```
    /// let row = report::Row::new("gup", "alone", "fast", 1, 16).with("time", 9.5, "ns/page");
    /// assert_eq!((row.size, row.value, row.unit.as_str()), (16, 9.5, "ns/page"));
    /// ```
    #[must_use]
    pub fn with(&self, metric: &str, value: f64, unit: &str) -> Row {
        Row { metric: metric.into(), value, unit: unit.into(), ..self.clone() }
    }
}

/// All figures and targets of some experiments, in order. `Display` makes tables of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// The bounds that they are held against.
    pub targets: Vec<Target>,
    /// Measures that were cut or refused, with the reason.
    pub notes: Vec<Note>,
}

impl Report {
    /// Appends another's rows and targets.
    pub fn merge(&mut self, other: Report) {
        self.rows.extend(other.rows);
        self.targets.extend(other.targets);
        self.notes.extend(other.notes);
    }

    /// Whether no target is missed.
    pub fn all_met(&self) -> bool {
        self.targets.iter().all(Target::met)
    }

    /// One JSON object for each row, then for each target, then for each note; each ends a line. A
    /// value that is no number is `null`.
    pub fn json_lines(&self) -> String {
        let rows = self.rows.iter().map(serde_json::to_string);
        let targets = self.targets.iter().map(serde_json::to_string);
        // Strings and numbers can always be written.
        let notes = self.notes.iter().map(serde_json::to_string);
        rows.chain(targets).chain(notes).flatten().flat_map(|line| [line, "\n".into()]).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::rows(f, &self.rows)?;
        if !self.notes.is_empty() {
            note::list(f, &self.notes)?;
        }
        if !self.targets.is_empty() {
            target::list(f, &self.targets)?;
        }
        Ok(())
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
