//! The locks of the machine's own state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, also after a panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A CPU that panicked left no change half done: each lock is held for one change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
