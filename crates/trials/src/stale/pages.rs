//! Pages that one CPU changes, and that all look at before and after.

use crate::crew::{Outcome, Told, Worker, seen};
use crate::ground::{Ground, Tables, Turns, page, pages, word};
use crate::own::Own;
use crate::program::Program;
use crate::sight::{frame_is, give, is, is_absent, is_read_only, load, poke, store, take};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use grace::Concurrent;
use machine::{Frame, Machine, Owner, Translated, VirtAddr};
use paging::{Attrs, Failed, Flags, PendingFlush, X86_64L4};

/// As many pages: more than the nearest TLB of any processor holds, less than all of them together.
const PAGES: usize = 384;
/// The pages in pieces that are changed with one flush each, in turns: all at once, which may flush
/// everything, and fewer, which flushes page by page. Few pieces: where CPUs are many and
/// processors few, a flush takes as long as it takes until all have run.
const PIECES: [&[usize]; 3] = [&[PAGES], &[1, 8, 31, 64, 280], &[120, 3, 261]];
/// The word of each page that each CPU writes begins here.
const OWN: usize = 8;

/// The pages and what is behind them: one set of frames is mapped, the other was before or will be.
struct Stage<'a, M: Machine, G: Concurrent> {
    machine: &'a M,
    tables: &'a Tables<M, G>,
    at: VirtAddr,
    attrs: Attrs,
    sets: [Vec<Frame>; 2],
    cpus: usize,
    whose: &'static str,
}

/// The kernel's pages.
pub(super) fn kernel<M: Machine + Translated, G: Concurrent>(
    ground: &Ground<'_, M, G>,
) -> Result<(), String> {
    let range = ground.part(0)?;
    let stage = Stage::new(ground, ground.tables, range.start(), "the kernel's")?;
    let result = ground.at_once(|worker| stage.turns(worker, ground.rounds));
    let ended = ground.on_first(|| {
        stage.end()?;
        ground.tables.prune_own(range).of("to prune")?.flush();
        Ok(())
    });
    result.and(ended)
}

/// A program's pages.
pub(super) fn program<M: Machine + Translated, G: Concurrent>(
    ground: &Ground<'_, M, G>,
) -> Result<(), String> {
    let program = Program::new(ground)?;
    let at = VirtAddr::new(0x4000_0000 - 0x10_0000);
    let result = Stage::new(ground, program.tables(), at, "the program's").and_then(|stage| {
        let result = ground.at_once(|worker| program.inside(|| stage.turns(worker, ground.rounds)));
        result.and(ground.on_first(|| stage.end()))
    });
    result.and(program.end())
}

/// What is in a page that was mapped in this turn.
fn mark(turn: usize, number: usize) -> u64 {
    0x5a1e_0000_0000_0000 | (turn as u64) << 16 | number as u64
}

/// What a CPU writes in this turn, before the pages are changed and afterwards.
fn stamp(turn: usize, cpu: usize, after: bool) -> u64 {
    0xc0de_0000_0000_0000 | (turn as u64) << 17 | u64::from(after) << 16 | cpu as u64
}

type Changed<'p, M, G> = Result<PendingFlush<'p, M, X86_64L4, G>, Failed<'p, M, X86_64L4, G>>;

impl<'a, M: Machine + Translated, G: Concurrent> Stage<'a, M, G> {
    fn new(
        ground: &Ground<'a, M, G>,
        tables: &'a Tables<M, G>,
        at: VirtAddr,
        whose: &'static str,
    ) -> Result<Self, String> {
        let (machine, cpus) = (ground.host.machine, ground.cpus);
        let (attrs, owner) = match tables.space() {
            None => (Attrs::KERNEL_RW, Owner::Kernel),
            Some(_) => (Attrs::USER_RW, Owner::User),
        };
        ground.on_first(|| {
            let both = take(machine, 2 * PAGES, owner)?;
            let sets = [both[..PAGES].to_vec(), both[PAGES..].to_vec()];
            let stage = Stage { machine, tables, at, attrs, sets, cpus, whose };
            match stage.map(0) {
                Ok(()) => Ok(stage),
                Err(stop) => {
                    give(machine, &both)?;
                    Err(stop)
                }
            }
        })
    }

    /// Unmaps what is mapped, and gives the frames back.
    fn end(&self) -> Outcome {
        let owed = self.tables.unmap_own(pages(self.at, PAGES)?, |_| ());
        owed.of("to unmap at the end")?.flush();
        self.sets.iter().try_for_each(|set| give(self.machine, set))
    }

    /// Maps the frames of this turn, with new contents.
    fn map(&self, turn: usize) -> Outcome {
        let set = &self.sets[turn % 2];
        for (number, frame) in set.iter().enumerate() {
            poke(self.machine, *frame, 0, mark(turn, number))?;
        }
        self.machine.check_reuse(self.tables.space(), pages(self.at, PAGES)?);
        self.tables.map_frames_own(self.at, set, self.attrs).of("to map")
    }

