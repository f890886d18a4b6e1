//! Quicklists: pages come in their constructed state, word for word (I6), are dirtied, cleaned, and
//! given back, where they were taken or on another CPU.
//!
//! While a page is somebody's each of its words says whose: so a page that two have is seen, too.

use crate::crew::{Outcome, Told, Worker, seen};
use crate::ground::Ground;
use crate::program::Program;
use crate::sight::{peek, poke};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{ENTRIES, Frame, Machine, Owner, Translated, lock};
use paging::{Decoded, Format, QUICK_ROOT, QUICK_TABLE, X86_64L4};
use spin::mutex::SpinMutex;

/// What each CPU does in a round.
const STEPS: usize = 400;
/// Steps between two quiescent states.
const QUIET: usize = 32;
/// Pages that a CPU has at most.
const HELD: usize = 48;

/// A page that is somebody's, and what its words are.
struct Page {
    frame: Frame,
    list: u8,
    tag: u64,
}

struct Stage<'g, 'a, M: Machine, G: Concurrent> {
    ground: &'g Ground<'a, M, G>,
    /// What the words of a top-level table are.
    root: Vec<u64>,
    /// Pages that each CPU is to look at and give back.
    mail: Vec<SpinMutex<Vec<Page>>>,
}

pub(crate) fn quicklists<M: Machine + Translated, G: Concurrent>(
    ground: &Ground<'_, M, G>,
) -> Result<(), String> {
    ground.whole(|| {
        // From the first program on, all top-level tables are made alike.
        let program = Program::new(ground)?;
        let mail = (0..ground.cpus).map(|_| SpinMutex::default()).collect();
        let result = ground.on_first(|| root_words(ground)).and_then(|root| {
            let stage = Stage { ground, root, mail };
            let result = ground.at_once(|worker| stage.run(worker));
            result.and(ground.on_first(|| {
                stage
                    .mail
                    .iter()
                    .flat_map(|mail| mail.lock().drain(..).collect::<Vec<_>>())
                    .try_for_each(|page| stage.give(page))
            }))
        });
        result.and(program.end())
    })
}

/// The words of a program's top-level table without pages: the kernel's half, and nothing.
fn root_words<M: Machine, G: Concurrent>(ground: &Ground<'_, M, G>) -> Outcome<Vec<u64>> {
    let kernel = ground.tables.root();
    let word = |index| {
        // SAFETY: the kernel's top-level table, which stays.
        let value =
            unsafe { ground.host.machine.entry(kernel, index) }.map_or(0, |entry| entry.load());
        let is_table = matches!(X86_64L4::decode(value, X86_64L4::LEVELS - 1), Decoded::Table(_));
        if index >= ENTRIES / 2 && is_table { value } else { 0 }
    };
    Ok((0..ENTRIES).map(word).collect())
}

impl<M: Machine, G: Concurrent> Stage<'_, '_, M, G> {
    fn run(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let (machine, quick) = (self.ground.host.machine, self.ground.tables.paging().quick());
        let (mut held, mut taken): (Vec<Page>, u64) = Default::default();
        for step in 0..self.ground.steps(STEPS) {
            if step.is_multiple_of(QUIET) {
                (self.ground.host.quiet)();
            }
            let pick = worker.below(held.len().max(1));
            match worker.below(32) {
                0 => drop(quick.trim(QUICK_TABLE, worker.below(8), usize::MAX)),
                1 => drop(quick.shortage()),
                2 => drop(quick.drain()),
                3..6 => drop(quick.tick()),
                6..16 if held.len() < HELD => {
                    taken += 1;
                    let list = [QUICK_TABLE, QUICK_TABLE, QUICK_ROOT][worker.below(3)];
                    held.push(self.take(list, (worker.cpu as u64) << 48 | taken << 16)?);
                }
                16..20 if !held.is_empty() => {
                    let to = worker.below(self.mail.len());
                    lock(machine, &self.mail[to]).push(held.swap_remove(pick));
                }
                20..24 => {
                    let page = lock(machine, &self.mail[worker.cpu]).pop();
                    page.map_or(Ok(()), |page| self.give(page))?;
                }
                _ if !held.is_empty() => self.give(held.swap_remove(pick))?,
                _ => {}
            }
        }
        held.into_iter().try_for_each(|page| self.give(page))
    }

    /// What a page of a list is, when nobody has it.
    fn constructed(&self, list: u8, index: usize) -> u64 {
        if list == QUICK_ROOT { self.root.get(index).copied().unwrap_or(0) } else { 0 }
    }

    /// Takes a page, looks at it, and makes it ours.
    fn take(&self, list: u8, tag: u64) -> Outcome<Page> {
        let machine = self.ground.host.machine;
        let frame =
            // SAFETY: the kernel's tables stay.
            unsafe { self.ground.tables.paging().quick().alloc(list) }.of("to take a page of a quicklist")?;
        for index in 0..ENTRIES {
            let (found, expected) = (peek(machine, frame, index)?, self.constructed(list, index));
            if found != expected {
                return seen(format!(
                    "frame {frame} comes from quicklist {list} with {found:#x} in word {index}, expected {expected:#x}"
                ));
            }
        }
        // SAFETY: it is ours, and no table.
        unsafe { machine.set_owner(frame, Owner::Kernel) }.of("to say what a frame is for")?;
        (0..ENTRIES).try_for_each(|index| poke(machine, frame, index, tag | index as u64))?;
        Ok(Page { frame, list, tag })
    }

    /// Looks whether a page is as it was left, and gives it back as it was at first.
    fn give(&self, page: Page) -> Outcome {
        let (machine, Page { frame, list, tag }) = (self.ground.host.machine, page);
        for index in 0..ENTRIES {
            let (found, expected) = (peek(machine, frame, index)?, tag | index as u64);
            if found != expected {
                return seen(format!(
                    "frame {frame} of quicklist {list} is ours, and word {index} has become {found:#x}, expected {expected:#x}"
                ));
            }
            poke(machine, frame, index, self.constructed(list, index))?;
        }
        // SAFETY: it came from this list, is as it was then, and nobody else knows of it.
        unsafe { self.ground.tables.paging().quick().free(list, frame) }
            .of("to give a page to a quicklist")
    }
}
