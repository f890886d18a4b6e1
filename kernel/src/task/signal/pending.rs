//! Signals that are pending for a thread or a process.
//!
//! A standard signal (below 32) is pending once, and once more for each timer. A real-time signal
//! is queued each time, in order, up to a bound. As in Linux, a plain kill of a real-time signal
//! beyond the bound stays pending without its details.

use super::info::{Info, SI_USER};
use super::number::bit;
use crate::errno::Errno;
use alloc::collections::VecDeque;
use linux_raw_sys::errno::EAGAIN;

/// The most signals that one queue holds: 48 bytes each.
const MOST: usize = 4096;
/// The first real-time signal.
const REAL_TIME: u8 = 32;
/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: they come before others.
const FAULTS: u64 = bit(4) | bit(5) | bit(7) | bit(8) | bit(11) | bit(31);

/// Pending signals.
#[derive(Default)]
pub(crate) struct Pending {
    /// The signals of which at least one is pending.
    set: u64,
    /// Their details.
    queue: VecDeque<Info>,
}

impl Pending {
    pub(crate) fn set(&self) -> u64 {
        self.set
    }

    /// Adds a signal. EAGAIN: the queue is full, or there is no memory for it.
    pub(crate) fn add(&mut self, info: Info) -> Result<(), Errno> {
        let number = info.number();
        // A timer waits for the delivery of its own.
        if number < REAL_TIME && self.set & bit(number) != 0 && !info.is_of_timer() {
            return Ok(());
        }
        if self.queue.len() < MOST && self.queue.try_reserve(1).is_ok() {
            self.queue.push_back(info);
        } else if (number >= REAL_TIME || info.is_of_timer()) && info.code != SI_USER {
            return Err(Errno(EAGAIN));
        }
        self.set |= bit(number);
        Ok(())
    }

    /// Takes the first signal of a set: those of faults first, then the lowest.
    pub(crate) fn take(&mut self, of: u64) -> Option<Info> {
        let found = self.set & of;
        let first = if found & FAULTS != 0 { found & FAULTS } else { found };
        if first == 0 {
            return None;
        }
        let number = first.trailing_zeros() as u8 + 1;
        let is_it = |info: &Info| info.number() == number;
        let info = self.queue.iter().position(is_it).and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(is_it) {
            self.set &= !bit(number);
        }
        if self.queue.is_empty() && self.queue.capacity() > 16 {
            // A burst keeps no memory.
            self.queue = VecDeque::new();
        }
        // Without details: as from a process that is not known.
        Some(info.unwrap_or_else(|| Info::sent(number, SI_USER, 0)))
    }

    /// Forgets the signals of a set.
    pub(crate) fn forget(&mut self, of: u64) {
        if self.set & of != 0 {
            self.queue.retain(|info| bit(info.number()) & of == 0);
            self.set &= !of;
        }
    }
}
