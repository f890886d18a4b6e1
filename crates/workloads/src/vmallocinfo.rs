//! The `vmallocinfo` experiment: readers that list all areas while a writer makes and frees
//! them.
//!
//! The baseline's readers take the writers' lock. Ours take no lock.
//!
//! The experiment keeps many areas alive. A writer allocates and frees one more, and readers list
//! all areas again and again. The figure is the time that the writer loses to the readers: in its
//! own processor time, and by the wall clock in rounds in which each CPU had a processor
//! throughout. It is compared with the time with as many CPUs that compute instead.
//!
//! Within a round, the other CPUs compute, read, and compute again, about a millisecond
//! each. The first third of each phase does not count. By then all CPUs have switched, and the
//! writer has cycled through its areas. So all else is equal in the phases: the addresses of
//! records and tables, the host's processor of each CPU, and the load of the host. Between rounds,
//! these differ by more than the effect. The difference between the two computing phases is the
//! error of the figures.
//!
//! No reader or computing CPU uses an address of an area, so it stays out of TLB grace periods.
//! Otherwise the writer's time would depend on the length of grace periods, which tells how many
//! areas it cycles through. With fewer processors than CPUs these are several timer periods long,
//! and computing and reading CPUs reach their timers at different rates.
//!
//! The second figure is the time of [`Areas::info`], which must not grow with the number of areas.
//!
//! The source is a patch for Linux of 2013. `get_vmalloc_info`, which each read of /proc/meminfo
//! calls, took 6.64 % of the system's time in a parallel build, 2.59 % of it for the lock alone,
//! and 0.50 % without the lock.

use crate::barrier::{Background, Barrier, Measured, Watch, at_once};
use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::Lab;
use crate::timing::{Rounds, Timer};
use crate::vmap::{Areas, LazyAreas, OneLockAreas, Rig, with_rig};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use grace::Concurrent;
use machine::{Machine, SharedAccess, VirtAddr};
use report::{Report, Row, Target};
use spin::mutex::SpinMutex;

const NAME: &str = "vmallocinfo";
const BEFORE: &str = "readers take the lock";
const AFTER: &str = "readers without a lock";
/// The largest number of readers at once.
const READERS: usize = 4;
/// Pages that the writer allocates.
const PAGES: usize = 4;
/// The baseline's operations are fewer by this factor: each goes through a long list, and waits for
/// readers that take turns with the lock.
const FEWER: usize = 32;
/// Turns at the phases in a round: ours, and the slower baseline's.
const TURNS: usize = 12;
const FEW_TURNS: usize = 2;
/// Rounds of ours for each of the baseline.
const MORE: usize = 4;
/// The number of areas that counts as few.
const FEW: usize = 100;
/// Steps of computing.
const COMPUTE: usize = 1 << 15;
/// Calls of [`Areas::info`] in a round.
const LOOKS: usize = 1000;

pub(crate) fn experiment<M: Machine, G: Concurrent, R: Sync>() -> Experiment<M, G, R> {
    let sizes = |_| Vec::from([Size { cpus: 1 + READERS, frames: 1 << 14 }]);
    Experiment {
        name: NAME,
        help: "Lockless readers of all areas, compared with readers that take the writers' lock",
        parts: Vec::from([Part { needs: Needs::Translations(sizes), run: vmallocinfo }]),
        work: None,
    }
}

/// Measures the time that a writer loses to readers, and the time of the sums over all areas.
///
/// # Errors
/// The machine has too little memory: it takes some thousand frames for tables.
pub(crate) fn vmallocinfo<M: Machine, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_rig(lab, 1, |rig, report| {
        LazyAreas::with(rig, 1, |new| with_readers(rig, new, report))?;
        LazyAreas::with(rig, 1, |few| LazyAreas::with(rig, 2, |many| sums(rig, few, many, report)))
    })
}

/// The phases of the other CPUs, in this order or reversed.
const IDLE: usize = 0;
const READING: usize = 1;
/// Computing again.
const AGAIN: usize = 2;

/// The measurements with so many other CPUs, by phase.
#[derive(Default)]
struct Times {
    time: [Rounds; 3],
    /// Those of rounds in which each CPU had a processor throughout.
    wall: [Rounds; 3],
    listed: Rounds,
}

