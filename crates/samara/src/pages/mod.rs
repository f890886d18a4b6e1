//! `samara replay --pages`: gives the address spaces of a recording their pages.
//!
//! Each address space of the mirror gets one of [`mm`] next to it, on the machine in software of
//! [`sim`] with all its checkers on. The mirror breaks each record down to steps
//! ([`trace::mirror::SpaceChange`]), and each step is carried out there, too, by the call of `mm`
//! where there is one: so pages are faulted in, copied, moved, protected and freed by the calls of
//! a real program, in its order.
//!
//! # Accesses
//! A recording has few accesses. All of them are made:
//! - the first write to a private VMA (`F`): a write to its first page, and to the one in its
//!   middle and to its last;
//! - the growth of a stack (`G`): an access to the page to which it grew;
//! - the pages that a call itself brings in: MAP_POPULATE, mlock, MADV_POPULATE.
//!
//! To these come accesses after each call, to the first, the middle and the last page of the range
//! that it changed: each is read; and written, if the VMA allows that and is shared, or if the
//! program has written to it before. Other private VMAs are not written to, because a first write
//! decides which VMAs merge. The last page of new anonymous memory is not read, so that its first
//! access is a write. Where an access must fail, because the call unmapped the page or took
//! the right, it is tried, and must fail. After a fork, parent and child write to some pages that
//! both have. Threads are spread over four CPUs and move to the next now and then; the pages that
//! one CPU has touched are read by another CPU of the same program, so that flushes concern it.
//!
//! # Checks
//! - Each step has the result, and chooses the address, that the mirror's has.
//! - After each record, the VMAs are the mirror's: ranges and flags.
//! - Each word that is read is the last that was written there, as a plain map says (`model`).
//! - No checker of the machine finds a violation; they are named in [`sim`].
//! - When the recording has ended, every frame is back, and every table on a list.
//!
//! Features that the address spaces lack and refuse, such as MAP_HUGETLB, are counted by name. The
//! step is then carried out on the VMAs alone, with small pages.
//!
//! Cost: for each call at most some tens of accesses, and a comparison of all VMAs, as the mirror
//! makes it for a listing. A replay with pages takes two to five times as long as one without, and
//! more where a program brings in much memory at once: 5 µs a page.

mod all;
mod figures;
mod model;
mod objects;
mod process;
mod sim_machine;
#[cfg(test)]
mod tests;
mod touch;

use std::{collections::HashMap, ops::Range, sync::Arc, time::Instant};

use paging::{Paging, X86_64L4};
use sim::{Grace, Sim};
use trace::{
    mirror::{File, Shadow, SpaceChange},
    record::{MmId, Record},
    report::Progress,
};
use vma::{Layout, Profile, VmFlags};

pub(crate) use all::PagesOfAll;
use figures::Figures;
use process::Process;
use sim_machine::{CPUS, SimMachine};

type Space = mm::AddressSpace<Sim, X86_64L4, Grace>;
type SharedPaging = Arc<Paging<Sim, X86_64L4>>;

/// The calls between two moves of a thread to the next CPU.
const MOVES_AFTER: u64 = 64;
/// The records between two looks at all page tables.
const LOOKS_AFTER: u64 = 512;

/// The address spaces with pages next to the mirror's.
pub(crate) struct Pages {
    sim_machine: SimMachine,
    processes: HashMap<MmId, Process>,
    threads: HashMap<u32, usize>,
    line: usize,
    records: u64,
    /// The first failure, after which nothing is done any more.
    failed: Option<Failure>,
    progress: Progress,
    begun: Instant,
    closed: bool,
}

