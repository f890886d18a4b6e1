//! Page-table pages, compared with the published table.

use super::{PlotPart, Section, Shown, drawn};
use crate::data::Results;
use crate::plot::X;
use report::Row;

const COMMAND: &str = "samara bench --json FILE quicklist";
const KINDS: [&str; 4] = ["pte", "pmd", "pud", "pgd"];

pub(super) fn section(results: &Results) -> Section {
    let mean = |row: &Row| row.experiment == "quicklist" && row.metric == "mean";
    let published = |row: &Row| row.implementation.ends_with("published");
    let most = super::distinct(results, mean, |row| row.size).last().copied().unwrap_or(0);
    let at_most = |row: &Row| mean(row) && row.size == most;
    let title = format!("Take one page-table page, {most} in a row");
    let mut plots = Vec::new();
    if let Some((run, rows)) = results.best(at_most) {
        // Nanoseconds and instructions do not share an axis.
        let (old, here): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| published(row));
        let together = !results.runs[run].counts();
        let first = if together { rows.clone() } else { here };
        plots.extend(plot(results, run, &title, first));
        if !together {
            plots.extend(plot(results, run, "The published table, 2007", old));
        }
    }
    let counted = |row: &Row| row.experiment == "quicklist" && row.metric == "lines";
    let lines = results.best(counted);
    let lines = lines.and_then(|(run, rows)| plot(results, run, "Cache lines touched", rows));
    Section {
        title: "Quicklists compared with the published table",
        about: "A page-table page from a quicklist is in its initial state. One from the frame \
            source has to be cleared. The published figures are Lameter's for Linux, on a machine \
            of 2007.",
        parts: vec![
            PlotPart::new("allocations", COMMAND, plots),
            PlotPart::new("cache lines", COMMAND, lines),
        ],
    }
}

fn plot(results: &Results, run: usize, title: &str, rows: Vec<&Row>) -> Option<Shown> {
    let kind = |row: &Row| KINDS.iter().position(|kind| *kind == row.case).unwrap_or(0) as f64;
    let x = X::Names(KINDS.map(String::from).into());
    drawn(results, Some((run, rows)), title, (x, true), kind)
}
