//! The time of day, and the units in which programs count time.

use crate::clock;

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Ticks a second of the times that calls return.
pub(crate) const CLOCK_TICKS: u64 = 100;
/// A moment in 2026, at which machines are switched on: they have no clock for the date.
pub(crate) const SWITCHED_ON: u64 = 1_767_225_600 * SECOND;

/// The time of day, in nanoseconds since 1970.
pub(crate) fn real_time() -> u64 {
    SWITCHED_ON + clock::now()
}

/// A time in ticks, from nanoseconds.
pub(crate) fn ticks(nanos: u64) -> u64 {
    nanos / (SECOND / CLOCK_TICKS)
}