    /// Changes all pages, some at a time, and flushes each time.
    fn change<'s>(
        &'s self,
        turn: usize,
        change: impl Fn(machine::VirtRange) -> Changed<'s, M, G>,
    ) -> Outcome {
        let mut first = 0;
        for count in PIECES[turn % PIECES.len()] {
            let some = pages(page(self.at, first), *count)?;
            change(some).of("to change pages")?.flush();
            first += count;
        }
        Ok(())
    }

    /// Each CPU changes the pages, again and again, and all look.
    fn turns(&self, worker: &mut Worker<'_, M>, rounds: usize) -> Outcome {
        (0..rounds * 2 * Turns::new(self.cpus).each).try_for_each(|turn| self.turn(worker, turn))
    }

    fn turn(&self, worker: &Worker<'_, M>, turn: usize) -> Outcome {
        let turns = Turns::new(self.cpus);
        let changer = turns.of(turn);
        let here = worker.cpu == changer;
        // Whether others fault in between, which may drop more than the flush did.
        let quickly = turn / turns.each % 2 == 1;
        let rights = self.attrs.flags & Flags::RIGHTS;

        // Each has the translations, and may write by them.
        self.see(turn, &"before")?;
        self.write(worker, turn, false)?;
        worker.meet()?;
        if here {
            self.change(turn, |some| self.tables.protect_own(some, rights & !Flags::WRITE))?;
        }
        worker.meet()?;
        let what = self.by(changer, "made read-only");
        self.each(|at, number| {
            is_read_only(self.machine, own(at, worker), 0, format_args!("page {number}, {what}"))
        })?;
        self.has_written(worker, turn, false, &what)?;
        worker.meet()?;
        if here {
            self.change(turn, |some| self.tables.protect_own(some, rights))?;
        }
        worker.meet()?;
        self.write(worker, turn, false)?;
        worker.meet()?;

        // They are taken away, and others come.
        if here {
            self.unmap(turn)?;
            if quickly {
                self.map(turn + 1)?;
            }
        }
        worker.meet()?;
        let what = self.by(changer, "unmapped");
        if !quickly {
            self.each(|at, number| {
                is_absent(self.machine, at, format_args!("page {number}, {what}"))
            })?;
            worker.meet()?;
            if here {
                self.map(turn + 1)?;
            }
            worker.meet()?;
        }
        self.see(turn + 1, &self.by(changer, "unmapped and mapped to other frames"))?;
        self.write(worker, turn, true)?;
        let old = &self.sets[turn % 2];
        self.each(|_, number| {
            let what = format_args!("page {number}, {what}: the frame that it was");
            frame_is(
                self.machine,
                old[number],
                own_word(worker),
                stamp(turn, worker.cpu, false),
                what,
            )
        })?;
        worker.meet()
    }

    fn by(&self, changer: usize, what: &'static str) -> String {
        format!("{} page {what} and flushed by cpu{changer}", self.whose)
    }

    fn unmap(&self, turn: usize) -> Outcome {
        let gone = core::cell::Cell::new(0);
        let set = &self.sets[turn % 2];
        self.change(turn, |some| {
            self.tables.unmap_own(some, |was| {
                gone.set(gone.get() + usize::from(set.contains(&was.frame)));
            })
        })?;
        match gone.get() {
            PAGES => Ok(()),
            gone => seen(format!("of {PAGES} pages that were mapped, {gone} were unmapped")),
        }
    }

    /// From the last page on: where a TLB keeps the latest, those are looked at before others take
    /// their places.
    fn each(&self, mut look: impl FnMut(VirtAddr, usize) -> Outcome) -> Outcome {
        (0..PAGES).rev().try_for_each(|number| look(page(self.at, number), number))
    }

    /// Each page has what was mapped in this turn, in its frame and through the mapping.
    fn see(&self, turn: usize, what: &dyn Display) -> Outcome {
        let set = &self.sets[turn % 2];
        self.each(|at, number| {
            let what = format_args!("page {number}, {what}");
            is(self.machine, at, mark(turn, number), what)?;
            frame_is(self.machine, set[number], 0, mark(turn, number), what)
        })
    }

    /// This CPU writes its word of each page.
    fn write(&self, worker: &Worker<'_, M>, turn: usize, after: bool) -> Outcome {
        let value = stamp(turn, worker.cpu, after);
        self.each(|at, number| {
            store(self.machine, own(at, worker), value, format_args!("page {number}"))
        })
    }

    /// Each page has what this CPU has written.
    fn has_written(
        &self,
        worker: &Worker<'_, M>,
        turn: usize,
        after: bool,
        what: &dyn Display,
    ) -> Outcome {
        self.each(|at, number| {
            let what = format_args!("page {number}, {what}: what this CPU wrote before");
            let found = load(self.machine, own(at, worker), what)?;
            if found == stamp(turn, worker.cpu, after) {
                return Ok(());
            }
            seen(format!("{what} has become {found:#x}"))
        })
    }
}

/// The number of the word of a page that this CPU writes.
fn own_word<M: Machine>(worker: &Worker<'_, M>) -> usize {
    OWN + worker.cpu
}

fn own<M: Machine>(at: VirtAddr, worker: &Worker<'_, M>) -> VirtAddr {
    word(at, own_word(worker))
}
