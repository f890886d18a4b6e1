//! A trace: its calls, its course, and the address space near its peak.
//!
//! It comes from the object of `samara trace --json` ([`Trace::of`]), or from the calls of
//! `samara trace --json-lines` ([`Calls`]), which have a course but no picture.

mod calls;
mod lives;
mod map;
mod show;
mod stacks;

pub(crate) use calls::Calls;
pub(crate) use show::traces;

use crate::json::parsed;
use crate::table::size;
use lives::Maps;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use stacks::Stacks;
use std::collections::BTreeMap;

/// A trace, as far as its file has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) title: String,
    /// Lines of numbers, by name: calls, address spaces, mismatches.
    pub(crate) facts: Vec<(&'static str, u64)>,
    pub(crate) kinds: Vec<(String, CallKind)>,
    pub(crate) bins: Vec<Bin>,
    pub(crate) spaces: Vec<Space>,
    /// The memory at a moment, by the kind of VMA, and when that was.
    pub(crate) memory: Vec<(String, Memory)>,
    pub(crate) moment: String,
    pub(crate) peak: Option<Peak>,
    pub(crate) stacks: Option<Stacks>,
    pub(crate) lives: Vec<Maps>,
}

/// The object of a trace, except its stacks. Parts that older versions did not write may be
/// missing.
#[derive(Deserialize)]
struct Object {
    calls: u64,
    refused: u64,
    address_spaces: u64,
    mismatches: u64,
    vmas_peak: u64,
    kinds: BTreeMap<String, CallKind>,
    #[serde(default)]
    timeline: Vec<Bin>,
    #[serde(default)]
    spaces: Vec<Space>,
    peak: Option<Peak>,
    #[serde(default)]
    lives: Vec<Maps>,
}

/// The calls of a kind.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct CallKind {
    pub(crate) calls: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) failed: u64,
    /// The errors of those that failed, with their numbers.
    #[serde(default)]
    pub(crate) errors: BTreeMap<String, u64>,
    /// The time in the kernel of all, and medians, in nanoseconds.
    pub(crate) kernel_ns: Option<u64>,
    pub(crate) ours_median_ns: Option<u64>,
    pub(crate) kernel_median_ns: Option<u64>,
}

/// A piece of the course: from `at`, in microseconds since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Bin {
    #[serde(rename = "at_us")]
    pub(crate) at: u64,
    pub(crate) calls: u64,
    /// In bytes.
    pub(crate) mapped: u64,
    /// In bytes; none in a recording.
    pub(crate) resident: Option<u64>,
    pub(crate) vmas: u64,
}

/// An address space.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Space {
    pub(crate) mm: u64,
    pub(crate) pid: u64,
    pub(crate) exe: String,
    pub(crate) calls: u64,
    pub(crate) vmas_peak: u64,
    /// None in a recording.
    usage: Option<Usage>,
}

/// The memory of a process over its life.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) resident_peak: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    /// At its end.
    kinds: BTreeMap<String, Memory>,
}

/// The VMAs of a kind, and their bytes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Memory {
    pub(crate) vmas: u64,
    pub(crate) mapped: u64,
    pub(crate) resident: u64,
    pub(crate) private_dirty: u64,
    pub(crate) shared: u64,
    pub(crate) swapped: u64,
    pub(crate) huge: u64,
}

/// The address space with the most VMAs.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Peak {
    pub(crate) exe: String,
    pub(crate) vmas: u64,
    pub(crate) regions: Vec<Region>,
    /// The memory of all processes when most was resident, and when that was.
    resident: Option<u64>,
    at_us: Option<u64>,
    #[serde(default)]
    kinds: BTreeMap<String, Memory>,
}

/// A VMA.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Region {
    #[serde(deserialize_with = "address")]
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Its resident bytes; none in a recording.
    pub(crate) resident: Option<u64>,
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// An address in hexadecimal digits.
fn address<'de, D: Deserializer<'de>>(text: D) -> Result<u64, D::Error> {
    let text = String::deserialize(text)?;
    u64::from_str_radix(&text, 16).map_err(|_| D::Error::custom(format!("{text} is no address")))
}

impl Space {
    pub(crate) fn usage(&self) -> Usage {
        self.usage.clone().unwrap_or_default()
    }
}

impl Trace {
    /// The trace in an object. `run` is the command line, if it is known.
    ///
    /// # Errors
    /// A number is missing, or is none.
    pub(crate) fn of(value: &Value, run: Option<&str>) -> Result<Trace, String> {
        let object: Object = parsed(value)?;
        let first = object.spaces.first().map(|space| space.exe.clone());
        let (moment, memory) = memory(&object);
        Ok(Trace {
            title: run.map(str::to_owned).or(first).unwrap_or_else(|| "a trace".into()),
            facts: vec![
                ("memory calls", object.calls),
                ("refused", object.refused),
                ("address spaces", object.address_spaces),
                ("mismatches", object.mismatches),
                ("most VMAs", object.vmas_peak),
            ],
            kinds: object.kinds.into_iter().collect(),
            bins: object.timeline,
            spaces: object.spaces,
            memory,
            moment,
            peak: object.peak,
            stacks: Stacks::of(value)?,
            lives: object.lives,
        })
    }
}

/// The memory at the peak. Older files have that of the address space that used most, at its end.
fn memory(object: &Object) -> (String, Vec<(String, Memory)>) {
    let (moment, kinds) = match &object.peak {
        Some(Peak { resident: Some(bytes), at_us: Some(at), kinds, .. }) => {
            let (bytes, at) = (size(*bytes), *at as f64 / 1e6);
            (format!("At the peak, {at:.2} s after the start: {bytes} resident"), kinds.clone())
        }
        _ => {
            let most =
                object.spaces.iter().map(Space::usage).max_by_key(|usage| usage.resident_peak);
            ("Memory of the largest process, at its end".into(), most.unwrap_or_default().kinds)
        }
    };
    (moment, kinds.into_iter().collect())
}
