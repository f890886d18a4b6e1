//! The `quicklist` experiment: allocation of page-table pages from quicklists, compared with frames
//! that are cleared.
//!
//! The baseline takes a frame of the frame source, clears it, and runs the constructor of top-level
//! tables. Both stop before the store to the frame's state that says what the page is used for
//! ([`set_owner`](machine::FrameSource::set_owner)): it is the same for both.
//!
//! A batch takes as many pages as a program's tables may have, and gives them back. The two halves
//! are timed apart. The published figures are from a patch for Linux that counted both ways to
//! allocate (see [`PUBLISHED`]).

use crate::error::Error;
use crate::experiment::{Experiment, Needs, Part, Size};
use crate::lab::{Lab, OpCost};
use crate::timing::{Halves, Rounds, TRIES, because};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::hint::black_box;
use grace::Concurrent;
use machine::{Asid, ENTRIES, Frame, FrameError, Machine, NodePolicy, VirtAddr, VirtRange};
use paging::{PageTables, QUICK_ROOT, QUICK_TABLE, TableLists, X86_64L4};
use report::{Note, Report, Row, Target};

const NAME: &str = "quicklist";
const BEFORE: &str = "frame source, cleared";
const AFTER: &str = "quicklist";
/// Pages taken before the first is given back. Few of them stay in the L1 cache while they are
/// cleared, many do not.
const TABLES: [usize; 3] = [8, 32, 128];
/// Pages in a batch, for all sizes.
const BATCH: usize = 128;

/// Mean nanoseconds of an allocation, before and after: Lameter's quicklists for Linux, 2007.
const PUBLISHED: [(f64, f64); 4] = [(401.0, 8.0), (337.0, 7.0), (424.0, 7.0), (920.0, 8.0)];

/// A kind of table: its name, its list, the factor that is the target, and the smallest size that
/// has the target.
///
/// For smaller sizes the factor is measured without a target: the frames are cleared in the L1
/// cache, and a page from a list reads and writes back two numbers in memory, which takes 8 cycles
/// at least.
type TableKind = (&'static str, u8, f64, usize);

const KINDS: [TableKind; 4] = [
    ("pte", QUICK_TABLE, 25.0, 32),
    ("pmd", QUICK_TABLE, 25.0, 32),
    ("pud", QUICK_TABLE, 25.0, 32),
    ("pgd", QUICK_ROOT, 60.0, 128),
];

pub(crate) fn experiment<M: Machine, G: Concurrent, R>() -> Experiment<M, G, R> {
    let sizes = |_| Vec::from([Size { cpus: 1, frames: 2048 }]);
    Experiment {
        name: NAME,
        help: "Page-table pages from quicklists, compared with frames that are cleared",
        parts: Vec::from([Part { needs: Needs::Memory(sizes), run: quicklist }]),
        work: None,
    }
}

/// Times the allocation of each kind of page-table page with quicklists and without, on CPU 0.
///
/// # Errors
/// The machine has too little memory: it takes some 700 frames.
pub(crate) fn quicklist<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    lab.on_first(|| on_cpu(lab))
}

