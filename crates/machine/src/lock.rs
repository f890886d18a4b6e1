//! Spin locks that wait by the machine's rules.

use crate::{SharedAccess, Step};

/// Locks `mutex`, and waits by [`Step::relax`]. So a simulated machine can run the lock's holder,
/// and a CPU that waits with interrupts disabled still performs the flushes that other CPUs
/// request.
///
/// If an interrupt handler takes the lock, too, disable interrupts first. An uncontended lock costs
/// one locked instruction.
///
/// ```
/// use machine::{Step, lock};
/// struct Host;
/// // SAFETY: the defaults do nothing.
/// unsafe impl Step for Host {}
/// let count = spin::mutex::SpinMutex::<u32>::new(1);
/// *lock(&Host, &count) += 1;
/// assert_eq!(*lock(&Host, &count), 2);
/// ```
///
/// # Misuse
/// A forgotten guard keeps the lock. A CPU that takes a lock twice waits for itself.
pub fn lock<'a, T: ?Sized>(
    machine: &(impl Step + ?Sized),
    mutex: &'a spin::mutex::SpinMutex<T>,
) -> spin::mutex::SpinMutexGuard<'a, T> {
    machine.step(SharedAccess::Other);
    loop {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        while mutex.is_locked() {
            machine.relax();
        }
    }
}
