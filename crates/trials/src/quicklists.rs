//! The `quicklists` trial: pages come in their constructed state, word for word (I6). CPUs dirty
//! them, clean them, and give them back on the same CPU or another.
//!
//! While a CPU has a page, each word holds the page's tag. So a page that two CPUs have is noticed.

use crate::checked::{peek, poke};
use crate::environment::Environment;
use crate::program::Program;
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, Machine, Owner, Translated, lock};
use paging::{Decoded, Format, Geometry, QUICK_ROOT, QUICK_TABLE};
use spin::mutex::SpinMutex;

/// Steps of each CPU in a round.
const STEPS: usize = 400;
/// Steps between two quiescent states.
const QUIET: usize = 32;
/// The most pages that a CPU has.
const HELD: usize = 48;

/// A page that a CPU has, and the tag in its words.
struct Page {
    frame: Frame,
    list: u8,
    tag: u64,
}

struct Shared<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    /// The words of a constructed top-level table.
    root: Vec<u64>,
    /// For each CPU, the pages that it is to check and give back.
    mail: Vec<SpinMutex<Vec<Page>>>,
}

pub(crate) fn quicklists<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        // Once there is a program, all top-level tables are constructed alike.
        let program = Program::new(env)?;
        let mail = (0..env.cpus).map(|_| SpinMutex::default()).collect();
        let result = env.on_first(|| root_words(env)).and_then(|root| {
            let shared = Shared { env, root, mail };
            let result = env.at_once(|worker| shared.run(worker));
            result.and(env.on_first(|| {
                shared
                    .mail
                    .iter()
                    .flat_map(|mail| mail.lock().drain(..).collect::<Vec<_>>())
                    .try_for_each(|page| shared.give(page))
            }))
        });
        result.and(program.end())
    })
}

/// The words of an empty program's top-level table: the kernel's half, and zeros.
fn root_words<M: Machine, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Outcome<Vec<u64>> {
    let kernel = env.tables.root();
    let word = |index| {
        // SAFETY: the kernel's top-level table, which stays.
        let value = unsafe { env.host.machine.entries_in(kernel, F::PAGE.order()) };
        let value = value.and_then(|entries| entries.get(index)).map_or(0, |entry| entry.load());
        let is_table = matches!(F::decode(value, F::LEVELS - 1), Decoded::Table(_));
        if index >= F::ENTRIES / 2 && is_table { value } else { 0 }
    };
    Ok((0..F::ENTRIES).map(word).collect())
}

impl<M: Machine, F: Format, G: Concurrent> Shared<'_, '_, M, F, G> {
    fn run(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let (machine, quick) = (self.env.host.machine, self.env.tables.paging().quick());
        let (mut held, mut taken): (Vec<Page>, u64) = Default::default();
        self.env.steps(STEPS, QUIET, |_| {
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
            Ok(())
        })?;
        held.into_iter().try_for_each(|page| self.give(page))
    }

    /// The constructed state of a list's pages.
    fn constructed(&self, list: u8, index: usize) -> u64 {
        if list == QUICK_ROOT { self.root.get(index).copied().unwrap_or(0) } else { 0 }
    }

    /// Takes a page, checks it, and fills it with a tag.
    fn take(&self, list: u8, tag: u64) -> Outcome<Page> {
        let machine = self.env.host.machine;
        // SAFETY: the kernel's tables stay.
        let frame = unsafe { self.env.tables.paging().quick().alloc(list) };
        let frame = frame.of("could not take a page of a quicklist")?;
        for index in 0..F::ENTRIES {
            let (found, expected) = (peek(machine, frame, index)?, self.constructed(list, index));
            if found != expected {
                return fail(format!(
                    "frame {frame} comes from quicklist {list} with {found:#x} in word {index}, \
                     expected {expected:#x}"
                ));
            }
        }
        // SAFETY: it is ours, and not used as a table.
        unsafe { machine.set_owner(frame, Owner::Kernel) }
            .of("could not say what a frame is for")?;
        (0..F::ENTRIES).try_for_each(|index| poke(machine, frame, index, tag | index as u64))?;
        Ok(Page { frame, list, tag })
    }

    /// Checks that a page still has its tag, restores its constructed state, and gives it back.
    fn give(&self, page: Page) -> Outcome {
        let (machine, Page { frame, list, tag }) = (self.env.host.machine, page);
        for index in 0..F::ENTRIES {
            let (found, expected) = (peek(machine, frame, index)?, tag | index as u64);
            if found != expected {
                return fail(format!(
                    "frame {frame} of quicklist {list} is ours, and word {index} has become \
                     {found:#x}, expected {expected:#x}"
                ));
            }
            poke(machine, frame, index, self.constructed(list, index))?;
        }
        // SAFETY: it came from this list, is in its constructed state, and nothing else knows it.
        unsafe { self.env.tables.paging().quick().free(list, frame) }
            .of("could not give a page to a quicklist")
    }
}
