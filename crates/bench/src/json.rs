//! The results as data: rows, then targets.

use crate::pairs::Outcome;
use crate::results::Results;
use report::{Report, Row, Target, median, spread};

/// Everything measured.
pub(crate) fn report(results: &Results, pairs: &[Outcome], targets: &[Target]) -> Report {
    let mut rows = Vec::new();
    for one in &results.series {
        let row = Row::new("range-tree", one.case.name(), &one.map, 1, one.size);
        rows.push(row.with("time", median(&one.times), "ns/op"));
        rows.push(row.with("time_spread", spread(&one.times), "%"));
    }
    for one in &results.memory {
        let case = if one.touching { "memory-touching" } else { "memory-holes" };
        let row = Row::new("range-tree", case, &one.map, 1, one.size);
        rows.push(row.with("bytes_per_entry", one.bytes, "B"));
    }
    for one in pairs {
        for (at, thread) in one.threads().into_iter().enumerate() {
            let case = format!("{}, {thread}", one.kind.name());
            let row = Row::new("two-processors", &case, one.map, 2, one.size);
            let figures = [
                ("time_alone", one.time(at, false), "ns/op"),
                ("time_together", one.time(at, true), "ns/op"),
                ("kept", one.kept(at, false), "1"),
                ("kept_wall", one.kept(at, true), "1"),
            ];
            rows.extend(figures.map(|(metric, value, unit)| row.with(metric, value, unit)));
        }
    }
    Report { rows, targets: targets.to_vec(), ..Report::default() }
}
