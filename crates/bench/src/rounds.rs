//! Measures the maps side by side. A round runs every map once on a case, one right after the
//! other, so that a change of the machine's load affects all of them. Ratios are taken within a
//! round.

use crate::case::Case;
use crate::cli::{MEMORY, Options};
use crate::layouts::Layout;
use crate::process::Process;
use crate::results::{BY_END, BY_KEY, Memory, Results, Series};

/// A worker, the suffix of its maps' names, and the maps that are wanted.
pub(crate) struct Build {
    pub(crate) process: Process,
    pub(crate) suffix: &'static str,
    pub(crate) maps: Maps,
}

/// The wanted maps of a worker.
#[derive(Clone, Copy)]
pub(crate) enum Maps {
    /// All.
    All,
    /// Those with one of these names.
    Named(&'static [&'static str]),
}

/// A map of a worker.
struct Column {
    build: usize,
    /// Its place in the worker's list.
    place: usize,
    name: String,
}

/// Measures all maps that the options want, on a layout.
pub(crate) fn run(
    builds: &mut [Build],
    layout: &Layout,
    options: &Options,
) -> Result<Results, String> {
    let mut results = Results::default();
    for wanted in layout.sizes(&options.sizes()) {
        let mut size = 0;
        for build in &mut *builds {
            size = layout.build(&mut build.process, wanted)?;
        }
        results.sizes.push(size);
        let columns = columns(builds, options)?;
        if options.wants(MEMORY) {
            memory(builds, &columns, size, &mut results)?;
        }
        for case in Case::ALL.iter().copied() {
            if options.wants_on(layout, case) {
                eprintln!("{size} ranges, {}: {}", layout.name, case.name());
                measure(builds, &columns, (case, size), options, &mut results)?;
            }
        }
    }
    Ok(results)
}

fn columns(builds: &mut [Build], options: &Options) -> Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    for (at, build) in builds.iter_mut().enumerate() {
        let names = build.process.ask("maps")?;
        for (place, name) in names.split('\t').enumerate() {
            let known = match build.maps {
                Maps::All => true,
                Maps::Named(names) => names.contains(&name),
            };
            let name = format!("{name}{}", build.suffix);
            if known && name.contains(options.map.as_deref().unwrap_or("")) {
                columns.push(Column { build: at, place, name });
            }
        }
    }
    Ok(columns)
}

fn memory(
    builds: &mut [Build],
    columns: &[Column],
    size: usize,
    results: &mut Results,
) -> Result<(), String> {
    for Column { build, place, name } in columns {
        // The layout depends neither on the build nor on the way of writing.
        if !builds[*build].suffix.is_empty() || [BY_KEY, BY_END].contains(&name.as_str()) {
            continue;
        }
        for (touching, what) in [(false, "holes"), (true, "touching")] {
            let answer = builds[*build].process.ask(&format!("bytes {place} {what}"))?;
            let bytes = answer.parse().map_err(|_| {
                format!("the worker answered {answer} instead of a number of bytes")
            })?;
            results.memory.push(Memory { map: name.clone(), size, touching, bytes });
        }
    }
    Ok(())
}

/// Measures all maps on a case, in rounds.
fn measure(
    builds: &mut [Build],
    columns: &[Column],
    (case, size): (Case, usize),
    options: &Options,
    results: &mut Results,
) -> Result<(), String> {
    let mut able = Vec::new();
    for column in columns {
        let request = format!("support {} {}", column.place, case.name());
        let support = builds[column.build].process.ask(&request)?;
        if support != "missing" {
            let (map, scan) = (column.name.clone(), support == "scan");
            able.push((column, Series { case, map, size, scan, times: Vec::new() }));
        }
    }
    for round in 0..options.rounds() {
        let mut expected = None;
        for (column, series) in &mut able {
            let slot = options.slot();
            let request = format!("sample {} {} {round} {slot}", column.place, case.name());
            let answer = builds[column.build].process.ask(&request)?;
            let numbers: Vec<u64> =
                answer.split(' ').filter_map(|word| word.parse().ok()).collect();
            let [elapsed, operations, check] = numbers[..] else {
                return Err(format!("the worker answered {answer} to {request}"));
            };
            if *expected.get_or_insert(check) != check {
                return Err(format!("{} failed on {}: {answer}", series.map, case.name()));
            }
            // A batch of nothing has no time an operation.
            if operations > 0 {
                series.times.push(elapsed as f64 / operations as f64);
            }
        }
    }
    let measured = able.into_iter().map(|(_, series)| series);
    results.series.extend(measured.filter(|series| !series.times.is_empty()));
    Ok(())
}
