//! The waiters of the kernel's futexes (`kernel/src/futex/queue.rs`) under loom: the real file,
//! with the real states of threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-machine --test
//! futex_loom`
#![cfg(loom)]

extern crate alloc;

#[path = "../../../kernel/src/futex/queue.rs"]
mod queue;
#[path = "../../../kernel/src/task/state.rs"]
#[allow(dead_code, reason = "the kernel uses the rest")]
mod state;

/// The module that both use.
mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
}

/// Stands for the kernel's locks.
mod lock {
    use loom::sync::{Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

use lock::lock;
use loom::thread;
use queue::{Bucket, Place, Waiter};
use state::State;
// The models do not check its references, so it is the plain one.
use std::sync::Arc;
use sync::{AtomicUsize, Mutex, Ordering};

/// A thread with its queue.
struct Thread {
    state: State,
    ready: Mutex<bool>,
}

impl Thread {
    /// A thread that a CPU runs.
    fn running() -> Arc<Thread> {
        let state = State::parked();
        state.set_running();
        Arc::new(Thread { state, ready: Mutex::new(false) })
    }
}

/// Stands for the trait of `task/wait.rs`.
trait Sleeper: Send + Sync {
    fn wake(self: Arc<Self>);
}

impl Sleeper for Thread {
    fn wake(self: Arc<Self>) {
        if self.state.wake() {
            *lock(&self.ready) = true;
        }
    }
}

/// Two words, each in a bucket of its own.
struct Futexes {
    words: [AtomicUsize; 2],
    table: [Bucket<usize>; 2],
}

/// The word with this number.
fn place(word: usize) -> Place<usize> {
    Place { key: word, bucket: word }
}

impl Futexes {
    fn new() -> Arc<Futexes> {
        let word = || AtomicUsize::new(0);
        let bucket = || Mutex::new(Vec::new());
        Arc::new(Futexes { words: [word(), word()], table: [bucket(), bucket()] })
    }

    /// Whether the word is still 0. Relaxed: the program's, which only the bucket's lock orders.
    fn is_zero(&self, word: usize) -> Option<bool> {
        Some(self.words[word].load(Ordering::Relaxed) == 0)
    }

    /// A waiter for the word, if it is still 0.
    fn wait(&self, thread: &Arc<Thread>, word: usize) -> Option<Arc<Waiter>> {
        let waiter = Waiter::new(Arc::<Thread>::clone(thread), 1);
        let fits = queue::add(&self.table, place(word), &waiter, || self.is_zero(word));
        (fits == Ok(Some(true))).then_some(waiter)
    }

    fn set_and_wake(&self, word: usize) -> usize {
        self.words[word].store(1, Ordering::Relaxed);
        queue::wake(&self.table, place(word), 1, 1)
    }

    fn requeue(&self, from: usize, to: usize) -> usize {
        queue::requeue(&self.table, place(from), place(to), (0, 1), || Some(true)).unwrap()
    }

    fn waiters(&self) -> usize {
        self.table.iter().map(|bucket| lock(bucket).len()).sum()
    }
}

/// Parks a thread that waits, as a call does. Returns whether it is parked.
fn park(thread: &Thread, waiter: &Waiter) -> bool {
    thread.state.begin_wait();
    if waiter.is_woken() {
        thread.state.end_wait();
        return false;
    }
    thread.state.park()
}

/// Wakers change the word and wake. The waiter sees the new word, or one of them wakes it.
fn wait_and_wake(wakers: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (futexes, thread) = (Futexes::new(), Thread::running());
        let wakers: Vec<_> = (0..wakers)
            .map(|_| {
                let futexes = Arc::clone(&futexes);
                thread::spawn(move || futexes.set_and_wake(0))
            })
            .collect();
        let waiter = futexes.wait(&thread, 0);
        let parked = waiter.as_ref().is_some_and(|waiter| park(&thread, waiter));
        let woken: usize = wakers.into_iter().map(|waker| waker.join().unwrap()).sum();
        assert_eq!(woken, usize::from(waiter.is_some()), "woken other than once");
        assert_eq!(*lock(&thread.ready), parked, "a wake-up is lost");
        assert!(waiter.is_none_or(|waiter| waiter.is_woken()));
        assert_eq!(futexes.waiters(), 0);
    });
}

#[test]
fn a_wake_up_is_not_lost() {
    wait_and_wake(1);
}

#[test]
fn two_wakers_wake_once() {
    wait_and_wake(2);
}

/// A time or a signal ends a wait. The waker counts the waiter, or the waiter was not woken.
#[test]
fn a_waiter_gives_up_while_it_is_woken() {
    loom::model(|| {
        let (futexes, thread) = (Futexes::new(), Thread::running());
        let waiter = futexes.wait(&thread, 0).expect("the word is 0");
        let waker = {
            let futexes = Arc::clone(&futexes);
            thread::spawn(move || futexes.set_and_wake(0))
        };
        let woken = waiter.give_up(&futexes.table);
        assert_eq!(waker.join().unwrap(), usize::from(woken), "the two disagree");
        assert_eq!(futexes.waiters(), 0);
    });
}

/// A waiter moves to another word while it gives up, and that word's waker comes.
#[test]
fn a_waiter_gives_up_while_it_is_requeued() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (futexes, thread) = (Futexes::new(), Thread::running());
        let waiter = futexes.wait(&thread, 0).expect("the word is 0");
        let [mover, waker] = [true, false].map(|moves| {
            let futexes = Arc::clone(&futexes);
            thread::spawn(
                move || if moves { futexes.requeue(0, 1) } else { futexes.set_and_wake(1) },
            )
        });
        let woken = waiter.give_up(&futexes.table);
        mover.join().unwrap();
        assert_eq!(waker.join().unwrap(), usize::from(woken), "the two disagree");
        assert_eq!(futexes.waiters(), 0, "a waiter is left behind");
    });
}

/// Two requeues in opposite directions end, and lose no waiter.
#[test]
fn requeues_in_both_directions() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (futexes, thread) = (Futexes::new(), Thread::running());
        let waiters = [0, 1].map(|word| futexes.wait(&thread, word).expect("the word is 0"));
        let other = {
            let futexes = Arc::clone(&futexes);
            thread::spawn(move || futexes.requeue(0, 1))
        };
        futexes.requeue(1, 0);
        other.join().unwrap();
        assert_eq!(futexes.waiters(), 2);
        assert!(waiters.iter().all(|waiter| !waiter.give_up(&futexes.table)));
        assert_eq!(futexes.waiters(), 0);
    });
}
