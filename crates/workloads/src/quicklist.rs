//! Quicklists beside what they replace: a page from the frame source, cleared, with the constructor of top-level tables.
//!
//! What is measured is to have the page. What it becomes is said of it after that, of either alike: a store to the state of its frame
//! ([`set_owner`](machine::FrameSource::set_owner)), and the lines that say where that is.
//!
//! A batch takes as many pages as a program's tables may be, and gives them back; both are timed, apart. The source is a patch
//! for Linux that counted both ways of allocating (see [`PUBLISHED`]).

use crate::lab::{Counted, Lab};
use crate::mean::{Rounds, Timer};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::hint::black_box;
use grace::Concurrent;
use machine::{Asid, ENTRIES, Frame, FrameError, Machine, Place, VirtAddr, VirtRange};
use paging::{Error, PageTables, QUICK_ROOT, QUICK_TABLE, TableLists, X86_64L4};
use report::{Report, Row, Target};

const NAME: &str = "quicklist";
const BEFORE: &str = "frame source, cleared";
const AFTER: &str = "quicklist";
/// Pages that are taken before the first is given back: few stay in the nearest cache while they are cleared, many do not.
const TABLES: [usize; 3] = [8, 32, 128];
/// As many pages in a batch, whatever the size.
const BATCH: usize = 128;

/// Mean nanoseconds of an allocation, before and after: Lameter's quicklists for Linux, 2007.
const PUBLISHED: [(f64, f64); 4] = [(401.0, 8.0), (337.0, 7.0), (424.0, 7.0), (920.0, 8.0)];

/// A kind of table: its name, its list, and how many times less time one has to take.
type Kind = (&'static str, u8, f64);

const KINDS: [Kind; 4] = [
    ("pte", QUICK_TABLE, 25.0),
    ("pmd", QUICK_TABLE, 25.0),
    ("pud", QUICK_TABLE, 25.0),
    ("pgd", QUICK_ROOT, 60.0),
];

/// Allocation of each kind of page table with quicklists and without, on CPU 0.
///
/// # Errors
/// The machine has too little memory: it takes some 700 frames.
pub fn quicklist<M: Machine, G: Concurrent, R>(lab: &Lab<'_, M, G, R>) -> Result<Report, Error> {
    lab.on_first(|| on_cpu(lab))
}

fn on_cpu<M: Machine, G: Concurrent, R>(lab: &Lab<'_, M, G, R>) -> Result<Report, Error> {
    let machine = lab.machine;
    let paging = lab.paging()?;
    // The kernel's half, of which top-level tables have a copy.
    let kernel = Arc::new(PageTables::<M, X86_64L4, G>::kernel(&paging)?);
    if let Some(half) = VirtRange::new(VirtAddr::new(0xffff_8000_0000_0000), 1 << 46) {
        kernel.reserve(half)?;
    }
    drop(PageTables::<M, X86_64L4, G>::user(&paging, Asid(1), Some(Arc::clone(&kernel)))?);
    let quick = paging.quick();
    let mut report = Report::default();
    for (kind, published) in KINDS.into_iter().zip(PUBLISHED) {
        let (name, list, _) = kind;
        (lab.progress)(&format!("quicklist: {name}"));
        let kernel = (list == QUICK_ROOT).then(|| kernel.root());
        let before = Before { machine, kernel };
        let after = After { quick, list };
        for size in TABLES {
            let mut times: [Times; 2] = Default::default();
            for _ in 0..lab.scale.rounds {
                round(lab, size, &before, &mut times[0])?;
                round(lab, size, &after, &mut times[1])?;
            }
            tell(&mut report, kind, size, published, &times);
        }
        count(lab, &mut report, name, BEFORE, &before);
        count(lab, &mut report, name, AFTER, &after);
    }
    drop(kernel);
    quick.drain();
    Ok(report)
}

/// A page from the frame source, cleared; its upper half a copy of the kernel's, if there is one.
fn made<M: Machine>(machine: &M, kernel: Option<Frame>) -> Result<Frame, FrameError> {
    let frame = machine.alloc(0, Place::Local)?;
    let page = machine.frame_ptr(frame).ok_or(FrameError::NotOurs(frame))?;
    // SAFETY: the frame was just allocated: its memory is nobody else's. All words of 0 are a valid page of words.
    let page = unsafe {
        page.write_bytes(0, 4096);
        page.cast::<[u64; ENTRIES]>().as_mut()
    };
    if let Some(kernel) = kernel {
        // SAFETY: it is a table, as long as the kernel's tables are there.
        let entries = unsafe { machine.entries(kernel) }.ok_or(FrameError::NotOurs(kernel))?;
        let upper = ENTRIES / 2..ENTRIES;
        for (word, entry) in page[upper.clone()].iter_mut().zip(entries.range(upper)) {
            *word = entry.load();
        }
    }
    Ok(frame)
}

/// Takes pages for tables, and gives them back. What is measured is in place, as it is where tables are made.
trait Way {
    fn take(&self) -> Result<Frame, FrameError>;
    fn give(&self, page: Frame) -> Result<(), FrameError>;
}

/// From the frame source, cleared; with the constructor of a top-level table, if there is a kernel's.
struct Before<'a, M> {
    machine: &'a M,
    kernel: Option<Frame>,
}

