//! Counts of the calls and faults of programs, and the least number of free frames. Each CPU has
//! counts of its own, which only it writes.

use crate::cpu::area::bump;
use crate::machine::Kernel;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{Cpus, FrameSource, Irqs};
use mm::Access;
use spin::Once;

/// Numbers of calls that are counted singly.
pub(crate) const CALLS: usize = 512;

#[repr(align(128))]
struct Counts {
    calls: [AtomicU64; CALLS],
    faults: [AtomicU64; 3],
}

static COUNTS: Once<Box<[Counts]>> = Once::new();

fn here() -> &'static Counts {
    let make = |_| Counts {
        calls: [const { AtomicU64::new(0) }; CALLS],
        faults: [const { AtomicU64::new(0) }; 3],
    };
    let all = COUNTS.call_once(|| (0..Kernel.count()).map(make).collect());
    &all[Kernel.current().index()]
}

fn sum(of: impl Fn(&Counts) -> &AtomicU64) -> u64 {
    // Relaxed: a statistic.
    COUNTS.get().map_or(0, |all| all.iter().map(|one| of(one).load(Ordering::Relaxed)).sum())
}

/// Counts a call. Two loads, a store.
pub(crate) fn call(number: usize) {
    if let Some(count) = here().calls.get(number) {
        bump(count, 1);
    }
}

/// Counts a page fault.
pub(crate) fn fault(access: Access) {
    bump(&here().faults[access as usize], 1);
}

/// The calls that were made, with their numbers.
pub(crate) fn calls() -> impl Iterator<Item = (usize, u64)> {
    (0..CALLS).map(|number| (number, sum(|one| &one.calls[number]))).filter(|(_, count)| *count > 0)
}

/// The page faults of a kind.
pub(crate) fn faults(access: Access) -> u64 {
    sum(|one| &one.faults[access as usize])
}

static FRAMES_AT_START: AtomicU64 = AtomicU64::new(0);
static LEAST_FREE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The first program is about to start.
pub(crate) fn start() {
    // Relaxed: other CPUs run programs later.
    FRAMES_AT_START.store(Kernel.free_frames() as u64, Ordering::Relaxed);
}

/// The free frames before the first program; 0 while there is none.
pub(crate) fn frames_at_start() -> u64 {
    // Relaxed: written before programs run.
    FRAMES_AT_START.load(Ordering::Relaxed)
}

/// Looks at the frames in use, for their peak. Called at each tick; a load while no program runs.
pub(crate) fn look_at_frames() {
    if frames_at_start() == 0 {
        return;
    }
    let _section = Kernel.irqs_off();
    // Relaxed: a statistic.
    LEAST_FREE.fetch_min(Kernel.free_frames() as u64, Ordering::Relaxed);
}

/// The least number of free frames at any tick.
pub(crate) fn least_free() -> u64 {
    LEAST_FREE.load(Ordering::Relaxed)
}
