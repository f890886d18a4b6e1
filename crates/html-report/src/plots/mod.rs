//! The plots of the experiments.
//!
//! Each plot shows one run. Where files have no figures for one, a sentence names the command that
//! makes them.

mod calls;
mod gup;
mod programs;
mod quicklist;
mod tree;
mod vmallocinfo;
mod vmap;
mod whole;

use crate::data::Results;
use crate::plot::{Lines, Plot, Series, X};
use maud::{Markup, html};
use report::Row;

/// The plots of one experiment.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// The subject of the measurement.
    pub(crate) about: &'static str,
    pub(crate) parts: Vec<PlotPart>,
}

/// Plots of one kind of figure. Without any, a sentence stands in their place.
pub(crate) struct PlotPart {
    /// The meaning of the figures.
    pub(crate) what: &'static str,
    /// The command that makes them.
    command: &'static str,
    pub(crate) plots: Vec<Shown>,
}

/// A plot of the figures of one run.
pub(crate) struct Shown {
    pub(crate) run: usize,
    pub(crate) drawing: Drawing,
}

/// A plot, or one with names down the side.
pub(crate) enum Drawing {
    Plot(Plot),
    Lines(Lines),
}

impl PlotPart {
    fn new(
        what: &'static str,
        command: &'static str,
        plots: impl IntoIterator<Item = Shown>,
    ) -> PlotPart {
        PlotPart { what, command, plots: plots.into_iter().collect() }
    }
}

/// All plots.
pub(crate) fn all(results: &Results) -> [Section; 8] {
    [
        vmap::section(results),
        quicklist::section(results),
        gup::section(results),
        vmallocinfo::section(results),
        tree::section(results),
        calls::section(results),
        programs::section(results),
        whole::section(results),
    ]
}

/// All plots as a part of the page.
pub(crate) fn sections(results: &Results) -> Markup {
    html! {
        @for section in all(results) {
            section {
                h2 { (section.title) }
                p { (section.about) }
                div.plots {
                    @for plot in section.parts.iter().flat_map(|part| &part.plots) {
                        (plot.html(results))
                    }
                }
                @for part in section.parts.iter().filter(|part| part.plots.is_empty()) {
                    p.missing { "These files have no figures of " (part.what) ": "
                        code { (part.command) } " measures them." }
                }
            }
        }
    }
}

impl Shown {
    /// The plot with the number of its run, and a warning if the host was busy.
    fn html(&self, results: &Results) -> Markup {
        let figure = match &self.drawing {
            Drawing::Plot(plot) => plot.figure(),
            Drawing::Lines(lines) => lines.figure(),
        };
        html! {
            div.shown {
                (figure)
                p.run { "Run " (self.run + 1)
                    @if let Some(load) = results.runs[self.run].disturbed() { ". " (load) } }
            }
        }
    }
}

/// A series for each implementation, in the order of their rows: a point for each row.
fn series(rows: &[&Row], mut x: impl FnMut(&Row) -> f64) -> Vec<Series> {
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

/// The plot of the rows of a run, if there are any: see [`Results::best`]. `x` is the axis, `at`
/// the place of a row on it.
fn drawn(
    results: &Results,
    best: Option<(usize, Vec<&Row>)>,
    title: &str,
    (x, log): (X, bool),
    at: impl Fn(&Row) -> f64,
) -> Option<Shown> {
    let (run, rows) = best?;
    let (unit, series) = (results.unit(run, rows.first()?), series(&rows, at));
    let plot = Plot { title: title.into(), x, unit, log, series };
    Some(Shown { run, drawing: Drawing::Plot(plot) })
}

/// A plot with a line for each name of a row.
fn lines(title: String, unit: String, rows: &[&Row], name: impl Fn(&Row) -> String) -> Lines {
    let mut names: Vec<String> = Vec::new();
    let series = series(rows, |row| {
        let name = name(row);
        let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        at as f64
    });
    Lines { title, unit, names, series }
}

/// The values of a property of the rows that are wanted, ascending, each once.
fn distinct(results: &Results, wanted: impl Fn(&Row) -> bool, of: fn(&Row) -> usize) -> Vec<usize> {
    let rows = results.rows.iter().map(|row| &row.item).filter(|row| wanted(row));
    let mut values: Vec<usize> = rows.map(of).collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Clock, Report, Run};

    pub(super) fn page(clock: Clock, rows: Vec<Row>) -> String {
        let run = Some(Run { clock, ..Run::default() });
        let mut results = Results::default();
        results.read("a", &Report { run, rows, ..Report::default() }.json_lines()).unwrap();
        sections(&results).into_string()
    }

    fn rows(cpus: usize) -> Vec<Row> {
        let row = |name: &str, size| Row::new("gup", "alone", name, cpus, size);
        let row = |name, size, value| row(name, size).with("time", value, "ns/page");
        vec![row("fast", 1, 20.0), row("fast", 16, 9.0), row("address-space lock", 1, 200.0)]
    }

    #[test]
    fn each_kind_of_figure_is_a_plot_or_a_sentence() {
        let none = page(Clock::Time, Vec::new());
        assert_eq!(none.matches("class=\"missing\"").count(), 24, "{none}");
        assert!(!none.contains("<figure"), "{none}");
        let one = page(Clock::Time, rows(2));
        assert_eq!(one.matches("class=\"missing\"").count(), 23, "{one}");
        assert!(one.contains("<b>Pin pages, 2 CPUs at once</b>, ns/page"), "{one}");
    }

    /// CPUs that take turns do not wait for each other.
    #[test]
    fn counted_instructions_are_no_times_of_concurrent_cpus() {
        assert!(!page(Clock::Instructions, rows(2)).contains("<figure"));
        let alone = page(Clock::Instructions, rows(1));
        assert!(alone.contains("<b>Pin pages, one CPU</b>, instructions/page"), "{alone}");
    }

    /// A plot is of one run, the one with most of its figures.
    #[test]
    fn runs_do_not_mix() {
        let mut results = Results::default();
        for rows in [rows(2)[..1].to_vec(), rows(2)] {
            let run = Some(Run::default());
            results.read("a", &Report { run, rows, ..Report::default() }.json_lines()).unwrap();
        }
        let html = sections(&results).into_string();
        assert!(html.contains("Run 2") && !html.contains("Run 1"), "{html}");
        // Two points of ours, which are squares.
        assert_eq!(html.matches("■").count(), 1, "{html}");
    }
}
