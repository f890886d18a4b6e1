//! Readers of all areas beside those who make and free them: without a lock, and with the one that these take.
//!
//! So many areas are there all the time. A writer allocates and frees another; beside it readers list all areas, again and
//! again. What the writer loses to them is measured in its own processor time, and, in the rounds in which each CPU had a
//! processor throughout, by the clock. It is compared with as many CPUs that do something else meanwhile.
//!
//! Neither those that read nor those that do not use an address of an area, so no TLB grace period waits for them. Else the writer's
//! time would tell how long periods are, and so how many areas it goes through: on fewer processors than CPUs, several times as long as
//! a timer's, and by how a CPU that computes and one that reads come to their timers.
//!
//! The other half is [`Areas::info`], which has to take as long for many areas as for few.
//!
//! The source is a patch for Linux of 2013: `get_vmalloc_info`, called by whoever reads /proc/meminfo, took 6.64 % of the
//! system's time in a parallel build, 2.59 % of it for the lock alone, and 0.50 % without.

use crate::error::Error;
use crate::lab::{KernelHalf, Lab};
use crate::mean::{Rounds, Timer};
use crate::meeting::{Beside, Meeting, Taken, Watch, at_once};
use crate::vmap::{Areas, NewAreas, OldAreas, Rig, with_rig};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint::black_box;
use grace::Concurrent;
use machine::{Access, Machine, VirtAddr};
use report::{Report, Row, Target};

const NAME: &str = "vmallocinfo";
const BEFORE: &str = "readers take the lock";
const AFTER: &str = "readers without a lock";
/// Readers at once, at most.
const READERS: usize = 4;
/// Pages that the writer allocates.
const PAGES: usize = 4;
/// The old way goes through a long list for each, and waits for readers that take turns with the lock.
const FEWER: usize = 32;
/// Ours is quick, and what it loses is little: it is done more often in each round, and for longer.
const TURNS: usize = 4;
const LONGER: usize = 2;
/// Areas when there are few.
const FEW: usize = 100;
/// Steps of what is done by those that do not read.
const COMPUTE: usize = 1 << 15;
/// Looks in a round.
const LOOKS: usize = 1000;

/// What a writer loses to readers, and what a look at the sums takes.
///
/// # Errors
/// The machine has too little memory: it takes some thousand frames for tables.
pub fn vmallocinfo<M: Machine, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
    half: &KernelHalf<'_, M, G>,
) -> Result<Report, Error> {
    with_rig(lab, half, 1, |rig, report| {
        NewAreas::with(rig, 1, |new| beside_readers(rig, new, report))?;
        NewAreas::with(rig, 1, |few| NewAreas::with(rig, 2, |many| sums(rig, few, many, report)))
    })
}

/// What was measured beside so many CPUs that read, or that do not.
#[derive(Default)]
struct Times {
    time: Rounds,
    /// Of the rounds in which each CPU had a processor.
    wall: Rounds,
    listed: Rounds,
}

fn beside_readers<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    new: &NewAreas<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let alive = rig.lab.scale.batches * 50;
    let times = rig.lab.scale.batches * 64;
    let most = READERS.min(rig.lab.machine.count() - 1);
    let old = OldAreas::new(Arc::clone(rig.half.tables), rig.part(0)?);
    let kept_old = keep(rig, &old, alive)?;
    let kept_new = keep(rig, new, alive)?;
    for others in 0..=most {
        (rig.lab.progress)(&format!("vmallocinfo: {alive} areas, {others} readers"));
        // Of each way: beside others that do not read, and beside readers.
        let mut found: [[Times; 2]; 2] = Default::default();
        let [before, after] = &mut found;
        for _ in 0..rig.lab.scale.rounds {
            for reading in [false, true].into_iter().take(1 + others) {
                let into = &mut before[usize::from(reading)];
                write_beside(rig, &old, others, reading, times.div_ceil(FEWER), into)?;
            }
            // With timers, nobody is interrupted.
            let mut write = || ours_in_turns(rig, new, others, times, after);
            new.ticking(rig, &mut write).unwrap_or_else(write)?;
        }
        for (name, [idle, reading]) in [BEFORE, AFTER].into_iter().zip(&found) {
            tell(report, name, others, alive, idle, reading);
        }
    }
    give_up(rig, &old, kept_old)?;
    give_up(rig, new, kept_new)
}

