//! The range tree compared with BTreeMap, brie_tree and Linux, over the number of ranges.

use super::{Drawing, PlotPart, Section, Shown, drawn, lines};
use crate::data::Results;
use crate::plot::{X, short};
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
const LEFT_OUT: &str = "cargo bench -p samara-bench -- --counts # without the way";
const OF_C: &str = "campaign/capi-bench --json FILE";
/// The figures: the experiment, its metric, the words for it, and its command.
const FIGURES: [(&str, &str, &str, &str); 5] = [
    ("range-tree", "time", "times, and Linux's", TIMED),
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
            let best = results.best(|row| is(row) && row.case == case);
            let axis = (X::Tenfold("ranges"), true);
            plots.extend(drawn(results, best, &case, axis, |row| row.size as f64));
        }
        parts.push(PlotPart::new(what, command, plots));
    }
    parts.push(PlotPart::new("each way to write, left out", LEFT_OUT, ablation(results)));
    parts.push(PlotPart::new("threads on the C library", OF_C, threads(results)));
    Section {
        title: "The range tree by size",
        about: "Each operation on the same ranges, in one run. Our tree with one owner is changed \
            in place; shared, it has readers that take no lock. Linux's figures were published: \
            they are times of its user-space build on another machine, so they stand next to \
            times only. BTreeMap and brie_tree have neither readers concurrent with a writer nor \
            an index of gaps. The C library stands next to an rbtree with gaps that was written \
            for this comparison, and next to GTree and Judy.",
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

/// The worst row of the tree without each way to write: times as many instructions, or as long.
fn ablation(results: &Results) -> Vec<Shown> {
    const WITHOUT: &str = ", without ";
    let all = ["instructions_ratio", "time_ratio"].into_iter().filter_map(|metric| {
        let is = |row: &Row| row.experiment == "range-tree-ablation" && row.metric == metric;
        let (run, rows) = results.best(is)?;
        let mut worst: Vec<Row> = Vec::new();
        for row in rows {
            let Some((map, way)) = row.implementation.split_once(WITHOUT) else { continue };
            let same = |known: &&mut Row| (&*known.implementation, &*known.case) == (map, way);
            match worst.iter_mut().find(same) {
                Some(known) => known.value = known.value.max(row.value),
                None => {
                    let (implementation, case) = (map.into(), way.into());
                    worst.push(Row { implementation, case, ..row.clone() });
                }
            }
        }
        let title = match metric {
            "time_ratio" => "Without a way to write: time",
            _ => "Without a way to write: instructions",
        };
        let worst: Vec<&Row> = worst.iter().collect();
        let lines = lines(title.into(), "times, worst row".into(), &worst, |row| row.case.clone());
        Some(Shown { run, drawing: Drawing::Lines(lines) })
    });
    all.collect()
}

/// Loads and writes of threads that share a map of the C library, at each size.
fn threads(results: &Results) -> Option<Shown> {
    let (run, rows) =
        results.best(|row| row.experiment == "capi" && row.metric == "rate" && row.value > 0.0)?;
    // The names of a plot are short.
    let name = |row: &Row| {
        let case = row.case.replace(" of ", ", ").replace(" and a writer", "");
        format!("{case}, {}", short(row.size as f64))
    };
    let unit = results.unit(run, rows[0]);
    let lines = lines("Loads and writes in C".into(), unit, &rows, name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_way_left_out_the_worst_row_is_shown() {
        let row = |case, value| {
            let row = Row::new("range-tree-ablation", case, "maple, one owner, without join", 1, 9);
            row.with("instructions_ratio", value, "1")
        };
        let rows = vec![row("erase", 1.4), row("load", 1.0)];
        let mut results = Results::default();
        results.read("a", &report::Report { rows, ..Default::default() }.json_lines()).unwrap();
        let shown = ablation(&results);
        let Drawing::Lines(lines) = &shown[0].drawing else { panic!("it has names") };
        assert_eq!((lines.names.len(), lines.series[0].points[0].1), (1, 1.4));
        assert_eq!((&*lines.names[0], &*lines.series[0].name), ("join", "maple, one owner"));
    }
}
