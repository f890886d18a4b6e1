//! The signals of a thread, and those of a process.

use super::action::Actions;
use super::alarm::Alarm;
use super::number::bit;
use super::pending::Pending;
use alloc::sync::Arc;
use spin::mutex::SpinMutex;

/// The signals of a thread.
#[derive(Default)]
pub(crate) struct OfThread {
    /// The thread is to end.
    pub(super) ends: bool,
    /// The signals that it blocks.
    pub(super) mask: u64,
    /// Blocked signals for which it waits (rt_sigtimedwait).
    pub(super) awaited: u64,
    pub(super) pending: Pending,
    /// The last fault, which a handler is told.
    pub(super) trap: Trap,
}

/// The signals of a process.
#[derive(Default)]
pub(crate) struct OfProcess {
    /// Processes share them after a clone with CLONE_SIGHAND.
    pub(super) actions: Arc<SpinMutex<Actions>>,
    pub(super) pending: Pending,
    pub(super) alarm: Alarm,
}

/// The last fault of a thread, which the context of a handler says.
#[derive(Clone, Copy, Default)]
pub(super) struct Trap {
    pub(super) vector: u64,
    pub(super) code: u64,
    pub(super) address: u64,
}

impl OfThread {
    /// Whether a signal wakes it.
    pub(super) fn wants(&self, number: u8) -> bool {
        !self.ends && (self.mask & !self.awaited) & bit(number) == 0
    }
}
