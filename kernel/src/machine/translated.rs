//! Loads and stores through the MMU that return faults as errors.

use super::kernel::Kernel;
use crate::arch::features;
use crate::trap::probe::{self, Outcome};
use machine::{Fault, FaultKind, Irqs, Translated, VirtAddr};

/// Makes an access. The kernel may access pages of programs only where it says so.
fn access(at: VirtAddr, f: impl FnOnce() -> Outcome) -> Outcome {
    if at.get() >> 63 != 0 || !features::guards_programs() {
        return f();
    }
    // A handler starts without the permission, and its return restores it.
    let _section = Kernel.irqs_off();
    features::let_access(true);
    let outcome = f();
    features::let_access(false);
    outcome
}

/// The fault of an access that begins at `at`, if it faulted.
fn fault(at: Option<VirtAddr>, write: bool, outcome: Outcome) -> Result<(), Fault> {
    match outcome.fault() {
        None => Ok(()),
        Some(kind) => Err(Fault { address: at.unwrap_or_default(), write, kind }),
    }
}

fn word(at: VirtAddr, write: bool) -> Result<(), Fault> {
    if at.get().is_multiple_of(8) {
        Ok(())
    } else {
        Err(Fault { address: at, write, kind: FaultKind::Misaligned })
    }
}

/// Replaces the 32-bit word at `at` by `new`, in one atomic instruction, if it is `old`. Returns
/// whether it was.
///
/// # Errors
/// The fault.
///
/// # Safety
/// As for [`Translated::store`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn compare_exchange(at: VirtAddr, old: u32, new: u32) -> Result<bool, Fault> {
    // SAFETY: by the caller's promise.
    let outcome = access(at, || unsafe { probe::exchange(at.get(), old, new) });
    fault(Some(at), true, outcome).map(|()| outcome.value as u32 == old)
}

impl Translated for Kernel {
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault> {
        let (to, count) = (into.as_mut_ptr().expose_provenance() as u64, into.len() as u64);
        // SAFETY: by the caller's promise; `into` is valid for writes.
        let outcome = access(at, || unsafe { probe::copy(to, at.get(), count) });
        fault(at.checked_add(count - outcome.value), false, outcome)
    }

    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        let (here, count) = (from.as_ptr().expose_provenance() as u64, from.len() as u64);
        // SAFETY: by the caller's promise.
        let outcome = access(at, || unsafe { probe::copy(at.get(), here, count) });
        fault(at.checked_add(count - outcome.value), true, outcome)
    }

    #[inline]
    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault> {
        word(at, false)?;
        // SAFETY: by the caller's promise.
        let outcome = access(at, || unsafe { probe::load(at.get()) });
        fault(Some(at), false, outcome).map(|()| outcome.value)
    }

    #[inline]
    unsafe fn store(&self, at: VirtAddr, value: u64) -> Result<(), Fault> {
        word(at, true)?;
        // SAFETY: by the caller's promise.
        let outcome = access(at, || unsafe { probe::store(at.get(), value) });
        fault(Some(at), true, outcome)
    }
}
