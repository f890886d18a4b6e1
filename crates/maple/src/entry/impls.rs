//! Entries for the usual types: `Arc`, `Box`, `&'static`, and integers.

use super::{Entry, Raw};
use crate::AllocError;
use crate::alloc::try_box_with;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::num::{NonZeroU32, NonZeroUsize};
use core::ops::Deref;
use core::ptr::NonNull;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

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
pub struct ArcRef<'g, T> {
    ptr: NonNull<T>,
    _life: PhantomData<&'g Arc<T>>,
}

// SAFETY: it is equivalent to a `&Arc<T>`.
unsafe impl<T: Send + Sync> Send for ArcRef<'_, T> {}
// SAFETY: it is equivalent to a `&Arc<T>`.
unsafe impl<T: Send + Sync> Sync for ArcRef<'_, T> {}

impl<T> ArcRef<'_, T> {
    /// An `Arc` that the caller owns. Cost: one atomic increment.
    pub fn to_arc(&self) -> Arc<T> {
        // SAFETY: the tree's own reference is alive for our lifetime; the `Arc` rebuilt from it is
        // not dropped.
        let shared = unsafe { ManuallyDrop::new(Arc::from_raw(self.ptr.as_ptr())) };
        Arc::clone(&shared)
    }
}

impl<T> Clone for ArcRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArcRef<'_, T> {}

impl<T> Deref for ArcRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the tree's own reference is alive for our lifetime.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for ArcRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for ArcRef<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: the word is the pointer of `Arc::into_raw`; a duplicate is a reference of its own.
unsafe impl<T: Send + Sync + 'static> Entry for Arc<T> {
    type Ref<'g> = ArcRef<'g, T>;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = true;

    #[inline]
    fn into_raw(self) -> Raw {
        // SAFETY: the pointer of an `Arc` is never null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut()).cast() }
    }

    #[inline]
    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(raw.cast::<T>().as_ptr()) }
    }

    #[inline]
    unsafe fn borrow<'g>(raw: Raw) -> ArcRef<'g, T> {
        ArcRef { ptr: raw.cast(), _life: PhantomData }
    }

    #[inline]
    unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError> {
        // SAFETY: the word is the pointer of `Arc::into_raw`, and its reference is alive.
        unsafe { Arc::increment_strong_count(raw.cast::<T>().as_ptr()) };
        Ok(raw)
    }
}

// SAFETY: the word is the box's pointer; a duplicate is a box of its own. `T` is `Sync`: a
// reference and an `Erased` of one entry may be on two threads, and the clone is made while readers
// read.
unsafe impl<T: Clone + Send + Sync + 'static> Entry for Box<T> {
    type Ref<'g> = &'g T;
    const NEEDS_DROP: bool = true;

    #[inline]
    fn into_raw(self) -> Raw {
        NonNull::from(Box::leak(self)).cast()
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
    unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError> {
        // SAFETY: as for `borrow`. If the clone allocates more memory, its failure is up to the
        // clone.
        let source = unsafe { raw.cast::<T>().as_ref() };
        try_box_with(|| source.clone()).map(Entry::into_raw)
    }
}

// SAFETY: the word is the reference.
unsafe impl<T: Sync + 'static> Entry for &'static T {
    type Ref<'g> = &'static T;
    const NEEDS_DROP: bool = false;
    const SHARES: bool = true;

    #[inline]
    fn into_raw(self) -> Raw {
        NonNull::from(self).cast()
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
    unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError> {
        Ok(raw)
    }
}

/// Implements [`Entry`] for numbers: `$to` turns one into a non-zero word, `$from` turns it back.
macro_rules! number {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        // SAFETY: the word is a number without provenance that maps back to the value; there is
        // nothing to drop.
        unsafe impl Entry for $type {
            type Ref<'g> = $type;
            const NEEDS_DROP: bool = false;
            const SHARES: bool = true;

            #[inline]
            fn into_raw(self) -> Raw {
                let to: fn($type) -> NonZeroUsize = $to;
                NonNull::without_provenance(to(self))
            }

            #[inline]
            unsafe fn from_raw(raw: Raw) -> Self {
                let from: fn(NonZeroUsize) -> $type = $from;
                from(raw.addr())
            }

            #[inline]
            unsafe fn borrow<'g>(raw: Raw) -> Self::Ref<'g> {
                let from: fn(NonZeroUsize) -> $type = $from;
                from(raw.addr())
            }

            #[inline]
            unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError> {
                Ok(raw)
            }
        }
    )*};
}

