//! The processor time of a thread.

use nix::time::ClockId;
use std::time::Duration;

/// The processor time of this thread in nanoseconds, which leaves out other programs. Cost: a
/// system call.
pub(crate) fn thread_time() -> u64 {
    let now = ClockId::CLOCK_THREAD_CPUTIME_ID.now().expect("a thread has a clock");
    Duration::from(now).as_nanos() as u64
}
