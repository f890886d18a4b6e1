//! The results as data: the run, rows, then targets.

use crate::cli::Options;
use crate::layouts::Layout;
use crate::pairs::Outcome;
use crate::published::{self, Published, ROWS};
use crate::results::{Layouts, Results};
use report::{Clock, Report, Row, Run, Target, median, spread};

/// Everything measured.
pub(crate) fn report(
    options: &Options,
    run: Run,
    layouts: &Layouts,
    pairs: &[Outcome],
    targets: &[Target],
) -> Report {
    let mut rows = Vec::new();
    for (layout, results) in layouts {
        let experiment = experiment(options, layout, "");
        for one in &results.series {
            let row = Row::new(&experiment, one.case.name(), &one.map, 1, one.size);
            rows.push(row.with("time", median(&one.times), "ns/op"));
            rows.push(row.with("time_spread", spread(&one.times), "%"));
        }
        if layout.is_dense() && !options.nodes {
            rows.extend(published(results));
        }
        for one in &results.memory {
            let case = if one.touching { "memory-touching" } else { "memory-holes" };
            let row = Row::new(&experiment, case, &one.map, 1, one.size);
            rows.push(row.with("bytes_per_entry", one.bytes, "B"));
        }
    }
    for one in pairs {
        for (at, thread) in one.threads().into_iter().enumerate() {
            let case = format!("{}, {thread}", one.kind.name());
            let experiment = if options.nodes { "node-sources" } else { "two-processors" };
            let row = Row::new(experiment, &case, one.map, 2, one.size);
            let figures = [
                ("time_alone", one.time(at, false), "ns/op"),
                ("time_together", one.time(at, true), "ns/op"),
                ("kept", one.kept(at, false), "1"),
                ("kept_wall", one.kept(at, true), "1"),
            ];
            rows.extend(figures.map(|(metric, value, unit)| row.with(metric, value, unit)));
        }
    }
    Report { run: Some(run), rows, targets: targets.to_vec(), ..Report::default() }
}

/// The name of the rows of a layout: of times, or of counts.
pub(crate) fn experiment(options: &Options, layout: &Layout, counts: &str) -> String {
    let name = if options.nodes { "node-sources" } else { "range-tree" };
    let layout = if layout.is_dense() { String::new() } else { format!("-{}", layout.name) };
    format!("{name}{counts}{layout}")
}

/// The run of this program, with the load of the host as it is now. Counts are of a simulation.
pub(crate) fn run(clock: Clock) -> Run {
    let machine = match clock {
        Clock::Time => "",
        Clock::Instructions => "valgrind's simulation of a processor, in the portable build",
    };
    let mut run = Run::here("cargo bench -p samara-bench --", machine, clock);
    // Cargo passes this option itself.
    if let Some(without) = run.run.strip_suffix(" --bench") {
        run.run.truncate(without.len());
    }
    run
}

/// The published figures of the measured cases and sizes.
fn published(results: &Results) -> Vec<Row> {
    let mut sizes: Vec<usize> = results.series.iter().map(|one| one.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let measured =
        |published: &&Published| results.series.iter().any(|one| one.case == published.case);
    let mut rows = Vec::new();
    for one in ROWS.iter().filter(measured) {
        for (name, figures) in [(published::LINUX, &one.linux), (published::RBTREE, &one.rbtree)] {
            for &size in &sizes {
                if let Some(value) = published::at(figures, size) {
                    let row = Row::new("range-tree", one.case.name(), name, 1, size);
                    rows.push(row.with("time", value, one.unit()));
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::results::{SHARED, Series};
    use clap::Parser;

    /// A figure that was published stands next to one that was measured, and nowhere else.
    #[test]
    fn published_figures_are_those_of_measured_cases_and_sizes() {
        let series =
            |case, size| Series { case, map: SHARED.into(), size, scan: false, times: vec![1.0] };
        let results = Results {
            series: vec![series(Case::Load, 100), series(Case::Find, 1_000)],
            ..Results::default()
        };
        let rows = published(&results);
        let found: Vec<_> = rows.iter().map(|row| (row.size, row.value)).collect();
        assert_eq!(found, [(100, 26.0), (1_000, 37.0), (100, 22.0), (1_000, 37.0)]);
        assert!(rows.iter().all(|row| row.case == "load" && row.unit == "ns/op"));
        let dense = Layout::named(crate::layouts::DENSE).unwrap();
        let options = Options::parse_from(["table"]);
        let json =
            report(&options, run(Clock::Time), &vec![(dense, results)], &[], &[]).json_lines();
        assert!(json.starts_with("{\"run\":\"cargo bench -p samara-bench --"), "{json}");
    }
}
