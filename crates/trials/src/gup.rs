//! The `gup` trial: pages of a program are pinned without a lock while other CPUs unmap them.
//!
//! Each CPU changes its own pages: it unmaps them, frees their frames, maps others, and makes pages
//! read-only. It also pins pages of all CPUs. Each frame holds a mark of the page it is for. So a
//! frame that was freed while it was pinned is noticed once it is used for another page.

use crate::checked::{frame_is, give, is, is_absent, is_read_only, peek, poke, store, take};
use crate::environment::{Environment, page, pages, word};
use crate::own::Own;
use crate::program::Program;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Checker, Frame, Machine, Owner, Translated, VirtAddr};
use paging::{Attrs, Flags, Format, GupError, unpin};

/// Pages of the program at least, across a border of two page-table pages. They are few, so that
/// CPUs collide.
const PAGES: usize = 8;
/// Pages of each CPU at least.
const EACH: usize = 2;
/// The most pages that one call pins, and that a CPU keeps pinned.
const MOST: usize = 4;
const KEPT: usize = 8;
/// The words of a frame: the marks of its page begin at 0, then comes the word of the page's CPU,
/// and then a word for each CPU that pins it.
const MARKS: usize = 4;
const OWNERS: usize = 6;
const PINNERS: usize = 8;
/// Steps of each CPU in a round.
const STEPS: usize = 1000;
/// Steps between two quiescent states.
const QUIET: usize = 16;

/// A page that is mapped.
#[derive(Clone, Copy)]
struct Mapped {
    frame: Frame,
    value: u64,
    write: bool,
}

/// A page that is kept pinned, and the value that this CPU wrote to it.
struct Pinned {
    frame: Frame,
    number: usize,
    written: Option<u64>,
}

struct OwnPages<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    program: &'g Program<'g, 'a, M, F, G>,
    cpu: usize,
    /// The mappings of this CPU's pages, which are one in as many as there are CPUs. Those of other
    /// pages are unknown.
    pages: Vec<Option<Mapped>>,
    kept: Vec<Pinned>,
    count: u64,
}

pub(crate) fn gup<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        let program = Program::new(env)?;
        let result = env.at_once(|worker| {
            let count = PAGES.max(EACH * env.cpus).next_multiple_of(env.cpus);
            let (pages, kept) = (vec![None; count], Vec::new());
            let mut own =
                OwnPages { env, program: &program, cpu: worker.cpu, pages, kept, count: 0 };
            program.inside(|| own.run(worker))
        });
        result.and(program.end())
    })
}

/// The mark words of a page's frame.
fn mark(number: usize, index: usize) -> u64 {
    0x9a9e_0000_0000_0000 | (number as u64) << 16 | index as u64
}

fn at<F: Format>(number: usize) -> VirtAddr {
    let border = 0x4000_0000;
    page::<F>(VirtAddr::new(border - (PAGES as u64 / 2) * F::PAGE.bytes()), number)
}

impl<M: Machine + Translated, F: Format, G: Concurrent> OwnPages<'_, '_, M, F, G> {
    fn run(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let env = self.env;
        env.steps(STEPS, QUIET, |_| {
            self.count += 1;
            match worker.below(8) {
                0..3 => self.change(worker),
                3 if !self.kept.is_empty() => {
                    let pinned = self.kept.swap_remove(worker.below(self.kept.len()));
                    self.unpin(pinned)
                }
                _ => self.pin(worker),
            }
        })?;
        core::mem::take(&mut self.kept).into_iter().try_for_each(|pinned| self.unpin(pinned))?;
        // The marks must stay as long as other CPUs pin.
        worker.meet()?;
        (0..self.pages.len()).try_for_each(|number| self.unmap(number))
    }

    /// Changes one of this CPU's pages.
    fn change(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let (cpus, each) = (self.env.cpus, self.pages.len() / self.env.cpus);
        let (number, other) = (worker.below(each), worker.below(each));
        let (number, other) = (number * cpus + self.cpu, other * cpus + self.cpu);
        match (self.pages[number], worker.below(4)) {
            (None, _) => self.map(number),
            (Some(_), 0) => self.unmap(number),
            (Some(_), 1 | 2) => {
                // The frame source returns the same frame again. If it is mapped elsewhere, its
                // marks are wrong for a CPU that still has it for this page.
                self.unmap(number)?;
                self.map(if self.pages[other].is_none() { other } else { number })
            }
            (Some(was), _) => self.protect(number, was),
        }
    }

    fn map(&mut self, number: usize) -> Outcome {
        let machine = self.env.host.machine;
        let tables = self.program.tables();
        let frame = take::<F, M>(machine, 1, Owner::User)?[0];
        (0..MARKS).try_for_each(|index| poke(machine, frame, index, mark(number, index)))?;
        let range = pages::<F>(at::<F>(number), 1)?;
        machine.checker().check_reuse(tables.space(), range);
        tables.map_own(range, frame, Attrs::USER_RW).of("could not map a page")?;
        self.pages[number] = Some(Mapped { frame, value: 0, write: true });
        self.write(number)
    }

    /// Writes a new value to a writable page.
    fn write(&mut self, number: usize) -> Outcome {
        let value = (self.cpu as u64) << 48 | self.count;
        let what = format_args!("page {number}");
        store(self.env.host.machine, word(at::<F>(number), OWNERS), value, what)?;
        if let Some(mapped) = &mut self.pages[number] {
            mapped.value = value;
        }
        self.look(number)
    }