/// Something went wrong, at a line of the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Pages {
    /// A machine without address spaces, for the recording `name`.
    ///
    /// # Errors
    /// A description: the host has not enough memory.
    pub(crate) fn new(name: &str) -> Result<Pages, String> {
        Ok(Pages {
            sim_machine: SimMachine::new()?,
            processes: HashMap::new(),
            threads: HashMap::new(),
            line: 0,
            records: 0,
            failed: None,
            progress: Progress::new(name),
            begun: Instant::now(),
            closed: false,
        })
    }

    /// Ends all address spaces and the machine. Returns the figures, and the first failure.
    pub(crate) fn finish(mut self) -> (Figures, Option<Failure>) {
        self.close();
        let mut figures = std::mem::take(&mut self.sim_machine.figures);
        figures.took = self.begun.elapsed();
        (figures, self.failed.take())
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if self.sim_machine.figures.tables_peak == 0 {
            self.sim_machine.measure_tables();
        }
        let mut left: Vec<MmId> = self.processes.keys().copied().collect();
        left.sort_unstable();
        for mm in left {
            self.end(mm);
        }
        self.attempt(|pages| pages.sim_machine.end());
        if self.failed.is_some() {
            // The machine has halted, or its frames are not what they should be: nothing can be
            // given back there.
            std::mem::forget(std::mem::take(&mut self.processes));
            std::mem::forget(std::mem::take(&mut self.sim_machine.objects));
            std::mem::forget(Arc::clone(&self.sim_machine.paging));
        }
    }

    /// Does `work`, unless something has failed before.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<(), String>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(text) = work(self) {
            self.failed = Some(Failure { line: self.line, text });
        }
    }

    /// The CPU on which a thread runs now.
    fn cpu_of(&mut self, tid: u32) -> usize {
        let next = self.threads.len();
        let first = *self.threads.entry(tid).or_insert(next);
        (first + (self.sim_machine.figures.calls / MOVES_AFTER) as usize) % CPUS
    }
}

impl Drop for Pages {
    /// A recording that cannot be read ends here.
    fn drop(&mut self) {
        self.close();
    }
}

/// An address space of the recording that the mirror knows must be here, too.
fn known(processes: &mut HashMap<MmId, Process>, mm: MmId) -> Result<&mut Process, String> {
    processes.get_mut(&mm).ok_or_else(|| format!("address space {mm} has no pages"))
}

impl Shadow for Pages {
    fn record(&mut self, line: usize, record: &Record) {
        (self.line, self.records) = (line, self.records + 1);
        let ran = match record {
            Record::Call(call) => {
                self.sim_machine.figures.calls += 1;
                self.progress
                    .update(self.sim_machine.figures.calls, u64::from(self.failed.is_some()));
                Some((call.mm, call.tid))
            }
            Record::Fork { mm, tid, .. } => Some((*mm, *tid)),
            Record::Share { tid, child_tid, .. } => {
                self.cpu_of(*tid);
                self.cpu_of(*child_tid);
                None
            }
            _ => None,
        };
        if let Some((mm, tid)) = ran {
            let cpu = self.cpu_of(tid);
            if let Some(process) = self.processes.get_mut(&mm) {
                process.cpu = cpu;
            }
        }
        self.sim_machine.measure();
        // A short recording is looked at before its first space ends.
        let ends =
            matches!(record, Record::ExitMmap { .. }) && self.sim_machine.figures.tables_peak == 0;
        if ends || self.records.is_multiple_of(LOOKS_AFTER) {
            self.sim_machine.measure_tables();
        }
    }

    fn exec(&mut self, mm: MmId, profile: Profile, layout: Layout) {
        self.attempt(|pages| {
            let cpu = mm as usize % CPUS;
            let process = Process::new(&mut pages.sim_machine, cpu, profile, layout)?;
            pages.processes.insert(mm, process);
            pages.sim_machine.figures.spaces += 1;
            Ok(())
        });
    }

    fn change(&mut self, mm: MmId, step: &SpaceChange<File>, result: Result<usize, vma::Error>) {
        self.attempt(|pages| {
            pages.sim_machine.figures.steps += 1;
            known(&mut pages.processes, mm)?.step(&mut pages.sim_machine, step, result)
        });
    }

    fn fork(&mut self, mm: MmId, child: MmId) {
        self.attempt(|pages| {
            let forked = known(&mut pages.processes, mm)?.fork(&mut pages.sim_machine)?;
            pages.processes.insert(child, forked);
            pages.sim_machine.figures.spaces += 1;
            Ok(())
        });
    }

    fn end(&mut self, mm: MmId) {
        self.attempt(|pages| match pages.processes.remove(&mm) {
            Some(process) => process.end(&mut pages.sim_machine),
            None => Ok(()),
        });
    }

    fn compare(&mut self, mm: MmId, vmas: &mut dyn Iterator<Item = (Range<usize>, VmFlags)>) {
        self.attempt(|pages| {
            known(&mut pages.processes, mm)?.compare(&mut pages.sim_machine, vmas)
        });
    }
}
