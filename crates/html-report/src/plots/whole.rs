//! Whole programs compared with a lean Linux: a build of a C project, and the snapshot of redis.

use super::{Drawing, PlotPart, Section, Shown, lines};
use crate::data::Results;
use report::Row;

const BUILD: &str = "kernbench";
const SNAPSHOT: &str = "snapshot";
const INSTRUCTIONS: &str = "instructions of ";
/// The figures of a snapshot that are shown, with their titles.
const OF_SNAPSHOT: [(&str, &str); 3] = [
    ("longest request", "Longest request during a snapshot"),
    ("fork as redis says", "Fork for a snapshot"),
    ("requests while the child lives", "Requests during a snapshot"),
];

pub(super) fn section(results: &Results) -> Section {
    Section {
        title: "Whole programs compared with Linux",
        about: "A build of a C project of 50 files by make, sh and gcc, and redis while it writes \
            its data to a file in a child: a client replaces values meanwhile, one request after \
            the other. The kernel of this project and a lean Linux 6.12 have the same emulator, \
            files and pages of 4 KiB. A figure is the median of the rounds.",
        parts: vec![
            PlotPart::new(
                "a build",
                "campaign/kernbench --linux BZIMAGE --json FILE",
                build(results),
            ),
            PlotPart::new(
                "snapshots",
                "campaign/snapshot --cpus 2 --linux BZIMAGE --json FILE",
                OF_SNAPSHOT.iter().filter_map(|of| snapshot(results, of)),
            ),
        ],
    }
}

/// The instructions of programs and of the kernel.
fn build(results: &Results) -> Option<Shown> {
    let (run, rows) = results.best(|row| {
        row.experiment == BUILD && row.metric.starts_with(INSTRUCTIONS) && row.value > 0.0
    })?;
    let name = |row: &Row| row.metric.trim_start_matches(INSTRUCTIONS).into();
    let lines = lines("Build of a C project".into(), "instructions".into(), &rows, name);
    Some(Shown { run, drawing: Drawing::Lines(lines) })
}

/// A figure of snapshots of all sizes.
fn snapshot(results: &Results, (metric, title): &(&str, &str)) -> Option<Shown> {
    let (run, rows) = results
        .best(|row| row.experiment == SNAPSHOT && row.metric == *metric && row.value > 0.0)?;
    let unit = match results.unit(run, rows[0]) {
        unit if unit.starts_with('/') => format!("requests{unit}"),
        unit => unit,
    };
    let lines = lines((*title).into(), unit, &rows, |row| row.case.clone());
    Some(Shown { run, drawing: Drawing::Lines(lines) })
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;
    use report::Clock;

    #[test]
    fn both_kernels_stand_in_one_plot() {
        let of = |experiment, case, metric, unit| {
            ["Samara", "Linux"]
                .map(|system| Row::new(experiment, case, system, 1, 64).with(metric, 30.0, unit))
        };
        let html = page(
            Clock::Instructions,
            [
                of(BUILD, "build of 50 files", "instructions of the kernel", ""),
                of(SNAPSHOT, "64 MiB", "longest request", "ns"),
                of(SNAPSHOT, "64 MiB", "requests while the child lives", "/s"),
            ]
            .concat(),
        );
        for title in [
            "<b>Build of a C project</b>, instructions",
            "<b>Longest request during a snapshot</b>, instructions",
            "<b>Requests during a snapshot</b>, requests/s",
        ] {
            assert!(html.contains(title), "{title}: {html}");
        }
        assert!(html.contains("> Linux<") && html.contains("64 MiB"), "{html}");
        assert!(!html.contains("<b>Fork for a snapshot</b>"), "{html}");
    }

    #[test]
    fn a_command_stands_where_figures_are_missing() {
        let html = page(Clock::Instructions, Vec::new());
        assert!(html.contains("campaign/kernbench --linux BZIMAGE"), "{html}");
        assert!(html.contains("campaign/snapshot --cpus 2 --linux BZIMAGE"), "{html}");
    }
}
