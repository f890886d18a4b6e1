//! Boot: the entry, and the loader's device tree.

mod entry;
pub(crate) mod info;

use crate::cpu::area::Area;
use info::tree;
use smccc::psci::cpu_on;
use smccc::{Hvc, Smc};

/// The end of the memory that the boot tables map.
pub(crate) fn mapped() -> u64 {
    512 << 30
}

/// Prepares the code that starts other CPUs. Here it is in the image already.
///
/// # Safety
/// As on x86-64, where it writes to memory of the firmware.
pub(crate) unsafe fn prepare() {}

/// Starts the CPU of an area, which enters `start_ap` with the table, the stack and the area that
/// `smp::start_others` has set.
///
/// # Safety
/// The kernel's tables map the image where the boot tables do.
pub(crate) unsafe fn start_cpu(area: &Area) {
    let entry = entry::other_cpus();
    let by_smc = tree().is_some_and(|tree| tree.starts_cpus_by_smc());
    let started = match by_smc {
        true => cpu_on::<Smc>(area.own.id, entry, 0),
        false => cpu_on::<Hvc>(area.own.id, entry, 0),
    };
    // The CPU does not come, and `smp::start` says which one it is.
    if let Err(error) = started {
        crate::println!("PSCI: {error}");
    }
}
