//! The range tree beside BTreeMap, brie_tree and Linux, over the number of ranges.

use super::calls::lines_of;
use super::{Drawing, Part, Section, Shown, drawn};
use crate::data::Results;
use crate::plot::{Plot, X};
use report::Row;

/// The maps in the plots. The tables of the bench have more.
const MAPS: [&str; 6] = [
    "BTreeMap",
    "brie_tree",
    "maple, one owner",
    "maple, shared, held",
    "Linux's maple tree, published",
    "Linux's rbtree, published",
];
const TIMED: &str = "cargo bench -p samara-bench -- --json FILE";
const COUNTED: &str = "cargo bench -p samara-bench -- --counts --json FILE";
const SOURCES: &str = "cargo bench -p samara-bench -- --nodes --counts --json FILE";
const OF_C: &str = "campaign/capi-bench --json FILE";
/// The figures: the experiment, its metric, the words for it, and its command.
const FIGURES: [(&str, &str, &str, &str); 5] = [
    ("range-tree", "time", "times, beside Linux's", TIMED),
    ("range-tree-counts", "instructions", "instructions", COUNTED),
    ("range-tree", "bytes_per_entry", "bytes", TIMED),
    ("node-sources-counts", "instructions", "instructions by the source of nodes", SOURCES),
    ("capi", "time", "times of the C library", OF_C),
];

pub(super) fn section(results: &Results) -> Section {
    let mut parts = Vec::new();
    for (experiment, metric, what, command) in FIGURES {
        let mut plots = Vec::new();
        let is = |row: &Row| {
            row.experiment == experiment && row.metric == metric && row.size > 0 && is_shown(row)
        };
        for case in cases(results, is) {
            let plot = |rows: &[&Row], unit| Plot {
                title: case.clone(),
                x: X::Tenfold("ranges"),
                unit,
                log: true,
                series: super::series(rows, |row| row.size as f64),
            };
            plots.extend(drawn(results, results.best(|row| is(row) && row.case == case), plot));
        }
        parts.push(Part::new(what, command, plots));
    }
    parts.push(Part::new("threads on the C library", OF_C, threads(results)));
    Section {
        title: "The range tree by size",
        about: "Each operation on the same ranges, in one run. Our tree with one owner is changed \
            in place; shared, it has readers that take no lock. Linux's figures were published: \
            they are times of its user-space build on another machine, so they stand beside \
            times only. BTreeMap and brie_tree have neither readers beside a writer nor an index \
            of gaps. The C library stands beside an rbtree with gaps that was written for this \
            comparison, and beside GTree and Judy.",
        parts,
    }
}

/// Whether the map of a row is drawn. Sources of nodes matter to a shared tree, which copies nodes.
fn is_shown(row: &Row) -> bool {
    match row.experiment.as_str() {
        "node-sources-counts" => row.implementation.ends_with("shared, held"),
        "capi" => true,
        _ => MAPS.contains(&row.implementation.as_str()),
    }
}

/// Loads and writes of threads that share a map of the C library, at each size.
fn threads(results: &Results) -> Option<Shown> {
    let (run, rows) =
        results.best(|row| row.experiment == "capi" && row.metric == "rate" && row.value > 0.0)?;
    let name = |row: &Row| format!("{}, {}", row.case, row.size);
    let unit = results.unit(run, rows[0]);
    let lines = lines_of("Loads and writes in C".into(), unit, &rows, name);
    Some(Shown { run, drawing: Drawing::Lines(lines) })
}

/// The cases in the order of their rows.
fn cases(results: &Results, wanted: impl Fn(&Row) -> bool) -> Vec<String> {
    let mut cases: Vec<String> = Vec::new();
    for row in results.rows.iter().map(|row| &row.item).filter(|row| wanted(row)) {
        if !cases.contains(&row.case) {
            cases.push(row.case.clone());
        }
    }
    cases
}
