#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//!      html: the page              markdown: the same figures as text
//!      /   |    \    \                 |    |    |
//!  trace  sources  plots  targets <----'----'----'   cards, plots, missed targets
//!     \       \     |      /
//!      \       '- plot, table                        drawings by the crate `kuva`; tables
//!       '--> data <-- read                           figures with their runs; JSON lines
//! ```
//!
//! Everything that comes from a file is escaped.
//!
//! The cost is proportional to the size of the files: some tens of milliseconds for all
//! experiments.

mod data;
mod json;
mod markdown;
mod plot;
mod plots;
mod read;
mod sources;
mod table;
mod targets;
mod trace;

pub use data::Results;
pub use read::Error;
pub use table::size;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use report::Clock;
use table::{Cell, number, table};

const STYLE: &str = include_str!("assets/page.css");
const SORT: &str = include_str!("assets/sort.js");
const FLAME: &str = include_str!("assets/flame.js");
/// Nothing is loaded from anywhere, and no script runs but the page's own.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
    img-src data:";

/// The page. Traces come first. Experiments have their sections unless all files are traces.
///
/// ```
/// let page = html_report::html(&html_report::Results::default());
/// assert!(page.contains("These files have no figures"));
/// ```
pub fn html(results: &Results) -> String {
    let experiments = results.traces.is_empty() || results.has_figures();
    let title = match results.traces.first() {
        Some(trace) if !experiments => format!("Samara: {}", trace.item.title),
        _ => "Samara: results".into(),
    };
    let page: Markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    @if experiments {
                        h1 { "Samara: results" }
                        p { "A virtual-memory manager that does not slow down as processors are \
                            added, next to the five pieces of work on Linux that it builds on. \
                            Each ratio and each plot is of one run; the runs are listed at the \
                            end." }
                    } @else {
                        h1 { "Memory maps of programs" }
                        p { "Samara sees maps and resident pages, not what malloc does within \
                            them." }
                    }
                }
                main {
                    @if !experiments { (trace::traces(results)) } @else {
                        section { h2 { "Five sources" } (sources::cards(results)) }
                        (plots::sections(results))
                        (targets::targets(results))
                        (trace::traces(results))
                    }
                    (runs(results))
                }
                script { (PreEscaped(SORT)) }
                @if !results.traces.is_empty() { script { (PreEscaped(FLAME)) } }
            }
        }
    };
    page.into_string() + "\n"
}

/// The figures of the experiments as one text in Markdown: the same as on the page, without traces.
///
/// ```
/// assert!(html_report::markdown(&html_report::Results::default()).starts_with("# Results\n"));
/// ```
pub fn markdown(results: &Results) -> String {
    markdown::text(results)
}

/// The title of the list of notes.
const NOTES: &str = "Ties, and measurements that were cut short or left out";

/// The head of a table of runs.
const RUN_HEAD: [&str; 7] = ["run", "file", "command", "machine", "figures are", "day", "load"];

/// A line for each run.
fn run_lines(results: &Results) -> Vec<Vec<Cell>> {
    let line = |(at, source): (usize, &data::Source)| -> Vec<Cell> {
        let counts = match source.run.as_ref().map(|run| run.clock) {
            Some(Clock::Time) => "time",
            Some(Clock::Instructions) => "instructions",
            None => "not named",
        };
        let of = |get: fn(&report::Run) -> String| source.run.as_ref().map_or("-".into(), get);
        vec![
            number((at + 1) as f64, (at + 1).to_string()),
            source.file.as_str().into(),
            of(|run| run.run.clone()).into(),
            source.machine().into(),
            counts.into(),
            of(|run| run.date.clone()).into(),
            of(|run| run.load.map_or("-".into(), |load| format!("{load:.1}"))).into(),
        ]
    };
    results.runs.iter().enumerate().map(line).collect()
}

/// The runs: where all of it was measured.
fn runs(results: &Results) -> Markup {
    html! {
        section #runs {
            h2 { "Runs" }
            @if results.runs.is_empty() {
                p.missing { "No file was given: " code { "samara report --help" } " has examples." }
            } @else {
                (table("Runs", &RUN_HEAD, run_lines(results)))
            }
            @if !results.notes.is_empty() {
                h3 { (NOTES) }
                ul.targets { @for of in &results.notes { li { (of.item) " (run " (of.run + 1) ")" } } }
            }
        }
    }
}
