//! The results as data: one JSON object a line.

use crate::pairs::Outcome;
use crate::results::Results;
use crate::statistics::{median, spread};
use crate::targets::Target;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Everything that was measured, and then the targets.
pub(crate) fn write(
    out: &mut impl Write,
    results: &Results,
    pairs: &[Outcome],
    targets: &[Target],
) -> io::Result<()> {
    for one in &results.series {
        let name = one.case.name();
        let figures =
            [("time", median(&one.times), "ns/op"), ("time_spread", spread(&one.times), "%")];
        for (metric, value, unit) in figures {
            writeln!(out, "{}", line(name, &one.map, one.size, metric, value, unit))?;
        }
    }
    for one in &results.memory {
        let case = if one.touching { "memory-touching" } else { "memory-holes" };
        writeln!(out, "{}", line(case, &one.map, one.size, "bytes_per_entry", one.bytes, "B"))?;
    }
    for one in pairs {
        for (at, thread) in one.threads().into_iter().enumerate() {
            let figures = [
                ("time_alone", one.time(at, false), "ns/op"),
                ("time_together", one.time(at, true), "ns/op"),
                ("kept", one.kept(at, false), "1"),
                ("kept_wall", one.kept(at, true), "1"),
            ];
            for (metric, value, unit) in figures {
                let line = json!({
                    "experiment": "two-processors", "case": format!("{}, {thread}", one.kind.name()),
                    "implementation": one.map, "cpus": 2, "size": one.size, "metric": metric,
                    "value": value, "unit": unit,
                });
                writeln!(out, "{line}")?;
            }
        }
    }
    for target in targets {
        let Target { experiment, name, value, bound, at_least } = target;
        let met = target.met();
        let line = json!({
            "experiment": experiment, "target": name, "value": value, "bound": bound,
            "at_least": at_least, "met": met,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn line(case: &str, map: &str, size: usize, metric: &str, value: f64, unit: &str) -> Value {
    json!({
        "experiment": "range-tree", "case": case, "implementation": map, "cpus": 1, "size": size,
        "metric": metric, "value": value, "unit": unit,
    })
}
