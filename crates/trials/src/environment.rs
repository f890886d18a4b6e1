//! The environment of trials: all CPUs at once, parts of the addresses, and the count of free
//! frames.

use crate::own::Own;
use crate::worker::{Barrier, Context, Outcome, Stop, Worker};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use grace::Concurrent;
use machine::{Host, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Format, Geometry, PageTables};
use vmap::TlbGrace;

pub(crate) type Tables<M, F, G> = PageTables<M, F, G>;

/// Parts of the addresses. Each trial uses its own, so that no trial can disturb another.
const PARTS: u64 = 16;
/// Rounds in which all CPUs free their caches, before frames count as lost.
const PASSES: usize = 64;

/// The environment of trials, and the amount of work.
pub struct Environment<'a, M: Machine, F: Format, G: Concurrent> {
    /// The machine, and the means to run programs on its CPUs.
    pub host: Host<'a, M>,
    /// The kernel's tables, active on every CPU that runs a program. Trials make tables of programs
    /// and activate them, so everything that the host needs must be in the kernel's half.
    pub tables: &'a Arc<PageTables<M, F, G>>,
    /// Kernel addresses that nothing else uses: at least 128 [units](unit()), of 1 GiB with a
    /// granule of 4 KiB.
    pub range: VirtRange,
    /// The machine's TLB grace periods. A CPU takes part while it runs a program: the host calls
    /// [`idle_exit`](TlbGrace::idle_exit) first. The host may or may not tick them.
    pub tlb_grace: &'a Arc<TlbGrace<M>>,
    /// CPUs that take part: 1 to [`count`](machine::Cpus::count).
    pub cpus: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The factor of the work of each trial: at least 1.
    pub rounds: usize,
}

/// The unit of the parts of the addresses, in bytes. No table but those right below the top level
/// is for addresses of two units. A unit has 512 large pages or more.
pub const fn unit<F: Format>() -> u64 {
    let (large, entries) = (F::LARGE.bytes(), F::ENTRIES as u64);
    if F::LEVELS > 3 { large * entries } else { large * 512 }
}

/// Up to so many CPUs, each makes all its steps. With more CPUs a flush waits for more of them,
/// which a host with few processors runs one after the other. So the work of all CPUs together is
/// bounded.
const FULL: usize = 8;
/// Steps that each CPU makes at least.
const STEPS: usize = 16;

/// The order in which CPUs make a change that all CPUs check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    cpus: usize,
    /// Turns of a pass: one for each CPU, if they are few.
    pub(crate) each: usize,
}

impl Turns {
    pub(crate) fn new(cpus: usize) -> Turns {
        let each = if cpus <= FULL { cpus } else { (FULL * FULL / cpus).max(2) };
        Turns { cpus, each }
    }

    /// The CPU of a turn. If a pass has fewer turns than there are CPUs, the next pass begins with
    /// another CPU, so that all have a turn eventually.
    pub(crate) fn of(self, turn: usize) -> usize {
        let (pass, number) = (turn / self.each, turn % self.each);
        let shift = if self.each == self.cpus { 0 } else { pass };
        (number * self.cpus / self.each + shift) % self.cpus
    }
}

