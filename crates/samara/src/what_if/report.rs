//! What the other rules would have changed: counts, and the first call of each kind.

use std::fmt::Write;

use serde_json::{Value, json};
use vma::Error;

use super::Rule;

/// A recorded call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
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
struct Kind {
    calls: u64,
    first: Option<First>,
}

struct First {
    call: Call,
    difference: String,
}

impl Kind {
    fn add(&mut self, call: Call, difference: impl FnOnce() -> String) {
        self.calls += 1;
        self.first.get_or_insert_with(|| First { call, difference: difference() });
    }

    fn json(&self) -> Value {
        let first = self.first.as_ref().map(|First { call, difference }| {
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
    refused: Kind,
    allowed: Kind,
    elsewhere: Kind,
    /// Calls after which there are fewer VMAs than recorded, and more.
    fewer: Kind,
    more: Kind,
    /// The most VMAs of an address space, as recorded.
    pub(super) vmas_peak: usize,
}

impl Report {
    /// Compares two outcomes of a call.
    pub(super) fn add(&mut self, call: Call, recorded: Outcome, other: Outcome) {
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

    fn kinds(&self) -> [(&'static str, &'static str, &Kind); 5] {
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
        for (key, _, kind) in self.kinds() {
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
        for (_, what, kind) in self.kinds() {
            let _ = write!(text, "  {:>9} {what}", kind.calls);
            if let Some(First { call, difference }) = &kind.first {
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
