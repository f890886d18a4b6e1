//! The state of a run while it goes on.

use std::{collections::BTreeMap, time::Duration};

use crate::record::Op;

/// The state of a run.
///
/// ```
/// use trace::{mirror::Mirror, report::View};
/// let view = Mirror::new(vma::Profile::LINUX_6_18).view();
/// assert_eq!(view, View::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The time since the run began.
    pub elapsed: Duration,
    /// The memory calls so far, by kind.
    pub calls: BTreeMap<Op, u64>,
    /// Those that failed.
    pub refused: u64,
    /// The VMAs of all address spaces.
    pub vmas: usize,
    /// The mapped bytes of all address spaces.
    pub mapped: usize,
    /// The call sites that own something, those that own most first; none without call stacks.
    pub owners: Vec<OwnerNow>,
}

/// The bytes of a call site while a run goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerNow {
    /// The function, with its line if that is known.
    pub site: String,
    /// The function that it called.
    pub by: Option<String>,
    /// Its calls.
    pub calls: u64,
    /// The bytes that it has mapped, and that still are.
    pub mapped: u64,
    /// The bytes of it that were resident at the peak so far.
    pub at_peak: u64,
}
