//! The number of a process, and its end, for descriptors (pidfd) and parents. It is an object of
//! its own, as in Linux, because a number may come to mean another process, and because a
//! descriptor needs no more.

use crate::file::ready::Changed;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general::POLLHUP;
use spin::mutex::SpinMutex;

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// It called exit.
    Code(u8),
    /// A signal ended it.
    Signal(u8),
}

impl Exit {
    /// The status that wait4 gives.
    pub(crate) fn status(self) -> u32 {
        match self {
            Exit::Code(code) => u32::from(code) << 8,
            Exit::Signal(number) => number.into(),
        }
    }
}

/// The number of a process, and its end.
pub(crate) struct Pid {
    pub(crate) number: u32,
    /// Set when all threads of the process have ended.
    pub(crate) ended: SpinMutex<Option<Exit>>,
    is_reaped: AtomicBool,
    /// Told of its end, and when its parent has waited for it.
    pub(crate) changed: Changed,
}

impl Pid {
    pub(super) fn new(number: u32) -> Pid {
        let (ended, is_reaped) = (SpinMutex::default(), AtomicBool::new(false));
        Pid { number, ended, is_reaped, changed: Changed::new() }
    }

    /// Whether the parent has waited for the end of the process.
    pub(crate) fn is_reaped(&self) -> bool {
        // Relaxed, here and below: a waiter looks after it has had the lock of its queue, which a
        // wake-up takes afterwards.
        self.is_reaped.load(Ordering::Relaxed)
    }

    pub(super) fn set_reaped(&self) {
        self.is_reaped.store(true, Ordering::Relaxed);
        self.changed.wake(POLLHUP);
    }
}
