//! The CPUs that ACPI knows, by the numbers of their local APICs.

use crate::apic::can_name;
use crate::layout::direct;
use ::acpi::madt::{Madt, MadtEntry};
use ::acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use core::ptr::NonNull;
use machine::{MAX_CPUS, PhysAddr};

/// All tables are in the direct map.
#[derive(Clone, Copy)]
struct Direct;

impl AcpiHandler for Direct {
    unsafe fn map_physical_region<T>(&self, at: usize, size: usize) -> PhysicalMapping<Self, T> {
        let there = direct(PhysAddr::new(at as u64)).get() as *mut T;
        let there = NonNull::new(there).expect("the direct map does not begin at 0");
        // SAFETY: the first tables map everything; the caller knows that there is a table.
        unsafe { PhysicalMapping::new(at, there, size, size, *self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

/// The CPUs: the first is the one that calls it, whose APIC has the number `here`.
pub(crate) struct CpuList {
    apics: [u32; MAX_CPUS],
    count: usize,
}

impl CpuList {
    /// The APICs' numbers, in the order of the CPUs'.
    pub(crate) fn apics(&self) -> &[u32] {
        &self.apics[..self.count]
    }

    /// Returns whether it has it.
    fn add(&mut self, apic: u32) -> bool {
        if self.apics().contains(&apic) {
            return true;
        }
        let room = self.count < MAX_CPUS && can_name(apic);
        if room {
            self.apics[self.count] = apic;
            self.count += 1;
        }
        room
    }

    /// Reads ACPI's list. Without one, or while ACPI is not understood, there is this CPU alone,
    /// and it is said why.
    ///
    /// # Safety
    /// The loader's root pointer, and its tables are as they were; the first tables are active.
    pub(crate) unsafe fn read(rsdp: Option<usize>, here: u32) -> (CpuList, Option<&'static str>) {
        let mut list = CpuList { apics: [0; MAX_CPUS], count: 0 };
        list.add(here);
        let Some(rsdp) = rsdp else { return (list, Some("no ACPI: one CPU")) };
        // SAFETY: passed on.
        let Ok(tables) = (unsafe { AcpiTables::from_rsdp(Direct, rsdp) }) else {
            return (list, Some("ACPI's tables are damaged: one CPU"));
        };
        let Ok(madt) = tables.find_table::<Madt>() else {
            return (list, Some("ACPI has no list of CPUs: one CPU"));
        };
        let mut all = true;
        for entry in madt.get().entries() {
            all &= match entry {
                // Bit 0: it can be used.
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