fn with_readers<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    new: &LazyAreas<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let alive = rig.lab.scale.batches * 50;
    let times = rig.lab.scale.batches * 10;
    let most = READERS.min(rig.lab.host.machine.count() - 1);
    let old = OneLockAreas::new(Arc::clone(rig.lab.kernel.tables), rig.part(0)?);
    let kept_old = keep(rig, &old, alive)?;
    let kept_new = keep(rig, new, alive)?;
    for others in 0..=most {
        (rig.lab.progress)(&format!("vmallocinfo: {alive} areas, {others} readers"));
        let [mut before, mut after] = [Times::default(), Times::default()];
        for _ in 0..rig.lab.scale.rounds {
            write_with_others(rig, &old, others, FEW_TURNS, times.div_ceil(FEWER), &mut before)?;
            for _ in 0..MORE {
                // With timers no CPU is interrupted.
                let mut write = || write_with_others(rig, new, others, TURNS, times, &mut after);
                new.ticking(rig, &mut write).unwrap_or_else(write)?;
            }
        }
        tell(report, BEFORE, others, alive, &before);
        tell(report, AFTER, others, alive, &after);
        report.targets.extend(target(rig.lab.at_once, others, &after));
    }
    give_up(rig, &old, kept_old)?;
    give_up(rig, new, kept_new)
}

/// The target for a writer with other CPUs, if CPUs run at the same time. Otherwise the time
/// of one CPU includes that of others.
fn target(at_once: bool, others: usize, after: &Times) -> Option<Target> {
    let target = format!("per cent lost by a writer to {others} readers");
    let target = || Target::at_most(NAME, target, lost(&after.time, READING), 2.0);
    (at_once && others != 0).then(target)
}

/// Per cent by which a writer takes longer than with CPUs that compute.
fn lost(what: &[Rounds; 3], to: usize) -> f64 {
    let idle = &what[IDLE];
    // Taking both computing phases cancels a drift within the round.
    let than = if to == READING { &idle.between(&what[AGAIN]) } else { idle };
    (what[to].times(than) - 1.0) * 100.0
}

/// Adds the rows for so many CPUs next to the writer.
fn tell(report: &mut Report, name: &str, others: usize, alive: usize, found: &Times) {
    let idle = format!("with {others} that do not read");
    let cases = [&idle, &format!("with {others} readers"), &format!("{idle}, again")];
    let known = if others == 0 { 1 } else { cases.len() };
    let rows = cases.map(|case| Row::new(NAME, case, name, 1 + others, alive));
    for (row, time) in rows.iter().zip(&found.time).take(known) {
        report.rows.extend(time.rows(row, "time of a writer", "ns"));
    }
    if others == 0 {
        return;
    }
    for to in [READING, AGAIN] {
        report.rows.push(rows[to].with("lost by a writer", lost(&found.time, to), "%"));
        let by_the_clock = lost(&found.wall, to);
        // There may have been no such round.
        if by_the_clock.is_finite() {
            report.rows.push(rows[to].with("lost by a writer, by the clock", by_the_clock, "%"));
        }
    }
    report.rows.push(rows[READING].with("time of a listing", found.listed.median(), "ns"));
}

/// Makes areas that stay.
fn keep<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    count: usize,
) -> Result<Vec<VirtAddr>, Error> {
    rig.on_first(areas, || {
        let mut kept = Vec::with_capacity(count);
        rig.repeat(count, || {
            kept.push(areas.keep(rig.frames(1))?);
            Ok(())
        })?;
        Ok(kept)
    })
}

fn give_up<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    kept: Vec<VirtAddr>,
) -> Result<(), Error> {
    // From the last to the first.
    let mut kept = kept.into_iter().rev();
    rig.on_first(areas, || {
        rig.repeat(kept.len(), || kept.next().map_or(Ok(()), |at| areas.give_up(at)))
    })
}

