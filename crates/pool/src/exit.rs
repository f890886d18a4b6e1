//! The ends of threads: how a thread that keeps blocks learns that it has to give them back.
//!
//! By default that is the destructor of a thread-local value. The standard library aborts the
//! process if there is no memory to register it. A program that must not abort registers the end of
//! a thread in its own way: [`Pool::watch_threads`](crate::Pool::watch_threads).
//!
//! No block is lost, because a cache is opened only after the registration succeeded, and never
//! again after the end.
//!
//! Cost: an atomic load and a thread-local one for each batch.

use crate::cache;
use core::cell::Cell;
use std::sync::OnceLock;
use std::thread_local;

/// The program's registration.
static WATCH: OnceLock<fn() -> bool> = OnceLock::new();

/// A thread, as the program's registration sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// Not registered.
    Unknown,
    /// Just being registered: the registration may allocate from the pool.
    Registering,
    /// [`ended`] will be called.
    Watched,
    /// [`ended`] was called.
    Ended,
}

/// Gives the blocks of a thread back when the thread ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        cache::leave();
    }
}

thread_local! {
    static LEAVE: Leave = const { Leave };
    static STATE: Cell<ThreadState> = const { Cell::new(ThreadState::Unknown) };
}

/// Sets the registration. Returns false if there is one.
pub(super) fn watch(register: fn() -> bool) -> bool {
    WATCH.set(register).is_ok()
}

/// The thread ends.
pub(super) fn ended() {
    STATE.set(ThreadState::Ended);
    cache::leave();
}

/// Whether the thread may keep blocks: if so, [`cache::leave`] will return them.
pub(super) fn may_keep() -> bool {
    let Some(register) = WATCH.get() else { return LEAVE.try_with(|_| ()).is_ok() };
    if STATE.get() == ThreadState::Unknown {
        STATE.set(ThreadState::Registering);
        let state = if register() { ThreadState::Watched } else { ThreadState::Unknown };
        // The registration may end the thread's use of the pool.
        if STATE.get() == ThreadState::Registering {
            STATE.set(state);
        }
    }
    STATE.get() == ThreadState::Watched
}
