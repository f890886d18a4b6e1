//! The CPUs that ACPI lists, by the numbers of their local APICs.

use crate::arch::apic::{can_name, destination};
use crate::cpu::list::CpuList;
use crate::layout::direct;
use ::acpi::madt::{Madt, MadtEntry};
use ::acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use core::ptr::NonNull;
use machine::PhysAddr;

/// Maps ACPI's tables: all are in the direct map.
#[derive(Clone, Copy)]
struct Direct;

impl AcpiHandler for Direct {
    unsafe fn map_physical_region<T>(&self, at: usize, size: usize) -> PhysicalMapping<Self, T> {
        let there = direct(PhysAddr::new(at as u64)).get() as *mut T;
        let there = NonNull::new(there).expect("the direct map does not begin at 0");
        // SAFETY: the boot tables map all memory, and the caller names a table.
        unsafe { PhysicalMapping::new(at, there, size, size, *self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

/// Adds a CPU, as the destination of IPIs. Returns false if there is no room or its number cannot
/// be addressed.
fn add(list: &mut CpuList, apic: u32) -> bool {
    can_name(apic) && list.add(destination(apic))
}

impl CpuList {
    /// Reads ACPI's list. The first CPU is the calling one, whose APIC has the number `here`.
    /// Without a list that it understands, it returns this CPU alone, and the reason.
    ///
    /// # Safety
    /// `rsdp` is the loader's root pointer, the tables are unmodified, and the boot tables are
    /// active.
    pub(crate) unsafe fn read(rsdp: Option<usize>, here: u32) -> (CpuList, Option<&'static str>) {
        let mut list = CpuList::new();
        add(&mut list, here);
        let Some(rsdp) = rsdp else { return (list, Some("no ACPI: one CPU")) };
        // SAFETY: the caller's promise is passed on.
        let Ok(tables) = (unsafe { AcpiTables::from_rsdp(Direct, rsdp) }) else {
            return (list, Some("ACPI's tables are damaged: one CPU"));
        };
        let Ok(madt) = tables.find_table::<Madt>() else {
            return (list, Some("ACPI has no list of CPUs: one CPU"));
        };
        let mut all = true;
        for entry in madt.get().entries() {
            all &= match entry {
                // Bit 0: the CPU is usable.
                MadtEntry::LocalApic(cpu) if { cpu.flags } & 1 != 0 => {
                    add(&mut list, cpu.apic_id.into())
                }
                MadtEntry::LocalX2Apic(cpu) if { cpu.flags } & 1 != 0 => {
                    add(&mut list, cpu.x2apic_id)
                }
                _ => true,
            }
        }
        (
            list,
            (!all).then_some(
                "some CPUs are left out: no interrupt can name them, or they are too many",
            ),
        )
    }
}