fn on_cpu<M: Machine, G: Concurrent, R>(lab: &Lab<'_, M, G, R>) -> Result<Report, Error> {
    let machine = lab.host.machine;
    let paging = lab.paging()?;
    // The kernel's half, which the constructor of top-level tables copies.
    let kernel = Arc::new(PageTables::<M, X86_64L4, G>::kernel(&paging)?);
    if let Some(half) = VirtRange::new(VirtAddr::new(0xffff_8000_0000_0000), 1 << 46) {
        kernel.reserve(half)?;
    }
    drop(PageTables::<M, X86_64L4, G>::user(&paging, Asid(1), Some(Arc::clone(&kernel)))?);
    let quick = paging.quick();
    let mut report = Report::default();
    for (kind, published) in KINDS.into_iter().zip(PUBLISHED) {
        let (name, list, ..) = kind;
        (lab.progress)(&format!("quicklist: {name}"));
        let kernel = (list == QUICK_ROOT).then(|| kernel.root());
        let before = Before { machine, kernel };
        let after = After { quick, list };
        for size in TABLES {
            let host = (lab.disturbed)();
            let (mut times, mut refused): ([Times; 2], Option<String>) = Default::default();
            for _ in 0..lab.scale.rounds * TRIES {
                // Both implementations or neither: they are compared round by round.
                match (round(lab, size, &before)?, round(lab, size, &after)?) {
                    (Ok(old), Ok(new)) => {
                        times[0].push(old);
                        times[1].push(new);
                    }
                    (Err(why), _) | (_, Err(why)) => refused = Some(why),
                }
                let enough = times[0].taking.len() >= lab.scale.rounds;
                if enough && times.iter().all(|times| times.taking.refused().is_none()) {
                    refused = None;
                    break;
                }
            }
            let apart = || times.iter().find_map(|times| times.taking.refused());
            let refused = if times[0].taking.len() == 0 { refused } else { None }.or_else(apart);
            if let Some(why) = &refused {
                let why = because(why, host, (lab.disturbed)());
                report.notes.push(Note::new(NAME, name, 1, size, why));
            }
            tell(&mut report, kind, size, published, &times, refused.is_none());
        }
        cost(lab, &mut report, name, BEFORE, &before);
        cost(lab, &mut report, name, AFTER, &after);
    }
    drop(kernel);
    quick.drain();
    Ok(report)
}

/// A cleared frame of the frame source. If there is a kernel's table, the upper half is a copy of
/// it.
fn made<M: Machine>(machine: &M, kernel: Option<Frame>) -> Result<Frame, FrameError> {
    let frame = machine.alloc(0, NodePolicy::Local)?;
    let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
    // SAFETY: the frame was just allocated, so nothing else uses its memory. Words of 0 are a valid
    // page of words.
    let page = unsafe {
        page.write_bytes(0, 4096);
        page.cast::<[u64; ENTRIES]>().as_mut()
    };
    if let Some(kernel) = kernel {
        // SAFETY: it is a table, as long as the kernel's tables exist.
        let entries = unsafe { machine.entries(kernel) }.ok_or(FrameError::NotOurs(kernel))?;
        let upper = ENTRIES / 2..ENTRIES;
        for (word, entry) in page[upper.clone()].iter_mut().zip(entries.range(upper)) {
            *word = entry.load();
        }
    }
    Ok(frame)
}

/// Takes pages for tables, and gives them back. Inlined, as it is where tables are made.
trait TableSource {
    fn take(&self) -> Result<Frame, FrameError>;
    fn give(&self, page: Frame) -> Result<(), FrameError>;
}

/// From the frame source, cleared; with the constructor of a top-level table, if there is a
/// kernel's table.
struct Before<'a, M> {
    machine: &'a M,
    kernel: Option<Frame>,
}

impl<M: Machine> TableSource for Before<'_, M> {
    #[inline(always)]
    fn take(&self) -> Result<Frame, FrameError> {
        made(self.machine, self.kernel)
    }

    #[inline(always)]
    fn give(&self, page: Frame) -> Result<(), FrameError> {
        // SAFETY: it was just taken; nothing uses it.
        unsafe { self.machine.free(page) }
    }
}

/// From a quicklist.
struct After<'a, M: Machine> {
    quick: TableLists<'a, M>,
    list: u8,
}

impl<M: Machine> TableSource for After<'_, M> {
    #[inline(always)]
    fn take(&self) -> Result<Frame, FrameError> {
        // SAFETY: the kernel's tables stay until all measurements are done.
        unsafe { self.quick.alloc(self.list) }
    }

    #[inline(always)]
    fn give(&self, page: Frame) -> Result<(), FrameError> {
        // SAFETY: it was just taken; nothing uses it, and nothing has written to it.
        unsafe { self.quick.free(self.list, page) }
    }
}

/// The measurements of a [`TableSource`].
#[derive(Default)]
struct Times {
    taking: Rounds,
    giving: Rounds,
    longest: Rounds,
}

impl Times {
    fn push(&mut self, [take, give, longest]: [f64; 3]) {
        self.taking.push(take);
        self.giving.push(give);
        self.longest.push(longest);
    }
}

