//! Loops of programs compared with a lean Linux, in the same emulator.

use super::{Drawing, PlotPart, Section, Shown, lines};
use crate::data::Results;
use report::Row;

/// The kinds of workers, with the end of their cases' names. A loop of one process has none.
const KINDS: [(&str, &str); 2] = [("Processes", ", processes"), ("Threads", ", threads")];
const COUNTS: &str = "instructions of all CPUs";
const RATE: &str = "rate";

pub(super) fn section(results: &Results) -> Section {
    Section {
        title: "Programs compared with Linux",
        about: "Loops of calls and faults, on the kernel of this project and on a lean Linux 6.12: \
            Debian's source without hardening and mitigations. This Linux has no cgroups, no LSM \
            and no files on disk. Both run in the same emulator, without fast string \
            instructions and with pages of 4 KiB. A figure is the median of five rounds or more. \
            A lead below 1 %, or below the spreads of both, is a tie: the notes at the end name \
            these loops.",
        parts: vec![
            PlotPart::new(
                "instructions of an operation",
                "samara boot --cpus 1 bench --count --json FILE programs --linux VMLINUZ",
                plots(results, COUNTS, "instructions/operation"),
            ),
            PlotPart::new(
                "operations a second",
                "samara boot bench --json FILE programs --linux VMLINUZ",
                plots(results, RATE, "operations/s"),
            ),
        ],
    }
}

/// A plot for each kind of workers and number of CPUs.
fn plots(results: &Results, metric: &str, unit: &str) -> Vec<Shown> {
    let is = |row: &Row| row.experiment == "programs" && row.metric == metric && row.value > 0.0;
    let mut plots = Vec::new();
    for cpus in super::distinct(results, is, |row| row.cpus) {
        for (kind, end) in KINDS {
            let wanted = |row: &Row| {
                let grace = row.implementation.contains("grace");
                is(row) && row.cpus == cpus && row.case.ends_with(end) && !grace
            };
            let Some((run, rows)) = results.best(wanted) else { continue };
            if rows.iter().any(|row| row.implementation == "Linux") {
                let of = if cpus == 1 { "one CPU".into() } else { format!("{cpus} CPUs") };
                let name = |row: &Row| row.case.trim_end_matches(end).into();
                let lines = lines(format!("{kind}, {of}"), unit.into(), &rows, name);
                plots.push(Shown { run, drawing: Drawing::Lines(lines) });
            }
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::Clock;

    fn page(systems: &[&str]) -> String {
        let row = |system: &str, case| Row::new("programs", case, system, 1, 0);
        let rows = systems.iter().flat_map(|system| {
            ["brk1, processes", "fork1, threads"]
                .map(|case| row(system, case).with(COUNTS, 300.0, "/operation"))
        });
        super::super::tests::page(Clock::Instructions, rows.collect())
    }

    #[test]
    fn both_kernels_stand_in_one_plot() {
        let html = page(&["Samara", "Samara, grace periods", "Linux"]);
        assert!(html.contains("<b>Processes, one CPU</b>, instructions/operation"), "{html}");
        assert!(html.contains("<b>Threads, one CPU</b>") && html.contains("> Linux<"), "{html}");
        assert!(html.contains("no cgroups, no LSM and no files on disk"), "{html}");
        assert!(html.contains("brk1") && !html.contains("Samara, grace periods"), "{html}");
    }

    #[test]
    fn one_kernel_alone_is_not_compared() {
        assert!(!page(&["Samara"]).contains("<b>Processes"));
    }
}
