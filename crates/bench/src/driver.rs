//! The driver: makes the builds, has the workers measure in turn, and reports.

use crate::builds;
use crate::callgrind;
use crate::cli::Options;
use crate::cpus;
use crate::json;
use crate::pairs::{self, Outcome, PairKind};
use crate::process::Process;
use crate::results::{
    BRIE, BTREE, BY_END, BY_KEY, EACH, Layouts, NODES, OWNED, PORTABLE, SCALAR, SHARED,
};
use crate::rounds::{self, Build, Maps};
use crate::table;
use crate::targets;
use report::{Clock, Report, Run, Target};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const OURS: &[&str] = &[OWNED, SHARED, EACH];
/// The numbers of ranges for the measurements of two threads.
const PAIR_SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// More programs, with the suffix of the names of their maps.
type Others = Vec<(PathBuf, &'static str)>;

/// Measures as the options say, and prints the results.
pub(crate) fn drive(options: &Options) -> Result<(), String> {
    let this =
        std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    if options.counts {
        return callgrind::drive(options, &this);
    }
    // Before this program keeps the host busy itself.
    let run = json::run(Clock::Time);
    let (main, others) = programs(options, &this)?;
    let all = cpus::allowed()?;
    // The workers inherit this. Any processor will do; the last one usually has the fewest
    // interrupts.
    cpus::allow(&all[all.len().saturating_sub(1)..])?;
    let results = single(options, &main, &others)?;
    cpus::allow(&all)?;
    let pairs = if all.len() < 2 { None } else { Some(two_threads(options, &main)?) };
    let mut targets = Vec::new();
    if !options.nodes {
        targets = targets::range_tree(&results);
        targets.extend(pairs.iter().flat_map(|pairs| pairs::targets(pairs)));
    }
    report(options, run, &results, pairs.as_deref(), &targets)
        .map_err(|error| format!("the results cannot be written: {error}"))
}

/// The program with all maps, and the programs of our other builds.
fn programs(options: &Options, this: &Path) -> Result<(PathBuf, Others), String> {
    if options.portable || options.nodes {
        return Ok((this.into(), Vec::new()));
    }
    let native = builds::native()?;
    let scalar = builds::freestanding()?;
    Ok((native, vec![(this.into(), PORTABLE), (scalar, SCALAR)]))
}

fn single(options: &Options, main: &Path, others: &Others) -> Result<Layouts, String> {
    let maps = if options.nodes {
        Maps::Named(&NODES)
    } else if options.table {
        Maps::All
    } else {
        Maps::Named(&[BTREE, BY_KEY, BY_END, BRIE, OWNED, SHARED, EACH])
    };
    let start = |program, suffix, maps| {
        let process = Process::start(program, &["--worker"])?;
        Ok::<_, String>(Build { process, suffix, maps })
    };
    let mut builds = vec![start(main, "", maps)?];
    for (program, suffix) in others {
        builds.push(start(program, suffix, Maps::Named(OURS))?);
    }
    let mut all = Vec::new();
    for layout in options.layouts()? {
        let results = rounds::run(&mut builds, &layout, options)?;
        all.push((layout, results));
    }
    Ok(all)
}

fn two_threads(options: &Options, program: &Path) -> Result<Vec<Outcome>, String> {
    let mut outcomes = Vec::new();
    let mut process = Process::start(program, &["--worker"])?;
    for kind in PairKind::ALL.into_iter().filter(|kind| options.wants(kind.name())) {
        for size in PAIR_SIZES.into_iter().filter(|size| options.sizes().contains(size)) {
            eprintln!("{size} ranges: {}", kind.name());
            for (place, (map, _)) in pairs::MAPS.into_iter().enumerate() {
                let known = match options.nodes {
                    true => NODES.contains(&map),
                    false => !NODES.contains(&map) || OURS.contains(&map),
                };
                if known && map.contains(options.map.as_deref().unwrap_or("")) {
                    let (kind_name, rounds, time) =
                        (kind.name(), options.rounds(), options.pair_time());
                    let request = format!("pair {kind_name} {place} {size} {rounds} {time}");
                    let answer = process.ask(&request)?;
                    outcomes.push(Outcome::parse(kind, map, size, &answer)?);
                }
            }
        }
    }
    Ok(outcomes)
}

fn report(
    options: &Options,
    run: Run,
    layouts: &Layouts,
    pairs: Option<&[Outcome]>,
    targets: &[Target],
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if options.portable || options.nodes {
        writeln!(
            out,
            "All maps are built for any x86-64, in the release profile without further flags."
        )?;
        if !options.nodes {
            writeln!(
                out,
                "brie_tree is not at its best: its vector instructions are chosen when compiled."
            )?;
        }
    } else {
        writeln!(
            out,
            "Release profile throughout. All maps: with -Ctarget-cpu=native.{PORTABLE}:"
        )?;
        writeln!(
            out,
            "for any x86-64, our tree chooses its vector instructions at run time.{SCALAR}:"
        )?;
        writeln!(out, "for x86_64-unknown-none, soft float, as a kernel builds it, freestanding.")?;
    }
    for (layout, results) in layouts {
        if layouts.len() > 1 {
            writeln!(out, "\n## {}", layout.name)?;
        }
        if options.table || options.nodes {
            table::by_case(&mut out, results)?;
        } else {
            table::overview(&mut out, results, layout.is_dense())?;
        }
        table::spreads(&mut out, results)?;
    }
    match pairs {
        Some(pairs) => pairs::print(&mut out, pairs)?,
        None => writeln!(out, "\nTwo threads: NOT MEASURED, as only one processor is allowed.")?,
    }
    match targets {
        [] if options.nodes => {}
        [] => writeln!(out, "\nNo target was measured.")?,
        _ => write!(out, "{}", Report { targets: targets.to_vec(), ..Report::default() })?,
    }
    if let Some(path) = &options.json {
        let report = json::report(options, run, layouts, pairs.unwrap_or(&[]), targets);
        std::fs::write(path, report.json_lines())?;
    }
    Ok(())
}
