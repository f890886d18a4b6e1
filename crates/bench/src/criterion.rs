//! Each case and map on its own, by Criterion.

use crate::case::Case;
use crate::cli::SIZES;
use crate::maps;
use crate::peer::Support;
use crate::workload::Workload;
use criterion::Criterion;
use std::rc::Rc;
use std::time::Duration;

/// What `--bench criterion` runs; the arguments are Criterion's own.
pub fn criterion() {
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
            group.bench_function(subject.name(), |bencher| {
                bencher.iter_custom(|iterations| {
                    // Batches until there were as many operations as asked for.
                    let (mut elapsed, mut operations) = (0, 0);
                    while operations < iterations {
                        let sample = subject.sample(case, turn);
                        turn += 1;
                        elapsed += sample.elapsed;
                        operations += sample.operations as u64;
                    }
                    let nanoseconds = elapsed as f64 * iterations as f64 / operations as f64;
                    Duration::from_nanos(nanoseconds as u64)
                });
            });
        }
        group.finish();
    }
}
