//! A key of POSIX threads whose destructor runs when a thread ends. A destructor of a thread-local
//! value of Rust would abort when there is no memory to register it.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key, made at its first use.
pub(crate) struct Key {
    /// The key, or [`Key::NONE`]. A call that could not make it leaves it to the next one.
    key: AtomicU64,
    destructor: unsafe extern "C" fn(*mut c_void),
}

impl Key {
    const NONE: u64 = u64::MAX;

    pub(crate) const fn new(destructor: unsafe extern "C" fn(*mut c_void)) -> Key {
        Key { key: AtomicU64::new(Self::NONE), destructor }
    }

    /// Makes the destructor run with `value`, which is not null, at the end of the calling thread.
    /// Returns false if there is no memory or no further key.
    pub(crate) fn set(&self, value: *const c_void) -> bool {
        // SAFETY: the key exists. The value is for the destructor alone.
        self.get().is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) == 0 })
    }

    fn get(&self) -> Option<libc::pthread_key_t> {
        // Acquire: pairs with the Release below, so the key was made before.
        match libc::pthread_key_t::try_from(self.key.load(Ordering::Acquire)) {
            Ok(key) => Some(key),
            Err(_) => self.make(),
        }
    }

    #[cold]
    fn make(&self) -> Option<libc::pthread_key_t> {
        let mut own = 0;
        // SAFETY: the destructor fits the values that are set.
        if unsafe { libc::pthread_key_create(&mut own, Some(self.destructor)) } != 0 {
            return None;
        }
        // Release: publishes the key. Acquire on failure: as in `get`.
        let first =
            self.key.compare_exchange(Self::NONE, own.into(), Ordering::Release, Ordering::Acquire);
        let Err(others) = first else { return Some(own) };
        // Another thread was faster. SAFETY: the key is this call's, and no value was set.
        unsafe { libc::pthread_key_delete(own) };
        libc::pthread_key_t::try_from(others).ok()
    }
}
