//! The range tree beside its peers: the same operations on the same ranges.
//!
//! ```text
//! cargo bench -p maple                       Criterion, each case and map on its own
//! cargo bench -p maple -- --quick load/1000  the same, roughly, and only these
//! cargo bench -p maple -- --table            side by side in rounds: a table of medians and ratios
//! cargo bench -p maple -- --table --quick --json FILE
//! cargo bench -p maple -- --table --help     sizes, cases, maps, rounds
//! ```
//!
//! Times are processor time of the one thread there is. Maps are built outside of the timing, by insertion
//! in random order, so that their nodes are as full as those of a map in use.

mod clock;
mod maps;
mod peer;
mod statistics;
mod subject;
mod table;
mod workload;

use criterion::{Criterion, Throughput};
use peer::{Case, Support};
use std::rc::Rc;
use std::time::Duration;
use workload::Workload;

const SIZES: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];

fn main() {
    if std::env::args().any(|arg| arg == "--table") {
        table::main();
    } else {
        let mut criterion = Criterion::default()
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(500))
            .configure_from_args();
        for size in SIZES {
            one_size(&mut criterion, size);
        }
        criterion.final_summary();
    }
}

fn one_size(criterion: &mut Criterion, size: usize) {
    let work = Rc::new(Workload::new(size));
    let mut subjects = maps::all(&work);
    for case in Case::ALL {
        let mut group = criterion.benchmark_group(format!("{}/{size}", case.name()));
        for subject in &mut subjects {
            if subject.support(case) == Support::Missing {
                continue;
            }
            let mut turn = 0;
            let operations = subject.operations(case);
            group.throughput(Throughput::Elements(operations as u64));
            group.bench_function(subject.name(), |bencher| {
                bencher.iter_custom(|iterations| {
                    (0..iterations)
                        .map(|_| {
                            turn += 1;
                            subject.sample(case, turn).elapsed
                        })
                        .sum()
                });
            });
        }
        group.finish();
    }
}
