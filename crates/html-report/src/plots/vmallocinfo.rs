//! Readers of all kernel areas while a writer runs.

use super::{PlotPart, Section, drawn};
use crate::data::Results;
use crate::plot::X;
use report::Row;

const COMMAND: &str = "samara bench --json FILE vmallocinfo";

pub(super) fn section(results: &Results) -> Section {
    let is = |row: &Row, metric: &str| row.experiment == "vmallocinfo" && row.metric == metric;
    let readers = |row: &Row| row.cpus.saturating_sub(1) as f64;
    let reading = |row: &Row| row.case.starts_with("with") && row.case.ends_with("readers");
    let lost = |row: &Row| is(row, "lost by a writer") && reading(row);
    let listing = |row: &Row| is(row, "time of a listing") && reading(row);
    let sums = |row: &Row| is(row, "time") && row.case == "get_vmalloc_info" && row.size > 0;
    let by_readers =
        |best, title: &str, log| drawn(results, best, title, (X::Linear("readers"), log), readers);
    let lost = by_readers(results.best_timed(lost), "Lost by a writer to readers", false);
    let title = "A listing of all areas, while a writer runs";
    let listing = by_readers(results.best_timed(listing), title, true);
    let title = "The sums over all areas (get_vmalloc_info)";
    let areas = (X::Tenfold("areas"), true);
    let sums = drawn(results, results.best(sums), title, areas, |row| row.size as f64);
    Section {
        title: "Readers concurrent with a writer",
        about: "A writer allocates and frees kernel areas, while readers list all of them. The old \
            way's readers take the writer's lock.",
        parts: vec![
            PlotPart::new("a writer concurrent with readers", COMMAND, lost),
            PlotPart::new("listings", COMMAND, listing),
            PlotPart::new("the sums over all areas", COMMAND, sums),
        ],
    }
}
