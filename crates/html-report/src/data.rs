//! The contents of the files: runs, the figures of each, and traces.

use crate::trace::Trace;
use report::{Clock, Note, Row, Target};

/// The contents of some files. Each item names the run that it comes from, so that figures of two
/// runs never stand in one ratio or one plot.
///
/// ```
/// let mut results = html_report::Results::default();
/// let target = r#"{"experiment":"gup","target":"x","value":1,"bound":2,"at_least":true}"#;
/// results.read("a.jsonl", target)?;
/// let html = html_report::html(&results);
/// assert!(html.starts_with("<!DOCTYPE html>") && html.contains("a.jsonl"));
/// # Ok::<(), html_report::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Results {
    pub(crate) runs: Vec<Source>,
    pub(crate) rows: Vec<Of<Row>>,
    pub(crate) targets: Vec<Of<Target>>,
    pub(crate) notes: Vec<Of<Note>>,
    pub(crate) traces: Vec<Of<Trace>>,
}

/// A run, as far as its file describes it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The file, without its folders.
    pub(crate) file: String,
    /// `None` if the file does not say.
    pub(crate) run: Option<report::Run>,
}

/// Something that comes from the run with this number.
#[derive(Clone, Debug)]
pub(crate) struct Of<T> {
    pub(crate) run: usize,
    pub(crate) item: T,
}

impl Source {
    /// Whether the clock of the run counts instructions.
    pub(crate) fn counts(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.clock == Clock::Instructions)
    }

    /// The machine that was measured, and its host.
    pub(crate) fn machine(&self) -> String {
        let Some(run) = &self.run else { return "a machine that the file does not name".into() };
        let host = format!("{}, {} processors, {}", run.processor, run.processors, run.system);
        match run.machine.is_empty() {
            true => host,
            false => format!("{} (on {host})", run.machine),
        }
    }

    /// A note on the load of the host, if times may have been disturbed.
    pub(crate) fn disturbed(&self) -> Option<String> {
        let run = self.run.as_ref().filter(|run| run.clock == Clock::Time)?;
        let load = run.load.filter(|load| *load > run.processors as f64 / 2.0)?;
        Some(format!("The host was busy (load {load:.1}): times may be too long."))
    }
}

impl Results {
    /// Whether there is anything of experiments.
    pub(crate) fn has_figures(&self) -> bool {
        !(self.rows.is_empty() && self.targets.is_empty() && self.notes.is_empty())
    }

    /// The rows that `wanted` accepts, of the one run that has most of them; of two with as many,
    /// one that measures time, then the earlier one.
    pub(crate) fn best(&self, wanted: impl Fn(&Row) -> bool) -> Option<(usize, Vec<&Row>)> {
        self.best_of(|_| true, wanted)
    }

    /// The same of runs that measure time. Counted instructions do not show the cost of CPUs to
    /// each other: there they take turns.
    pub(crate) fn best_timed(&self, wanted: impl Fn(&Row) -> bool) -> Option<(usize, Vec<&Row>)> {
        self.best_of(|source| !source.counts(), wanted)
    }

    fn best_of(
        &self,
        of_run: impl Fn(&Source) -> bool,
        wanted: impl Fn(&Row) -> bool,
    ) -> Option<(usize, Vec<&Row>)> {
        let of = |run: usize| -> Vec<&Row> {
            let rows = self.rows.iter().filter(|row| row.run == run).map(|row| &row.item);
            rows.filter(|row| row.value.is_finite() && row.cpus > 0 && wanted(row)).collect()
        };
        let runs = (0..self.runs.len()).rev().filter(|&run| of_run(&self.runs[run]));
        let all = runs.map(|run| (run, of(run)));
        let key = |(run, rows): &(usize, Vec<&Row>)| (rows.len(), !self.runs[*run].counts());
        all.filter(|(_, rows)| !rows.is_empty()).max_by_key(key)
    }

    /// The unit of a row. Where the clock counts instructions, a nanosecond is one, except in
    /// figures that were published.
    pub(crate) fn unit(&self, run: usize, row: &Row) -> String {
        let counts = self.runs[run].counts() && !row.implementation.ends_with("published");
        match row.unit.strip_prefix("ns") {
            Some(rest) if counts => format!("instructions{rest}"),
            _ if row.unit.is_empty() || row.unit == "1" || row.unit == "1/op" => row.metric.clone(),
            _ => row.unit.clone(),
        }
    }
}
