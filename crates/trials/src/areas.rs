//! The `vmap` trial: areas of all kinds, sizes and lifetimes, made on all CPUs and freed on the
//! same CPU or another.
//!
//! Each page holds a word that names its area, so two areas in one place are noticed. The listing
//! of areas (`vmallocinfo`, `find_vm_area`) is compared with the areas of a CPU, and `vread` with
//! the contents.

mod area;

use crate::checked::{is, is_absent};
use crate::environment::{Environment, page, word};
use crate::space::{self, AreaKind, Areas};
use crate::worker::{Outcome, Stop, Worker, fail};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use area::Area;
use grace::Concurrent;
use machine::{Machine, Translated, lock};
use paging::Format;
use spin::mutex::SpinMutex;
use vmap::{AreaState, Made, Options};

/// The most areas that a CPU has.
const HELD: usize = 12;
/// Steps of each CPU in a round.
const STEPS: usize = 400;
/// Steps between two quiescent states.
const QUIET: usize = 16;

/// Shared by the CPUs: a space, and for each CPU the areas that others have sent to it.
struct Shared<'g, 'a, M: Machine, F: Format, G: Concurrent> {
    env: &'g Environment<'a, M, F, G>,
    vmap: &'g Areas<M, F, G>,
    mail: Vec<SpinMutex<Vec<Area>>>,
}

pub(crate) fn vmap<M: Machine + Translated, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
) -> Result<(), String> {
    env.whole(|| {
        // A small space, so that addresses come back.
        let options = Options { bytes_per_interrupt: 4 << 20, ..Options::default() };
        let vmap = space::make(env, 4, 64, options)?;
        let mail = (0..env.cpus).map(|_| SpinMutex::default()).collect();
        let shared = Shared { env, vmap: &vmap, mail };
        let result = env.at_once(|worker| shared.run(worker));
        result.and(space::end(env, vmap))
    })
}

impl<M: Machine + Translated, F: Format, G: Concurrent> Shared<'_, '_, M, F, G> {
    fn run(&self, worker: &mut Worker<'_, M>) -> Outcome {
        let mut held = Vec::new();
        let done = self
            .env
            .steps(STEPS, QUIET, |step| self.step(worker, &mut held, step))
            .and_then(|()| worker.meet());
        // All areas are freed, even after an error.
        let mail = core::mem::take(&mut *lock(self.env.host.machine, &self.mail[worker.cpu]));
        let mut left = held.into_iter().chain(mail);
        let freed = left.try_for_each(|area| area.free(self.env.host.machine, self.vmap, false));
        self.vmap.idle();
        done.and(freed)
    }

