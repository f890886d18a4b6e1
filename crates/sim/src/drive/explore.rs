//! Runs of many seeds, on all of the host's CPUs.

use super::failure::{Cause, Failure, message};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The result of [`explore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explored {
    /// The number of seeds that were tried.
    pub seeds: u64,
}

/// Calls `run` with the seeds 0 to `seeds` - 1, several in parallel, until one fails. Returns the
/// failure of the smallest failing seed that was tried.
///
/// Environment variables change the seeds: `SAMARA_SEED=n` tries only that seed; `SAMARA_SEEDS=n`
/// tries that many, if that is more than `seeds`; `SAMARA_FIRST_SEED=n` begins at that seed instead
/// of 0. `campaign/seeds` sets them.
///
/// ```
/// use sim::{Config, Program, Sim, explore, seeded};
///
/// let explored = explore(100, |seed| {
///     let sim = Sim::new(Config { frames: 64, ..Config::default() }).unwrap();
///     let idle = || Box::new(|| ()) as Program;
///     seeded(&sim, seed, vec![idle(), idle()])?;
///     sim.check_leaks()?;
///     Ok(())
/// });
/// assert!(explored.unwrap().seeds >= 1);
/// ```
///
/// # Errors
/// The error of `run`, with the seed. A panic in `run` is a failure, too.
///
/// # Panics
/// One of the variables is not a number.
pub fn explore(
    seeds: u64,
    run: impl Fn(u64) -> Result<(), Failure> + Sync,
) -> Result<Explored, Failure> {
    let (first, beyond) = match number("SAMARA_SEED") {
        Some(seed) => (seed, seed.saturating_add(1)),
        None => {
            let first = number("SAMARA_FIRST_SEED").unwrap_or(0);
            let seeds = number("SAMARA_SEEDS").map_or(seeds, |wanted| wanted.max(seeds));
            (first, first.saturating_add(seeds))
        }
    };
    let next = AtomicU64::new(first);
    let failed = AtomicBool::new(false);
    let worst = Mutex::new(None::<Failure>);
    let work = || {
        // Relaxed: each seed is taken once; the results are behind the lock.
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= beyond {
                break;
            }
            if let Err(failure) = once(&run, seed) {
                failed.store(true, Ordering::Relaxed);
                let mut worst = crate::lock::locked(&worst);
                if worst.as_ref().is_none_or(|worst| worst.seed > failure.seed) {
                    *worst = Some(failure);
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    match worst.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(Explored { seeds: beyond - first }),
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn once(run: &impl Fn(u64) -> Result<(), Failure>, seed: u64) -> Result<(), Failure> {
    // A panic that was caught on the way is not the end of this run.
    drop(crate::sim::undriven());
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(failure)) => Err(Failure { seed: Some(seed), ..failure }),
        Err(panic) => {
            // Before or after the driver's run, a violation is a panic, but it also has its report.
            let cause = match crate::sim::undriven() {
                Some(report) => Cause::Violation(report),
                None => Cause::Panic(Default::default(), message(&*panic)),
            };
            Err(Failure { seed: Some(seed), cause })
        }
    }
}
