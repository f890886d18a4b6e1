//! Reads JSON lines.
//!
//! A line is known by its keys: `run` begins a run, `metric` is a row, `target` a target, `note` a
//! note, `call` one call of `samara trace --json-lines`, `frames` a call stack there, `image` with
//! `address` the name of a function, and `calls` with `kinds` the object of `samara trace --json`.
//! A line that is none of these is an error, and so is a file without one: a page that silently
//! leaves something out would mislead.

use crate::data::{Of, Results, Source};
use crate::json::parsed;
use crate::trace::{Calls, Trace};
use report::Run;
use serde_json::Value;
use std::fmt;

/// A file that is not a result.
///
/// ```
/// let error = html_report::Results::default().read("a.txt", "{}\nhello").unwrap_err().to_string();
/// assert!(error.starts_with("a.txt, line 1: ") && error.contains("--json"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    file: String,
    /// From 1. 0 is the whole file.
    line: usize,
    what: String,
}

/// The cure of each error.
const CURE: &str = "give files that samara bench --json FILE, samara boot bench --json FILE, \
    cargo bench -p samara-bench -- --json FILE, samara trace --json FILE or \
    samara trace --json-lines FILE has written";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { file, line, what } = self;
        match line {
            0 => write!(f, "{file}: {what}; {CURE}"),
            _ => write!(f, "{file}, line {line}: {what}; {CURE}"),
        }
    }
}

impl std::error::Error for Error {}

impl Results {
    /// Adds the contents of a file. `name` is its path.
    ///
    /// # Errors
    /// A line is not one of a result, or there is none. Then nothing is added.
    pub fn read(&mut self, name: &str, text: &str) -> Result<(), Error> {
        let error = |line, what| Error { file: name.into(), line, what };
        let short = name.rsplit('/').next().unwrap_or(name);
        let mut file = File { results: Results::default(), name: short, calls: None };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let read = serde_json::from_str::<Value>(line)
                .map_err(|error| format!("it is not JSON ({error})"))
                .and_then(|value| file.line(&value));
            read.map_err(|what| error(number + 1, what))?;
        }
        let found = file.end();
        if found.runs.is_empty() {
            return Err(error(0, "it has no line".into()));
        }
        self.append(found);
        Ok(())
    }

    /// Adds results of other runs.
    fn append(&mut self, other: Results) {
        let before = self.runs.len();
        fn moved<T>(items: Vec<Of<T>>, before: usize) -> impl Iterator<Item = Of<T>> {
            items.into_iter().map(move |of| Of { run: before + of.run, ..of })
        }
        self.runs.extend(other.runs);
        self.rows.extend(moved(other.rows, before));
        self.targets.extend(moved(other.targets, before));
        self.notes.extend(moved(other.notes, before));
        self.traces.extend(moved(other.traces, before));
    }
}

/// A file that is being read.
struct File<'a> {
    results: Results,
    name: &'a str,
    /// The calls of `--json-lines` so far.
    calls: Option<Calls>,
}

