//! A reference-counted value whose allocation can fail: the entry for programs that must not abort
//! when memory runs out.
//!
//! It differs from `alloc::sync::Arc` in two points: the constructor returns an error instead of
//! aborting (I7), and there are no weak references, which makes it one word smaller. It is correct
//! for the same reason as `Arc`: the user that drops the last reference sees everything that the
//! other users did with the value before they dropped theirs.
//!
//! The value and its count can have cache lines of their own. Aligning the value alone would not
//! do: the count in front of it would take as many lines again.

use core::{
    fmt,
    marker::PhantomData,
    mem::ManuallyDrop,
    num::NonZeroUsize,
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{
        AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use super::{Entry, Raw};
use crate::alloc::try_box_with;
use crate::{AllocError, Error};
use std_alloc::boxed::Box;

/// The largest number of users. Only a program that forgets clones on purpose comes near it.
const MOST: usize = isize::MAX as usize;

/// A shared, immutable value with a reference count: an entry whose duplication cannot fail. A
/// clone costs one atomic increment.
///
/// ```
/// use maple::RefCounted;
/// let one = RefCounted::new(5)?;
/// let two = one.clone();
/// assert!(RefCounted::is_same(&one, &two) && *two == 5);
/// # Ok::<(), maple::AllocError>(())
/// ```
///
/// Its memory also has the alignment of `L`, for values that one CPU writes and others read. The
/// count comes first, then the value.
///
/// ```
/// use maple::RefCounted;
/// #[repr(align(128))]
/// struct Line;
/// let one = RefCounted::<u64, Line>::aligned(5)?;
/// assert_eq!(core::ptr::from_ref(&*one).addr() % 128, size_of::<usize>());
/// # Ok::<(), maple::AllocError>(())
/// ```
///
/// # Misuse
/// A forgotten reference leaks the value. At the limit of references a clone panics, and the count
/// is as before.
pub struct RefCounted<T, L = ()>(NonNull<Inner<T, L>>);

#[repr(C)]
struct Inner<T, L> {
    users: AtomicUsize,
    value: T,
    _like: [L; 0],
}

// SAFETY: as for `Arc`: it lends `&T` to several threads, and the last of them drops the `T`.
unsafe impl<T: Send + Sync, L> Send for RefCounted<T, L> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, L> Sync for RefCounted<T, L> {}

impl<T> RefCounted<T> {
    /// A value with one user. Allocates once.
    ///
    /// # Errors
    /// If there is no memory. The value is dropped.
    pub fn new(value: T) -> Result<Self, AllocError> {
        Self::aligned(value)
    }
}

impl<T, L> RefCounted<T, L> {
    /// As [`new`](RefCounted::new), in memory with the alignment of `L`.
    ///
    /// # Errors
    /// As for [`new`](RefCounted::new).
    pub fn aligned(value: T) -> Result<Self, AllocError> {
        Self::new_with(|| value)
    }

    /// As [`new`](RefCounted::new), but makes the value after the allocation succeeded.
    pub(super) fn new_with(value: impl FnOnce() -> T) -> Result<Self, AllocError> {
        let make = || Inner { users: AtomicUsize::new(1), value: value(), _like: [] };
        Ok(RefCounted(NonNull::from(Box::leak(try_box_with(make)?))))
    }

    /// The word of this user's reference.
    pub(super) fn into_word(self) -> Raw {
        ManuallyDrop::new(self).0.cast()
    }

    /// Whether both refer to the same value.
    pub fn is_same(a: &Self, b: &Self) -> bool {
        a.0 == b.0
    }

    /// The value, if this is its only user. Otherwise this user's reference is dropped.
    pub fn into_inner(this: Self) -> Option<T> {
        let this = ManuallyDrop::new(this);
        this.leave().then(|| {
            // SAFETY: `leave` returned true, so there is no other user; the pointer came from a
            // box.
            unsafe { Box::from_raw(this.0.as_ptr()) }.value
        })
    }

    fn inner(&self) -> &Inner<T, L> {
        // SAFETY: our own reference keeps it alive.
        unsafe { self.0.as_ref() }
    }

    /// Drops our reference. Returns true if it was the last, so that the value is ours alone. Must
    /// be called once.
    fn leave(&self) -> bool {
        // Release: our accesses to the value happen before the last user frees it.
        if self.inner().users.fetch_sub(1, Release) != 1 {
            return false;
        }
        // Acquire: pairs with the Release of every other user's `fetch_sub`.
        #[cfg(not(samara_tsan))]
        core::sync::atomic::fence(Acquire);
        // Acquire: as above. ThreadSanitizer does not support fences.
        #[cfg(samara_tsan)]
        self.inner().users.load(Acquire);
        true
    }
}

impl<T, L> Clone for RefCounted<T, L> {
    fn clone(&self) -> Self {
        // Relaxed: we hold a reference, so the value stays alive. The clone reaches another thread
        // only by other synchronisation.
        let users = self.inner().users.fetch_add(1, Relaxed);
        if users >= MOST {
            // Relaxed: as above. The increment is undone, so that repeatedly caught panics cannot
            // overflow the count: there are more values above `MOST` than threads that can be here
            // at once.
            self.inner().users.fetch_sub(1, Relaxed);
            panic!("a RefCounted value has isize::MAX users; are clones forgotten?");
        }
        RefCounted(self.0)
    }
}

impl<T, L> Drop for RefCounted<T, L> {
    fn drop(&mut self) {
        if self.leave() {
            // SAFETY: there is no other user, and the pointer came from a box.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

impl<T, L> Deref for RefCounted<T, L> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: fmt::Debug, L> fmt::Debug for RefCounted<T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A reference to a [`RefCounted`] in a tree, valid as long as the reader's guard.
///
/// ```
/// use maple::{RefCounted, MapleTree};
/// let mut tree = MapleTree::<RefCounted<u64>>::new();
/// tree.get_mut().store_range(3..=3, RefCounted::new(8)?)?;
/// let guard = tree.pin();
/// let seen = tree.load(&guard, 3).unwrap();
/// assert_eq!(*seen.get(), 8);
/// let kept: RefCounted<u64> = seen.to_ref_counted();
/// # let _ = kept;
/// # Ok::<(), maple::Error>(())
/// ```
pub struct RefCountedRef<'g, T, L = ()> {
    inner: NonNull<Inner<T, L>>,
    _life: PhantomData<&'g Inner<T, L>>,
}

impl<T, L> Clone for RefCountedRef<'_, T, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, L> Copy for RefCountedRef<'_, T, L> {}

impl<'g, T, L> RefCountedRef<'g, T, L> {
    /// The value.
    pub fn get(self) -> &'g T {
        // SAFETY: the tree's reference keeps the value alive for `'g`.
        &unsafe { self.inner.as_ref() }.value
    }

    /// A reference that the caller owns and that outlives the guard. Cost: one atomic increment.
    pub fn to_ref_counted(self) -> RefCounted<T, L> {
        // Not dropped: the reference is the tree's.
        ManuallyDrop::new(RefCounted(self.inner)).deref().clone()
    }
}

// SAFETY: the word is the pointer; a duplicate is a reference of its own.
unsafe impl<T: Send + Sync + 'static, L: 'static> Entry for RefCounted<T, L> {
    type Ref<'g> = RefCountedRef<'g, T, L>;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = true;
    // No object reaches the last address.
    const SPARE: Option<NonZeroUsize> = Some(NonZeroUsize::MAX);

    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(self.into_word())
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        RefCounted(raw.cast())
    }

    unsafe fn borrow<'g>(raw: Raw) -> RefCountedRef<'g, T, L> {
        RefCountedRef { inner: raw.cast(), _life: PhantomData }
    }

    // Cannot fail: splitting a range or duplicating a tree allocates nothing for its entries.
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        // The reference that belongs to the word stays with it.
        let held = ManuallyDrop::new(RefCounted::<T, L>(raw.cast()));
        Ok((*held).clone().into_word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    struct Tells<'c>(&'c Cell<u32>);
    impl Drop for Tells<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn the_last_user_drops_the_value() {
        let drops = Cell::new(0);
        let first = RefCounted::new(Tells(&drops)).unwrap();
        let second = first.clone();
        assert!(RefCounted::is_same(&first, &second));
        drop(first);
        assert_eq!(drops.get(), 0);
        drop(second);
        assert_eq!(drops.get(), 1);
    }

    #[test]
    fn only_the_only_user_gets_the_value() {
        let drops = Cell::new(0);
        let first = RefCounted::new(Tells(&drops)).unwrap();
        let second = first.clone();
        assert!(RefCounted::into_inner(first).is_none());
        assert_eq!(drops.get(), 0);
        let value = RefCounted::into_inner(second).unwrap();
        assert_eq!(drops.get(), 0);
        drop(value);
        assert_eq!(drops.get(), 1);
    }

    /// Forgotten clones cannot overflow the count, however often the panic is caught.
    #[test]
    fn a_count_that_is_full_stays_so() {
        let value = RefCounted::new(7).unwrap();
        value.inner().users.store(MOST, Relaxed);
        for _ in 0..3 {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| value.clone()));
            assert!(caught.is_err());
            assert_eq!(value.inner().users.load(Relaxed), MOST);
        }
        value.inner().users.store(1, Relaxed);
    }

    #[test]
    fn a_tree_keeps_count() {
        let value = RefCounted::new(7).unwrap();
        let mut tree = crate::MapleTree::<RefCounted<i32>>::new();
        tree.get_mut().store_range(0..=99, value.clone()).unwrap();
        tree.get_mut().erase_range(40..=49).unwrap();
        assert_eq!(value.inner().users.load(Relaxed), 3);
        let guard = tree.pin();
        let seen = tree.load(&guard, 60).unwrap();
        assert!(RefCounted::is_same(&seen.to_ref_counted(), &value));
        assert_eq!(*seen.get(), 7);
        drop(tree);
        assert_eq!(value.inner().users.load(Relaxed), 1);
    }
}
