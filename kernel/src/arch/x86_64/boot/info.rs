//! The loader's data, by the PVH protocol (Xen's `start_info`, version 1): the command line, the
//! memory map, ACPI's root pointer, the archive of QEMU's `-initrd`.

use crate::arch::apic;
use crate::cpu::list::CpuList;
use crate::layout::direct;
use core::ffi::CStr;
use machine::{PhysAddr, PhysRange};

const MAGIC: u32 = 0x336e_c578;
const RAM: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    start: u64,
    len: u64,
    kind: u32,
    reserved: u32,
}

/// A file that the loader put into memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    start: u64,
    len: u64,
    command_line: u64,
    reserved: u64,
}

/// The loader's data.
pub(crate) struct BootInfo {
    info: StartInfo,
}

impl BootInfo {
    /// Reads the start info at this physical address.
    ///
    /// # Safety
    /// `at` is the loader's EBX by the PVH protocol. The direct map exists, and no code writes to
    /// the loader's data.
    pub(crate) unsafe fn read(at: u32) -> Result<BootInfo, &'static str> {
        let at = direct(PhysAddr::new(at.into())).get() as *const StartInfo;
        // SAFETY: by the caller's promise.
        let info = unsafe { at.read_unaligned() };
        if info.magic != MAGIC {
            return Err("the loader does not speak PVH: start with -kernel");
        }
        if info.version == 0 || info.memory_entries == 0 {
            return Err("the loader says nothing of memory: PVH version 1 is needed");
        }
        Ok(BootInfo { info })
    }

    /// The command line; empty if there is none.
    pub(crate) fn command_line(&self) -> &[u8] {
        if self.info.command_line == 0 {
            return &[];
        }
        let at = direct(PhysAddr::new(self.info.command_line)).get() as *const _;
        // SAFETY: the loader's text, which ends with a zero.
        unsafe { CStr::from_ptr(at) }.to_bytes()
    }

    /// The CPUs, and a complaint if some are missing.
    ///
    /// # Safety
    /// ACPI's tables are unmodified, and the boot tables are active.
    pub(crate) unsafe fn cpus(&self) -> (CpuList, Option<&'static str>) {
        let rsdp = Some(self.info.rsdp as usize).filter(|at| *at != 0);
        // SAFETY: the caller's promise is passed on.
        unsafe { CpuList::read(rsdp, apic::own_number()) }
    }

    /// The bytes of the first module, which is the file of QEMU's `-initrd`.
    pub(crate) fn archive(&self) -> Option<PhysRange> {
        if self.info.modules == 0 || self.info.module_list == 0 {
            return None;
        }
        let at = direct(PhysAddr::new(self.info.module_list)).get() as *const Module;
        // SAFETY: the loader's list has a first module.
        let module = unsafe { at.read_unaligned() };
        PhysRange::new(PhysAddr::new(module.start), module.len).filter(|range| !range.is_empty())
    }

    /// The usable memory, including the kernel's own.
    pub(crate) fn memory(&self) -> impl Iterator<Item = PhysRange> + '_ {
        let at = direct(PhysAddr::new(self.info.memory_map)).get() as *const MemoryMapEntry;
        (0..self.info.memory_entries as usize).filter_map(move |index| {
            // SAFETY: `index` is below the length of the loader's list.
            let entry = unsafe { at.add(index).read_unaligned() };
            (entry.kind == RAM).then_some(())?;
            PhysRange::new(PhysAddr::new(entry.start), entry.len)
        })
    }
}