impl File<'_> {
    fn line(&mut self, value: &Value) -> Result<(), String> {
        if !value.is_object() {
            return Err("it is JSON, but no object".into());
        }
        if value["run"].is_string() {
            let run = Some(parsed(value)?);
            self.results.runs.push(Source { file: self.name.into(), run });
        } else if !value["metric"].is_null() {
            let item = parsed(value)?;
            let run = self.run();
            self.results.rows.push(Of { run, item });
        } else if !value["target"].is_null() {
            let item = parsed(value)?;
            let run = self.run();
            self.results.targets.push(Of { run, item });
        } else if !value["note"].is_null() {
            let item = parsed(value)?;
            let run = self.run();
            self.results.notes.push(Of { run, item });
        } else if value["call"].is_string() {
            self.run();
            self.calls.get_or_insert_default().add(value)?;
        } else if value["frames"].is_array() {
            self.run();
            self.calls.get_or_insert_default().add_stack(value)?;
        } else if value.get("image").is_some() && value["address"].is_u64() {
            self.run();
            self.calls.get_or_insert_default().add_name(value)?;
        } else if value["kinds"].is_object() {
            let run: Option<Run> = parsed(&value["run"])?;
            let item = Trace::of(value, run.as_ref().map(|run| run.run.as_str()))?;
            self.results.runs.push(Source { file: self.name.into(), run });
            let run = self.results.runs.len() - 1;
            self.results.traces.push(Of { run, item });
        } else {
            return Err("it is JSON, but none of Samara's".into());
        }
        Ok(())
    }

    /// The number of the current run. A file without a line of a run has one that is unknown.
    fn run(&mut self) -> usize {
        if self.results.runs.is_empty() {
            self.results.runs.push(Source { file: self.name.into(), run: None });
        }
        self.results.runs.len() - 1
    }

    fn end(mut self) -> Results {
        if let Some(calls) = self.calls.take() {
            let run = self.run();
            self.results.traces.push(Of { run, item: calls.trace(self.name) });
        }
        self.results
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Note, Row, Target};

    #[test]
    fn what_reports_write_is_read() {
        let report = report::Report {
            run: Some(Run { run: "samara bench gup".into(), processors: 2, ..Run::default() }),
            rows: vec![
                Row::new("gup", "alone", "fast", 2, 16).with("time", 9.5, "ns/page"),
                Row::new("gup", "alone", "slow", 2, 16).with("time", f64::NAN, "ns/page"),
            ],
            targets: vec![Target::at_most("gup", "slow", f64::NAN, 0.0)],
            notes: vec![Note::new("gup", "alone", 2, 16, "cut")],
        };
        let mut results = Results::default();
        results.read("x/a.jsonl", &report.json_lines()).unwrap();
        results.read("b.jsonl", &report.json_lines()).unwrap();
        assert_eq!((results.runs.len(), results.rows.len()), (2, 4));
        assert_eq!(results.runs[0].run, report.run);
        assert_eq!((results.runs[0].file.as_str(), results.rows[3].run), ("a.jsonl", 1));
        assert_eq!(results.rows[0].item, report.rows[0]);
        assert!(results.rows[1].item.value.is_nan() && results.targets[1].item.value.is_nan());
        assert_eq!(results.notes[1].item, report.notes[0]);
    }

    /// An error names the file, the line and the cure, and adds nothing.
    #[test]
    fn other_files_are_refused() {
        let row = r#"{"experiment":"e","case":"c","implementation":"i","cpus":1,"size":1,
            "metric":"m","value":1.5,"unit":"ns"}"#;
        let row = &row.replace('\n', "");
        let wrong = [
            ("", "a: it has no line"),
            ("\n\n", "a: it has no line"),
            ("x", "a, line 1: it is not JSON"),
            ("3", "a, line 1: it is JSON, but no object"),
            ("{}", "a, line 1: it is JSON, but none of Samara's"),
            (&row.replace("1.5", "\"1\""), "a, line 1: invalid type: string \"1\", expected f64"),
            (
                &row.replace("\"cpus\":1", "\"cpus\":-1"),
                "invalid value: integer `-1`, expected usize",
            ),
            (&row.replace("\"value\":1.5,", ""), "missing field `value`"),
            (r#"{"run":"x","clock":"sun"}"#, "unknown variant `sun`"),
            (r#"{"experiment":"e","target":"t","value":1,"bound":1}"#, "missing field `at_least`"),
            (r#"{"call":"mmap"}"#, "missing field `time_ns`"),
            (r#"{"calls":"x","kinds":{}}"#, "invalid type: string \"x\", expected u64"),
        ];
        for (text, expected) in wrong {
            for before in ["", row.as_str()] {
                let mut results = Results::default();
                if text.trim().is_empty() && !before.is_empty() {
                    continue;
                }
                let text = format!("{before}\n{text}");
                let error = results.read("a", &text).unwrap_err().to_string();
                let expected = expected.replace("line 1", "line 2");
                assert!(error.contains(&expected), "{error}");
                assert!(error.contains("samara bench --json"), "{error}");
                assert!(results.runs.is_empty() && results.rows.is_empty());
            }
        }
    }
}