    /// Checks that a page of this CPU holds its marks and its value.
    fn look(&self, number: usize) -> Outcome {
        let Some(Mapped { frame, value, .. }) = self.pages[number] else { return Ok(()) };
        let machine = self.env.host.machine;
        let what = format_args!("page {number}, which is mapped to frame {frame}");
        is(machine, word(at::<F>(number), OWNERS), value, what)?;
        (0..MARKS).try_for_each(|index| {
            is(machine, word(at::<F>(number), index), mark(number, index), what)?;
            frame_is(machine, frame, index, mark(number, index), what)
        })
    }

    fn protect(&mut self, number: usize, was: Mapped) -> Outcome {
        let rights =
            Flags::READ | Flags::USER | if was.write { Flags::empty() } else { Flags::WRITE };
        let pending = self.program.tables().protect_own(pages::<F>(at::<F>(number), 1)?, rights);
        pending.of("could not change what a page allows")?.flush();
        self.pages[number] = Some(Mapped { write: !was.write, ..was });
        if !was.write {
            return self.write(number);
        }
        let what = format_args!("page {number}, made read-only");
        is_read_only(self.env.host.machine, word(at::<F>(number), OWNERS), 0, what)?;
        self.look(number)
    }

    /// Unmaps a page of this CPU if it is mapped, and gives its frame back. Pins keep it allocated.
    fn unmap(&mut self, number: usize) -> Outcome {
        self.look(number)?;
        let Some(was) = self.pages[number].take() else { return Ok(()) };
        let mut gone = None;
        let pending = self
            .program
            .tables()
            .unmap_own(pages::<F>(at::<F>(number), 1)?, |page| gone = Some(page.frame));
        pending.of("could not unmap")?.flush();
        if gone != Some(was.frame) {
            return fail(format!(
                "page {number} was mapped to frame {}, but unmapping it reported {gone:?}",
                was.frame
            ));
        }
        is_absent(self.env.host.machine, at::<F>(number), format_args!("page {number}, unmapped"))?;
        give(self.env.host.machine, &[was.frame])
    }

    /// Pins pages from `first` on, until one does not allow it. Returns their number.
    fn take(
        &self,
        worker: &mut Worker<'_, M>,
        first: usize,
        write: bool,
        into: &mut [Frame],
    ) -> Outcome<usize> {
        let tables = self.program.tables();
        // Pages are never faulted in: a page that is not mapped is a hole.
        let pins = match worker.below(8) {
            0 => tables.get_user_pages(at::<F>(first), write, into, |_, _| false),
            1 | 2 => tables.get_user_pages_fast_only(at::<F>(first), write, into),
            _ => tables.get_user_pages_fast(at::<F>(first), write, into, |_, _| false),
        };
        match pins {
            Ok(pins) => Ok(pins.keep()),
            Err(GupError::Hole(hole)) if hole == at::<F>(first) => Ok(0),
            Err(error) => fail(format!("could not pin pages from {first} on: {error}")),
        }
    }

    /// Pins pages, checks them, and unpins some.
    fn pin(&mut self, worker: &mut Worker<'_, M>) -> Outcome {
        let (first, most, write) =
            (worker.below(self.pages.len()), 1 + worker.below(MOST), worker.below(2) == 0);
        // Pins are of frames of 4 KiB.
        let each = F::PAGE.frames() as usize;
        let mut frames = [Frame::default(); MOST * 16];
        let pinned = self.take(worker, first, write, &mut frames[..most * each])?;
        let all = self.pages.len();
        if first + pinned / each > all || !pinned.is_multiple_of(each) {
            return fail(format!("of {all} pages, {pinned} frames were pinned from {first} on"));
        }
        for (page, number) in frames[..pinned].chunks(each).zip(first..) {
            let Some((frame, others)) = page.split_first() else { continue };
            if others.iter().zip(1..).any(|(other, more)| Some(*other) != frame.checked_add(more)) {
                return fail(format!("page {number} has the frames {page:?}"));
            }
            // SAFETY: they were just pinned. The first pin keeps the page.
            unsafe { unpin(self.env.host.machine, others) };
            let mut pinned = Pinned { frame: *frame, number, written: None };
            if write {
                let value = (self.cpu as u64) << 48 | self.count;
                poke(self.env.host.machine, *frame, PINNERS + self.cpu, value)?;
                // This CPU may have pinned the same frame before.
                for other in self.kept.iter_mut().filter(|other| other.frame == *frame) {
                    other.written = Some(value);
                }
                pinned.written = Some(value);
            }
            self.is_kept(&pinned)?;
            self.kept.push(pinned);
        }
        while self.kept.len() > KEPT {
            let pinned = self.kept.swap_remove(worker.below(self.kept.len()));
            self.unpin(pinned)?;
        }
        Ok(())
    }

    /// Checks that a pinned frame is allocated, has the marks of its page, and the value that this
    /// CPU wrote.
    fn is_kept(&self, pinned: &Pinned) -> Outcome {
        let (machine, Pinned { frame, number, written }) = (self.env.host.machine, pinned);
        let info = machine.info(*frame).map(|info| (info.pins(), info.owner()));
        if !matches!(info, Some((1.., Owner::User))) {
            return fail(format!(
                "frame {frame}, pinned as page {number}, has pins and owner {info:?}"
            ));
        }
        for index in 0..MARKS {
            let what = format_args!("frame {frame}, pinned as page {number}");
            frame_is(machine, *frame, index, mark(*number, index), what)?;
        }
        let found = peek(machine, *frame, PINNERS + self.cpu)?;
        match written {
            Some(written) if found != *written => fail(format!(
                "frame {frame}, pinned as page {number}, was written {written:#x} and is {found:#x}"
            )),
            _ => Ok(()),
        }
    }

    fn unpin(&self, pinned: Pinned) -> Outcome {
        self.is_kept(&pinned)?;
        // SAFETY: `pin` has pinned it, and uses it no more.
        unsafe { unpin(self.env.host.machine, &[pinned.frame]) };
        Ok(())
    }
}
