//! Locks of the parts of the kernel that serve programs.

use crate::machine::Kernel;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Takes a lock. No interrupt handler takes one. While this CPU waits, it performs the flushes that
/// other CPUs request.
pub(crate) fn lock<T>(mutex: &SpinMutex<T>) -> SpinMutexGuard<'_, T> {
    machine::lock(&Kernel, mutex)
}
