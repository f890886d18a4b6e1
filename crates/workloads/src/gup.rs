//! The `gup` experiment: `get_user_pages_fast`, compared with a walk under locks.
//!
//! The baseline takes the address space's lock for reading, then the table's lock for each page.
//!
//! Each CPU pins its own pages in its own page-table page, so CPUs share only the cache lines that
//! each implementation makes them share. In the rounds with a writer, one more CPU maps and unmaps
//! its own pages without a pause; the baseline's writer holds the lock.
//!
//! The third row, "the pins alone", is the locked instruction on each page's own count and nothing
//! else. No kind of pinning can do without it, so it shows the limit of this machine.
//!
//! Two processors slow each other even if programs share nothing: they have one power budget, and
//! often one memory or one core. So the speed that each of two CPUs keeps is compared with what the
//! pins alone keep, whose CPUs share nothing. A round measures both, on one CPU and on two, one
//! right after the other. Only rounds count in which both CPUs had a processor throughout. These
//! rounds are short, so that there are some on a busy host. They are repeated until the spread of
//! their ratios does not reach the bound, and the median counts.

use crate::barrier::{Background, Barrier, Watch, at_once};
use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::{Lab, SECOND};
use crate::space::{PAGES, Space, range_of};
use crate::timing::{Rounds, TRIES, Timer, because};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::{Frame, FrameError, Machine, VirtAddr};
use paging::unpin;
use report::{Note, Report, Row, Target};

const NAME: &str = "gup";
/// Pages of a call: a database record, a buffer of 64 KiB, a whole page-table page.
const SIZES: [usize; 3] = [1, 16, PAGES];

/// The factor of batches in a round, so that other CPUs have time to interfere.
const LONGER: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum PinMethod {
    Locked,
    Fast,
    Pins,
}

impl PinMethod {
    const ALL: [PinMethod; 3] = [PinMethod::Locked, PinMethod::Fast, PinMethod::Pins];

    fn name(self) -> &'static str {
        match self {
            PinMethod::Locked => "address-space lock",
            PinMethod::Fast => "fast",
            PinMethod::Pins => "the pins alone",
        }
    }
}

/// The measurements of one implementation.
#[derive(Default)]
struct Times {
    time: Rounds,
    /// Those of rounds in which each CPU had a processor to itself throughout.
    together: Rounds,
    rate: Rounds,
    interrupts: Rounds,
    /// Batches done in all rounds, and those wanted.
    done: usize,
    wanted: usize,
}

pub(crate) fn experiment<M, G, R>() -> Experiment<M, G, R>
where
    M: Machine,
    G: Concurrent,
    R: RawRwLockFair + Send + Sync,
{
    // The writer has a CPU of its own.
    let sizes = |most| Vec::from([Size { cpus: most + 1, frames: 2048 + 600 * (most + 1) }]);
    Experiment {
        name: NAME,
        help: "Pinning a program's pages without a lock, compared with the address space's lock",
        parts: Vec::from([Part { needs: Needs::Memory(sizes), run: gup }]),
        work: None,
    }
}

/// Pins on some CPUs, with a concurrent writer and without.
///
/// # Errors
/// The machine has too little memory: it takes 520 frames for each CPU.
pub(crate) fn gup<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    let all = lab.cpus.iter().copied().max().unwrap_or(1);
    let paging = lab.paging()?;
    let space = lab.on_first(|| Space::<M, G, R>::new(&paging, all + 1))?;
    for (writer, case) in [(None, "alone"), (Some(all), "with a writer")] {
        for size in SIZES {
            // The writer needs a CPU, too.
            let most = lab.host.machine.count() - usize::from(writer.is_some());
            for cpus in lab.cpus.iter().copied().filter(|cpus| *cpus <= most) {
                (lab.progress)(&format!("gup: {size} pages a call on {cpus} CPUs, {case}"));
                let host = (lab.disturbed)();
                let mut times: [Times; 3] = Default::default();
                for done in 0..lab.scale.rounds * TRIES {
                    // With other CPUs the spread belongs to the result, so rounds are not
                    // refused.
                    let quiet = || times.iter().all(|times| times.time.refused().is_none());
                    if done >= lab.scale.rounds && (writer.is_some() || cpus > 1 || quiet()) {
                        break;
                    }
                    for (way, times) in PinMethod::ALL.into_iter().zip(&mut times) {
                        round(lab, &space, way, (size, LONGER), cpus, writer, times)?;
                    }
                }
                let note = |text| Note::new(NAME, case, cpus, size, text);
                for (way, times) in PinMethod::ALL.into_iter().zip(&times) {
                    let Times { done, wanted, .. } = times;
                    if done < wanted {
                        let limit = lab.scale.limit;
                        report.notes.push(note(format!(
                            "{}: cut after {done} of {wanted} batches, by the limit of {limit} s",
                            way.name()
                        )));
                    }
                }
                let alone_on_one = writer.is_none() && cpus == 1;
                let refused = times.iter().find_map(|times| times.time.refused());
                if let Some(why) = refused.as_ref().filter(|_| alone_on_one) {
                    report.notes.push(note(because(why, host, (lab.disturbed)())));
                }
                for (way, times) in PinMethod::ALL.into_iter().zip(&times) {
                    let row = Row::new(NAME, case, way.name(), cpus, size);
                    report.rows.extend(times.time.rows(&row, "time", "ns/page"));
                    let rate = times.rate.median();
                    report.rows.push(row.with("pinned and given up a second", rate, "pages"));
                    let sent = times.interrupts.median();
                    report.rows.push(row.with("interrupts a page pinned", sent, ""));
                }
                if alone_on_one && refused.is_none() {
                    against_locked(&mut report, size, &times);
                }
                if writer.is_none() && cpus == 2 && lab.at_once {
                    kept(lab, &space, size, &mut report)?;
                }
            }
        }
    }
    let stats = paging.gup_stats();
    report.targets.push(Target::at_most(NAME, "fast_gup_slow", stats.fast_gup_slow as f64, 0.0));
    cost(lab, &space, &mut report);
    let ended = lab.on_first(|| space.end(all + 1));
    lab.settle(&paging);
    Ok(ended.map(|()| report)?)
}

