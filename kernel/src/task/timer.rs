//! Threads that wait for a time, and timers of processes and files, for each CPU. A CPU looks in
//! its loop, and so after each tick: a timer is late by a tick at most, unless the kernel works for
//! long.

use super::thread::Resume;
use super::{Process, Thread, signal};
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

#[repr(align(128))]
struct Timers {
    due: SpinMutex<BTreeMap<(u64, u64), Due>>,
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

/// What happens at a time.
enum Due {
    /// A thread is woken.
    Wake(Weak<Thread>),
    /// The timer of a process is due.
    Alarm(Weak<Process>),
    Call(Weak<dyn Expire>),
}

/// What is called at a time. No lock is held.
pub(crate) trait Expire: Send + Sync {
    /// The time has come.
    fn expire(&self);
}

/// Keeps the numbers of processes and of threads apart. Addresses of the kernel are higher.
const ALARM: u64 = 1 << 32;

/// A timer that runs for a call, or for a process.
pub(crate) struct Timer {
    cpu: usize,
    due: (u64, u64),
}

impl Timer {
    /// Ends it.
    pub(crate) fn cancel(self) {
        lock(&all()[self.cpu].due).remove(&self.due);
    }
}

/// Wakes the thread at this time, or later, until its call is over. `resume` is the thread's.
pub(crate) fn wake_at(time: u64, thread: &Arc<Thread>, resume: &mut Resume) {
    if let Some(before) = resume.timer.take() {
        before.cancel();
    }
    resume.timer = Some(start((time, thread.tid().into()), Due::Wake(Arc::downgrade(thread))));
}

/// Tells the process's alarm at this time, or later. A process has one timer at most.
pub(super) fn alarm_at(time: u64, process: &Arc<Process>) -> Timer {
    start((time, u64::from(process.pid) | ALARM), Due::Alarm(Arc::downgrade(process)))
}

/// Calls this at this time, or later. A value has one timer at most.
pub(crate) fn call_at(time: u64, value: Weak<dyn Expire>) -> Timer {
    start((time, value.as_ptr().addr() as u64), Due::Call(value))
}

fn start(due: (u64, u64), event: Due) -> Timer {
    let timers = here();
    lock(&timers.due).insert(due, event);
    // Relaxed: other CPUs only take timers out.
    timers.first.fetch_min(due.0, Ordering::Relaxed);
    Timer { cpu: Kernel.current().index(), due }
}

/// Wakes the threads of this CPU whose time has come. One load if there is none.
pub(super) fn expire() {
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
        match entry {
            Some((_, Due::Wake(thread))) => {
                if let Some(thread) = thread.upgrade() {
                    thread.wake();
                }
            }
            Some((_, Due::Alarm(process))) => {
                if let Some(process) = process.upgrade() {
                    signal::expired(&process);
                }
            }
            Some((_, Due::Call(value))) => {
                if let Some(value) = value.upgrade() {
                    value.expire();
                }
            }
            None => {}
        }
    }
}
