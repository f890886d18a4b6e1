//! The targets that the figures must reach.

use super::NAME;
use super::counts::LoopCounts;
use super::forks;
use super::rates::{Median, Sharing};
use alloc::format;
use alloc::vec::Vec;
use report::Target;

/// The places of the baselines in an array of results.
const LOCKED: usize = 0;
const COUNTED: usize = 1;
const OURS: usize = 2;

/// A bound of "times as fast as" a baseline: the loop, the sharing, the baseline, the bound.
const SPEEDS: [(&str, Sharing, usize, f64); 11] = [
    ("brk1", Sharing::Processes, LOCKED, 1.0),
    ("malloc1", Sharing::Processes, LOCKED, 1.0),
    ("malloc1", Sharing::Threads, LOCKED, 2.0),
    ("malloc1", Sharing::Threads, COUNTED, 1.5),
    ("mmap1", Sharing::Processes, LOCKED, 1.0),
    ("mmap1", Sharing::Threads, LOCKED, 1.0),
    ("mmap2", Sharing::Processes, LOCKED, 1.0),
    ("mmap and fault 1 page", Sharing::Threads, COUNTED, 1.5),
    ("fault 1 page", Sharing::Threads, COUNTED, 1.5),
    ("munmap 1 touched page", Sharing::Threads, COUNTED, 1.2),
    ("munmap 1 page never touched", Sharing::Threads, COUNTED, 1.8),
];

fn name_of(baseline: usize) -> &'static str {
    super::SpaceKind::ALL[baseline].name()
}

/// Ratios of operations a second. Those of threads need CPUs that run at once.
pub(super) fn of_rates(medians: &[Median], at_once: bool) -> Vec<Target> {
    let mut targets = Vec::new();
    for (name, sharing, baseline, bound) in SPEEDS {
        let of = |median: &&Median| median.name == name && median.sharing == sharing;
        for median in medians.iter().filter(of).filter(|median| at_once || median.cpus == 1) {
            let (cpus, shared) = (median.cpus, sharing.name());
            let target = format!("times {}: {name}, {shared}, {cpus} CPUs", name_of(baseline));
            let times = median.rate[OURS] / median.rate[baseline];
            targets.push(Target::at_least(NAME, target, times, bound));
        }
    }
    targets
}

/// Bounds of counts, which depend on no clock.
pub(super) fn of_counts(counts: &[LoopCounts]) -> Vec<Target> {
    let mut targets = Vec::new();
    for LoopCounts { name, cost, .. } in
        counts.iter().filter(|counts| counts.name == "fault 1 page")
    {
        let ratio = cost[OURS].instructions / cost[COUNTED].instructions;
        let target = format!("instructions of those of {}: {name}", name_of(COUNTED));
        targets.push(Target::at_most(NAME, target, ratio, 0.65));
        let target = format!("locked instructions: {name}");
        targets.push(Target::at_most(NAME, target, cost[OURS].atomics, 2.0));
    }
    targets
}

/// Bounds of forks.
pub(super) fn of_forks(medians: &[forks::Median]) -> Vec<Target> {
    let find = |pages| medians.iter().find(|median| median.pages == pages);
    let mut targets = Vec::new();
    let (small, large) = (find(1 << 12), medians.last());
    if let (Some(small), Some(large)) = (small, large.filter(|large| large.pages > 1 << 12)) {
        let ratio = large.instructions[OURS] / small.instructions[OURS];
        let target = format!("instructions of a fork: {} MiB of 16 MiB", large.pages >> 8);
        targets.push(Target::at_most(NAME, target, ratio, 1.1));
    }
    for baseline in [LOCKED, COUNTED] {
        let name = name_of(baseline);
        if let Some(least) = find(1 << 8) {
            let ratio = least.fork[OURS] / least.fork[baseline];
            let target = format!("time of a fork of 1 MiB, of that of {name}");
            targets.push(Target::at_most(NAME, target, ratio, 1.0));
        }
        for median in medians.iter().filter(|median| median.written[OURS].is_finite()) {
            let ratio = median.written[OURS] / median.written[baseline];
            let size = median.pages >> 8;
            let target = format!("time to fork and write all of {size} MiB, of that of {name}");
            targets.push(Target::at_most(NAME, target, ratio, 1.15));
        }
    }
    targets
}
