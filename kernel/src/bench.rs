//! `bench`: the experiments of `workloads` on this machine.
//!
//! Each CPU has a virtual processor to itself, so its processor time is wall-clock time. Emulated
//! time is not real time: only ratios within one boot mean anything. If the emulator's clock counts
//! instructions ("count" on the command line), times are numbers of instructions. With "waiting",
//! the instructions of CPUs that wait count as work.

use crate::cpu::area::total;
use crate::fair_lock::PhaseFair;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::smp::{host, set_tick};
use crate::{clock, icount, layout, println, space};
use alloc::format;
use alloc::vec::Vec;
use core::arch::x86_64::_rdtsc;
use core::marker::PhantomData;
use report::{Report, Row};
use workloads::{Error, Experiment, KernelHalf, Lab, OpCost, Scale};

/// Counts of the PIT in two turns: the medium length first, then shorter and longer turns, to show
/// that the result does not depend on it.
const TURNS: [u8; 3] = [icount::MEDIUM, 2, 32];
/// Runs of an operation that is counted.
const RUNS: u64 = 16;

type KernelLab<'a> = Lab<'a, Kernel, Grace, PhaseFair>;
type KernelExperiment = Experiment<Kernel, Grace, PhaseFair>;

/// All experiments, or with `waiting` those whose work can be counted together with that of waiting
/// CPUs.
pub(crate) fn experiments(waiting: bool) -> Vec<KernelExperiment> {
    let mut all = workloads::all();
    all.retain(|one: &KernelExperiment| !waiting || one.work.is_some());
    all
}

/// The parameters of the experiments.
pub(crate) struct Bench<'a> {
    pub(crate) scale: Scale,
    pub(crate) cpus: &'a [usize],
    /// The emulator's clock counts instructions.
    pub(crate) icount: bool,
    /// The emulator runs CPUs in short turns, and waiting counts: see [`icount`].
    pub(crate) waiting: bool,
}

impl Bench<'_> {
    /// Runs an experiment.
    ///
    /// # Errors
    /// The error of the experiment.
    pub(crate) fn measure(&self, experiment: &KernelExperiment) -> Result<Report, Error> {
        let Some(work) = experiment.work.filter(|_| self.waiting) else {
            return self.with_lab(clock::now, self.cpus, |lab| experiment.run(lab));
        };
        let mut report = Report::default();
        for (at, counts) in TURNS.into_iter().enumerate() {
            let how = format!("turns of {}", icount::take(counts));
            let cpus = if at == 0 { self.cpus } else { &self.cpus[self.cpus.len() - 1..] };
            for cpus in cpus {
                let turns = icount::measure(*cpus);
                let row = Row::new(experiment.name, &how, "QEMU", *cpus, 0);
                report.rows.push(row.with("instructions of a turn", turns.length, ""));
                report.rows.push(row.with("largest share of a CPU", turns.largest_share, ""));
            }
            report.merge(self.with_lab(icount::instructions, cpus, |lab| work(lab, &how))?);
        }
        Ok(report)
    }

    /// Calls `f` with a lab on this machine, with this clock and these numbers of CPUs.
    fn with_lab<T>(
        &self,
        clock: fn() -> u64,
        cpus: &[usize],
        f: impl FnOnce(&KernelLab<'_>) -> T,
    ) -> T {
        let progress = |what: &str| println!("{what}");
        let kernel = KernelHalf {
            tables: space::tables(),
            range: layout::trials(),
            enter: &|| (),
            ticks: Some(&set_tick),
        };
        f(&Lab {
            host: host(),
            kernel,
            time: clock,
            clock,
            interrupts: &|| total(|stats| &stats.shootdowns),
            flushes: &|| total(|stats| &stats.flushes),
            disturbed: Default::default,
            measure_cost: if self.icount { Some(&cost) } else { None },
            progress: &progress,
            scale: self.scale,
            cpus,
            // An emulator that counts runs one CPU at a time, in long turns unless waiting counts.
            at_once: self.waiting || !self.icount,
            types: PhantomData,
        })
    }
}

/// Counts the instructions of an operation by the time-stamp counter. The other counts are unknown.
fn cost(prepare: &mut dyn FnMut(), operation: &mut dyn FnMut()) -> Option<OpCost> {
    let mut time = |operation: &mut dyn FnMut()| {
        let mut least = u64::MAX;
        for _ in 0..RUNS {
            prepare();
            // SAFETY: every x86-64 CPU has it.
            let before = unsafe { _rdtsc() };
            operation();
            // The least value has no timer interrupt in it. SAFETY: as above.
            least = least.min(unsafe { _rdtsc() } - before);
        }
        least
    };
    let nothing = time(&mut || ());
    let instructions = time(operation).saturating_sub(nothing) as f64;
    Some(OpCost { instructions, atomics: f64::NAN, lines: f64::NAN, written: f64::NAN })
}
