//! Entries that are shared pointers: `Arc` and `Weak`, of types of any size.
//!
//! The word is the pointer. A pointer that is not one word, such as that of an `Arc<str>`, lies in
//! a counted box of its own (`fat`).

use super::{Entry, Raw, fat, without_provenance};
use crate::Error;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, transmute_copy};
use core::num::NonZeroUsize;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use std_alloc::sync::{Arc, Weak};

/// Whether a pointer to `T` is one word.
const fn is_thin<T: ?Sized>() -> bool {
    size_of::<*const T>() == size_of::<usize>()
}

/// # Safety
/// A pointer to `T` is one word.
#[inline]
unsafe fn thin<T: ?Sized>(raw: Raw) -> *const T {
    // SAFETY: the caller's promise: both are one pointer.
    unsafe { transmute_copy(&raw.as_ptr()) }
}

/// A reference to an [`Arc`] in a tree. It dereferences to `T`; [`to_arc`](ArcRef::to_arc) clones
/// the `Arc`, so that it outlives the guard.
///
/// ```
/// use maple::MapleTree;
/// use std::sync::Arc;
/// let mut tree = MapleTree::<Arc<u64>>::new();
/// tree.get_mut().store_range(3..=3, Arc::new(8)).unwrap();
/// let guard = tree.pin();
/// let kept: Arc<u64> = tree.load(&guard, 3).unwrap().to_arc();
/// drop(tree.load(&guard, 3));
/// assert_eq!(*kept, 8);
/// ```
pub struct ArcRef<'g, T: ?Sized> {
    ptr: NonNull<T>,
    _life: PhantomData<&'g Arc<T>>,
}

// SAFETY: it is equivalent to a `&Arc<T>`.
unsafe impl<T: ?Sized + Send + Sync> Send for ArcRef<'_, T> {}
// SAFETY: it is equivalent to a `&Arc<T>`.
unsafe impl<T: ?Sized + Send + Sync> Sync for ArcRef<'_, T> {}

impl<'g, T: ?Sized> ArcRef<'g, T> {
    /// The value, for as long as the guard.
    pub fn get(self) -> &'g T {
        // SAFETY: the tree's own reference is alive for our lifetime.
        unsafe { self.ptr.as_ref() }
    }

    /// An `Arc` that the caller owns. Cost: one atomic increment.
    pub fn to_arc(&self) -> Arc<T> {
        // SAFETY: the tree's own reference is alive for our lifetime; the `Arc` rebuilt from it is
        // not dropped.
        let shared = unsafe { ManuallyDrop::new(Arc::from_raw(self.ptr.as_ptr())) };
        Arc::clone(&shared)
    }
}

impl<T: ?Sized> Clone for ArcRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for ArcRef<'_, T> {}

impl<T: ?Sized> Deref for ArcRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the tree's own reference is alive for our lifetime.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for ArcRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for ArcRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + PartialEq> PartialEq for ArcRef<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: ?Sized + Eq> Eq for ArcRef<'_, T> {}

// SAFETY: the word is the pointer of `Arc::into_raw`, and a duplicate is a reference of its own; or
// it is that of a counted box that holds the `Arc`.
unsafe impl<T: ?Sized + Send + Sync + 'static> Entry for Arc<T> {
    type Ref<'g> = ArcRef<'g, T>;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = true;
    // No object reaches the last address.
    const SPARE: Option<NonZeroUsize> = Some(NonZeroUsize::MAX);

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        if !is_thin::<T>() {
            return fat::store(self);
        }
        // SAFETY: the pointer of an `Arc` is never null.
        Ok(unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut()).cast() })
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        if !is_thin::<T>() {
            // SAFETY: the caller's promise.
            return unsafe { fat::take(raw) };
        }
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(thin(raw)) }
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> ArcRef<'g, T> {
        let ptr = if is_thin::<T>() {
            // SAFETY: the word is the pointer.
            unsafe { thin(raw) }
        } else {
            // SAFETY: the box is alive for `'g`.
            Arc::as_ptr(unsafe { fat::get::<Arc<T>>(raw) })
        };
        // SAFETY: the pointer of an `Arc` is never null.
        ArcRef { ptr: unsafe { NonNull::new_unchecked(ptr.cast_mut()) }, _life: PhantomData }
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        if !is_thin::<T>() {
            // SAFETY: the caller's promise.
            return Ok(unsafe { fat::dup::<Self>(raw) });
        }
        // SAFETY: the word is the pointer of `Arc::into_raw`, and its reference is alive.
        unsafe { Arc::increment_strong_count(thin::<T>(raw)) };
        Ok(raw)
    }
}

