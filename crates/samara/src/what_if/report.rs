//! The differences under the other rules: counts, and the first call of each kind.

use std::fmt::Write;

use serde_json::{Value, json};
use vma::Error;

use super::Rule;

/// A recorded call.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedCall {
    /// The line of its record.
    pub(super) line: usize,
    pub(super) name: &'static str,
    /// The VMAs before it.
    pub(super) vmas: usize,
}

/// An outcome of a call: its result, and the number of VMAs after it.
type Outcome = (Result<usize, Error>, usize);

/// Calls with the same kind of difference.
#[derive(Default)]
struct Difference {
    calls: u64,
    first: Option<FirstCall>,
}

struct FirstCall {
    call: RecordedCall,
    difference: String,
}

impl Difference {
    fn add(&mut self, call: RecordedCall, difference: impl FnOnce() -> String) {
        self.calls += 1;
        self.first.get_or_insert_with(|| FirstCall { call, difference: difference() });
    }

    fn json(&self) -> Value {
        let first = self.first.as_ref().map(|FirstCall { call, difference }| {
            json!({ "line": call.line, "call": call.name, "vmas": call.vmas, "text": difference })
        });
        json!({ "calls": self.calls, "first": first })
    }
}

/// The differences of one recording.
#[derive(Default)]
pub(crate) struct Report {
    /// Calls whose outcomes were compared.
    asked: u64,
    refused: Difference,
    allowed: Difference,
    elsewhere: Difference,
    /// Calls after which there are fewer VMAs than recorded, and more.
    fewer: Difference,
    more: Difference,
    /// The most VMAs of an address space, as recorded.
    pub(super) vmas_peak: usize,
}

impl Report {
    /// Compares two outcomes of a call.
    pub(super) fn add(&mut self, call: RecordedCall, recorded: Outcome, other: Outcome) {
        self.asked += 1;
        match (recorded.0, other.0) {
            (Ok(_), Err(error)) => {
                return self.refused.add(call, || format!("fails: {error}"));
            }
            (Err(error), Ok(_)) => {
                return self.allowed.add(call, || format!("was refused: {error}"));
            }
            (Ok(here), Ok(there)) if here != there => {
                self.elsewhere.add(call, || format!("returns {there:x} instead of {here:x}"));
            }
            _ => {}
        }
        let (count, would_be) = (recorded.1, other.1);
        let difference = || format!("leaves {would_be} VMAs instead of {count}");
        match would_be.cmp(&count) {
            std::cmp::Ordering::Less => self.fewer.add(call, difference),
            std::cmp::Ordering::Greater => self.more.add(call, difference),
            std::cmp::Ordering::Equal => {}
        }
    }

    fn differences(&self) -> [(&'static str, &'static str, &Difference); 5] {
        [
            ("refused", "would be refused", &self.refused),
            ("allowed", "would not be refused", &self.allowed),
            ("elsewhere", "would be at another address", &self.elsewhere),
            ("fewer_vmas", "would leave fewer VMAs", &self.fewer),
            ("more_vmas", "would leave more VMAs", &self.more),
        ]
    }

    /// As an object. Keys are always present.
    pub(crate) fn json(&self, file: &str, rules: &[Rule]) -> Value {
        let mut object = json!({
            "file": file, "rules": texts(rules), "calls": self.asked, "vmas_peak": self.vmas_peak,
        });
        for (key, _, kind) in self.differences() {
            object[key] = kind.json();
        }
        object
    }

    /// As a table.
    pub(crate) fn text(&self, file: &str, rules: &[Rule]) -> String {
        let mut text = format!(
            "{file} with {}: of {} calls, each asked about alone (peak: {} VMAs)\n",
            texts(rules).join(", "),
            self.asked,
            self.vmas_peak
        );
        for (_, what, kind) in self.differences() {
            let _ = write!(text, "  {:>9} {what}", kind.calls);
            if let Some(FirstCall { call, difference }) = &kind.first {
                let _ = write!(
                    text,
                    "; first {file}:{}: {} at {} VMAs {difference}",
                    call.line, call.name, call.vmas
                );
            }
            text.push('\n');
        }
        text
    }
}

fn texts(rules: &[Rule]) -> Vec<&str> {
    rules.iter().map(|rule| &*rule.text).collect()
}
