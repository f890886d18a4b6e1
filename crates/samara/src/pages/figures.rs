//! The figures of a replay with pages.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::{Value, json};

/// The counts of one recording.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// System calls of the recording.
    pub(super) calls: u64,
    /// Changes of address spaces, which the calls, forks and touches of the recording are.
    pub(super) steps: u64,
    pub(super) forks: u64,
    /// Address spaces that began.
    pub(super) spaces: u64,
    /// Faults of our touches by kind.
    pub(super) faults: BTreeMap<&'static str, u64>,
    /// Pages that were read or written, each time.
    pub(super) touches: u64,
    /// Words that were read and compared with those of the model.
    pub(super) compared: u64,
    /// Accesses that had to be refused, and were.
    pub(super) refused: u64,
    /// The most frames in use at once, page tables included.
    pub(super) frames_peak: u64,
    /// The most page tables at once, as far as looked at.
    pub(super) tables_peak: u64,
    /// Features that the address spaces lack, each with the number of its uses.
    pub(super) lacking: BTreeMap<String, u64>,
    /// Flushes of TLBs, and interrupts sent to other CPUs for them.
    pub(super) flushes: (u64, u64),
    /// Violations that the checkers found: 0 or 1, because the machine halts.
    pub(super) violations: u64,
    /// Frames that were not given back, and tables that are on no list.
    pub(super) left: (u64, u64),
    pub(super) took: Duration,
}

impl Figures {
    pub(super) fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// Counts something that the address spaces do not have.
    pub(super) fn lack(&mut self, what: &str) {
        match self.lacking.get_mut(what) {
            Some(times) => *times += 1,
            None => drop(self.lacking.insert(what.to_string(), 1)),
        }
    }

    fn all_faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// The figures as one JSON object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "calls": self.calls,
            "steps": self.steps,
            "address_spaces": self.spaces,
            "forks": self.forks,
            "faults": self.faults,
            "faults_total": self.all_faults(),
            "touches": self.touches,
            "words_compared": self.compared,
            "accesses_refused": self.refused,
            "frames_peak": self.frames_peak,
            "tables_peak": self.tables_peak,
            "flushes": self.flushes.0,
            "ipis": self.flushes.1,
            "not_supported": self.lacking,
            "violations": self.violations,
            "frames_left": self.left.0,
            "tables_left": self.left.1,
            "seconds": self.took.as_secs_f64(),
        })
    }

    /// The figures for people, some lines.
    pub(crate) fn text(&self, name: &str) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "pages of {name}, {:.1} s\n  {} calls in {} steps; {} address spaces, {} of them by fork",
            self.took.as_secs_f64(),
            self.calls,
            self.steps,
            self.spaces,
            self.forks,
        );
        let kinds: Vec<_> =
            self.faults.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
        let _ = writeln!(
            text,
            "  {} touches, {} words compared, {} accesses refused as they must be",
            self.touches, self.compared, self.refused,
        );
        let _ = writeln!(text, "  {} faults: {}", self.all_faults(), kinds.join(", "));
        let _ = writeln!(
            text,
            "  {} TLB flushes, {} IPIs; at the peak {} frames, {} of them page tables",
            self.flushes.0, self.flushes.1, self.frames_peak, self.tables_peak,
        );
        for (what, times) in &self.lacking {
            let _ = writeln!(text, "  not supported, {times} times: {what}");
        }
        let _ = writeln!(
            text,
            "  {} violations; left: {} frames, {} tables",
            self.violations, self.left.0, self.left.1,
        );
        text
    }
}