impl<M: Machine, F: Format, G: Concurrent> Environment<'_, M, F, G> {
    /// Runs a trial, and checks that as many frames are free as before.
    pub(crate) fn whole(&self, trial: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        // The kernel's tables right below the top level stay for good, and so do those that the
        // range does not fill. They are made before frames are counted.
        self.on_first(|| {
            self.tables.reserve(self.range).of("could not reserve the addresses")?;
            let ends = [Some(self.range.start()), self.range.last()];
            ends.into_iter().flatten().try_for_each(|end| self.make_way(end))
        })?;
        let before = self.settled(None);
        trial()?;
        let after = self.settled(Some(before));
        if after == before {
            return Ok(());
        }
        let paging = self.tables.paging();
        let held: u64 =
            (0..paging::NR_QUICK as u8).map(|list| paging.quick().stats(list).held).sum();
        Err(self.tell(format!(
            "{before} frames were free before, {after} are now; {} tables wait, quicklists have \
             {held} pages",
            paging.waiting()
        )))
    }

    /// Frees the kernel's tables for a range in which nothing is mapped.
    pub(crate) fn prune(&self, range: VirtRange) -> Outcome {
        self.tables.prune_own(range).of("could not prune")?.flush();
        Ok(())
    }

    /// Makes a CPU's steps of a loop that has `each` in a round on few CPUs, with a quiescent state
    /// before every one in `quiet`.
    pub(crate) fn steps(
        &self,
        each: usize,
        quiet: usize,
        mut step: impl FnMut(usize) -> Outcome,
    ) -> Outcome {
        (0..self.rounds * steps(each, self.cpus)).try_for_each(|number| {
            if number.is_multiple_of(quiet) {
                (self.host.quiet)();
            }
            step(number)
        })
    }

    /// Makes the kernel's tables on the way to an address that map more than 1 GiB an entry.
    fn make_way(&self, at: VirtAddr) -> Outcome {
        let gib = PageSize::Size1G;
        let all = VirtRange::new(at.align_down(gib), gib.bytes());
        let Some(all) = all.filter(|_| F::LEVELS > 4) else { return Ok(()) };
        self.tables.leaf(at).of("could not make the tables of the range")?;
        self.prune(all)
    }

    /// Makes all CPUs free what they keep, until so many frames are free as wanted or no more come.
    /// Returns the number of free frames.
    fn settled(&self, wanted: Option<usize>) -> usize {
        let mut free = usize::MAX;
        for _ in 0..PASSES {
            self.host.everywhere(|| {
                // Expedites grace periods: the host may have nothing that ends them.
                G::flush(&G::pin());
                self.host.quiesce();
                self.tables.paging().quick().drain();
            });
            let now = self.host.machine.free_frames();
            let done = wanted.map_or(now == free, |wanted| now == wanted);
            free = now;
            if done && self.tables.paging().waiting() == 0 {
                break;
            }
        }
        free
    }

    /// Runs a program on CPU 0.
    pub(crate) fn on_first<T: Send>(
        &self,
        program: impl FnOnce() -> Outcome<T> + Send,
    ) -> Result<T, String> {
        let result = self.host.on_first(program).unwrap_or(Err(Stop::Elsewhere));
        result.map_err(|stop| self.blame(0, stop))
    }

    /// Runs a program on all CPUs that take part at once, each with its own random choices. Returns
    /// the first error.
    pub(crate) fn at_once(
        &self,
        program: impl Fn(&mut Worker<'_, M>) -> Outcome + Sync,
    ) -> Result<(), String> {
        let barrier = Barrier::new(self.host.machine, self.cpus);
        let ends = self.host.on_each(self.cpus, |cpu| {
            let end = program(&mut Worker::new(&barrier, cpu, self.seed));
            if end.is_err() {
                barrier.stop();
            }
            (self.host.quiet)();
            end
        });
        let ends = ends.into_iter().map(|end| end.unwrap_or(Err(Stop::Elsewhere)));
        let mut stops = ends.enumerate().filter_map(|(cpu, end)| Some((cpu, end.err()?)));
        let first = stops.next();
        let seen = stops.find(|(_, stop)| matches!(stop, Stop::Error(_)));
        match (first, seen) {
            (None, _) => Ok(()),
            (Some((_, Stop::Elsewhere)), Some((cpu, stop))) | (Some((cpu, stop)), _) => {
                Err(self.blame(cpu, stop))
            }
        }
    }

    fn blame(&self, cpu: usize, stop: Stop) -> String {
        match stop {
            Stop::Error(text) => self.tell(format!("cpu{cpu}: {text}")),
            Stop::Elsewhere => self.tell(format!("the program of cpu{cpu} did not run to its end")),
        }
    }

    /// Adds the parameters that reproduce the error.
    fn tell(&self, text: String) -> String {
        let Environment { cpus, seed, rounds, .. } = self;
        format!("{text} ({cpus} CPUs, seed {seed}, {rounds} rounds)")
    }

    /// A part of the addresses. It begins at a multiple of a unit.
    pub(crate) fn part(&self, number: u64) -> Result<VirtRange, String> {
        let unit = unit::<F>();
        let start = self.range.start().get().checked_next_multiple_of(unit).map(VirtAddr::new);
        let skipped = start.and_then(|start| start.offset_from(self.range.start()));
        let each = self.range.len().saturating_sub(skipped.unwrap_or(0)) / PARTS;
        let each = each / unit * unit;
        let part = start
            .and_then(|start| start.checked_add(number * each))
            .and_then(|start| VirtRange::new(start, each))
            .filter(|part| !part.is_empty());
        part.ok_or_else(|| self.tell(format!("{:?} is too short for trials", self.range)))
    }
}

/// The range of so many pages of the smallest size.
pub(crate) fn pages<F: Format>(at: VirtAddr, count: usize) -> Outcome<VirtRange> {
    let range = VirtRange::new(at, (count as u64) << F::PAGE.shift());
    range.ok_or_else(|| Stop::Error(format!("there are no {count} pages from {at} on")))
}

/// The address of a page of the smallest size behind `at`.
pub(crate) fn page<F: Format>(at: VirtAddr, number: usize) -> VirtAddr {
    VirtAddr::new(at.get() + ((number as u64) << F::PAGE.shift()))
}

/// The address of a word behind `at`.
pub(crate) fn word(at: VirtAddr, number: usize) -> VirtAddr {
    VirtAddr::new(at.get() + 8 * number as u64)
}

/// Steps of each CPU in a round.
fn steps(each: usize, cpus: usize) -> usize {
    let cpus = cpus.max(FULL);
    (each * FULL * FULL / (cpus * cpus)).max(STEPS.min(each))
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Environment<'_, M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("range", &self.range)
            .field("cpus", &self.cpus)
            .field("seed", &self.seed)
            .field("rounds", &self.rounds)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn many_cpus_do_no_more_together_than_eight() {
        assert_eq!([1, 2, 8].map(|cpus| steps(400, cpus)), [400; 3]);
        assert_eq!([16, 33, 64].map(|cpus| steps(400, cpus)), [100, 23, STEPS]);
        assert_eq!(steps(3, 64), 3);
    }

    #[test]
    fn every_cpu_has_a_turn() {
        for cpus in 1..=64 {
            let turns = Turns::new(cpus);
            assert!(turns.each * cpus <= FULL * FULL * 2, "{cpus} CPUs: {} turns", turns.each);
            let mut had = [false; 64];
            (0..turns.each * cpus).for_each(|turn| had[turns.of(turn)] = true);
            assert!(had[..cpus].iter().all(|had| *had), "{cpus} CPUs: {had:?}");
        }
        let few: Vec<usize> = (0..4).map(|turn| Turns::new(2).of(turn)).collect();
        assert_eq!(few, [0, 1, 0, 1]);
    }
}
