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

use crate::read::{text, whole};
use crate::table::size;
use lives::Maps;
use serde_json::{Map, Value};
use stacks::Stacks;

/// A trace, as far as its file has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) title: String,
    /// Lines of numbers, by name: calls, address spaces, mismatches.
    pub(crate) facts: Vec<(&'static str, u64)>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) bins: Vec<Bin>,
    pub(crate) spaces: Vec<Space>,
    /// The memory at a moment, and when that was.
    pub(crate) memory: Vec<Memory>,
    pub(crate) moment: String,
    pub(crate) peak: Option<Peak>,
    pub(crate) stacks: Option<Stacks>,
    pub(crate) lives: Vec<Maps>,
}

/// A kind of call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    pub(crate) failed: u64,
    /// The errors of those that failed.
    pub(crate) errors: String,
    /// The time in the kernel of all, and medians, in nanoseconds.
    pub(crate) time: Option<u64>,
    pub(crate) ours: Option<u64>,
    pub(crate) kernel: Option<u64>,
}

/// A piece of the course: from `at`, in microseconds since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin {
    pub(crate) at: u64,
    pub(crate) calls: u64,
    /// In bytes.
    pub(crate) mapped: u64,
    /// In bytes; none in a recording.
    pub(crate) resident: Option<u64>,
    pub(crate) vmas: u64,
}

/// An address space.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) mm: u64,
    pub(crate) pid: u64,
    pub(crate) exe: String,
    pub(crate) calls: u64,
    pub(crate) vmas: u64,
    pub(crate) resident: u64,
    pub(crate) minor: u64,
    pub(crate) major: u64,
}

/// What the VMAs of a kind have, in bytes, in the order of [`COLUMNS`].
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) kind: String,
    pub(crate) vmas: u64,
    pub(crate) bytes: [u64; 6],
}

/// The columns of bytes in the table of memory, by their keys.
pub(crate) const COLUMNS: [&str; 6] =
    ["mapped", "resident", "private_dirty", "shared", "swapped", "huge"];

/// The address space with the most VMAs.
#[derive(Clone, Debug)]
pub(crate) struct Peak {
    pub(crate) exe: String,
    pub(crate) vmas: u64,
    pub(crate) regions: Vec<Region>,
}

/// A VMA.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Its resident bytes; none in a recording.
    pub(crate) resident: Option<u64>,
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Trace {
    /// The trace in an object. `run` is the command line, if it is known.
    ///
    /// # Errors
    /// A number is missing, or is none. Parts that older versions did not write may be missing.
    pub(crate) fn of(value: &Value, run: Option<&str>) -> Result<Trace, String> {
        let space = |value: &Value| -> Result<Space, String> {
            Ok(Space {
                mm: whole(value, "mm")?,
                pid: whole(value, "pid")?,
                exe: text(value, "exe")?,
                calls: whole(value, "calls")?,
                vmas: whole(value, "vmas_peak")?,
                resident: value["usage"]["resident_peak"].as_u64().unwrap_or(0),
                minor: value["usage"]["minor_faults"].as_u64().unwrap_or(0),
                major: value["usage"]["major_faults"].as_u64().unwrap_or(0),
            })
        };
        let spaces = list(value, "spaces").map(space).collect::<Result<Vec<_>, _>>()?;
        let fact = |(name, key)| Ok((name, whole(value, key)?));
        let facts = [
            ("memory calls", "calls"),
            ("refused", "refused"),
            ("address spaces", "address_spaces"),
            ("mismatches", "mismatches"),
            ("most VMAs", "vmas_peak"),
        ];
        let bin = |value: &Value| -> Result<Bin, String> {
            Ok(Bin {
                at: whole(value, "at_us")?,
                calls: whole(value, "calls")?,
                mapped: whole(value, "mapped")?,
                resident: value["resident"].as_u64(),
                vmas: whole(value, "vmas")?,
            })
        };
        let first = spaces.first().map(|space| space.exe.clone());
        let (moment, memory) = memory(value)?;
        Ok(Trace {
            title: run.map(str::to_owned).or(first).unwrap_or_else(|| "a trace".into()),
            facts: facts.into_iter().map(fact).collect::<Result<_, String>>()?,
            kinds: entries(&value["kinds"]).map(kind).collect::<Result<_, _>>()?,
            bins: list(value, "timeline").map(bin).collect::<Result<_, _>>()?,
            memory,
            moment,
            peak: if value["peak"].is_object() { Some(peak(&value["peak"])?) } else { None },
            stacks: Stacks::of(value)?,
            lives: list(value, "lives").map(Maps::of).collect::<Result<_, _>>()?,
            spaces,
        })
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn kind((name, value): (&String, &Value)) -> Result<Kind, String> {
    let errors = entries(&value["errors"]).map(|(name, count)| format!("{count} {name}"));
    Ok(Kind {
        name: name.clone(),
        calls: whole(value, "calls")?,
        bytes: value["bytes"].as_u64().unwrap_or(0),
        failed: value["failed"].as_u64().unwrap_or(0),
        errors: errors.collect::<Vec<_>>().join(", "),
        time: value["kernel_ns"].as_u64(),
        ours: value["ours_median_ns"].as_u64(),
        kernel: value["kernel_median_ns"].as_u64(),
    })
}

/// The memory at the peak. Older files have that of the address space that used most, at its end.
fn memory(value: &Value) -> Result<(String, Vec<Memory>), String> {
    let resident = |value: &&Value| value["usage"]["resident_peak"].as_u64().unwrap_or(0);
    let peak = &value["peak"];
    let (moment, kinds) = match (peak["resident"].as_u64(), peak["at_us"].as_u64()) {
        (Some(bytes), Some(at)) => {
            let (bytes, at) = (size(bytes), at as f64 / 1e6);
            (format!("At the peak, {at:.2} s after the start: {bytes} resident"), &peak["kinds"])
        }
        _ => {
            let most = list(value, "spaces").max_by_key(resident).unwrap_or(&Value::Null);
            ("Memory of the largest process, at its end".into(), &most["usage"]["kinds"])
        }
    };
    let one = |(kind, value): (&String, &Value)| -> Result<Memory, String> {
        let mut bytes = [0; 6];
        for (bytes, key) in bytes.iter_mut().zip(COLUMNS) {
            *bytes = whole(value, key)?;
        }
        Ok(Memory { kind: kind.clone(), vmas: whole(value, "vmas")?, bytes })
    };
    Ok((moment, entries(kinds).map(one).collect::<Result<_, _>>()?))
}

fn peak(value: &Value) -> Result<Peak, String> {
    let region = |value: &Value| -> Result<Region, String> {
        let start = text(value, "start")?;
        let start = u64::from_str_radix(&start, 16).map_err(|_| "its start is no address")?;
        Ok(Region {
            start,
            bytes: whole(value, "bytes")?,
            resident: value["resident"].as_u64(),
            kind: text(value, "kind")?,
            name: text(value, "name")?,
        })
    };
    Ok(Peak {
        exe: text(value, "exe")?,
        vmas: whole(value, "vmas")?,
        regions: list(value, "regions").map(region).collect::<Result<_, _>>()?,
    })
}
