//! The command line.

use crate::case::Case;
use clap::Parser;
use std::path::PathBuf;

pub(crate) const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
/// What `--cases` knows besides the cases: bytes for each range.
pub(crate) const MEMORY: &str = "memory";

/// The range tree beside its peers, side by side in one run.
#[derive(Parser)]
#[command(name = "cargo bench -p samara-bench --", about)]
pub(crate) struct Options {
    /// Fewer and shorter rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Numbers of ranges
    #[arg(long, value_delimiter = ',', default_values_t = SIZES)]
    pub(crate) sizes: Vec<usize>,
    /// Only these cases
    #[arg(long, value_delimiter = ',')]
    pub(crate) cases: Vec<String>,
    /// Only maps that have this in their names
    #[arg(long)]
    pub(crate) map: Option<String>,
    /// Rounds
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// A table for each case, and all peers: locked, range maps, concurrent ones
    #[arg(long)]
    pub(crate) table: bool,
    /// Build nothing more: measure this build alone, in which brie_tree has only what every x86-64 has
    #[arg(long)]
    pub(crate) portable: bool,
    /// Also write one JSON object a line to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Be the measuring half
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// As cargo passes it
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Options {
    /// Refuses what cannot be measured.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(bad) = self.sizes.iter().find(|&&size| size < 4) {
            return Err(format!("--sizes: a map of {bad} ranges has nothing to measure"));
        }
        let known: Vec<&str> = Case::ALL.iter().map(|case| case.name()).chain([MEMORY]).collect();
        match self.cases.iter().find(|case| !known.contains(&case.as_str())) {
            Some(bad) => Err(format!("--cases: {bad} is not one of {}", known.join(", "))),
            None => Ok(()),
        }
    }

    /// Whether a case of that name is to be measured.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case)
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 9 }).max(1)
    }

    /// Nanoseconds that each map gets in a round.
    pub(crate) fn slot(&self) -> u64 {
        if self.quick { 5_000_000 } else { 40_000_000 }
    }
}
