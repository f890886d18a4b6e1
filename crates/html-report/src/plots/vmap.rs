//! Kernel areas by the number of CPUs, compared with both baselines.

use super::{PlotPart, Section, drawn};
use crate::data::Results;
use crate::plot::X;
use report::Row;

const COUNTED: &str = "samara boot --cpus 8 bench --count --waiting --json FILE vmap";
const TIMED: &str = "samara bench --json FILE vmap";
const CYCLE: &str = "map, touch, unmap";
/// Pages, as in the published figures.
const PAGES: usize = 4;

pub(super) fn section(results: &Results) -> Section {
    let is = |row: &Row, metric: &str| row.experiment == "vmap" && row.metric == metric;
    // The work is counted with turns of several lengths; that with most figures has all CPUs.
    let work = |row: &Row| is(row, "instructions of all CPUs");
    let turns = results.best(work).map(|(_, rows)| rows[0].case.clone()).unwrap_or_default();
    let time = |row: &Row| is(row, "time") && row.case == CYCLE && row.size == PAGES;
    let ipis = |row: &Row| is(row, "interrupts an unmap") && row.case == "CPUs tick";
    let by_cpus = |best, title: &str, log| {
        drawn(results, best, title, (X::Twice("CPUs"), log), |row| row.cpus as f64)
    };
    let counted = results.best(|row| work(row) && row.case == turns);
    let title = "Map, touch, unmap 4 pages: work of all CPUs, waiting included";
    let counted = by_cpus(counted, title, true);
    let timed = by_cpus(results.best_timed(time), "Map, touch, unmap 4 pages", true);
    let ipis = by_cpus(results.best(ipis), "IPIs of an unmapping, where CPUs tick", false);
    Section {
        title: "vmap by CPUs",
        about: "The old way has one lock, a list, and a TLB shootdown for each unmapping. “Nodes \
            and pools” is Linux's way of today. Ours, “lazy”, waits for flushes that CPUs do \
            anyway.",
        parts: vec![
            PlotPart::new("the work of all CPUs", COUNTED, counted),
            PlotPart::new("times", TIMED, timed),
            PlotPart::new("IPIs", TIMED, ipis),
        ],
    }
}
