//! The part `pages` of the `stale` trial: one CPU changes pages, and all check them before and
//! after.

use crate::checked::{frame_is, give, is, is_absent, is_read_only, load, poke, store, take};
use crate::environment::{Environment, Tables, Turns, page, pages, word};
use crate::own::Own;
use crate::program::Program;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;
use grace::Concurrent;
use machine::{Checker, Frame, Machine, Owner, Translated, VirtAddr};
use paging::{Attrs, Failed, Flags, Format, PendingFlush};

/// The number of pages: more than the L1 TLB of any processor holds, fewer than all its TLBs
/// together.
const PAGES: usize = 384;
/// The pages of each flush, in turns: all pages at once, which may flush everything; and fewer,
/// which flushes page by page, on both sides of 33 and of 64, from which the kernels of this
/// repository flush everything. There are few pieces because a flush takes long where CPUs are many
/// and processors few.
const PIECES: [&[usize]; 3] = [&[PAGES], &[1, 8, 32, 64, 279], &[33, 63, 3, 285]];
/// Each CPU writes the word at this number plus its own.
const OWN: usize = 8;

/// The pages, and two sets of frames: one is mapped, the other was mapped before or will be next.
struct Shared<'a, M: Machine, F: Format, G: Concurrent> {
    machine: &'a M,
    tables: &'a Tables<M, F, G>,
    at: VirtAddr,
    attrs: Attrs,
    sets: [Vec<Frame>; 2],
    cpus: usize,
    whose: &'static str,
}

/// Runs with pages of the kernel.
pub(super) fn kernel<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    let range = env.part(0)?;
    let shared = Shared::new(env, env.tables, range.start(), "the kernel's")?;
    let result = env.at_once(|worker| shared.turns(worker, env.rounds));
    let ended = env.on_first(|| {
        shared.end()?;
        env.prune(range)
    });
    result.and(ended)
}

/// Runs with pages of a program.
pub(super) fn program<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    let program = Program::new(env)?;
    let at = VirtAddr::new(0x4000_0000 - 256 * F::PAGE.bytes());
    let result = Shared::new(env, program.tables(), at, "the program's").and_then(|shared| {
        let result = env.at_once(|worker| program.inside(|| shared.turns(worker, env.rounds)));
        result.and(env.on_first(|| shared.end()))
    });
    result.and(program.end())
}

/// The first word of a page that was mapped in this turn.
fn mark(turn: usize, number: usize) -> u64 {
    0x5a1e_0000_0000_0000 | (turn as u64) << 16 | number as u64
}

/// The word that a CPU writes in this turn, before the pages are changed or afterwards.
fn stamp(turn: usize, cpu: usize, after: bool) -> u64 {
    0xc0de_0000_0000_0000 | (turn as u64) << 17 | u64::from(after) << 16 | cpu as u64
}

type Changed<'p, M, F, G> = Result<PendingFlush<'p, M, F, G>, Failed<'p, M, F, G>>;

impl<'a, M: Machine + Translated, F: Format, G: Concurrent> Shared<'a, M, F, G> {
    fn new(
        env: &Environment<'a, M, F, G>,
        tables: &'a Tables<M, F, G>,
        at: VirtAddr,
        whose: &'static str,
    ) -> Result<Self, String> {
        let (machine, cpus) = (env.host.machine, env.cpus);
        let (attrs, owner) = match tables.space() {
            None => (Attrs::KERNEL_RW, Owner::Kernel),
            Some(_) => (Attrs::USER_RW, Owner::User),
        };
        env.on_first(|| {
            let both = take::<F, M>(machine, 2 * PAGES, owner)?;
            let sets = [both[..PAGES].to_vec(), both[PAGES..].to_vec()];
            let shared = Shared { machine, tables, at, attrs, sets, cpus, whose };
            match shared.map(0) {
                Ok(()) => Ok(shared),
                Err(stop) => {
                    give(machine, &both)?;
                    Err(stop)
                }
            }
        })
    }

