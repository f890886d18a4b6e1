//! The synchronisation primitives of the crate: real ones, or those of loom.

#[cfg(not(loom))]
pub(crate) use crate::index::AtomicIndex;
#[cfg(all(not(loom), not(samara_tsan)))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
#[cfg(loom)]
pub(crate) use {
    atomic::{AtomicPtr, AtomicUsize as AtomicIndex},
    loom::sync::atomic::{AtomicU32, Ordering, fence},
};

pub(crate) use mutex::{Mutex, MutexGuard};

/// Memory that is written while it has one owner, and only read once it is published.
///
/// Loom tracks every access, so a read that races with a write or with the free fails the test.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Frozen<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Frozen<T> {
    pub(crate) fn new(value: T) -> Self {
        Frozen(core::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// The value does not change while the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0.get() }
    }

    /// # Safety
    /// Nothing else accesses the value while the reference lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

#[cfg(loom)]
pub(crate) struct Frozen<T>(loom::cell::UnsafeCell<T>);

#[cfg(loom)]
impl<T> Frozen<T> {
    pub(crate) fn new(value: T) -> Self {
        Frozen(loom::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// The value does not change while the reference lives.
    pub(crate) unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise; loom has checked that no write runs at the same time.
        self.0.with(|value| unsafe { &*value })
    }

    /// # Safety
    /// Nothing else accesses the value while the reference lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: the caller's promise; loom has checked that no read runs at the same time.
        self.0.with_mut(|value| unsafe { &mut *value })
    }
}

/// Copies `n` atomics, of one or two words each, to another place, or to a higher index of the same
/// slice.
///
/// # Safety
/// Both slices have `n` elements. Meanwhile nothing else stores to the source or accesses the
/// destination.
#[cfg(not(loom))]
#[cfg_attr(not(unoptimized), inline(always))]
pub(crate) unsafe fn copy_cells<T>(from: &[T], to: &[T], n: usize) {
    let words = const {
        assert!(size_of::<T>().is_multiple_of(size_of::<*mut ()>()));
        size_of::<T>() / size_of::<*mut ()>()
    };
    debug_assert!(n <= from.len() && n <= to.len());
    // Copied as pointers, because some of them are: copied as integers they would lose their
    // provenance.
    let (from, to) = (from.as_ptr().cast::<*mut ()>(), to.as_ptr().cast::<*mut ()>());
    // SAFETY: the caller's promise; atomics may be written to through a shared reference.
    unsafe { crate::node::copy_up(from, to.cast_mut(), words * n) }
}

/// The same for loom, with a load and a store per element.
///
/// # Safety
/// None.
#[cfg(loom)]
pub(crate) unsafe fn copy_cells<T: Copied>(from: &[T], to: &[T], n: usize) {
    (0..n).rev().for_each(|i| to[i].copy_of(&from[i]));
}

/// An atomic that can be copied under loom.
#[cfg(loom)]
pub(crate) trait Copied {
    fn copy_of(&self, other: &Self);
}

#[cfg(loom)]
impl Copied for AtomicIndex {
    fn copy_of(&self, other: &Self) {
        // Relaxed: no other thread can access them.
        self.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Loom's atomics, with a read-modify-write of another atomic, the turn, before each access.
///
/// Loom reorders two accesses only if it considers them dependent, and it remembers only one access
/// of each atomic. So a writer that loads a word before it stores it hides earlier loads by readers
/// (loom 0.7). Every access adds zero to the turn. Such accesses are always dependent, so loom
/// tries every order of loads and stores. They are relaxed and order nothing else.
#[cfg(loom)]
mod atomic {
    use loom::sync::atomic::{self, Ordering};

    macro_rules! with_turns {
        ($name:ident$(<$t:ident>)?, $value:ty) => {
            pub(crate) struct $name$(<$t>)? {
                value: atomic::$name$(<$t>)?,
                turn: atomic::AtomicUsize,
            }

            impl$(<$t>)? $name$(<$t>)? {
                pub(crate) fn new(value: $value) -> Self {
                    Self { value: atomic::$name::new(value), turn: atomic::AtomicUsize::new(0) }
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    self.turn.fetch_add(0, Ordering::Relaxed);
                    self.value.load(order)
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.turn.fetch_add(0, Ordering::Relaxed);
                    self.value.store(value, order);
                }
            }
        };
    }

    with_turns!(AtomicPtr<T>, *mut T);
    with_turns!(AtomicUsize, usize);
}

#[cfg(loom)]
mod mutex {
    pub(crate) use loom::sync::MutexGuard;

    pub(crate) struct Mutex(loom::sync::Mutex<()>);

    impl Mutex {
        pub(crate) fn new() -> Self {
            Mutex(loom::sync::Mutex::new(()))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
            self.0.try_lock().ok()
        }
    }
}

#[cfg(all(not(loom), feature = "std"))]
mod mutex {
    pub(crate) use std::sync::MutexGuard;
    use std::sync::{PoisonError, TryLockError};

    /// The operating system's mutex. If an entry's `clone` or `drop` panics while it is held, the
    /// tree is as it was before or after the write. So poisoning is ignored.
    pub(crate) struct Mutex(std::sync::Mutex<()>);

    impl Mutex {
        pub(crate) const fn new() -> Self {
            Mutex(std::sync::Mutex::new(()))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }
}

#[cfg(all(not(loom), not(feature = "std")))]
mod mutex {
    pub(crate) type MutexGuard<'t, T> = spin::MutexGuard<'t, T>;

    /// A spin lock.
    pub(crate) struct Mutex(spin::Mutex<()>);

    impl Mutex {
        pub(crate) const fn new() -> Self {
            Mutex(spin::Mutex::new(()))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
            self.0.lock()
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
            self.0.try_lock()
        }
    }
}