/// Zero is the word of a hole, so small integers are stored plus one.
#[inline]
fn up(value: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(value)
}

#[inline]
fn down(word: NonZeroUsize) -> usize {
    word.get() - 1
}

number! {
    bool: |v| up(v.into()), |w| down(w) != 0;
    u8: |v| up(v.into()), |w| down(w) as u8;
    u16: |v| up(v.into()), |w| down(w) as u16;
    i8: |v| up((v as u8).into()), |w| down(w) as i8;
    i16: |v| up((v as u16).into()), |w| down(w) as i16;
    NonZeroUsize: |v| v, |w| w;
}

// With 32-bit pointers, the values of a `u32` and the hole do not fit in one word.
#[cfg(target_pointer_width = "64")]
number! {
    u32: |v| up(v as usize), |w| down(w) as u32;
    i32: |v| up(v as u32 as usize), |w| down(w) as i32;
    core::num::NonZeroU64: |v| NonZeroUsize::MIN.saturating_add((v.get() - 1) as usize),
        |w| core::num::NonZeroU64::MIN.saturating_add(w.get() as u64 - 1);
}

number! {
    NonZeroU32: |v| NonZeroUsize::MIN.saturating_add((v.get() - 1) as usize),
        |w| NonZeroU32::MIN.saturating_add(w.get() as u32 - 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU64;

    fn round_trip<E: Entry + Copy + PartialEq + fmt::Debug>(values: &[E])
    where
        for<'g> E::Ref<'g>: PartialEq<E> + fmt::Debug,
    {
        for &value in values {
            let raw = value.into_raw();
            // SAFETY: the word is fresh; such entries may be turned back more than once.
            unsafe {
                assert_eq!(E::borrow(raw), value);
                let dup = E::try_dup(raw).unwrap();
                assert_eq!(E::from_raw(dup), value);
                assert_eq!(E::from_raw(raw), value);
            }
        }
    }

    #[test]
    fn numbers_keep_their_extremes() {
        round_trip(&[false, true]);
        round_trip(&[0, 1, u8::MAX]);
        round_trip(&[0, 1, u16::MAX]);
        round_trip(&[0, 1, u32::MAX]);
        round_trip(&[0, 1, -1, i8::MIN, i8::MAX]);
        round_trip(&[0, 1, -1, i16::MIN, i16::MAX]);
        round_trip(&[0, 1, -1, i32::MIN, i32::MAX]);
        round_trip(&[NonZeroUsize::MIN, NonZeroUsize::MAX]);
        round_trip(&[NonZeroU32::MIN, NonZeroU32::MAX]);
        round_trip(&[NonZeroU64::MIN, NonZeroU64::MAX]);
        static PLACE: u32 = 5;
        round_trip(&[&PLACE]);
    }

    #[test]
    fn an_arc_is_counted_and_freed() {
        let arc = Arc::new(17u64);
        let raw = Entry::into_raw(arc.clone());
        // SAFETY: each word is turned back once.
        unsafe {
            let dup = <Arc<u64> as Entry>::try_dup(raw).unwrap();
            assert_eq!(Arc::strong_count(&arc), 3);
            let look = <Arc<u64> as Entry>::borrow(raw);
            assert_eq!(*look, 17);
            let own = look.to_arc();
            assert_eq!(Arc::strong_count(&arc), 4);
            drop(own);
            crate::entry::drop_raw::<Arc<u64>>(raw);
            crate::entry::drop_raw::<Arc<u64>>(dup);
        }
        assert_eq!(Arc::strong_count(&arc), 1);
    }

    #[test]
    fn a_box_is_cloned_and_freed() {
        let raw = Entry::into_raw(Box::new([1u8, 2, 3]));
        // SAFETY: each word is turned back once.
        unsafe {
            let dup = <Box<[u8; 3]> as Entry>::try_dup(raw).unwrap();
            assert_ne!(raw, dup);
            assert_eq!(*<Box<[u8; 3]> as Entry>::borrow(dup), [1, 2, 3]);
            crate::entry::drop_raw::<Box<[u8; 3]>>(raw);
            assert_eq!(<Box<[u8; 3]> as Entry>::from_raw(dup), Box::new([1, 2, 3]));
        }
    }
}
