//! Time.

pub(crate) use crate::arch::clock::{now, start};

/// Spins for this many nanoseconds.
pub(crate) fn wait(nanos: u64) {
    let until = now() + nanos;
    while now() < until {
        core::hint::spin_loop();
    }
}
