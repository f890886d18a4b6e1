//! `bench`: the experiments of `workloads`, as they are, on this machine.
//!
//! Each CPU has a virtual processor to itself, so its time is that on the clock. Emulated time is
//! not real time: what counts are ratios within one boot. Where the emulator's clock counts
//! instructions ("count" on the command line), times are numbers of instructions. With "waiting",
//! CPUs that wait count as those that work.

use crate::cpu::area::total;
use crate::fair::PhaseFair;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::smp::{host, set_tick};
use crate::{clock, layout, println, space, turns};
use alloc::format;
use alloc::string::{String, ToString};
use core::arch::x86_64::_rdtsc;
use core::marker::PhantomData;
use report::{Report, Row};
use workloads::{Counted, KernelHalf, Lab, Scale};

/// The experiments, in their order.
pub(crate) const EXPERIMENTS: [&str; 5] = ["calls", "quicklist", "gup", "vmap", "vmallocinfo"];
/// Those whose work can be counted with waiting.
pub(crate) const WAITING: [&str; 1] = ["vmap"];
/// Counts of the PIT in two turns: the middle ones first, then shorter and longer ones, to see that
/// what is found does not hang on them.
const TURNS: [u8; 3] = [8, 2, 32];
/// Runs of an operation that is counted.
const RUNS: u64 = 16;

type KernelLab<'a> = Lab<'a, Kernel, Grace, PhaseFair>;

/// How much is measured.
pub(crate) struct Bench<'a> {
    pub(crate) scale: Scale,
    pub(crate) cpus: &'a [usize],
    /// The emulator's clock counts instructions.
    pub(crate) counts: bool,
    /// It runs CPUs in short turns, and waiting counts: see [`turns`].
    pub(crate) waiting: bool,
}

impl Bench<'_> {
    /// Makes the experiment with this name.
    ///
    /// # Errors
    /// What went wrong.
    pub(crate) fn measure(&self, experiment: &str) -> Result<Report, String> {
        if !self.waiting {
            return self.with_lab(clock::now, self.cpus, |lab, half| one(experiment, lab, half));
        }
        let mut report = Report::default();
        for (at, counts) in TURNS.into_iter().enumerate() {
            let how = format!("turns of {}", turns::take(counts));
            let cpus = if at == 0 { self.cpus } else { &self.cpus[self.cpus.len() - 1..] };
            for cpus in cpus {
                let turns = turns::measure(*cpus);
                let row = Row::new(experiment, &how, "QEMU", *cpus, 0);
                report.rows.push(row.with("instructions of a turn", turns.length, ""));
                report.rows.push(row.with("largest share of a CPU", turns.largest_share, ""));
            }
            let found = self.with_lab(turns::instructions, cpus, |lab, half| {
                workloads::vmap_work(lab, half, &how)
            });
            report.merge(found.map_err(|error| error.to_string())?);
        }
        Ok(report)
    }

    /// Calls `f` with the machine as a lab, by this clock, for these numbers of CPUs.
    fn with_lab<T>(
        &self,
        clock: fn() -> u64,
        cpus: &[usize],
        f: impl FnOnce(&KernelLab<'_>, &KernelHalf<'_, Kernel, Grace>) -> T,
    ) -> T {
        let progress = |what: &str| println!("{what}");
        let lab: KernelLab<'_> = Lab {
            host: host(),
            time: clock,
            clock,
            interrupts: &|| total(|counts| &counts.shootdowns),
            flushes: &|| total(|counts| &counts.flushes),
            disturbed: Default::default,
            count: if self.counts { Some(&counted) } else { None },
            progress: &progress,
            scale: self.scale,
            cpus,
            // Counting, the emulator runs one at a time: in turns that are long, unless waiting is
            // to be counted.
            at_once: self.waiting || !self.counts,
            types: PhantomData,
        };
        let half = KernelHalf {
            tables: space::tables(),
            range: layout::trials(),
            enter: &|| (),
            ticks: Some(&set_tick),
        };
        f(&lab, &half)
    }
}

fn one(
    name: &str,
    lab: &KernelLab<'_>,
    half: &KernelHalf<'_, Kernel, Grace>,
) -> Result<Report, String> {
    let told = |error: workloads::Error| error.to_string();
    let told_of_tables = |error: paging::Error| error.to_string();
    match name {
        "quicklist" => workloads::quicklist(lab).map_err(told_of_tables),
        "gup" => workloads::gup(lab).map_err(told_of_tables),
        "calls" => workloads::calls(lab, half).map_err(told),
        "vmallocinfo" => workloads::vmallocinfo(lab, half).map_err(told),
        _ => {
            let mut report = workloads::vmap(lab, half).map_err(told)?;
            report.merge(workloads::vmap_flushes(lab, half).map_err(told)?);
            report.merge(workloads::vmap_counts(lab, half).map_err(told)?);
            Ok(report)
        }
    }
}

/// Instructions of an operation, by a counter that counts them; the rest nobody can tell.
fn counted(prepare: &mut dyn FnMut(), operation: &mut dyn FnMut()) -> Option<Counted> {
    let mut time = |operation: &mut dyn FnMut()| {
        let mut least = u64::MAX;
        for _ in 0..RUNS {
            prepare();
            // SAFETY: every x86-64 CPU has it.
            let before = unsafe { _rdtsc() };
            operation();
            // A timer interrupt is no part of it.
            // SAFETY: as above.
            least = least.min(unsafe { _rdtsc() } - before);
        }
        least
    };
    let nothing = time(&mut || ());
    let instructions = time(operation).saturating_sub(nothing) as f64;
    Some(Counted { instructions, atomics: f64::NAN, lines: f64::NAN, written: f64::NAN })
}