/// A reference to a [`Weak`] in a tree.
///
/// ```
/// use maple::MapleTree;
/// use std::sync::{Arc, Weak};
/// let mut tree = MapleTree::<Weak<str>>::new();
/// let name: Arc<str> = "heap".into();
/// tree.get_mut().store_range(3..=5, Arc::downgrade(&name))?;
/// assert_eq!(tree.get_mut().load(4).unwrap().upgrade().as_deref(), Some("heap"));
/// drop(name);
/// assert_eq!(tree.get_mut().load(4).unwrap().upgrade(), None);
/// # Ok::<(), maple::Error>(())
/// ```
pub struct WeakRef<'g, T: ?Sized> {
    ptr: *const T,
    _life: PhantomData<&'g Weak<T>>,
}

// SAFETY: it is equivalent to a `&Weak<T>`.
unsafe impl<T: ?Sized + Send + Sync> Send for WeakRef<'_, T> {}
// SAFETY: it is equivalent to a `&Weak<T>`.
unsafe impl<T: ?Sized + Send + Sync> Sync for WeakRef<'_, T> {}

impl<T: ?Sized> Clone for WeakRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for WeakRef<'_, T> {}

impl<T: ?Sized> WeakRef<'_, T> {
    /// The value, if it is still alive: see [`Weak::upgrade`].
    pub fn upgrade(&self) -> Option<Arc<T>> {
        self.weak().upgrade()
    }

    /// A `Weak` that the caller owns. Cost: one atomic increment.
    pub fn to_weak(&self) -> Weak<T> {
        Weak::clone(&self.weak())
    }

    fn weak(&self) -> ManuallyDrop<Weak<T>> {
        // SAFETY: the tree's own reference is alive for our lifetime; the copy is not dropped.
        ManuallyDrop::new(unsafe { Weak::from_raw(self.ptr) })
    }
}

impl<T: ?Sized> fmt::Debug for WeakRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(Weak)")
    }
}

/// The word of a thin `Weak` whose pointer is null. No value has this address, since that of a
/// value in an `Arc` follows the counts.
const NULL: Raw = without_provenance(NonZeroUsize::MIN);

/// The pointer of a thin `Weak` in a word.
///
/// # Safety
/// The word is one of a `Weak<T>`, and a pointer to `T` is one word.
#[inline]
unsafe fn weak_ptr<T: ?Sized>(raw: Raw) -> *const T {
    let ptr = if raw == NULL { ptr::null_mut() } else { raw.as_ptr() };
    // SAFETY: the caller's promise: both are one pointer.
    unsafe { transmute_copy(&ptr) }
}

// SAFETY: the word is the pointer of `Weak::into_raw`, which is `NULL` instead of null, and a
// duplicate is a reference of its own; or it is that of a counted box that holds the `Weak`.
unsafe impl<T: ?Sized + Send + Sync + 'static> Entry for Weak<T> {
    type Ref<'g> = WeakRef<'g, T>;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = true;

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        if !is_thin::<T>() {
            return fat::store(self);
        }
        Ok(NonNull::new(Weak::into_raw(self).cast_mut()).map_or(NULL, NonNull::cast))
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        if !is_thin::<T>() {
            // SAFETY: the caller's promise.
            return unsafe { fat::take(raw) };
        }
        // SAFETY: the caller's promise.
        unsafe { Weak::from_raw(weak_ptr(raw)) }
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> WeakRef<'g, T> {
        let ptr = if is_thin::<T>() {
            // SAFETY: the word is one of a `Weak`.
            unsafe { weak_ptr(raw) }
        } else {
            // SAFETY: the box is alive for `'g`.
            unsafe { fat::get::<Weak<T>>(raw) }.as_ptr()
        };
        WeakRef { ptr, _life: PhantomData }
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        if !is_thin::<T>() {
            // SAFETY: the caller's promise.
            return Ok(unsafe { fat::dup::<Self>(raw) });
        }
        // SAFETY: the caller's promise; the source is not dropped.
        let held = ManuallyDrop::new(unsafe { <Self as Entry>::from_raw(raw) });
        core::mem::forget(Weak::clone(&held));
        Ok(raw)
    }
}
