//! The command line.

use crate::case::Case;
use crate::layouts::{DENSE, Layout};
use crate::pairs::PairKind;
use clap::Parser;
use std::path::PathBuf;

pub(crate) const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
/// The name for bytes for each range, next to the cases, in `--cases`.
pub(crate) const MEMORY: &str = "memory";

/// The cases of `--nodes`, unless `--cases` names others: all of them allocate nodes or free them.
const ALLOCATING: [&str; 7] = [
    "insert-random",
    "insert-ascending",
    "erase",
    "erase+insert",
    "mmap+munmap",
    "two-writers",
    "two-writers-two-maps",
];

/// The range tree and its peers, side by side in one run.
#[derive(Parser)]
#[command(name = "cargo bench -p samara-bench --", about)]
pub(crate) struct Options {
    /// Fewer and shorter rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Numbers of ranges [default: 100 to 1000000 by tens; for counts 1000 and 100000]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Where the ranges lie: dense, spread (random pages below 2^47), keys (random 64-bit
    /// indices), node, numpy or gcc (recorded address spaces), or a file like /proc/PID/maps
    /// [default: dense with all cases, the others with the most frequent ones; for counts dense]
    #[arg(long, value_delimiter = ',')]
    layouts: Vec<String>,
    /// Only these cases
    #[arg(long, value_delimiter = ',')]
    pub(crate) cases: Vec<String>,
    /// Only maps whose names contain this
    #[arg(long)]
    pub(crate) map: Option<String>,
    /// Rounds
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Print a table for each case, with more peers: behind a lock, a concurrent skip list
    #[arg(long)]
    pub(crate) table: bool,
    /// Compare sources of nodes instead of maps, by writes to our tree: the pool, the C library's
    /// malloc, and mimalloc; by --portable
    #[arg(long)]
    pub(crate) nodes: bool,
    /// Build nothing more: measure this build alone, in which brie_tree has only the instructions
    /// of every x86-64
    #[arg(long)]
    pub(crate) portable: bool,
    /// Count instructions and cache misses of an operation in valgrind's simulation, instead of
    /// times
    #[arg(long)]
    pub(crate) counts: bool,
    /// Also write one JSON object a line to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Be a worker
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// Passed by cargo
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Options {
    /// Refuses options that cannot be measured.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(bad) = self.sizes.iter().find(|&&size| size < 4) {
            return Err(format!("--sizes: a map of {bad} ranges has nothing to measure"));
        }
        let cases = Case::ALL.iter().map(|case| case.name());
        let known: Vec<&str> =
            cases.chain([MEMORY]).chain(PairKind::ALL.iter().map(|kind| kind.name())).collect();
        match self.cases.iter().find(|case| !known.contains(&case.as_str())) {
            Some(bad) => Err(format!("--cases: {bad} is not one of {}", known.join(", "))),
            None => Ok(()),
        }
    }

    /// Whether a case of that name is to be measured.
    pub(crate) fn wants(&self, case: &str) -> bool {
        match &self.cases[..] {
            [] => !self.nodes || ALLOCATING.contains(&case),
            names => names.iter().any(|name| name == case),
        }
    }

    /// Whether a case is to be measured on a layout.
    pub(crate) fn wants_on(&self, layout: &Layout, case: Case) -> bool {
        self.wants(case.name()) && (!self.cases.is_empty() || layout.has(case))
    }

    /// The layouts.
    pub(crate) fn layouts(&self) -> Result<Vec<Layout>, String> {
        match &self.layouts[..] {
            [] if self.counts || self.nodes => Ok(vec![Layout::named(DENSE)?]),
            [] => Ok(Layout::all()),
            names => names.iter().map(|name| Layout::named(name)).collect(),
        }
    }

    /// The numbers of ranges.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        match &self.sizes[..] {
            [] if self.nodes => vec![100, 10_000, 1_000_000],
            [] if self.counts => vec![1_000, 100_000],
            [] => SIZES.into(),
            sizes => sizes.into(),
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 }).max(1)
    }

    /// Milliseconds of each measurement of two threads.
    pub(crate) fn pair_time(&self) -> u64 {
        if self.quick { 20 } else { 100 }
    }

    /// Nanoseconds of each map in a round.
    pub(crate) fn slot(&self) -> u64 {
        if self.quick { 5_000_000 } else { 40_000_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_nodes_are_compared_by_cases_that_exist() {
        let parse = |words: &str| Options::parse_from(words.split(' '));
        let named = parse(&format!("table --cases {}", ALLOCATING.join(",")));
        assert_eq!(named.check(), Ok(()));
        let nodes = parse("table --nodes");
        assert!(nodes.wants("erase") && !nodes.wants("load") && !nodes.wants(MEMORY));
        assert!(parse("table --nodes --cases load").wants("load"));
        assert!(parse("table").wants("load"));
    }
}
