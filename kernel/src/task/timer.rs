//! Timers: each calls a value at its time, such as a waiting thread, a process, or a timer of a
//! program. Each CPU has a list, and looks at it in its loop, so also after each tick: a timer is
//! late by a tick at most, unless the kernel works for long.

use crate::clock;
use crate::lock::lock;
use crate::machine::Kernel;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use machine::Cpus;
use spin::Once;
use spin::mutex::SpinMutex;

/// The time of a timer, and the address of the value that it calls.
type Due = (u64, usize);

#[repr(align(128))]
struct Timers {
    due: SpinMutex<BTreeMap<Due, Weak<dyn Expire>>>,
    /// The time of the first one.
    first: AtomicU64,
}

static TIMERS: Once<Box<[Timers]>> = Once::new();

fn all() -> &'static [Timers] {
    let make = |_| Timers { due: SpinMutex::default(), first: AtomicU64::new(u64::MAX) };
    TIMERS.call_once(|| (0..Kernel.count()).map(make).collect())
}

fn here() -> &'static Timers {
    &all()[Kernel.current().index()]
}

/// A value that a timer calls. No lock is held then.
pub(crate) trait Expire: Send + Sync {
    /// The time has come.
    fn expire(self: Arc<Self>);
}

/// A timer that runs for a call, a process or a file.
pub(crate) struct Timer {
    cpu: usize,
    due: Due,
}

impl Timer {
    /// Ends it.
    pub(crate) fn cancel(self) {
        lock(&all()[self.cpu].due).remove(&self.due);
    }
}

/// Calls `value` at this time, or later. A value has one timer at most.
pub(crate) fn call_at(time: u64, value: Weak<dyn Expire>) -> Timer {
    let (timers, due) = (here(), (time, value.as_ptr().addr()));
    lock(&timers.due).insert(due, value);
    // Relaxed: other CPUs only take timers out.
    timers.first.fetch_min(time, Ordering::Relaxed);
    Timer { cpu: Kernel.current().index(), due }
}

/// Calls the values of this CPU's timers whose time has come. One load if there is none.
pub(crate) fn expire() {
    let timers = here();
    // Read once, so that a timer that is started anew with a short period comes next time.
    let now = clock::now();
    loop {
        // Relaxed: as above.
        if timers.first.load(Ordering::Relaxed) > now {
            return;
        }
        let mut due = lock(&timers.due);
        let first = due.first_key_value().map(|((time, _), _)| *time);
        timers.first.store(first.unwrap_or(u64::MAX), Ordering::Relaxed);
        if first.is_none_or(|time| time > now) {
            return;
        }
        let entry = due.pop_first();
        drop(due);
        if let Some(value) = entry.and_then(|(_, value)| value.upgrade()) {
            value.expire();
        }
    }
}