/// Adds the factor from our time to the locked path's, on one CPU: a figure without a target. Both
/// have the same walk and pin each page by a locked instruction, and the locked path has three more
/// of these, so the factor stays below 3. The rows of several CPUs show the cost of the lock. A
/// target holds the pin to one locked instruction.
fn against_locked(report: &mut Report, size: usize, [locked, fast, _]: &[Times; 3]) {
    let row = Row::new(NAME, "alone", PinMethod::Fast.name(), 1, size);
    let times = locked.time.times(&fast.time);
    report.rows.push(row.with("times as fast as the locked path", times, ""));
}

/// The least part of its speed that each of two CPUs keeps, of the part that the pins alone keep.
const KEPT: f64 = 0.9;

/// The most pairs of rounds that are tried, as a multiple of the rounds needed.
const PAIRS: usize = 64;

/// Adds the parts of their speed that two CPUs keep, and the target for ours compared with the pins
/// alone.
fn kept<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
    space: &Space<M, G, R>,
    size: usize,
    report: &mut Report,
) -> Result<(), Error> {
    let [mut fast, mut pins, mut ratios] = [const { Rounds::new() }; 3];
    for _ in 0..lab.scale.rounds * PAIRS {
        if ratios.len() >= lab.scale.rounds && ratios.clear_of(KEPT) {
            break;
        }
        let of_fast = pair(lab, space, PinMethod::Fast, size)?;
        let of_pins = pair(lab, space, PinMethod::Pins, size)?;
        if let Some((of_fast, of_pins)) = of_fast.zip(of_pins) {
            fast.push(of_fast);
            pins.push(of_pins);
            ratios.push(of_fast / of_pins);
        }
    }
    for (way, kept) in [(PinMethod::Fast, &fast), (PinMethod::Pins, &pins)] {
        let row = Row::new(NAME, "alone", way.name(), 2, size);
        if kept.len() > 0 {
            report.rows.push(row.with("kept of the speed on 1 CPU", kept.median(), ""));
        }
    }
    let target = format!("kept on 2 CPUs, of what the pins alone keep, {size} pages a call");
    report.targets.push(Target::at_least(NAME, target, ratios.median(), KEPT));
    Ok(())
}

/// The part of its speed that each of two CPUs keeps, in one round. `None` if they did not run at
/// the same time.
fn pair<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
    space: &Space<M, G, R>,
    way: PinMethod,
    size: usize,
) -> Result<Option<f64>, Error> {
    let [mut one, mut two]: [Times; 2] = Default::default();
    round(lab, space, way, (size, 1), 1, None, &mut one)?;
    round(lab, space, way, (size, 1), 2, None, &mut two)?;
    let kept = one.together.median() / two.together.median();
    Ok(kept.is_finite().then_some(kept))
}

/// One measurement: the pages of a call, and the factor of its batches.
fn round<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
    space: &Space<M, G, R>,
    way: PinMethod,
    (size, longer): (usize, usize),
    cpus: usize,
    writer: Option<usize>,
    times: &mut Times,
) -> Result<(), Error> {
    let batches = lab.scale.batches * longer;
    // The limit is shared out evenly between all rounds.
    let limit = lab.scale.limit * SECOND / (lab.scale.rounds * PinMethod::ALL.len()) as u64;
    let batches_of_all = AtomicUsize::new(0);
    let interrupts = (lab.interrupts)();
    let measure = |cpu: usize, watch: &Watch<'_, M>| {
        let mut frames = alloc::vec![Frame::default(); PAGES];
        // This CPU uses the space, so flushes must include it.
        space.tables.enter();
        let timer = Timer::new(lab.time);
        // The first batch fills caches, and finds the frames.
        batch(lab, &timer, space, PinMethod::Fast, PAGES, cpu, &mut frames);
        watch.start();
        let began = (lab.clock)();
        let mut times = Rounds::default();
        while times.len() < batches && (lab.clock)().saturating_sub(began) < limit {
            times.push(batch(lab, &timer, space, way, size, cpu, &mut frames));
        }
        // The mean includes waiting, which some batches have. Alone there is none, and outliers are
        // the host's.
        let time = if cpus == 1 && writer.is_none() { times.median() } else { times.mean() };
        watch.stop();
        // Relaxed: read after all programs have ended.
        batches_of_all.fetch_add(times.len(), Ordering::Relaxed);
        // SAFETY: the tables are not active here, and this CPU does not translate by them.
        unsafe { space.tables.leave() };
        Ok(time)
    };
    let mut background: Vec<Background<'_, M, Error>> = Vec::new();
    if let Some(own) = writer {
        background.push(Box::new(move |barrier, watch| {
            watch.start();
            write(lab, space, way, own, barrier)
        }));
    }
    let taken = at_once(lab, cpus, measure, background)?;
    times.time.push(taken.time);
    if taken.together {
        times.together.push(taken.time);
    }
    let done = batches_of_all.into_inner();
    times.done += done;
    times.wanted += batches * cpus;
    let pages = (done * PAGES) as f64;
    times.rate.push(pages / taken.wall as f64 * 1e9);
    times.interrupts.push((lab.interrupts)().saturating_sub(interrupts) as f64 / pages);
    Ok(())
}

