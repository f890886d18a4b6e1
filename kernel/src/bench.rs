//! `bench`: the experiments of `workloads`, as they are, on this machine.
//!
//! Each CPU has a virtual processor to itself, so its time is that on the clock. Emulated time is not real time: what counts are
//! ratios within one boot. Where the emulator's clock counts instructions ("count" on the command line), times are
//! numbers of instructions, waiting included.

use crate::cpu::area::total;
use crate::grace::{Grace, quiet};
use crate::machine::Kernel;
use crate::smp::{run, set_tick};
use crate::{clock, layout, println, space};
use alloc::string::{String, ToString};
use core::arch::x86_64::_rdtsc;
use core::marker::PhantomData;
use report::Report;
use workloads::{Counted, KernelHalf, Lab, Scale};

/// The experiments, in their order.
pub(crate) const EXPERIMENTS: [&str; 5] = ["calls", "quicklist", "gup", "vmap", "vmallocinfo"];
/// Runs of an operation that is counted.
const RUNS: u64 = 16;

type KernelLab<'a> = Lab<'a, Kernel, Grace, spin::RwLock<()>>;

/// How much is measured.
pub(crate) struct Bench<'a> {
    pub(crate) scale: Scale,
    pub(crate) cpus: &'a [usize],
    /// The emulator's clock counts instructions.
    pub(crate) counts: bool,
}

impl Bench<'_> {
    /// Makes the experiment with this name.
    ///
    /// # Errors
    /// What went wrong.
    pub(crate) fn measure(&self, experiment: &str) -> Result<Report, String> {
        let progress = |what: &str| println!("{what}");
        let lab: KernelLab<'_> = Lab {
            machine: &Kernel,
            time: clock::now,
            clock: clock::now,
            run: &run,
            quiet,
            interrupts: &|| total(|counts| &counts.shootdowns),
            flushes: &|| total(|counts| &counts.flushes),
            count: if self.counts { Some(&counted) } else { None },
            progress: &progress,
            scale: self.scale,
            cpus: self.cpus,
            types: PhantomData,
        };
        let half = KernelHalf {
            tables: space::tables(),
            range: layout::trials(),
            enter: &|| (),
            ticks: Some(&set_tick),
        };
        one(experiment, &lab, &half)
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
