//! The range tree with nodes from several sources, as a table.

use super::{Part, Section, shown};
use crate::data::Results;
use crate::plot::short;
use crate::sources::rounded;
use crate::table::{Cell, number, table};
use report::Row;

const COMMAND: &str = "cargo bench -p samara-bench -- --nodes --counts --json FILE";
const HEAD: [&str; 5] = ["operation", "ranges", "pool", "malloc", "mimalloc"];
/// The tree with each source, in the order of [`HEAD`].
const SOURCES: [&str; 3] =
    ["maple, shared, held", "malloc, shared, held", "mimalloc, shared, held"];

pub(super) fn section(results: &Results) -> Section {
    let is = |row: &Row| row.experiment == "node-sources-counts" && row.metric == "instructions";
    let best = results.best(|row| is(row) && SOURCES.contains(&row.implementation.as_str()));
    let table = best.map(|(run, rows)| {
        shown(results, run, &table("Instructions by the source of nodes", &HEAD, lines(&rows)))
    });
    Section {
        title: "Sources of nodes",
        about: "Instructions of a write to a shared tree, which copies the nodes that it changes. \
            Nodes come from samara-pool, from the C library's malloc, or from mimalloc. In \
            brackets is the factor to the pool.",
        parts: vec![Part::new("sources of nodes", COMMAND, table)],
    }
}

/// A line for each case and size of the tree with the pool.
fn lines(rows: &[&Row]) -> Vec<Vec<Cell>> {
    let pool = rows.iter().filter(|row| row.implementation == SOURCES[0]);
    pool.map(|pool| {
        let of = |source: &str| {
            let same = |row: &&&Row| (&row.case, row.size) == (&pool.case, pool.size);
            rows.iter().filter(same).find(|row| row.implementation == source)
        };
        let mut line = vec![pool.case.as_str().into(), Cell::from(pool.size as u64)];
        line.extend(SOURCES.map(|source| match of(source) {
            Some(row) => cell(row.value, pool.value),
            None => "-".into(),
        }));
        line
    })
    .collect()
}

/// A figure, with its factor to the pool's if there is one.
fn cell(value: f64, pool: f64) -> Cell {
    let factor = value / pool;
    match value.is_finite() && factor.is_finite() {
        true => number(value, format!("{} ({factor:.2})", short(rounded(value)))),
        false => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Report, Run};

    #[test]
    fn each_source_has_its_factor() {
        let row = |source: usize, size, value| {
            let row = Row::new("node-sources-counts", "erase", SOURCES[source], 1, size);
            row.with("instructions", value, "1/op")
        };
        let rows = vec![row(0, 100, 800.0), row(1, 100, 1720.0), row(0, 1000, 0.0)];
        let run = Some(Run::default());
        let mut results = Results::default();
        results.read("a", &Report { run, rows, ..Report::default() }.json_lines()).unwrap();
        let html = section(&results).parts[0].plots[0].clone().into_string();
        for cell in ["800 (1.00)", "1.72k (2.15)", "<td>-</td>"] {
            assert!(html.contains(cell), "{cell}: {html}");
        }
    }
}