/// Adds rows, and a target.
fn tell(
    report: &mut Report,
    (name, _, bound, from): TableKind,
    size: usize,
    published: (f64, f64),
    [old, new]: &[Times; 2],
    measured: bool,
) {
    for (implementation, times, published) in
        [(BEFORE, &old, published.0), (AFTER, &new, published.1)]
    {
        let like = Row::new(NAME, name, implementation, 1, size);
        let figures = [
            ("mean", times.taking.median(), "ns"),
            ("spread of the mean", times.taking.spread(), "%"),
            ("longest", times.longest.most(), "ns"),
            ("mean of giving back", times.giving.median(), "ns"),
        ];
        if times.taking.len() > 0 {
            report.rows.extend(figures.map(|(metric, value, unit)| like.with(metric, value, unit)));
        }
        let like = Row { implementation: format!("{implementation}, published"), ..like };
        report.rows.push(like.with("mean", published, "ns"));
    }
    let times = if measured { old.taking.times(&new.taking) } else { f64::NAN };
    if measured {
        let like = Row::new(NAME, name, AFTER, 1, size);
        report.rows.push(like.with("times as fast as the frame source", times, ""));
    }
    if size >= from {
        let target = format!("times as fast: {name}, {size} at once");
        report.targets.push(Target::at_least(NAME, target, times, bound));
    }
}

/// Counts the instructions and cache lines of one allocation.
fn cost<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    report: &mut Report,
    name: &str,
    implementation: &str,
    way: &impl TableSource,
) {
    let like = Row::new(NAME, name, implementation, 1, 0);
    let taken = Cell::new(None);
    // An error here has occurred in the measured rounds before.
    let give = || taken.take().map_or(Ok(()), |page| way.give(page)).unwrap_or_default();
    let mut take = || taken.set(way.take().ok());
    let cost = lab.cost(&mut report.rows, &like, &mut || give(), &mut take);
    give();
    if implementation == AFTER {
        // The counting itself touches the closure and the place of the result.
        let nothing = lab.cost(&mut Vec::new(), &like, &mut || (), &mut || taken.set(None));
        let less = |of: fn(&OpCost) -> f64| match (&cost, &nothing) {
            (Some(cost), Some(nothing)) => of(cost) - of(nothing),
            _ => f64::NAN,
        };
        for (what, lines) in
            [("touched", less(|cost| cost.lines)), ("written", less(|cost| cost.written))]
        {
            let target = format!("cache lines {what}: {name}");
            report.targets.push(Target::at_most(NAME, target, lines, 2.0));
        }
    }
}

/// One round in the steady state: batches, then single operations. It is timed by the wall clock,
/// which is read without a system call: right after one, eight allocations take longer. The median
/// batch counts, so an interrupt does not. Returns nanoseconds a page to take it and to give it
/// back, and the longest; or the reason why they cannot be told.
fn round<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    size: usize,
    way: &impl TableSource,
) -> Result<Result<[f64; 3], String>, FrameError> {
    let mut halves = Halves::new(lab.clock);
    let mut pages = alloc::vec![Frame::default(); size];
    let pages = Cell::from_mut(&mut pages[..]).as_slice_of_cells();
    let take = || {
        pages.iter().try_for_each(|page| {
            page.set(way.take()?);
            Ok(())
        })?;
        black_box(pages);
        Ok::<_, FrameError>(())
    };
    let give = || pages.iter().try_for_each(|page| way.give(page.get()));
    // The first batch fills lists and caches.
    take()?;
    give()?;
    let mut longest = 0.0f64;
    let batches = lab.scale.batches * (BATCH / size);
    for _ in 0..batches {
        halves.apart(take, give)?;
    }
    for _ in 0..lab.scale.batches {
        halves.together(|| take().and_then(|()| give()))?;
    }
    for _ in 0..lab.scale.batches * 8 {
        let began = (lab.clock)();
        let page = black_box(way.take()?);
        longest = longest.max((lab.clock)().saturating_sub(began) as f64);
        way.give(page)?;
    }
    let each = |both: [f64; 2]| both.map(|half| half / size as f64);
    Ok(halves.shares().map(each).map(|[take, give]| [take, give, longest]))
}
