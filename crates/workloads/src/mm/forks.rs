//! Forks of spaces of different sizes, and writes to all pages after them.
//!
//! The baselines copy all tables at the fork. The first write to a page after a fork copies the
//! page; with ours, the first write below a table copies the table, too.

use super::memory::{PAGE, SharedMemory, VmaType, populate};
use super::{NAME, SpaceContext, SpaceKind};
use crate::error::Error;
use crate::lab::{Lab, Scale};
use crate::timing::{Rounds, Timer};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::{Machine, VirtAddr};
use report::{Note, Report, Row};

const BASE: usize = 0x1000_0000_0000;

/// The sizes of spaces, in pages: 1 MiB, 16 MiB, 256 MiB, 1 GiB.
const SIZES: [usize; 4] = [1 << 8, 1 << 12, 1 << 16, 1 << 18];
/// All pages of spaces up to this size are written after a fork.
const WRITTEN: usize = 1 << 12;

/// Frames that a space needs in addition to its pages: tables, and the program's own frames.
const MORE: usize = 4096;
/// The file, which spaces do not share with the baselines.
const FILES: usize = 4 * super::FILE;

/// The frames that the largest size needs which fits into so many.
pub(super) fn frames_for(most: usize) -> usize {
    SIZES.into_iter().rev().map(needed).find(|frames| *frames <= most).unwrap_or(MORE) + FILES
}

fn needed(pages: usize) -> usize {
    pages + pages / 128 + if pages <= WRITTEN { pages } else { 0 } + MORE
}

/// The medians of a size, in the order of [`SpaceKind::ALL`].
pub(super) struct Median {
    pub(super) pages: usize,
    /// Nanoseconds of a fork.
    pub(super) fork: [f64; 3],
    /// Instructions of a fork, if they were counted.
    pub(super) instructions: [f64; 3],
    /// Nanoseconds of a fork and of writing each page then, in the parent.
    pub(super) written: [f64; 3],
}

pub(super) fn measure<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    report: &mut Report,
) -> Result<Vec<Median>, Error> {
    let mut medians = Vec::new();
    let large = lab.scale != Scale::LEAST;
    for pages in SIZES.into_iter().filter(|pages| large || *pages <= WRITTEN) {
        if lab.on_first(|| lab.host.machine.free_frames()) < needed(pages) {
            let text = "left out: the machine has too little memory";
            report.notes.push(Note::new(NAME, "fork", 1, pages, text));
            continue;
        }
        let mut median = Median {
            pages,
            fork: [f64::NAN; 3],
            instructions: [f64::NAN; 3],
            written: [f64::NAN; 3],
        };
        for (at, way) in SpaceKind::ALL.into_iter().enumerate() {
            (lab.progress)(&format!("mm: fork of {} MiB, {}", pages >> 8, way.name()));
            let of_way = Fork { lab, context, way, pages };
            let [fork, written] =
                lab.on_first(|| of_way.run(&mut median.instructions[at], report))?;
            lab.settle(&context.paging);
            let row = |case| Row::new(NAME, case, way.name(), 1, pages);
            report.rows.extend(fork.rows(&row("fork"), "time", "ns"));
            median.fork[at] = fork.median();
            if written.len() != 0 {
                report.rows.extend(written.rows(&row("fork and write all"), "time", "ns"));
                median.written[at] = written.median();
            }
        }
        medians.push(median);
    }
    Ok(medians)
}

struct Fork<'f, 'l, M: Machine, G: Concurrent, R> {
    lab: &'f Lab<'l, M, G, R>,
    context: &'f Arc<SpaceContext<M>>,
    way: SpaceKind,
    pages: usize,
}

impl<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static> Fork<'_, '_, M, G, R> {
    /// A space with all pages present.
    fn space(&self) -> Result<SharedMemory, Error> {
        let space = self.way.make::<M, G, R>(self.context)?;
        populate(&*space)?;
        space.enter();
        space.map(Some(BASE), self.pages * PAGE, VmaType::Anonymous)?;
        self.write(&space)?;
        Ok(space)
    }

    fn write(&self, space: &SharedMemory) -> Result<(), Error> {
        (0..self.pages).try_for_each(|page| space.fault(BASE + page * PAGE))
    }

    /// Times forks, and forks with the writes after them.
    fn run(&self, instructions: &mut f64, report: &mut Report) -> Result<[Rounds; 2], Error> {
        let lab = self.lab;
        let timer = Timer::new(lab.time);
        let (mut forks, mut written) = (Rounds::default(), Rounds::default());
        let space = self.space()?;
        for _ in 0..lab.scale.rounds {
            let mut child = Err(Error::NoArea(VirtAddr::new(0)));
            forks.push(timer.each(1, || child = space.fork()));
            drop(child?);
            (lab.host.quiet)();
        }
        // Single-stepping a copy of many tables takes minutes, and one of few takes seconds.
        let (ours, small) = (self.way == SpaceKind::Ours, self.pages == SIZES[0]);
        if ours && small || lab.scale != Scale::LEAST && (ours || small) {
            let row = Row::new(NAME, "fork", self.way.name(), 1, self.pages);
            let child = Cell::new(None);
            let mut prepare = || {
                drop(child.take());
                (lab.host.quiet)();
            };
            let mut once = || child.set(space.fork().ok());
            let cost = lab.cost(&mut report.rows, &row, &mut prepare, &mut once);
            *instructions = cost.map_or(f64::NAN, |cost| cost.instructions);
        }
        space.leave();
        drop(space);
        for _ in 0..lab.scale.rounds {
            if self.pages > WRITTEN {
                break;
            }
            // A new space: the pages of one that has forked are shared, or were copied.
            let space = self.space()?;
            let mut done = Ok(());
            let mut child = None;
            written.push(timer.each(1, || {
                done = space.fork().and_then(|forked| {
                    child = Some(forked);
                    self.write(&space)
                });
            }));
            space.leave();
            drop((space, child));
            (lab.host.quiet)();
            done?;
        }
        Ok([forks, written])
    }
}