/// Runs one round of a writer while other CPUs go through the phases, with `times` operations
/// in each part that counts.
fn write_with_others<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    others: usize,
    turns: usize,
    times: usize,
    found: &mut Times,
) -> Result<(), Error> {
    let kinds = if others == 0 { 1 } else { found.time.len() };
    let reading = AtomicBool::new(false);
    // Nanoseconds of an operation, in processor time and by the wall clock.
    let sums: SpinMutex<[(f64, f64); 3]> = SpinMutex::new(Default::default());
    let measure = |_: usize, watch: &Watch<'_, M>| {
        rig.inside(areas, || {
            let timer = Timer::new(rig.lab.time);
            let once = || areas.free(areas.alloc(PAGES)?);
            rig.repeat(times + 1, once)?;
            watch.start();
            let mut sums = sums.lock();
            for (turn, kind) in (0..turns).flat_map(|turn| (0..kinds).map(move |kind| (turn, kind)))
            {
                let kind = if turn % 2 == 0 { kind } else { kinds - 1 - kind };
                // Relaxed: a CPU that sees it late stays in the phase before, and that time does
                // not count.
                reading.store(kind == READING, Ordering::Relaxed);
                rig.repeat(times / 2, once)?;
                let began = (rig.lab.clock)();
                let mut done = Ok(());
                sums[kind].0 += timer.each(times, || done = rig.repeat(times, once));
                sums[kind].1 += (rig.lab.clock)().saturating_sub(began) as f64 / times as f64;
                done?;
            }
            watch.stop();
            Ok(0.0)
        })
    };
    let mut took: Vec<f64> = alloc::vec![f64::NAN; others];
    let reading = &reading;
    let others_work = took.iter_mut().map(|took| {
        Box::new(move |barrier: &Barrier<'_, M>, watch: &Watch<'_, M>| {
            (rig.lab.kernel.enter)();
            watch.start();
            *took = in_turns(rig, areas, barrier, reading);
            watch.stop();
            Ok(())
        }) as Background<'_, M, Error>
    });
    let taken: Measured = at_once(rig.lab, 1, measure, others_work.collect())?;
    for (kind, (time, wall)) in sums.into_inner().into_iter().enumerate().take(kinds) {
        found.time[kind].push(time / turns as f64);
        if taken.together {
            found.wall[kind].push(wall / turns as f64);
        }
    }
    took.into_iter().for_each(|time| found.listed.push(time));
    Ok(())
}

/// Lists areas or computes until the writer is done. Returns nanoseconds of a listing; there is at
/// least one.
fn in_turns<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    barrier: &Barrier<'_, M>,
    reading: &AtomicBool,
) -> f64 {
    let (mut time, mut listed) = (0, 0);
    while listed == 0 || !barrier.is_over() {
        // Relaxed: as in `write_with_others`.
        if barrier.is_over() || reading.load(Ordering::Relaxed) {
            let began = (rig.lab.time)();
            black_box(areas.list());
            time += (rig.lab.time)().saturating_sub(began);
            listed += 1;
        } else {
            compute(rig.lab.host.machine);
        }
        (rig.lab.host.quiet)();
    }
    time as f64 / f64::from(listed)
}

/// Computes without areas, for about as long as a listing takes.
fn compute(machine: &impl Machine) {
    for step in 0..COMPUTE {
        black_box(step);
        machine.step(SharedAccess::Other);
    }
}

/// Measures the sums over few areas and over many, in turns.
fn sums<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    few: &LazyAreas<M, G>,
    many: &LazyAreas<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let count = rig.lab.scale.batches * 500;
    (rig.lab.progress)(&format!("vmallocinfo: sums of {count} areas"));
    let old = OneLockAreas::new(Arc::clone(rig.lab.kernel.tables), rig.part(0)?);
    let kept = [keep(rig, &old, FEW)?, keep(rig, few, FEW)?, keep(rig, many, count)?];
    let mut times: [Rounds; 3] = Default::default();
    for _ in 0..rig.lab.scale.rounds {
        times[0].push(look(rig, &old)?);
        times[1].push(look(rig, few)?);
        times[2].push(look(rig, many)?);
    }
    for (times, name, areas) in
        [(&times[0], BEFORE, FEW), (&times[1], AFTER, FEW), (&times[2], AFTER, count)]
    {
        let row = Row::new(NAME, "get_vmalloc_info", name, 1, areas);
        report.rows.extend(times.rows(&row, "time", "ns"));
    }
    let target = format!("time of get_vmalloc_info of {count} areas, of that of {FEW}");
    report.targets.push(Target::at_most(NAME, target, times[2].times(&times[1]), 1.15));
    let [of_old, of_few, of_many] = kept;
    give_up(rig, &old, of_old)?;
    give_up(rig, few, of_few)?;
    give_up(rig, many, of_many)
}

/// Nanoseconds of a call of [`Areas::info`], on CPU 0.
fn look<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
) -> Result<f64, Error> {
    rig.on_first(areas, || {
        let timer = Timer::new(rig.lab.time);
        black_box(areas.info());
        Ok(timer.each(LOOKS, || {
            (0..LOOKS).for_each(|_| {
                black_box(areas.info());
            });
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_among_cpus_in_turns_has_no_target() {
        let mut after = Times::default();
        for (what, time) in [(IDLE, 10.0), (READING, 11.0), (AGAIN, 10.0)] {
            after.time[what].push(time);
        }
        let found = target(true, 2, &after).unwrap();
        assert_eq!(found.target, "per cent lost by a writer to 2 readers");
        assert!((found.value - 10.0).abs() < 1e-9, "{}", found.value);
        assert_eq!([target(false, 2, &after), target(true, 0, &after)], [None, None]);
    }
}
