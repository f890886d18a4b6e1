//! The states of the kernel's threads (`kernel/src/task/state.rs`) under loom: the real file.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-machine --test
//! thread_state_loom`
#![cfg(loom)]

#[path = "../../../kernel/src/task/state.rs"]
#[allow(dead_code, reason = "the kernel uses the rest")]
mod state;

/// The module that `task/state.rs` uses.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
}

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use state::State;
use sync::{AtomicBool, Ordering, fence};

/// A thread with its queue.
struct Thread {
    state: State,
    /// Only the thread's owner uses it.
    own: UnsafeCell<usize>,
    /// How often it is in the queue.
    queued: Mutex<usize>,
    event: AtomicBool,
    /// The set of pending signals.
    pending: Mutex<bool>,
}

impl Thread {
    /// A thread that a CPU runs.
    fn running() -> Arc<Thread> {
        let state = State::parked();
        state.set_running();
        Arc::new(Thread {
            state,
            own: UnsafeCell::new(0),
            queued: Mutex::new(0),
            event: AtomicBool::new(false),
            pending: Mutex::new(false),
        })
    }

    fn use_own(&self) {
        // SAFETY: the caller owns the thread; loom checks it.
        self.own.with_mut(|own| unsafe { *own += 1 });
    }

    fn put_into_queue(&self, needed: bool) {
        if needed {
            *self.queued.lock().unwrap() += 1;
        }
    }

    /// Takes it out of the queue, as the CPU that runs it next. Returns whether it was there.
    fn take_from_queue(&self) -> bool {
        let mut queued = self.queued.lock().unwrap();
        assert!(*queued <= 1, "in a queue twice");
        let found = *queued == 1;
        *queued = 0;
        found
    }
}

/// A thread waits for an event, and wakers bring it about. At the end the thread runs, or is in the
/// queue once.
fn wait_and_wake(wakers: usize) {
    let mut model = loom::model::Builder::new();
    // Two wakers without a bound take a minute.
    model.preemption_bound = Some(3);
    model.check(move || {
        let thread = Thread::running();
        let wakers: Vec<_> = (0..wakers)
            .map(|_| {
                let thread = Arc::clone(&thread);
                thread::spawn(move || {
                    thread.event.store(true, Ordering::Relaxed);
                    let needed = thread.state.wake();
                    thread.put_into_queue(needed);
                })
            })
            .collect();
        thread.state.begin_wait();
        let mut parked = false;
        if thread.event.load(Ordering::Relaxed) {
            thread.state.end_wait();
        } else {
            thread.use_own();
            parked = thread.state.park();
        }
        if !parked {
            thread.use_own();
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        let ready = thread.take_from_queue();
        assert_eq!(parked, ready, "a wake-up is lost, or a thread that runs is in a queue");
    });
}

#[test]
fn a_wake_up_is_not_lost() {
    wait_and_wake(1);
}

#[test]
fn two_wake_ups_are_one() {
    wait_and_wake(2);
}

/// The CPU that takes the thread out of the queue sees what the one that parked it has written.
#[test]
fn the_thread_changes_hands() {
    loom::model(|| {
        let thread = Thread::running();
        let other = {
            let thread = Arc::clone(&thread);
            thread::spawn(move || {
                let needed = thread.state.wake();
                thread.put_into_queue(needed);
                if thread.take_from_queue() {
                    thread.state.set_running();
                    thread.use_own();
                }
            })
        };
        thread.state.begin_wait();
        thread.use_own();
        if !thread.state.park() {
            thread.use_own();
        }
        other.join().unwrap();
    });
}

/// A signal is sent to a thread that clears its mark, looks, and waits.
#[test]
fn attention_is_not_lost() {
    loom::model(|| {
        let thread = Thread::running();
        let sender = {
            let thread = Arc::clone(&thread);
            thread::spawn(move || {
                *thread.pending.lock().unwrap() = true;
                let needed = thread.state.call_attention();
                thread.put_into_queue(needed);
            })
        };
        let look = || *thread.pending.lock().unwrap();
        thread.state.take_attention();
        let mut seen = look();
        let mut parked = false;
        if !seen {
            thread.state.begin_wait();
            if thread.state.has_attention() {
                thread.state.end_wait();
            } else {
                parked = thread.state.park();
            }
        }
        sender.join().unwrap();
        assert_eq!(thread.take_from_queue(), parked, "a parked thread stays so");
        seen |= thread.state.has_attention();
        assert!(seen, "the signal is lost");
    });
}

/// A thread moves to another CPU while a sender runs. Either the CPU sees the mark on the way to
/// the program, or the sender interrupts that CPU.
#[test]
fn a_thread_that_moves_is_interrupted() {
    loom::model(|| {
        let thread = Thread::running();
        let cpu = Arc::new(AtomicBool::new(false));
        let sender = {
            let (thread, cpu) = (Arc::clone(&thread), Arc::clone(&cpu));
            thread::spawn(move || {
                assert!(!thread.state.call_attention());
                cpu.load(Ordering::Relaxed)
            })
        };
        // As `Thread::set_running` does.
        thread.state.set_running();
        cpu.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let looks = thread.state.has_attention();
        let interrupted = sender.join().unwrap();
        assert!(looks || interrupted, "the program goes on without a look");
    });
}
