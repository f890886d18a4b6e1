//! Bounds of values.

use crate::table::{Table, figure};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A bound, and the value that must keep it.
///
/// ```
/// use report::Target;
/// assert!(Target::at_least("gup", "times the locked path", 3.2, 3.0).met());
/// assert!(!Target::at_most("quicklist", "cache lines", 3.0, 2.0).met());
/// assert!(!Target::at_most("quicklist", "nothing was measured", f64::NAN, 2.0).met());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The experiment that measured the value.
    pub experiment: String,
    /// The name of the bounded quantity.
    pub target: String,
    /// The measured value.
    #[serde(deserialize_with = "crate::nan_if_null")]
    pub value: f64,
    /// The bound.
    #[serde(deserialize_with = "crate::nan_if_null")]
    pub bound: f64,
    /// Whether the bound is a minimum. Otherwise it is a maximum.
    pub at_least: bool,
}

impl Target {
    /// A value that must not be below the bound.
    pub fn at_least(experiment: &str, target: impl Into<String>, value: f64, bound: f64) -> Target {
        Target {
            experiment: experiment.into(),
            target: target.into(),
            value,
            bound,
            at_least: true,
        }
    }

    /// A value that must not be above the bound.
    pub fn at_most(experiment: &str, target: impl Into<String>, value: f64, bound: f64) -> Target {
        Target { at_least: false, ..Self::at_least(experiment, target, value, bound) }
    }

    /// Whether the target is met. NaN never meets it.
    pub fn met(&self) -> bool {
        if self.at_least { self.value >= self.bound } else { self.value <= self.bound }
    }

    /// The ratio of value and bound, as a factor above 1 if the target is missed.
    pub fn excess(&self) -> f64 {
        if self.at_least { self.bound / self.value } else { self.value / self.bound }
    }
}

/// The line of a target.
#[derive(Serialize)]
pub(crate) struct TargetLine<'a> {
    #[serde(flatten)]
    target: &'a Target,
    met: bool,
}

impl<'a> From<&'a Target> for TargetLine<'a> {
    fn from(target: &'a Target) -> TargetLine<'a> {
        TargetLine { target, met: target.met() }
    }
}

/// Writes a line for each target, then the number of targets that are met and the excess of the
/// others.
pub(crate) fn list(f: &mut fmt::Formatter<'_>, targets: &[Target]) -> fmt::Result {
    let head = ["experiment", "target", "value", "bound", ""];
    let mut lines: Vec<Vec<String>> = Vec::from([head.map(String::from).into()]);
    for target in targets {
        let sign = if target.at_least { ">=" } else { "<=" };
        lines.push(Vec::from([
            target.experiment.clone(),
            target.target.clone(),
            figure(target.value),
            alloc::format!("{sign} {}", target.bound),
            match target.met() {
                true => "met".into(),
                false if !target.value.is_finite() => "NOT MEASURED".into(),
                false => alloc::format!("MISSED by {:.2}", target.excess()),
            },
        ]));
    }
    write!(f, "\n**Targets**\n\n{}", Table(lines))?;
    let met = targets.iter().filter(|target| target.met()).count();
    writeln!(f, "\n{met} of {} targets met.", targets.len())
}