/// Rounds of a writer of ours, beside others that do not read and beside readers, each as often first as second.
fn ours_in_turns<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    new: &NewAreas<M, G>,
    others: usize,
    times: usize,
    found: &mut [Times; 2],
) -> Result<(), Error> {
    for turn in 0..TURNS {
        let first = turn % 2 != 0;
        for reading in [first, !first].into_iter().filter(|reading| others != 0 || !reading) {
            write_beside(
                rig,
                new,
                others,
                reading,
                LONGER * times,
                &mut found[usize::from(reading)],
            )?;
        }
    }
    Ok(())
}

/// Rows, and a target, of so many others.
fn tell(
    report: &mut Report,
    name: &str,
    others: usize,
    alive: usize,
    idle: &Times,
    reading: &Times,
) {
    let mut row = |case: &str, times: &Times| {
        let row = Row::new(NAME, case, name, 1 + others, alive);
        report.rows.extend(times.time.rows(&row, "time of a writer", "ns"));
        row
    };
    row(&format!("beside {others} that do not read"), idle);
    if others == 0 {
        return;
    }
    let row = row(&format!("beside {others} readers"), reading);
    let lost = (reading.time.times(&idle.time) - 1.0) * 100.0;
    report.rows.push(row.with("lost by a writer", lost, "%"));
    let by_the_clock = (reading.wall.median() / idle.wall.median() - 1.0) * 100.0;
    // There may have been no such round.
    if by_the_clock.is_finite() {
        report.rows.push(row.with("lost by a writer, by the clock", by_the_clock, "%"));
    }
    report.rows.push(row.with("time of a listing", reading.listed.median(), "ns"));
    if name == AFTER {
        let target = format!("per cent lost by a writer to {others} readers");
        report.targets.push(Target::at_most(NAME, target, lost, 2.0));
    }
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

/// One round of a writer, beside others that read or do not.
fn write_beside<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    others: usize,
    reading: bool,
    times: usize,
    found: &mut Times,
) -> Result<(), Error> {
    let measure = |_: usize, watch: &Watch<'_, M>| {
        rig.inside(areas, || {
            let timer = Timer::new(rig.lab.time);
            let once = || areas.free(areas.alloc(PAGES)?);
            rig.repeat(times / 8 + 1, once)?;
            watch.start();
            let mut done = Ok(());
            let time = timer.each(times, || done = rig.repeat(times, once));
            watch.stop();
            done.map(|()| time)
        })
    };
    let mut took: Vec<f64> = alloc::vec![f64::NAN; others];
    let beside = took.iter_mut().map(|took| {
        Box::new(move |meeting: &Meeting<'_, M>, watch: &Watch<'_, M>| {
            (rig.half.enter)();
            watch.start();
            *took = match reading {
                true => until_over(rig, meeting, || {
                    black_box(areas.list());
                }),
                false => until_over(rig, meeting, || compute(rig.lab.machine)),
            };
            watch.stop();
            Ok(())
        }) as Beside<'_, M, Error>
    });
    let taken: Taken = at_once(rig.lab, 1, measure, beside.collect())?;
    found.time.push(taken.time);
    if taken.together {
        found.wall.push(taken.wall as f64 / times as f64);
    }
    if reading {
        took.into_iter().for_each(|time| found.listed.push(time));
    }
    Ok(())
}

/// Something that has nothing to do with areas, for about as long as a listing takes.
fn compute(machine: &impl Machine) {
    for step in 0..COMPUTE {
        black_box(step);
        machine.step(Access::Shared);
    }
}

/// Does something until the writer is done, at least once; nanoseconds for each time.
fn until_over<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    meeting: &Meeting<'_, M>,
    mut work: impl FnMut(),
) -> f64 {
    let began = (rig.lab.time)();
    let mut done = 0;
    loop {
        work();
        done += 1;
        (rig.lab.quiet)();
        if meeting.is_over() {
            return (rig.lab.time)().saturating_sub(began) as f64 / f64::from(done);
        }
    }
}

/// A look at the sums of few areas and of many, in turns.
fn sums<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    few: &NewAreas<M, G>,
    many: &NewAreas<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let count = rig.lab.scale.batches * 500;
    (rig.lab.progress)(&format!("vmallocinfo: sums of {count} areas"));
    let old = OldAreas::new(Arc::clone(rig.half.tables), rig.part(0)?);
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

/// Nanoseconds of a look, on CPU 0.
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
