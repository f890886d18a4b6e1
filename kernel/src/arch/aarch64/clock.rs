//! Time: the virtual counter of the generic timer.

use core::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of one count, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Call it once, on the boot CPU.
pub(crate) fn start() {
    let scale = (1_000_000_000_u128 << 32).div_ceil(hertz().into());
    // Relaxed, here and below: other CPUs start later.
    SCALE.store(scale as u64, Ordering::Relaxed);
}

/// The rate of the counter, in Hz.
pub(super) fn hertz() -> u64 {
    let hertz = read_register!("cntfrq_el0");
    assert!(hertz != 0, "the firmware does not tell the rate of the timer");
    hertz
}

/// The counter. Reads are not made early.
#[inline]
pub(super) fn counter() -> u64 {
    let count: u64;
    // SAFETY: reading the counter has no effect, and the barrier none but order.
    unsafe {
        core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack, preserves_flags));
    }
    count
}

/// Nanoseconds since the machine was switched on. Any context. Costs a read of the counter and a
/// multiplication.
#[inline]
pub(crate) fn now() -> u64 {
    let scale = SCALE.load(Ordering::Relaxed);
    ((u128::from(counter()) * u128::from(scale)) >> 32) as u64
}