/// Pins this CPU's pages, `size` in each call, and unpins them. Returns nanoseconds a page for
/// pinning.
fn batch<M: Machine, G: Concurrent, R: RawRwLockFair>(
    lab: &Lab<'_, M, G, R>,
    timer: &Timer,
    space: &Space<M, G, R>,
    way: PinMethod,
    size: usize,
    cpu: usize,
    frames: &mut [Frame],
) -> f64 {
    let start = range_of(cpu).start().get();
    let mut pinned = 0;
    let time = timer.each(PAGES, || {
        for (call, into) in frames.chunks_mut(size).enumerate() {
            let at = VirtAddr::new(start + ((call * size) << 12) as u64);
            pinned += match way {
                PinMethod::Locked => space.pin_locked(at, into),
                PinMethod::Fast => space.pin_fast(at, into),
                PinMethod::Pins => {
                    let pin = |frame: &&Frame| {
                        lab.host.machine.info(**frame).is_some_and(|info| info.try_pin(1))
                    };
                    into.iter().filter(pin).count()
                }
            };
        }
    });
    assert_eq!(pinned, PAGES, "all pages stay mapped, so all of them can be pinned");
    // SAFETY: all of them were pinned above, and nothing uses them.
    unsafe { unpin(lab.host.machine, frames) };
    (lab.host.quiet)();
    time
}

/// Maps and unmaps this CPU's pages as long as others measure.
fn write<M: Machine, G: Concurrent, R: RawRwLockFair>(
    lab: &Lab<'_, M, G, R>,
    space: &Space<M, G, R>,
    way: PinMethod,
    own: usize,
    barrier: &Barrier<'_, M>,
) -> Result<(), Error> {
    let range = range_of(own);
    while !barrier.is_over() {
        let frames = match way {
            PinMethod::Locked => space.unmap(range)?,
            _ => space.unmap_pages(range)?,
        };
        // The page-table page just retired may be the last free frame, and its grace period may
        // wait for a thread that has no processor: try again.
        loop {
            let mut frame =
                |page: usize| frames.get(page).copied().ok_or(FrameError::OutOfFrames { order: 0 });
            let mapped = match way {
                PinMethod::Locked => space.map(range, frame),
                _ => space.map_pages(range, &mut frame),
            };
            match mapped {
                Ok(()) => break,
                Err(paging::Error::Frames(_)) => lab.host.machine.relax(),
                Err(error) => return Err(error.into()),
            }
            (lab.host.quiet)();
        }
        (lab.host.quiet)();
    }
    Ok(())
}

/// Counts the instructions and cache lines of one call.
fn cost<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
    space: &Space<M, G, R>,
    report: &mut Report,
) {
    (lab.progress)("gup: counting");
    for way in [PinMethod::Locked, PinMethod::Fast] {
        for size in [1, 16] {
            let Report { rows, targets, .. } = &mut *report;
            lab.on_first(|| {
                let like = Row::new(NAME, "one call", way.name(), 1, size);
                let frames = core::cell::RefCell::new(alloc::vec![Frame::default(); size]);
                let pin = || {
                    let into = &mut frames.borrow_mut()[..];
                    match way {
                        PinMethod::Locked => space.pin_locked(range_of(0).start(), into),
                        _ => space.pin_fast(range_of(0).start(), into),
                    }
                };
                let pinned = core::cell::Cell::new(0);
                let give = || {
                    // SAFETY: the last call pinned so many, and nothing uses them.
                    unsafe { unpin(lab.host.machine, &frames.borrow()[..pinned.take()]) };
                };
                let cost = lab.cost(rows, &like, &mut || give(), &mut || pinned.set(pin()));
                give();
                if way == PinMethod::Fast {
                    let each = cost.map_or(f64::NAN, |cost| cost.atomics / size as f64);
                    let target = format!("locked instructions a page, {size} pages a call");
                    targets.push(Target::at_most(NAME, target, each, 1.0));
                }
            });
        }
    }
}
