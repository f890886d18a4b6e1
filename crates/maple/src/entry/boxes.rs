//! Entries that are plain references or own their memory: `&'static`, `Box`, and [`Owned`].

use super::{Entry, EntryMut, Raw};
use crate::alloc::{try_box, try_box_with};
use crate::{AllocError, Error};
use core::fmt;
use core::num::NonZeroUsize;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std_alloc::boxed::Box;

/// No object of at least one byte reaches the last address. A type without size has no address
/// that a reference could not have.
const fn spare<T>() -> Option<NonZeroUsize> {
    if size_of::<T>() == 0 { None } else { Some(NonZeroUsize::MAX) }
}

// SAFETY: the word is the box's pointer; a duplicate is a box of its own. `T` is `Sync`: a
// reference and an `Erased` of one entry may be on two threads, and the clone is made while readers
// read.
unsafe impl<T: Clone + Send + Sync + 'static> Entry for Box<T> {
    type Ref<'g> = &'g T;
    const NEEDS_DROP: bool = true;
    const SPARE: Option<NonZeroUsize> = spare::<T>();

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(NonNull::from(Box::leak(self)).cast())
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Box::from_raw(raw.cast::<T>().as_ptr()) }
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> &'g T {
        // SAFETY: the box is alive for `'g`.
        unsafe { raw.cast::<T>().as_ref() }
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        // SAFETY: as for `borrow`. If the clone allocates more memory, its failure is up to the
        // clone.
        let source = unsafe { raw.cast::<T>().as_ref() };
        Ok(NonNull::from(Box::leak(try_box_with(|| source.clone())?)).cast())
    }
}

// SAFETY: an entry has a box of its own.
unsafe impl<T: Clone + Send + Sync + 'static> EntryMut for Box<T> {
    type Value = T;
}

/// A value in a box of its own that is never duplicated: the entry for types without `Clone`.
///
/// A write that would split its range in two is refused with [`Error::Whole`], and so is a
/// duplicate of the tree. Other writes work as for any entry.
///
/// ```
/// use maple::{Error, MapleTree, Owned};
/// use std::fs::File;
/// # fn open() -> std::io::Result<File> { File::open("/dev/null") }
/// # if let Ok(file) = open() {
/// let mut tree = MapleTree::<Owned<File>>::new();
/// tree.get_mut().store_range(0..=99, Owned::new(file)?)?;
/// // An end may be cut off, but a hole in the middle would need a second `File`.
/// tree.get_mut().erase_range(90..=99)?;
/// assert_eq!(tree.get_mut().erase_range(40..=49), Err(Error::Whole));
/// # }
/// # Ok::<(), Error>(())
/// ```
pub struct Owned<T>(Box<T>);

impl<T> Owned<T> {
    /// Moves a value to a box. Allocates.
    ///
    /// # Errors
    /// If there is no memory. The value is dropped.
    pub fn new(value: T) -> Result<Self, AllocError> {
        Ok(Owned(try_box(value)?))
    }

    /// The value, out of its box.
    pub fn into_inner(self) -> T {
        *self.0
    }
}

impl<T> From<Box<T>> for Owned<T> {
    fn from(value: Box<T>) -> Self {
        Owned(value)
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: the word is the box's pointer; there are no duplicates.
unsafe impl<T: Send + Sync + 'static> Entry for Owned<T> {
    type Ref<'g> = &'g T;
    const NEEDS_DROP: bool = true;
    const SPARE: Option<NonZeroUsize> = spare::<T>();

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(NonNull::from(Box::leak(self.0)).cast())
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        Owned(unsafe { Box::from_raw(raw.cast::<T>().as_ptr()) })
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> &'g T {
        // SAFETY: the box is alive for `'g`.
        unsafe { raw.cast::<T>().as_ref() }
    }

    #[inline]
    unsafe fn try_dup(_: Raw) -> Result<Raw, Error> {
        Err(Error::Whole)
    }
}

// SAFETY: an entry has a box of its own.
unsafe impl<T: Send + Sync + 'static> EntryMut for Owned<T> {
    type Value = T;
}

// SAFETY: the word is the reference.
unsafe impl<T: Sync + 'static> Entry for &'static T {
    type Ref<'g> = &'static T;
    const NEEDS_DROP: bool = false;
    const SHARES: bool = true;
    const SPARE: Option<NonZeroUsize> = spare::<T>();

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(NonNull::from(self).cast())
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the word is a `&'static T`.
        unsafe { raw.cast::<T>().as_ref() }
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
        // SAFETY: the word is a `&'static T`.
        unsafe { raw.cast::<T>().as_ref() }
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        Ok(raw)
    }
}

/// A raw pointer as a plain value, for structures that the program itself keeps alive.
///
/// `NonNull` is no entry, because it says by itself that it stays on one thread. An address may go
/// to any thread; only following it needs `unsafe`, and care.
///
/// ```
/// use maple::{Address, MapleTree};
/// use std::ptr::NonNull;
/// let mut value = 7u32;
/// let mut tree = MapleTree::<Address<u32>>::new();
/// tree.get_mut().store_range(1..=2, Address(NonNull::from(&mut value)))?;
/// let found = tree.get_mut().load(2).unwrap();
/// assert_eq!(found.0, NonNull::from(&mut value));
/// # Ok::<(), maple::Error>(())
/// ```
pub struct Address<T>(pub NonNull<T>);

// SAFETY: it only is an address. Following it is the duty of the unsafe code that does so.
unsafe impl<T> Send for Address<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Address<T> {}

impl<T> Clone for Address<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Address<T> {}

impl<T> PartialEq for Address<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Address<T> {}

impl<T> fmt::Debug for Address<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// SAFETY: the word is the pointer, which is never null; there is nothing to drop.
unsafe impl<T: 'static> Entry for Address<T> {
    type Ref<'g> = Self;
    const NEEDS_DROP: bool = false;
    const SHARES: bool = true;

    #[inline]
    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(self.0.cast())
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        Address(raw.cast())
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
        Address(raw.cast())
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        Ok(raw)
    }
}