    /// Unmaps the pages, and gives the frames back.
    fn end(&self) -> Outcome {
        let pending = self.tables.unmap_own(pages::<F>(self.at, PAGES)?, |_| ());
        pending.of("could not unmap at the end")?.flush();
        self.sets.iter().try_for_each(|set| give(self.machine, set))
    }

    /// Maps the frames of this turn with new contents.
    fn map(&self, turn: usize) -> Outcome {
        let set = &self.sets[turn % 2];
        for (number, frame) in set.iter().enumerate() {
            poke(self.machine, *frame, 0, mark(turn, number))?;
        }
        self.machine.checker().check_reuse(self.tables.space(), pages::<F>(self.at, PAGES)?);
        self.tables.map_frames_own(self.at, set, self.attrs).of("could not map")
    }

    /// Changes all pages, piece by piece, with a flush for each.
    fn change<'s>(
        &'s self,
        turn: usize,
        change: impl Fn(machine::VirtRange) -> Changed<'s, M, F, G>,
    ) -> Outcome {
        let mut first = 0;
        for count in PIECES[turn % PIECES.len()] {
            let some = pages::<F>(page::<F>(self.at, first), *count)?;
            change(some).of("could not change pages")?.flush();
            first += count;
        }
        Ok(())
    }

    /// Lets the CPUs take turns to change the pages.
    fn turns(&self, worker: &mut Worker<'_, M>, rounds: usize) -> Outcome {
        (0..rounds * 2 * Turns::new(self.cpus).each).try_for_each(|turn| self.turn(worker, turn))
    }

    fn turn(&self, worker: &Worker<'_, M>, turn: usize) -> Outcome {
        let turns = Turns::new(self.cpus);
        let changer = turns.of(turn);
        let here = worker.cpu == changer;
        // Every second pass has no faults in between, which may drop more translations than the
        // flush did.
        let quickly = turn / turns.each % 2 == 1;
        let rights = self.attrs.flags & Flags::RIGHTS;

        // Every CPU gets writable translations.
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

        // The pages are unmapped, and others are mapped.
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
            let what = format_args!("page {number}, {what}: the frame mapped before");
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
            gone => fail(format!("unmapping {PAGES} pages reported {gone}")),
        }
    }

    /// From the last page on. A TLB that keeps the latest translations is then checked before the
    /// check evicts them.
    fn each(&self, mut look: impl FnMut(VirtAddr, usize) -> Outcome) -> Outcome {
        (0..PAGES).rev().try_for_each(|number| look(page::<F>(self.at, number), number))
    }

    /// Checks that each page has the contents of this turn, in its frame and through the mapping.
    fn see(&self, turn: usize, what: &dyn Display) -> Outcome {
        let set = &self.sets[turn % 2];
        self.each(|at, number| {
            let what = format_args!("page {number}, {what}");
            is(self.machine, at, mark(turn, number), what)?;
            frame_is(self.machine, set[number], 0, mark(turn, number), what)
        })
    }

    /// Writes this CPU's word of each page.
    fn write(&self, worker: &Worker<'_, M>, turn: usize, after: bool) -> Outcome {
        let value = stamp(turn, worker.cpu, after);
        self.each(|at, number| {
            store(self.machine, own(at, worker), value, format_args!("page {number}"))
        })
    }

    /// Checks that each page has this CPU's word.
    fn has_written(
        &self,
        worker: &Worker<'_, M>,
        turn: usize,
        after: bool,
        what: &dyn Display,
    ) -> Outcome {
        self.each(|at, number| {
            let what = format_args!("page {number}, {what}: the word that this CPU wrote before");
            let found = load(self.machine, own(at, worker), what)?;
            if found == stamp(turn, worker.cpu, after) {
                return Ok(());
            }
            fail(format!("{what} has become {found:#x}"))
        })
    }
}

/// The number of this CPU's word.
fn own_word<M: Machine>(worker: &Worker<'_, M>) -> usize {
    OWN + worker.cpu
}

fn own<M: Machine>(at: VirtAddr, worker: &Worker<'_, M>) -> VirtAddr {
    word(at, own_word(worker))
}
