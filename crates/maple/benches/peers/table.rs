//! The maps side by side: each round runs every map once on a case, one right after the other, so that a
//! change of the machine's mood meets all of them. Ratios are taken within a round.

mod output;

use crate::maps;
use crate::peer::{Case, Support};
use crate::subject::Subject;
use crate::workload::Workload;
use clap::Parser;
use output::Output;
use std::io;
use std::path::PathBuf;
use std::process::exit;
use std::rc::Rc;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "cargo bench -p maple -- --table", about = "The maps side by side")]
pub(crate) struct Options {
    /// This table instead of Criterion
    #[arg(long)]
    table: bool,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Numbers of ranges
    #[arg(long, value_delimiter = ',', default_values_t = crate::SIZES)]
    sizes: Vec<usize>,
    /// Only these cases
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Only maps that have this in their names
    #[arg(long)]
    map: Option<String>,
    /// Rounds
    #[arg(long)]
    rounds: Option<usize>,
    /// Also write one JSON object a line to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// As cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// What the rounds of one map on one case came to.
pub(crate) struct Cell {
    pub(crate) map: &'static str,
    pub(crate) scan: bool,
    /// Nanoseconds an operation, by round.
    pub(crate) times: Vec<f64>,
}

/// The maps on one case and one size. The first is what the others are compared with.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) size: usize,
    pub(crate) cells: Vec<Cell>,
}

pub(crate) fn main() {
    let options = Options::parse();
    if let Some(bad) = options.sizes.iter().find(|&&size| size == 0) {
        eprintln!("--sizes: a map of {bad} ranges has nothing to measure");
        exit(2);
    }
    let known: Vec<&str> = Case::ALL.iter().map(|case| case.name()).collect();
    if let Some(bad) = options.cases.iter().find(|case| !known.contains(&case.as_str())) {
        eprintln!("--cases: {bad} is not one of {}", known.join(", "));
        exit(2);
    }
    if let Err(error) = run(&options) {
        eprintln!("the results cannot be written: {error}");
        exit(1);
    }
}

fn run(options: &Options) -> io::Result<()> {
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 9 }).max(1);
    let slot = Duration::from_millis(if options.quick { 5 } else { 40 });
    let mut output = Output::new(options.json.as_deref())?;
    for &size in &options.sizes {
        let work = Rc::new(Workload::new(size));
        let mut subjects = maps::all(&work);
        let wanted = options.map.as_deref().unwrap_or("");
        subjects.retain(|subject| subject.name().contains(wanted));
        for subject in &mut subjects {
            output.memory(subject.name(), size, subject.bytes_per_entry())?;
        }
        for case in Case::ALL {
            if options.cases.is_empty() || options.cases.iter().any(|name| name == case.name()) {
                eprintln!("{size} ranges: {}", case.name());
                output.row(measure(&mut subjects, case, size, rounds, slot))?;
            }
        }
    }
    output.finish()
}

/// All maps on one case, in rounds.
fn measure(
    subjects: &mut [Box<dyn Subject>],
    case: Case,
    size: usize,
    rounds: usize,
    slot: Duration,
) -> Row {
    let mut able: Vec<&mut Box<dyn Subject>> =
        subjects.iter_mut().filter(|subject| subject.support(case) != Support::Missing).collect();
    let mut cells: Vec<Cell> = able
        .iter()
        .map(|subject| Cell {
            map: subject.name(),
            scan: subject.support(case) == Support::Scan,
            times: Vec::with_capacity(rounds),
        })
        .collect();
    for round in 0..rounds {
        let mut found = None;
        for (subject, cell) in able.iter_mut().zip(&mut cells) {
            // The first batch brings the map back into the caches; it counts only if it fills the slot.
            let first = subject.sample(case, round);
            let expected = *found.get_or_insert(first.check);
            assert!(first.check == expected, "{} went wrong on {}", cell.map, case.name());
            let (mut elapsed, mut batches) = (first.elapsed, 1);
            if elapsed < slot {
                (elapsed, batches) = (Duration::ZERO, 0);
                while elapsed < slot {
                    elapsed += subject.sample(case, round + batches).elapsed;
                    batches += 1;
                }
            }
            let operations = (batches * subject.operations(case)) as f64;
            cell.times.push(elapsed.as_nanos() as f64 / operations);
        }
    }
    Row { case, size, cells }
}
