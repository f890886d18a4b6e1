//! Runs each trial on the machine in software with its checks: on threads with 1, 2 and 4 CPUs,
//! with timers that tick TLB grace periods and without, and under the deterministic driver.

mod common;

use common::{RunConfig, passes, passes_of_tables};
use paging::{Aarch64, Aarch64G16, Aarch64G16L3, Aarch64G64, Aarch64G64Lpa, Sv57, X86_64L4};
use sim::{Config, Grace, Sim};

/// On threads.
fn on_threads() -> impl Iterator<Item = RunConfig> {
    [1, 2, 4]
        .into_iter()
        .flat_map(|cpus| [false, true].map(|ticking| RunConfig::threads(cpus, ticking)))
}

/// Under the deterministic driver, from so many seeds.
fn from_seeds(seeds: u64) -> impl Iterator<Item = RunConfig> {
    (0..seeds).map(|seed| RunConfig::seeded(2 + (seed as usize & 1), seed))
}

/// Makes a test for each trial: on threads, and under the deterministic driver from so many seeds.
/// A function may change each run.
macro_rules! trials {
    ($($name:ident: $seeds:literal $(, $change:expr)?;)*) => {
        $(#[test]
        fn $name() {
            let runs = on_threads().chain(from_seeds($seeds));
            $(let runs = runs.map($change);)?
            passes::<X86_64L4>(stringify!($name), runs);
        })*

        /// On other architectures.
        mod others {
            use super::*;

            $(#[test]
            fn $name() {
                let runs = [RunConfig::threads(2, true), RunConfig::seeded(2, 1), RunConfig::seeded(3, 2)];
                let runs = runs.into_iter();
                $(let runs = runs.map($change);)?
                let name = stringify!($name);
                passes::<Sv57>(name, runs.clone());
                passes::<Aarch64>(name, runs);
            })*
        }

        #[test]
        fn each_trial_has_a_test() {
            let trials = trials::all::<Sim, X86_64L4, Grace>();
            let names: Vec<_> = trials.iter().map(|trial| trial.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

trials! {
    tree: 8;
    quicklists: 8;
    tables: 4;
    vmap: 2;
    gup: 12;
    stale: 3;
    exhausted: 3, few_frames;
}

/// With granules of 16 and 64 KiB, the trials that need no areas.
macro_rules! granules {
    ($($name:ident)*) => {
        mod granules {
            use super::*;

            $(#[test]
            fn $name() {
                let runs = [RunConfig::threads(2, true), RunConfig::seeded(2, 1), RunConfig::seeded(3, 2)];
                let name = stringify!($name);
                passes_of_tables::<Aarch64G16>(name, runs);
                passes_of_tables::<Aarch64G16L3>(name, runs.into_iter().take(1));
                passes_of_tables::<Aarch64G64>(name, runs.into_iter().take(2));
                passes_of_tables::<Aarch64G64Lpa>(name, runs.into_iter().take(1));
            })*

            #[test]
            fn each_of_them_has_a_test() {
                let trials = trials::of_tables::<Sim, Aarch64G64, Grace>();
                let names: Vec<_> = trials.iter().map(|trial| trial.name).collect();
                assert_eq!(names, [$(stringify!($name)),*]);
            }
        }
    };
}

granules! { tree quicklists tables gup stale }

/// Few frames, because the machine searches all tables for each frame that is freed.
fn few_frames(way: RunConfig) -> RunConfig {
    let frames = 900 + 300 * way.cpus as u64;
    RunConfig { config: Config { frames, ..way.config }, ..way }
}
