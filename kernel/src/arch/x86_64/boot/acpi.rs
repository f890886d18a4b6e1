//! The CPUs that ACPI lists, by the numbers of their local APICs.

use crate::arch::apic::{can_name, destination};
use crate::layout::direct;
use ::acpi::madt::{Madt, MadtEntry};
use ::acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use core::ptr::NonNull;
use machine::{MAX_CPUS, PhysAddr};

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

/// The CPUs, as destinations of IPIs. The first is the calling CPU, whose APIC has the number
/// `here`.
pub(crate) struct CpuList {
    ids: [u32; MAX_CPUS],
    count: usize,
}

impl CpuList {
    /// The destinations, in the order of the CPU numbers.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids[..self.count]
    }

    /// Adds a CPU. Returns false if there is no room or its number cannot be addressed.
    fn add(&mut self, apic: u32) -> bool {
        let id = destination(apic);
        if self.ids().contains(&id) {
            return true;
        }
        let room = self.count < MAX_CPUS && can_name(apic);
        if room {
            self.ids[self.count] = id;
            self.count += 1;
        }
        room
    }

    /// Reads ACPI's list. Without a list that it understands, it returns this CPU alone, and the
    /// reason.
    ///
    /// # Safety
    /// `rsdp` is the loader's root pointer, the tables are unmodified, and the boot tables are
    /// active.
    pub(crate) unsafe fn read(rsdp: Option<usize>, here: u32) -> (CpuList, Option<&'static str>) {
        let mut list = CpuList { ids: [0; MAX_CPUS], count: 0 };
        list.add(here);
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
                MadtEntry::LocalApic(cpu) if { cpu.flags } & 1 != 0 => list.add(cpu.apic_id.into()),
                MadtEntry::LocalX2Apic(cpu) if { cpu.flags } & 1 != 0 => list.add(cpu.x2apic_id),
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
