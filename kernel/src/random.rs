//! Random numbers for layouts, for programs, and for /dev/urandom. Good enough to find errors by;
//! not for secrets.

use crate::clock;
use core::sync::atomic::{AtomicU64, Ordering};

static STATE: AtomicU64 = AtomicU64::new(0);

/// A random word (SplitMix64).
pub(crate) fn word() -> u64 {
    // Relaxed: only the number.
    let step = 0x9e37_79b9_7f4a_7c15 ^ clock::now() << 1;
    let state = STATE.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
    let mut word = state ^ state >> 30;
    word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
