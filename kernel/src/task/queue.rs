//! The queues of ready threads, one for each CPU.
//!
//! A woken thread goes to the CPU that ran it last, if that is idle, else to another idle CPU, else
//! to the queue of its last CPU. An idle CPU takes threads from others' queues. A CPU that is in a
//! program gives it up at a tick if its queue is not empty.

use super::{Thread, lock};
use crate::apic;
use crate::machine::Kernel;
use crate::trap::entry::WAKE;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use machine::{AtomicCpuSet, CpuId, CpuSet, Cpus, Irqs};
use spin::Once;
use spin::mutex::SpinMutex;

#[derive(Default)]
#[repr(align(128))]
struct Queue {
    threads: SpinMutex<VecDeque<Arc<Thread>>>,
    /// A hint: the length.
    len: AtomicUsize,
}

static QUEUES: Once<Box<[Queue]>> = Once::new();
/// The CPUs that have nothing to run.
static IDLE: AtomicCpuSet = AtomicCpuSet::new();

fn queues() -> &'static [Queue] {
    QUEUES.call_once(|| (0..Kernel.count()).map(|_| Queue::default()).collect())
}

/// Puts a thread whose state is ready into a queue.
pub(super) fn add(thread: &Arc<Thread>) {
    let allowed = *lock(&thread.affinity);
    // Relaxed: a hint.
    let last = CpuId::new(thread.cpu.load(Ordering::Relaxed)).unwrap_or_default();
    let idle = IDLE.load().intersection(&allowed);
    let cpu = if idle.contains(last) || (idle.is_empty() && allowed.contains(last)) {
        last
    } else {
        idle.iter().next().or_else(|| allowed.iter().next()).unwrap_or(last)
    };
    add_to(cpu, thread);
}

fn add_to(cpu: CpuId, thread: &Arc<Thread>) {
    let queue = &queues()[cpu.index()];
    {
        let mut threads = lock(&queue.threads);
        threads.push_back(Arc::clone(thread));
        // Relaxed: a hint.
        queue.len.store(threads.len(), Ordering::Relaxed);
    }
    // Pairs with the fence of `next`: either this CPU sees that the other is idle, or that one sees
    // the thread.
    fence(Ordering::SeqCst);
    if IDLE.load().contains(cpu) {
        interrupt(cpu);
    }
}

/// Puts the thread that this CPU has run at the end of a queue.
pub(super) fn put_back(thread: &Arc<Thread>) {
    thread.set_ready();
    let here = Kernel.current();
    if lock(&thread.affinity).contains(here) {
        add_to(here, thread);
    } else {
        add(thread);
    }
}

/// Makes the CPU that runs the thread look at it.
pub(super) fn poke(thread: &Thread) {
    // Relaxed: if it has just moved, the CPU to which it moved looks before it runs it
    // (`Thread::set_running`).
    let cpu = CpuId::new(thread.cpu.load(Ordering::Relaxed)).unwrap_or_default();
    if cpu != Kernel.current() {
        interrupt(cpu);
    }
}

fn interrupt(cpu: CpuId) {
    let _section = Kernel.irqs_off();
    if cpu != Kernel.current() {
        let mut one = CpuSet::EMPTY;
        one.insert(cpu);
        apic::interrupt(&one, WAKE);
    }
}

/// Wakes all idle CPUs: there is nothing more to do.
pub(super) fn wake_all() {
    for cpu in Kernel.online().iter() {
        interrupt(cpu);
    }
}

/// Whether this CPU has other threads to run.
pub(super) fn has_others() -> bool {
    // Relaxed: a hint.
    queues()[Kernel.current().index()].len.load(Ordering::Relaxed) != 0
}

/// The next thread of this CPU: from its own queue, else from another's.
pub(super) fn next() -> Option<Arc<Thread>> {
    let here = Kernel.current();
    let all = queues();
    let own = core::iter::once(here.index());
    let others = (1..all.len()).map(|step| (here.index() + step) % all.len());
    for index in own.chain(others) {
        let queue = &all[index];
        // Relaxed: a hint; the fence of `set_idle` comes before.
        if queue.len.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let mut threads = lock(&queue.threads);
        let found = threads.iter().position(|thread| lock(&thread.affinity).contains(here));
        let thread = found.and_then(|at| threads.remove(at));
        queue.len.store(threads.len(), Ordering::Relaxed);
        drop(threads);
        if let Some(thread) = thread {
            thread.set_running();
            return Some(thread);
        }
    }
    None
}

/// Says whether this CPU is idle. A CPU that says so looks once more before it sleeps.
pub(super) fn set_idle(idle: bool) {
    let here = Kernel.current();
    if idle {
        IDLE.insert(here);
        // Pairs with the fence of `add_to`.
        fence(Ordering::SeqCst);
    } else {
        IDLE.remove(here);
    }
}

/// Whether a queue has a thread.
pub(super) fn has_any() -> bool {
    // Relaxed: as in `next`.
    queues().iter().any(|queue| queue.len.load(Ordering::Relaxed) != 0)
}
