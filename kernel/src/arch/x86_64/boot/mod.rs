//! Boot: the entry, the loader's data, and ACPI's list of CPUs.

pub(crate) mod acpi;
pub(crate) mod entry;
pub(crate) mod info;

pub(crate) use entry::mapped;

use super::apic;
use super::place::UNMAPPED;
use crate::cpu::area::Area;
use crate::layout::direct;
use machine::PhysAddr;

/// Copies the code that starts other CPUs to a page that they can reach.
///
/// # Safety
/// Call it once, with the boot tables active, and before another CPU starts.
pub(crate) unsafe fn prepare() {
    unsafe extern "C" {
        static trampoline_start: u8;
        static trampoline_end: u8;
    }
    let (from, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let to = direct(PhysAddr::new(UNMAPPED)).get() as *mut u8;
    // SAFETY: only firmware uses memory below 1 MiB, and it does not use this page. The boot tables
    // map both addresses.
    unsafe { from.copy_to_nonoverlapping(to, end.addr() - from.addr()) };
}

/// Starts the CPU of an area, which enters `start_ap` with the table, the stack and the area that
/// `smp::start_others` has set.
///
/// # Safety
/// [`prepare`] was called.
pub(crate) unsafe fn start_cpu(area: &Area) {
    // SAFETY: the trampoline is there, by the caller's promise.
    unsafe { apic::start_cpu(area, (UNMAPPED >> 12) as u8) };
}
