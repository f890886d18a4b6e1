//! Pins by the number of pages of a call.

use super::{PlotPart, Section, Shown, drawn};
use crate::data::Results;
use crate::plot::X;
use report::Row;

const COMMAND: &str = "samara bench --json FILE gup";

pub(super) fn section(results: &Results) -> Section {
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for case in ["alone", "with a writer"] {
        let time = |row: &Row| row.experiment == "gup" && row.metric == "time" && row.case == case;
        for cpus in super::distinct(results, time, |row| row.cpus) {
            let title = match (case, cpus) {
                ("alone", 1) => "Pin pages, one CPU".into(),
                ("alone", _) => format!("Pin pages, {cpus} CPUs at once"),
                (_, 1) => "Pin pages while another CPU writes, one CPU".into(),
                _ => format!("Pin pages while another CPU writes, {cpus} CPUs at once"),
            };
            let wanted = |row: &Row| time(row) && row.cpus == cpus && row.size > 0;
            let contended = cpus > 1 || case != "alone";
            let best = if contended { results.best_timed(wanted) } else { results.best(wanted) };
            let plots = if contended { &mut together } else { &mut alone };
            plots.extend(by_pages(results, &title, best));
        }
    }
    let locked =
        |row: &Row| row.experiment == "gup" && row.metric == "locked instructions" && row.size > 0;
    let locked = by_pages(results, "Locked instructions of a call", results.best(locked));
    Section {
        title: "Pins by batch",
        about: "get_user_pages_fast walks the page table without a lock. The old way takes the \
            address space's lock, and the table's for each page. “The pins alone” is the locked \
            instruction on each page's count, which no way can do without.",
        parts: vec![
            PlotPart::new("pins on one CPU", COMMAND, alone),
            PlotPart::new("pins of several CPUs, and concurrent with a writer", COMMAND, together),
            PlotPart::new("locked instructions", COMMAND, locked),
        ],
    }
}

fn by_pages(results: &Results, title: &str, best: Option<(usize, Vec<&Row>)>) -> Option<Shown> {
    drawn(results, best, title, (X::Twice("pages of a call"), true), |row| row.size as f64)
}
