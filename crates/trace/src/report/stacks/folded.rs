//! Stacks as folded lines: `main;a;b;[mmap] 4096`, the outermost function first, with a value.
//!
//! This is the form that tools for flame graphs read. Stacks with the same functions are one line.

use std::collections::BTreeMap;

use super::{SiteCounts, Stacks};
use crate::record::{StackEnd, StackId};

/// The quantity that a flame graph shows.
///
/// ```
/// use trace::report::stacks::Measure;
/// assert_eq!(Measure::Mapped.title(), "Bytes mapped");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The bytes that calls have mapped.
    Mapped,
    /// The number of calls.
    Calls,
    /// The bytes that were resident at the peak.
    AtPeak,
    /// The bytes that are still mapped at the end.
    AtEnd,
}

impl Measure {
    /// All of them.
    pub const ALL: [Measure; 4] =
        [Measure::AtPeak, Measure::Mapped, Measure::Calls, Measure::AtEnd];

    /// A title for people.
    pub fn title(self) -> &'static str {
        match self {
            Measure::Mapped => "Bytes mapped",
            Measure::Calls => "Memory calls",
            Measure::AtPeak => "Bytes resident at the peak",
            Measure::AtEnd => "Bytes still mapped at the end",
        }
    }

    /// Its key in JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Measure::Mapped => "mapped",
            Measure::Calls => "calls",
            Measure::AtPeak => "at_peak",
            Measure::AtEnd => "at_end",
        }
    }

    pub(super) fn of(self, count: SiteCounts) -> u64 {
        match self {
            Measure::Mapped => count.mapped,
            Measure::Calls => count.calls,
            Measure::AtPeak => count.at_peak,
            Measure::AtEnd => count.at_end,
        }
    }
}

/// A chain of functions, the outermost first.
pub(crate) type Chain = Vec<String>;

impl Stacks {
    /// The value of each chain of functions. Words in brackets are no functions: the kind of call,
    /// `[cut]` and `[lost]` above stacks that are not whole, and `[execve]`. The sum is that of the
    /// table of sites. Chains without a value are left out.
    pub(crate) fn chains(&self, measure: Measure) -> BTreeMap<Chain, u64> {
        let mut chains = BTreeMap::new();
        let mut add = |chain: Chain, value: u64| {
            if value > 0 {
                let sum: &mut u64 = chains.entry(chain).or_default();
                *sum = sum.saturating_add(value);
            }
        };
        for (id, op, count) in self.counts() {
            let mut chain = self.chain(id);
            chain.push(format!("[{}]", op.name()));
            add(chain, measure.of(count));
        }
        for (name, other) in ["[execve]", "[unknown]"].into_iter().zip(self.others()) {
            add(vec![name.into()], measure.of(other));
        }
        chains
    }

    fn chain(&self, id: StackId) -> Chain {
        let Some(stack) = self.stack(id) else { return vec!["[no stack]".into()] };
        let mut chain: Chain = self.functions(stack).map(|function| function.name()).collect();
        match stack.end {
            StackEnd::Root => {}
            StackEnd::Cut => chain.push("[cut]".into()),
            StackEnd::Lost => chain.push("[lost]".into()),
        }
        chain.reverse();
        chain
    }

    /// One line for each chain of functions, for tools that read folded stacks.
    ///
    /// ```
    /// use trace::report::{Summary, stacks::Measure};
    /// assert_eq!(Summary::default().stacks.folded(Measure::Calls), "");
    /// ```
    pub fn folded(&self, measure: Measure) -> String {
        // A semicolon ends a name there.
        let line = |(chain, value): (Chain, u64)| {
            let names: Vec<String> = chain.iter().map(|name| name.replace(';', ":")).collect();
            format!("{} {value}\n", names.join(";"))
        };
        self.chains(measure).into_iter().map(line).collect()
    }
}
