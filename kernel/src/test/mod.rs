//! `test`: the trials of this kernel, and those of the crate `trials`.
//!
//! The crate's trials also run on the machine in software. The kernel's own trials test that this
//! hardware and this kernel fulfil the traits of `machine`.
//!
//! | module | invariant |
//! |---|---|
//! | `sections` | no interrupt comes into an interrupt-free section, and none is lost |
//! | `shootdowns` | TLB shootdowns end, whatever the CPUs do; a section holds back those by interrupts |
//! | `periods` | grace periods of readers and of TLBs end by ticks alone, without an IPI |
//! | `shortage` | CPUs that do nothing with tables give back those they keep when others are short of memory |
//! | `faults` | guard pages fault, and the kernel survives; pages cannot be written, executed or accessed against their rights |

mod faults;
mod periods;
mod sections;
mod shootdowns;
mod shortage;

use crate::arch::place::Format;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::smp::{host, tlb_grace};
use crate::{clock, layout, println, progress, space};
use alloc::string::String;
use alloc::vec::Vec;
use machine::Cpus;
use trials::Environment;

/// A trial of this kernel. It runs on the boot CPU, and uses others as it needs them.
type Trial = (&'static str, fn() -> Result<(), String>);

const OWN: &[Trial] = &[
    ("ticks", sections::ticks),
    ("sections", sections::sections),
    ("shootdowns", shootdowns::all_at_once),
    ("spinning", shootdowns::beside_spinning_cpus),
    ("walks", shootdowns::held_back),
    ("readers", periods::readers),
    ("flushing", periods::own_need),
    ("reporting", periods::reporting),
    ("unmapping", periods::unmapping),
    ("shortage", shortage::kept),
    ("guards", faults::guards),
    ("rights", faults::rights),
    ("alike", faults::alike),
    ("execution", faults::execution),
    ("user", faults::user),
];

/// The names of all trials, in their order.
pub(crate) fn names() -> Vec<&'static str> {
    let of_all = trials::all::<Kernel, Format, Grace>();
    OWN.iter().map(|(name, _)| *name).chain(of_all.iter().map(|trial| trial.name)).collect()
}

/// Runs these trials, and returns whether all have passed.
pub(crate) fn test(names: &[&str], seed: u64, rounds: usize) -> bool {
    let ground = Environment {
        host: host(),
        tables: space::tables(),
        range: layout::trials(),
        tlb_grace: tlb_grace(),
        cpus: Kernel.count(),
        seed,
        rounds,
    };
    let of_all = trials::all::<Kernel, Format, Grace>();
    let mut failed = 0;
    for name in names {
        let own = OWN.iter().find(|(of, _)| of == name);
        let begun = clock::now();
        progress::begin(name);
        let result = match own {
            Some((_, trial)) => trial(),
            None => match of_all.iter().find(|trial| trial.name == *name) {
                Some(trial) => (trial.run)(&ground),
                None => Err(String::from("there is no such trial")),
            },
        };
        progress::end();
        let took = (clock::now() - begun) / 1_000_000;
        match result {
            Ok(()) => println!("trial {name:<12} ok      {took:>6} ms"),
            Err(cause) => {
                failed += 1;
                println!("trial {name:<12} FAILED  {took:>6} ms: {cause}");
            }
        }
    }
    println!("{} trials on {} CPUs, {failed} failed", names.len(), Kernel.count());
    failed == 0
}
