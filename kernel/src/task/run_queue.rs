//! The queues of ready threads, one for each CPU.
//!
//! A woken thread goes to the CPU that ran it last, if that is idle, else to another idle CPU, else
//! to the queue of its last CPU. An idle CPU takes threads from others' queues. A CPU that is in a
//! program gives it up at a tick if its queue is not empty.
//!
//! A queue goes round by round, and each thread has one turn in a round. A thread that waits keeps
//! the rest of its turn, and is in the first of two lists when it is woken. One that has used its
//! turn is in the second list. When the first list is empty, the second is put behind it, and a
//! round begins. So two threads that wait for each other do not wait for a third one that computes,
//! until they have used their turns. A round ends early after [`LONGEST_ROUND`]: a thread of the
//! second list waits at most that long, and for the turns of those before it.

use super::thread::Thread;
use crate::apic;
use crate::clock;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::trap::vector::WAKE;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use machine::{AtomicCpuSet, CpuId, CpuSet, Cpus, Irqs};
use spin::Once;
use spin::mutex::SpinMutex;

/// Nanoseconds after which a round ends, although threads have not used their turns.
const LONGEST_ROUND: u64 = 64_000_000;

#[derive(Default)]
#[repr(align(128))]
struct Queue {
    ready: SpinMutex<Ready>,
    /// A hint: the length of both lists.
    len: AtomicUsize,
    /// The number of the round, which no other queue has had.
    round: AtomicU64,
}

/// The ready threads of a CPU.
#[derive(Default)]
struct Ready {
    /// The threads that still have a turn in this round.
    now: VecDeque<Arc<Thread>>,
    /// The threads that have used their turns of it.
    later: VecDeque<Arc<Thread>>,
    /// The time at which `later` got its first thread.
    since: u64,
}

/// The rounds of all queues so far.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

impl Ready {
    fn len(&self) -> usize {
        self.now.len() + self.later.len()
    }

    fn add(&mut self, thread: Arc<Thread>, round: &AtomicU64) {
        // Relaxed: the round changes under the lock of the queue.
        if thread.schedule.has_turn(round.load(Ordering::Relaxed)) {
            self.now.push_back(thread);
            return;
        }
        if self.later.is_empty() {
            self.since = clock::now();
        }
        self.later.push_back(thread);
    }

    /// Takes the first thread that may run on this CPU. Its own CPU begins a new round if need be.
    fn take(&mut self, here: CpuId, round: Option<&AtomicU64>) -> Option<Arc<Thread>> {
        if let Some(round) = round
            && !self.later.is_empty()
            && (self.now.is_empty() || clock::now() - self.since >= LONGEST_ROUND)
        {
            // Behind those that have not had their turn in this round.
            self.now.append(&mut self.later);
            // Relaxed: only the numbers; the lock of the queue orders the round.
            round.store(ROUNDS.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        let take = |list: &mut VecDeque<Arc<Thread>>| {
            let at = list.iter().position(|thread| lock(&thread.affinity).contains(here))?;
            list.remove(at)
        };
        take(&mut self.now).or_else(|| take(&mut self.later))
    }
}

static QUEUES: Once<Box<[Queue]>> = Once::new();
/// The CPUs that have nothing to run.
static IDLE: AtomicCpuSet = AtomicCpuSet::new();

fn queues() -> &'static [Queue] {
    QUEUES.call_once(|| (0..Kernel.count()).map(|_| Queue::default()).collect())
}

/// Puts a thread whose state is ready into a queue.
pub(super) fn add(thread: Arc<Thread>) {
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

fn add_to(cpu: CpuId, thread: Arc<Thread>) {
    let queue = &queues()[cpu.index()];
    {
        let mut ready = lock(&queue.ready);
        ready.add(thread, &queue.round);
        // Relaxed: a hint.
        queue.len.store(ready.len(), Ordering::Relaxed);
    }
    // Pairs with the fence of `set_idle`: either this CPU sees that the other is idle, or that one
    // sees the thread.
    fence(Ordering::SeqCst);
    if IDLE.load().contains(cpu) {
        interrupt(cpu);
    }
}

/// Puts the thread that this CPU has run at the end of a queue.
pub(crate) fn put_back(thread: Arc<Thread>) {
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

/// Interrupts all other CPUs, so that idle ones wake: there is nothing more to run.
pub(crate) fn wake_all() {
    for cpu in Kernel.online().iter() {
        interrupt(cpu);
    }
}

/// Whether this CPU has other threads to run.
pub(crate) fn has_others() -> bool {
    // Relaxed: a hint.
    queues()[Kernel.current().index()].len.load(Ordering::Relaxed) != 0
}

/// The next thread of this CPU: from its own queue, else from another's.
pub(crate) fn next() -> Option<Arc<Thread>> {
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
        let mut ready = lock(&queue.ready);
        let thread = ready.take(here, (index == here.index()).then_some(&queue.round));
        queue.len.store(ready.len(), Ordering::Relaxed);
        drop(ready);
        if let Some(thread) = thread {
            // Relaxed: only this CPU changes the round of its queue.
            thread.schedule.begin_turn(all[here.index()].round.load(Ordering::Relaxed));
            thread.set_running();
            return Some(thread);
        }
    }
    None
}

/// Says whether this CPU is idle. A CPU that says so looks once more before it sleeps.
pub(crate) fn set_idle(idle: bool) {
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
pub(crate) fn has_any() -> bool {
    // Relaxed: as in `next`.
    queues().iter().any(|queue| queue.len.load(Ordering::Relaxed) != 0)
}
