//! Spin locks that wait as the machine wants it.

use crate::{Access, Step};

/// Takes `mutex`, waiting by [`Step::relax`]: so a machine in software can let its holder run, and
/// a CPU that waits with interrupts off still answers to flushes.
///
/// Take it with interrupts off if an interrupt handler takes it too. One locked instruction when it
/// is free.
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
pub fn lock<'a, T: ?Sized>(
    machine: &(impl Step + ?Sized),
    mutex: &'a spin::mutex::SpinMutex<T>,
) -> spin::mutex::SpinMutexGuard<'a, T> {
    machine.step(Access::Shared);
    loop {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        while mutex.is_locked() {
            machine.relax();
        }
    }
}