impl<M: Machine> Way for Before<'_, M> {
    #[inline(always)]
    fn take(&self) -> Result<Frame, FrameError> {
        made(self.machine, self.kernel)
    }

    #[inline(always)]
    fn give(&self, page: Frame) -> Result<(), FrameError> {
        // SAFETY: it was just taken; nobody uses it.
        unsafe { self.machine.free(page) }
    }
}

/// From a quicklist.
struct After<'a, M: Machine> {
    quick: TableLists<'a, M>,
    list: u8,
}

impl<M: Machine> Way for After<'_, M> {
    #[inline(always)]
    fn take(&self) -> Result<Frame, FrameError> {
        // SAFETY: the kernel's tables stay until all has been measured.
        unsafe { self.quick.alloc(self.list) }
    }

    #[inline(always)]
    fn give(&self, page: Frame) -> Result<(), FrameError> {
        // SAFETY: it was just taken; nobody uses it, and nobody has written to it.
        unsafe { self.quick.free(self.list, page) }
    }
}

/// What was measured of a [`Way`].
#[derive(Default)]
struct Times {
    taking: Rounds,
    giving: Rounds,
    longest: Rounds,
}

/// Rows and a target of what was measured.
fn tell(
    report: &mut Report,
    (name, _, bound): Kind,
    size: usize,
    published: (f64, f64),
    [old, new]: &[Times; 2],
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
        report.rows.extend(figures.map(|(metric, value, unit)| like.with(metric, value, unit)));
        let like = Row { implementation: format!("{implementation}, published"), ..like };
        report.rows.push(like.with("mean", published, "ns"));
    }
    let times = old.taking.times(&new.taking);
    let target = format!("times as fast: {name}, {size} at once");
    report.targets.push(Target::at_least(NAME, target, times, bound));
}

/// What one allocation does, by number.
fn count<M: Machine, G, R>(
    lab: &Lab<'_, M, G, R>,
    report: &mut Report,
    name: &str,
    implementation: &str,
    way: &impl Way,
) {
    let like = Row::new(NAME, name, implementation, 1, 0);
    let taken = Cell::new(None);
    // What fails here has failed before.
    let give = || taken.take().map_or(Ok(()), |page| way.give(page)).unwrap_or_default();
    let mut take = || taken.set(way.take().ok());
    let counted = lab.count(&mut report.rows, &like, &mut || give(), &mut take);
    give();
    if implementation == AFTER {
        // What the counting itself touches: the closure, and where the result goes.
        let nothing = lab.count(&mut Vec::new(), &like, &mut || (), &mut || taken.set(None));
        let less = |of: fn(&Counted) -> f64| match (&counted, &nothing) {
            (Some(counted), Some(nothing)) => of(counted) - of(nothing),
            _ => f64::NAN,
        };
        for (what, lines) in [
            ("touched", less(|counted| counted.lines)),
            ("touched, but for what nobody writes", less(|counted| counted.written)),
        ] {
            let target = format!("cache lines {what}: {name}");
            report.targets.push(Target::at_most(NAME, target, lines, 2.0));
        }
    }
}

/// One round of a way, in the steady state: batches, then single ones. By the clock, which is read without a system call: after
/// one, eight allocations take longer than after none. The batch in the middle counts, so an interrupt does not.
fn round<M: Machine, G, R>(
    lab: &Lab<'_, M, G, R>,
    size: usize,
    way: &impl Way,
    times: &mut Times,
) -> Result<(), FrameError> {
    let timer = Timer::new(lab.clock);
    let mut pages = alloc::vec![Frame::default(); size];
    let (mut taking, mut giving, mut longest) = (Rounds::default(), Rounds::default(), 0.0f64);
    let batches = lab.scale.batches * (BATCH / size);
    for batch in 0..=batches {
        let mut done = Ok(());
        let take = timer.each(size, || {
            done = pages.iter_mut().try_for_each(|page| {
                *page = way.take()?;
                Ok(())
            });
            black_box(&mut pages);
        });
        done?;
        let give = timer.each(size, || {
            done = pages.iter().try_for_each(|page| way.give(*page));
        });
        done?;
        // The first fills lists and caches.
        if batch != 0 {
            taking.push(take);
            giving.push(give);
        }
    }
    for _ in 0..lab.scale.batches * 8 {
        let began = (lab.clock)();
        let page = black_box(way.take()?);
        longest = longest.max((lab.clock)().saturating_sub(began) as f64);
        way.give(page)?;
    }
    times.taking.push(taking.median());
    times.giving.push(giving.median());
    times.longest.push(longest);
    Ok(())
}
