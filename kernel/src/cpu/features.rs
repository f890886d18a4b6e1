//! What the CPU can do to keep the kernel from its own mistakes, and is told to.

use paging::PAT;
use raw_cpuid::CpuId;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags, Msr};

const IA32_PAT: u32 = 0x277;

/// What this kernel cares about in CR0.
const CR0: Cr0Flags =
    Cr0Flags::WRITE_PROTECT.union(Cr0Flags::CACHE_DISABLE).union(Cr0Flags::NOT_WRITE_THROUGH);

/// Turns on, on this CPU: caches, which a reset turns off; global pages; the ways of caching that
/// tables name; write protection and no-execute; and where the CPU has them, SMEP, SMAP and UMIP.
///
/// # Safety
/// On each CPU once, before it uses tables of ours, or any other does.
pub(crate) unsafe fn start() {
    let mut wanted = Cr4Flags::PAGE_GLOBAL;
    let features = CpuId::new().get_extended_feature_info();
    if let Some(features) = features {
        wanted.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, features.has_smep());
        wanted.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, features.has_smap());
        wanted.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, features.has_umip());
    }
    // SAFETY: the CPU has what is asked for, and the kernel runs by these rules.
    unsafe {
        Msr::new(IA32_PAT).write(PAT);
        Efer::update(|flags| flags.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|flags| *flags = flags.difference(CR0) | Cr0Flags::WRITE_PROTECT);
        Cr4::update(|flags| flags.insert(wanted));
    }
}

/// The registers that [`start`] writes, as they are on this CPU: CR0, as far as it matters, CR4,
/// EFER, PAT.
pub(crate) fn registers() -> [u64; 4] {
    // SAFETY: every x86-64 CPU has it.
    let pat = unsafe { Msr::new(IA32_PAT).read() };
    [Cr0::read().intersection(CR0).bits(), Cr4::read_raw(), Efer::read_raw(), pat]
}

/// Whether the kernel must say when it means to touch what programs may.
pub(crate) fn has_smap() -> bool {
    Cr4::read().contains(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)
}
