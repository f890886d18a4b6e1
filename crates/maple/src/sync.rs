//! The one place that knows whether we run on real atomics or under loom.

#[cfg(all(not(loom), not(samara_tsan)))]
pub(crate) use core::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use {
    atomic::{AtomicPtr, AtomicUsize},
    loom::sync::atomic::{AtomicU32, Ordering, fence},
};

pub(crate) use mutex::{Mutex, MutexGuard};

/// Memory that is written while one owner has it and only read once it is published.
///
/// Under loom every access is tracked, so that a read beside a write, or beside the free, fails
/// the model.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct Frozen<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Frozen<T> {
    pub(crate) fn new(value: T) -> Self {
        Frozen(core::cell::UnsafeCell::new(value))
    }

    /// # Safety
    /// Nobody changes the value while the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0.get() }
    }

    /// # Safety
    /// Nobody else looks at the value while the reference lives.
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
    /// Nobody changes the value while the reference lives.
    pub(crate) unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise; loom has checked that no write runs beside this.
        self.0.with(|value| unsafe { &*value })
    }

    /// # Safety
    /// Nobody else looks at the value while the reference lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: the caller's promise; loom has checked that nobody reads beside this.
        self.0.with_mut(|value| unsafe { &mut *value })
    }
}

/// Copies `n` atomics as large as a word, to elsewhere or to a higher place.
///
/// # Safety
/// So many are there. Nobody else stores to the ones or looks at the others meanwhile.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) unsafe fn copy_cells<T>(from: &[T], to: &[T], n: usize) {
    const { assert!(size_of::<T>() == size_of::<*mut ()>()) }
    debug_assert!(n <= from.len() && n <= to.len());
    // As pointers, which some are: a copy as numbers would lose what they may be used for.
    let (from, to) = (from.as_ptr().cast::<*mut ()>(), to.as_ptr().cast::<*mut ()>());
    // SAFETY: the caller's promise; atomics may be written to through a shared reference.
    unsafe { crate::node::copy_up(from, to.cast_mut(), n) }
}

/// As without loom, but by loads and stores.
///
/// # Safety
/// None is needed here.
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
impl Copied for AtomicUsize {
    fn copy_of(&self, other: &Self) {
        // Relaxed: nobody else is there.
        self.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Loom's atomics, with a turn before each access.
///
/// Loom reorders two accesses only if it takes them for dependent, and it remembers one access of
/// each atomic: a writer that loads a word before it stores it hides the readers that loaded it
/// before (loom 0.7). The turn is an atomic that everybody adds nothing to; such accesses are
/// always dependent, so every order of loads and stores is tried. They are relaxed and order
/// nothing else.
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

    /// The operating system's mutex. A panic while it is held (an entry's `clone` or `drop`) leaves
    /// the tree as it was before or after the write, so poison means nothing here.
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