    fn step(&self, worker: &mut Worker<'_, M>, held: &mut Vec<Area>, step: usize) -> Outcome {
        let (machine, vmap) = (self.env.host.machine, self.vmap);
        let pick = worker.below(held.len().max(1));
        match worker.below(64) {
            0 => vmap.poll(),
            1 => vmap.purge(),
            2 => vmap.vm_unmap_aliases(),
            3 => vmap.idle(),
            4 => self.env.tlb_grace.flush(),
            5..8 => self.listing(held)?,
            8..32 if held.len() < HELD => {
                let tag = (worker.cpu as u64) << 48 | (step as u64) << 16;
                held.push(Area::make(machine, vmap, worker, tag)?);
            }
            8..40 if !held.is_empty() => {
                held.swap_remove(pick).free(machine, vmap, worker.below(4) == 0)?;
            }
            40..48 if !held.is_empty() => {
                let to = worker.below(self.mail.len());
                lock(machine, &self.mail[to]).push(held.swap_remove(pick));
            }
            48..52 => {
                let area = lock(machine, &self.mail[worker.cpu]).pop();
                let atomically = worker.below(4) == 0;
                area.map_or(Ok(()), |area| area.free(machine, vmap, atomically))?;
            }
            52..56 if !held.is_empty() => self.read(&held[pick])?,
            _ if !held.is_empty() => held[pick].look(machine, vmap)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks that `vread` and `vwrite` use the mapped memory, and that a guard page reads as a
    /// hole.
    fn read(&self, area: &Area) -> Outcome {
        let (machine, vmap) = (self.env.host.machine, self.vmap);
        let (bytes, hole) = (area.pages * 4096, if area.has_guard() { 4096 } else { 0 });
        let mut into = vec![0xee; bytes + hole];
        // SAFETY: ordinary memory, which all CPUs access by words.
        let read = unsafe { vmap.vread(area.at, &mut into) };
        if read != bytes {
            return fail(format!(
                "vread of {bytes} bytes at {} and {hole} behind them read {read}",
                area.at
            ));
        }
        let (mapped, behind) = into.split_at(bytes);
        for (number, found) in mapped.chunks_exact(4096).enumerate() {
            let expected = area.word(number);
            let found = found.first_chunk().map(|word| u64::from_ne_bytes(*word));
            if found != Some(expected) {
                return fail(format!(
                    "vread of page {number} of the area at {} read {found:x?}, expected \
                     {expected:#x}",
                    area.at
                ));
            }
        }
        if behind.iter().any(|byte| *byte != 0) {
            return fail(format!(
                "vread of the guard page of the area at {} did not read 0",
                area.at
            ));
        }
        let last = area.pages - 1;
        let (at, value) = (word(page::<F>(area.at, last), 3), !area.word(last));
        // SAFETY: as above, and it is ours.
        let written = unsafe { vmap.vwrite(at, &value.to_ne_bytes()) };
        if written != 8 {
            return fail(format!("vwrite of 8 bytes at {at} wrote {written}"));
        }
        is(machine, at, value, format_args!("the word that vwrite wrote"))?;
        if area.is_guarded() {
            let guard = page::<F>(area.at, area.pages);
            is_absent(machine, guard, format_args!("the guard page of the area at {}", area.at))?;
        }
        Ok(())
    }

    /// Checks that the listing has each area of this CPU once, with the right description.
    fn listing(&self, held: &[Area]) -> Outcome {
        let (mut found, mut last, mut wrong) = (vec![0; held.len()], None, None);
        self.vmap.vmallocinfo(|info| {
            let start = info.range.start();
            if last.is_some_and(|last| start < last) {
                wrong = Some(format!("{start} is listed behind an area that ends at {last:?}"));
            }
            last = start.checked_add(info.range.len());
            for (area, found) in held.iter().zip(&mut found) {
                let right = match area.made() {
                    Made::Block => info.range.contains(area.at) && info.made == Made::Block,
                    made => {
                        (start, info.made, info.pages) == (area.at, made, area.pages)
                            && info.bytes == area.bytes
                            && info.state == AreaState::Live
                    }
                };
                *found += usize::from(right);
            }
        });
        if let Some(wrong) = wrong {
            return Err(Stop::Error(wrong));
        }
        for (area, found) in held.iter().zip(found) {
            let known = self.vmap.find_vm_area(area.at);
            // A short map may be too large for a block, or there was no room for one.
            let known = known.is_some_and(|known| known.range.contains(area.at));
            if found != 1 && area.kind != AreaKind::Ram || found > 1 || !known {
                return fail(format!(
                    "{area:?} is listed {found} times, expected once; whether find_vm_area finds \
                     it: {known}"
                ));
            }
        }
        let (bytes, said) =
            (held.iter().filter(|area| area.has_guard()), self.vmap.get_vmalloc_info());
        let bytes: u64 = bytes.map(|area| area.bytes).sum();
        if said.used < bytes || said.areas == 0 && bytes != 0 {
            return fail(format!(
                "a CPU has {bytes} bytes of areas, but get_vmalloc_info returns {said:?}"
            ));
        }
        Ok(())
    }
}
