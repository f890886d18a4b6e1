//! The plots of the experiments.
//!
//! Each plot shows one run. Where files have no figures for one, a sentence names the command that
//! makes them.

mod calls;
mod gup;
mod quicklist;
mod tree;
mod vmallocinfo;
mod vmap;

use crate::data::Results;
use crate::plot::{Plot, Series};
use maud::{Markup, html};
use report::Row;

/// The plots of one experiment.
pub(crate) struct Section {
    title: &'static str,
    /// What is measured.
    about: &'static str,
    parts: Vec<Part>,
}

/// Plots of one kind of figure. Without any, a sentence stands in their place.
struct Part {
    /// What the figures are.
    what: &'static str,
    /// The command that makes them.
    command: &'static str,
    plots: Vec<Markup>,
}

impl Part {
    fn new(
        what: &'static str,
        command: &'static str,
        plots: impl IntoIterator<Item = Markup>,
    ) -> Part {
        Part { what, command, plots: plots.into_iter().collect() }
    }
}

/// All plots.
pub(crate) fn sections(results: &Results) -> Markup {
    let all = [
        vmap::section(results),
        quicklist::section(results),
        gup::section(results),
        vmallocinfo::section(results),
        tree::section(results),
        calls::section(results),
    ];
    html! {
        @for section in all {
            section {
                h2 { (section.title) }
                p { (section.about) }
                div.plots {
                    @for plot in section.parts.iter().flat_map(|part| &part.plots) { (plot) }
                }
                @for part in section.parts.iter().filter(|part| part.plots.is_empty()) {
                    p.missing { "These files have no figures of " (part.what) ": "
                        code { (part.command) } " measures them." }
                }
            }
        }
    }
}

/// A plot with the number of its run, and a warning if the host was busy.
fn shown(results: &Results, run: usize, figure: &Markup) -> Markup {
    html! {
        div.shown {
            (figure)
            p.run { "Run " (run + 1)
                @if let Some(load) = results.runs[run].disturbed() { ". " (load) } }
        }
    }
}

/// A series for each implementation, in the order of their rows: a point for each row.
fn series(rows: &[&Row], x: impl Fn(&Row) -> f64) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in rows {
        let point = (x(row), row.value);
        match all.iter_mut().find(|series| series.name == row.implementation) {
            Some(series) => series.points.push(point),
            None => {
                all.push(Series { name: row.implementation.clone(), points: vec![point] });
            }
        }
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    all
}

/// The plot of the rows of the best run, if there are any: see [`Results::best`].
fn of_best(
    results: &Results,
    wanted: impl Fn(&Row) -> bool,
    plot: impl Fn(&[&Row], String) -> Plot,
) -> Option<Markup> {
    let (run, rows) = results.best(wanted)?;
    let unit = results.unit(run, rows[0]);
    Some(shown(results, run, &plot(&rows, unit).figure()))
}

/// The values of a property of the rows that are wanted, ascending, each once.
fn distinct(results: &Results, wanted: impl Fn(&Row) -> bool, of: fn(&Row) -> usize) -> Vec<usize> {
    let rows = results.rows.iter().map(|row| &row.item).filter(|row| wanted(row));
    let mut values: Vec<usize> = rows.map(of).collect();
    values.sort_unstable();
    values.dedup();
    values
}
