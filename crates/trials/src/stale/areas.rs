//! The part `areas` of the `stale` trial: an address that `vmap` reuses never shows old contents,
//! on any CPU.
//!
//! In each turn one CPU makes areas, all CPUs read them, and another CPU frees them. Some turns
//! then flush all that was unmapped; afterwards no CPU may have a translation of it.

use crate::checked::{give, is, is_absent, poke, take};
use crate::environment::{Environment, Turns, page};
use crate::space::{self, AreaKind, Areas};
use crate::worker::{Context, Outcome, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;
use grace::Concurrent;
use machine::{Frame, Machine, Owner, Translated, VirtAddr, lock};
use paging::Format;
use spin::mutex::SpinMutex;
use vmap::Options;

/// Areas made in a turn.
const AREAS: usize = 12;
/// The call after the unmapping in a turn: none; a flush for callers that need no alias to remain;
/// or a purge, which makes the addresses available again.
const WAYS: usize = 3;

#[derive(Clone)]
struct Area {
    at: VirtAddr,
    kind: AreaKind,
    turn: usize,
    /// Its memory. The trial holds a reference to each frame.
    frames: Vec<Frame>,
}

struct Shared<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    vmap: &'g Areas<M, F, G>,
    live: SpinMutex<Vec<Area>>,
    /// Areas unmapped since all CPUs were last checked to have no translation of them. The trial
    /// keeps their frames.
    gone: SpinMutex<Vec<Area>>,
}

pub(super) fn areas<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    // A small space, so that addresses come back soon.
    let options = Options { bytes_per_interrupt: 1 << 20, ..Options::default() };
    let vmap = space::make(env, 1, 16, options)?;
    let (live, gone) = Default::default();
    let shared = Shared { env, vmap: &vmap, live, gone };
    let turns = env.rounds * WAYS * Turns::new(env.cpus).each;
    let result = env.at_once(|worker| {
        let done = (0..turns).try_for_each(|turn| shared.turn(worker, turn));
        vmap.idle();
        done
    });
    let cleared = env.on_first(|| {
        shared.free()?;
        vmap.vm_unmap_aliases();
        shared.give_up()
    });
    result.and(cleared).and(space::end(env, vmap))
}

/// The first word of a page of an area that was made in this turn.
fn mark(turn: usize, number: usize) -> u64 {
    0xa4ea_0000_0000_0000 | (turn as u64) << 16 | number as u64
}

impl<M: Machine + Translated, F: Format, G: Concurrent> Shared<'_, '_, M, F, G> {
    fn turn(&self, worker: &mut Worker<'_, M>, turn: usize) -> Outcome {
        let (machine, cpus) = (self.env.host.machine, self.env.cpus);
        let turns = Turns::new(cpus);
        let maker = turns.of(turn);
        let freer = (maker + 1) % cpus;
        let way = turn / turns.each % WAYS;
        if worker.cpu == maker {
            (0..AREAS).try_for_each(|_| self.make(worker, turn))?;
        }
        worker.meet()?;
        for area in self.copy(&self.live) {
            for number in 0..area.frames.len() {
                let at = page::<F>(area.at, number);
                let what =
                    format_args!("page {number} of an area made by cpu{maker} in turn {turn}");
                is(machine, at, mark(turn, number), what)?;
            }
        }
        worker.meet()?;
        if worker.cpu == freer {
            self.free()?;
            match way {
                1 => self.vmap.vm_unmap_aliases(),
                2 => self.vmap.purge(),
                _ => {}
            }
        }
        (self.env.host.quiet)();
        worker.meet()?;
        if way == 0 {
            return Ok(());
        }
        let call = ["", "vm_unmap_aliases", "purge"][way];
        for area in self.copy(&self.gone) {
            for number in 0..area.frames.len() {
                let turn = area.turn;
                let what = format_args!(
                    "page {number} of an area made in turn {turn}, unmapped, and flushed by \
                     {call} on cpu{freer}"
                );
                is_absent(machine, page::<F>(area.at, number), what)?;
            }
        }
        worker.meet()?;
        if worker.cpu == freer {
            self.give_up()?;
        }
        worker.meet()
    }

    fn copy(&self, areas: &SpinMutex<Vec<Area>>) -> Vec<Area> {
        lock(self.env.host.machine, areas).clone()
    }

    fn make(&self, worker: &mut Worker<'_, M>, turn: usize) -> Outcome {
        let (machine, vmap) = (self.env.host.machine, self.vmap);
        let kind =
            [AreaKind::Ram, AreaKind::Ram, AreaKind::Vmap, AreaKind::Vmalloc][worker.below(4)];
        let pages = 1 + worker.below(8);
        let mut area = Area { at: VirtAddr::new(0), kind, turn, frames: Vec::new() };
        if kind == AreaKind::Vmalloc {
            area.at = vmap.vmalloc((pages as u64) << 12).of("vmalloc")?;
            for number in 0..pages {
                let at = page::<F>(area.at, number);
                let frame = vmap.vmalloc_to_page(at);
                match frame.filter(|frame| machine.info(*frame).is_some_and(|info| info.try_get()))
                {
                    Some(frame) => area.frames.push(frame),
                    None => return fail(format!("vmalloc_to_page knows no frame for {at}")),
                }
            }
        } else {
            area.frames = take::<F, M>(machine, pages, Owner::Kernel)?;
            area.at = kind.map(vmap, &area.frames)?;
        }
        // Written without the mapping: a stale translation must not change the frame that it leads
        // to.
        for (number, frame) in area.frames.iter().enumerate() {
            poke(machine, *frame, 0, mark(turn, number))?;
        }
        lock(machine, &self.live).push(area);
        Ok(())
    }

    /// Frees all areas. Their frames stay allocated.
    fn free(&self) -> Outcome {
        let live = mem::take(&mut *lock(self.env.host.machine, &self.live));
        for area in live {
            // The readers have stopped.
            area.kind.free(self.vmap, area.at, area.frames.len())?;
            lock(self.env.host.machine, &self.gone).push(area);
        }
        Ok(())
    }

    /// Frees the frames of unmapped areas, when no CPU has a translation of them.
    fn give_up(&self) -> Outcome {
        let gone = mem::take(&mut *lock(self.env.host.machine, &self.gone));
        gone.iter().try_for_each(|area| give(self.env.host.machine, &area.frames))
    }
}
