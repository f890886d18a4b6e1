//! CPU features that protect the kernel from its own errors.

use core::arch::asm;
use paging::PAT;
use raw_cpuid::CpuId;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags, Msr};

const IA32_PAT: u32 = 0x277;

/// The bits of CR0 that this kernel sets.
const CR0: Cr0Flags = Cr0Flags::WRITE_PROTECT
    .union(Cr0Flags::CACHE_DISABLE)
    .union(Cr0Flags::NOT_WRITE_THROUGH)
    .union(Cr0Flags::EMULATE_COPROCESSOR)
    .union(Cr0Flags::TASK_SWITCHED);

/// Floating-point instructions are executed, and report errors by exceptions.
const FLOATS: Cr0Flags = Cr0Flags::MONITOR_COPROCESSOR.union(Cr0Flags::NUMERIC_ERROR);

/// Enables on this CPU: caches, which a reset disables; global pages; the memory types that page
/// tables name (PAT); write protection and no-execute; and SMEP, SMAP and UMIP where the CPU has
/// them.
///
/// # Safety
/// Call it once on each CPU, before that CPU uses our tables.
pub(crate) unsafe fn start() {
    let mut wanted = Cr4Flags::PAGE_GLOBAL;
    // For the vector registers of programs (`user::xstate`).
    wanted.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE);
    let basic = CpuId::new().get_feature_info();
    wanted.set(Cr4Flags::OSXSAVE, basic.is_some_and(|features| features.has_xsave()));
    let features = CpuId::new().get_extended_feature_info();
    if let Some(features) = features {
        wanted.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, features.has_smep());
        wanted.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, features.has_smap());
        wanted.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, features.has_umip());
    }
    // SAFETY: the CPU has these features, and the kernel runs under their rules.
    unsafe {
        Msr::new(IA32_PAT).write(PAT);
        Efer::update(|flags| flags.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|flags| *flags = flags.difference(CR0) | Cr0Flags::WRITE_PROTECT | FLOATS);
        Cr4::update(|flags| flags.insert(wanted));
    }
    // SAFETY: called once on each CPU.
    unsafe { crate::user::start() };
}

/// The registers that [`start`] writes, on this CPU: the kernel's bits of CR0, CR4, EFER, PAT.
pub(crate) fn registers() -> [u64; 4] {
    // SAFETY: every x86-64 CPU has this MSR.
    let pat = unsafe { Msr::new(IA32_PAT).read() };
    [Cr0::read().intersection(CR0).bits(), Cr4::read_raw(), Efer::read_raw(), pat]
}

/// Whether registers as [`registers`] returns them protect the kernel.
pub(crate) fn are_whole([cr0, cr4, efer, pat]: [u64; 4]) -> bool {
    cr0 == Cr0Flags::WRITE_PROTECT.bits()
        && cr4 & Cr4Flags::PAGE_GLOBAL.bits() != 0
        && efer & EferFlags::NO_EXECUTE_ENABLE.bits() != 0
        && pat == PAT
}

/// The names of these registers.
pub(crate) const REGISTERS: &str = "CR0, CR4, EFER, PAT";

/// Returns whether the kernel is kept from pages of programs unless it says so: by SMAP.
pub(crate) fn guards_programs() -> bool {
    Cr4::read().contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)
}

/// Says whether the kernel accesses pages of programs from here on. Only where it
/// [`guards_programs`].
pub(crate) fn let_access(whether: bool) {
    // SAFETY: the CPU has SMAP. The compiler moves no access over it.
    unsafe {
        match whether {
            true => asm!("stac", options(nostack)),
            false => asm!("clac", options(nostack)),
        }
    }
}
