//! Results of experiments: rows of figures, and targets with their bounds.
//!
//! An experiment returns a [`Report`]. [`Report::json_lines`] writes one JSON object a line:
//!
//! - for the run, if it is known: `run`, the command, and the fields of [`Run`];
//! - for each row: `experiment`, `case`, `implementation`, `cpus`, `size`, `metric`, `value`,
//!   `unit`;
//! - for each target: `experiment`, `target`, `value`, `bound`, `at_least`, `met`;
//! - for each note: `experiment`, `case`, `cpus`, `size`, `note`.
//!
//! Its `Display` writes Markdown: a table for each experiment and metric, with a line for each
//! case, size and number of CPUs, and a column for each implementation. Then it lists the targets,
//! and by how much each missed one is missed.
//!
//! [`Row`], [`Run`], [`Target`] and [`Note`] are read from such lines by `serde`.
//!
//! ```text
//!              Report, Row
//!           /     |       \
//!       note    target    run <-- host (std)
//!                  \
//!                 table            statistics: medians of values
//! ```
//!
//! The crate is `no_std` and needs `alloc`. The feature `std` adds `Run::here`, which describes the
//! host.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
mod host;
mod note;
mod run;
mod statistics;
mod table;
mod target;

#[cfg(feature = "std")]
pub use host::quoted;
pub use note::Note;
pub use run::{Clock, Run};
pub use statistics::{median, spread};
pub use table::{Table, figure};
pub use target::Target;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize};

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The experiment.
    pub experiment: String,
    /// The case within the experiment.
    pub case: String,
    /// The implementation that was measured: ours, the one it replaces, or a published figure.
    pub implementation: String,
    /// The number of CPUs that took part at once.
    pub cpus: usize,
    /// The size, in pages or ranges. 0 if there is no size.
    pub size: usize,
    /// The quantity that was measured.
    pub metric: String,
    /// The measured value.
    #[serde(deserialize_with = "nan_if_null")]
    pub value: f64,
    /// The unit of the value.
    pub unit: String,
}

impl Row {
    /// A row without a value: see [`with`](Row::with).
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

    /// This row with a value.
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

/// All figures, targets and notes of some experiments, in order. `Display` writes them as tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The run that all of it comes from, if it is known.
    pub run: Option<Run>,
    /// The figures.
    pub rows: Vec<Row>,
    /// The targets.
    pub targets: Vec<Target>,
    /// Measurements that were cut short or refused, with the reason.
    pub notes: Vec<Note>,
}

impl Report {
    /// Appends the contents of another report of the same run.
    pub fn merge(&mut self, other: Report) {
        self.run = self.run.take().or(other.run);
        self.rows.extend(other.rows);
        self.targets.extend(other.targets);
        self.notes.extend(other.notes);
    }

    /// Whether all targets are met.
    pub fn all_met(&self) -> bool {
        self.targets.iter().all(Target::met)
    }

    /// One JSON object for the run, for each row, for each target, and for each note, in this
    /// order, each on a line of its own. A value that is not finite is `null`.
    pub fn json_lines(&self) -> String {
        let run = self.run.iter().map(serde_json::to_string);
        let rows = self.rows.iter().map(serde_json::to_string);
        let targets =
            self.targets.iter().map(|one| serde_json::to_string(&target::TargetLine::from(one)));
        // Serializing strings and numbers never fails.
        let notes = self.notes.iter().map(serde_json::to_string);
        let lines = run.chain(rows).chain(targets).chain(notes).flatten();
        lines.flat_map(|line| [line, "\n".into()]).collect()
    }
}

/// A number. JSON has no NaN: a value that could not be measured is `null`.
fn nan_if_null<'de, D: Deserializer<'de>>(number: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(number)?.unwrap_or(f64::NAN))
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
