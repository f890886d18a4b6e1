//! Counts of instructions and cache misses of an operation, in a simulation. They do not depend on
//! the load of the machine.
//!
//! A worker runs under valgrind's callgrind. Callgrind counts only inside `measured_work`, and
//! writes a file each time `timed_batch` returns. Its processor has AVX2 but no AVX-512, so the
//! portable build is used, in which our tree chooses its instructions at run time. The simulated
//! caches are this machine's first and last levels, without prefetching. A batch before the counted
//! one warms them.

use crate::case::Case;
use crate::cli::Options;
use crate::json;
use crate::layouts::Layout;
use crate::process::Process;
use crate::results::{BRIE, BTREE, NODES, OWNED, SHARED};
use report::{Clock, Report, Row, Table};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAPS: [&str; 4] = [BTREE, BRIE, OWNED, SHARED];
const COUNTED: [&str; 5] =
    ["instructions", "data_reads", "data_writes", "l1_misses", "last_level_misses"];

/// The cost of an operation.
struct OpCost {
    layout: Layout,
    case: Case,
    map: &'static str,
    size: usize,
    /// In the order of [`COUNTED`].
    values: [f64; 5],
}

/// Counts and prints.
pub(crate) fn drive(options: &Options, program: &Path) -> Result<(), String> {
    let place = program.with_file_name(format!("callgrind-{}", std::process::id()));
    fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let costs = measure(options, program, &place);
    // The counts are read, and the files are not needed any more.
    let removed = fs::remove_dir_all(&place);
    let costs = costs?;
    removed
        .and_then(|()| report(options, &costs))
        .map_err(|error| format!("the results cannot be written: {error}"))
}

fn measure(options: &Options, program: &Path, place: &Path) -> Result<Vec<OpCost>, String> {
    let text = |path: &Path| path.to_str().map(String::from).ok_or("a path is not text");
    let output = format!("--callgrind-out-file={}", text(&place.join("out"))?);
    let program = text(program)?;
    let mut costs = Vec::new();
    for (layout, size) in options.layouts()?.iter().flat_map(|layout| {
        layout.sizes(&options.sizes()).into_iter().map(move |size| (layout, size))
    }) {
        let mut worker = Process::start(
            Path::new("valgrind"),
            &[
                "--tool=callgrind",
                "--quiet",
                "--cache-sim=yes",
                "--toggle-collect=*measured_work*",
                "--dump-after=*timed_batch*",
                &output,
                &program,
                "--worker",
            ],
        )
        .map_err(|error| format!("{error}; valgrind comes with: apt-get install valgrind"))?;
        let size = layout.build(&mut worker, size)?;
        let names = worker.ask("maps")?;
        for case in Case::ALL.iter().copied().filter(|&case| options.wants_on(layout, case)) {
            eprintln!("{size} ranges, {}: {}", layout.name, case.name());
            let wanted = if options.nodes { &NODES[..] } else { &MAPS };
            for &map in
                wanted.iter().filter(|map| map.contains(options.map.as_deref().unwrap_or("")))
            {
                let at = names.split('\t').position(|name| name == map);
                let at = at.ok_or_else(|| format!("the worker has no {map}"))?;
                // A scan says nothing about the map.
                if worker.ask(&format!("support {at} {}", case.name()))? != "own" {
                    continue;
                }
                worker.ask(&format!("sample {at} {} 0 0", case.name()))?;
                clear(place)?;
                let answer = worker.ask(&format!("sample {at} {} 1 0", case.name()))?;
                let operations = answer.split(' ').nth(1).and_then(|word| word.parse::<f64>().ok());
                let operations = operations
                    .ok_or_else(|| format!("the worker answered {answer} instead of a sample"))?;
                let values = last(place)?.map(|total| total as f64 / operations);
                costs.push(OpCost { layout: layout.clone(), case, map, size, values });
            }
        }
    }
    Ok(costs)
}

/// The files so far, by number.
fn files(place: &Path) -> Result<Vec<(usize, PathBuf)>, String> {
    let read = || -> io::Result<Vec<(usize, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(place)? {
            let path = entry?.path();
            let number = path.extension().and_then(|end| end.to_str()?.parse().ok());
            found.extend(number.map(|number| (number, path)));
        }
        found.sort();
        Ok(found)
    };
    read().map_err(|error| format!("{}: {error}", place.display()))
}

fn clear(place: &Path) -> Result<(), String> {
    for (_, path) in files(place)? {
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The totals of the newest file. Where operations are timed one by one, it is that of the batch
/// that counts.
fn last(place: &Path) -> Result<[u64; 5], String> {
    let Some((_, path)) = files(place)?.pop() else {
        return Err("callgrind wrote nothing: does it know the functions by their names?".into());
    };
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    totals(&text).ok_or_else(|| format!("{} has no totals", path.display()))
}

/// The sums in a file of callgrind, in the order of [`COUNTED`].
fn totals(text: &str) -> Option<[u64; 5]> {
    let find = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let events: Vec<&str> = find("events: ")?.split_whitespace().collect();
    let sums: Vec<u64> = find("totals: ")
        .or_else(|| find("summary: "))?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let one = |name: &str| {
        let at = events.iter().position(|&event| event == name)?;
        // Zeros at the end of the line are left out.
        Some(sums.get(at).copied().unwrap_or(0))
    };
    let first_level = one("D1mr")? + one("D1mw")?;
    Some([one("Ir")?, one("Dr")?, one("Dw")?, first_level, one("DLmr")? + one("DLmw")?])
}

fn report(options: &Options, costs: &[OpCost]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Counts of one operation by callgrind, in the portable build.")?;
    if !options.nodes {
        writeln!(out, "There brie_tree has SSE2 only.")?;
    }
    let mut head = vec!["layout".into(), "operation".into(), "ranges".into(), "map".into()];
    head.extend(COUNTED.map(|name| name.replace('_', " ")));
    let mut lines = vec![head];
    for one in costs {
        let mut line = vec![one.layout.name.clone(), one.case.name().into()];
        line.extend([one.size.to_string(), one.map.into()]);
        line.extend(one.values.map(|value| format!("{value:.1}")));
        lines.push(line);
    }
    writeln!(out)?;
    write!(out, "{}", Table(lines))?;
    let Some(path) = &options.json else { return Ok(()) };
    let rows = costs.iter().flat_map(|one| {
        let experiment = json::experiment(options, &one.layout, "-counts");
        let row = Row::new(&experiment, one.case.name(), one.map, 1, one.size);
        COUNTED
            .into_iter()
            .zip(one.values)
            .map(move |(metric, value)| row.with(metric, value, "1/op"))
    });
    let run = Some(json::run(Clock::Instructions));
    let report = Report { run, rows: rows.collect(), ..Report::default() };
    fs::write(path, report.json_lines())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_a_file() {
        let text = "version: 1\npositions: line\n\
            events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nfn=x\n1 2 3\ntotals: 90 20 10 1 4 3 1 2\n";
        assert_eq!(totals(text), Some([90, 20, 10, 7, 2]));
        assert_eq!(totals("events: Ir\ntotals: 3\n"), None);
        assert_eq!(totals("events: Ir Dr Dw\n"), None);
    }
}
