//! The interface to the node allocator, which may fail, and the default allocators.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use std_alloc::alloc::{alloc, dealloc};
use std_alloc::boxed::Box;

/// The allocator had no memory.
///
/// ```
/// use maple::{AllocError, Error};
/// assert_eq!(Error::from(AllocError), Error::OutOfMemory);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocError;

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for AllocError {}

/// A source of memory for the nodes of a tree.
///
/// It is a type, not a value: a node is freed after a grace period, possibly after its tree is
/// gone. There are two layouts, both aligned to 64 bytes: a leaf has 256 bytes, an inner node 384
/// (on 64-bit machines). Writers call the allocator with the tree's lock held; readers never call
/// it (I2).
///
/// # Safety
///
/// A block returned by `allocate` is valid for the layout and has no other user until `deallocate`
/// takes it back. Any thread may call either function.
///
/// ```
/// use core::{alloc::Layout, ptr::NonNull};
/// use maple::{AllocError, Global, MapleTree, NodeAlloc};
///
/// /// A source without any memory.
/// struct Nothing;
/// // SAFETY: it never returns a block.
/// unsafe impl NodeAlloc for Nothing {
///     fn allocate(_: Layout) -> Result<NonNull<u8>, AllocError> {
///         Err(AllocError)
///     }
///     unsafe fn deallocate(_: NonNull<u8>, _: Layout) {}
/// }
/// let mut tree = MapleTree::<u32, grace::Single, Nothing>::new_in();
/// assert!(tree.get_mut().store_range(1..=2, 3).is_err());
/// ```
pub unsafe trait NodeAlloc: 'static {
    /// Returns a new block of that layout. Its contents are undefined.
    ///
    /// # Errors
    /// [`AllocError`] when there is no memory.
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError>;

    /// Takes a block back.
    ///
    /// # Safety
    /// The block came from `allocate` with the same layout, and has no user any more.
    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout);
}

/// The program's global allocator.
///
/// ```
/// use maple::{Global, MapleTree};
/// let tree = MapleTree::<u32, grace::Single, Global>::new_in();
/// assert!(tree.is_empty());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

// SAFETY: the global allocator makes the same promises, for every thread.
unsafe impl NodeAlloc for Global {
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        debug_assert!(layout.size() != 0);
        // SAFETY: a node's size is not zero.
        NonNull::new(unsafe { alloc(layout) }).ok_or(AllocError)
    }

    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(ptr.as_ptr(), layout) }
    }
}

// SAFETY: the pool makes the same promises, for every thread.
#[cfg(all(feature = "std", not(loom)))]
unsafe impl NodeAlloc for pool::Pool {
    #[inline]
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        pool::Pool::take(layout).ok_or(AllocError)
    }

    #[inline]
    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { pool::Pool::give_back(ptr, layout) }
    }
}

/// The default source of nodes: the [`Pool`](crate::Pool) with the feature `std`, else the global
/// allocator.
#[cfg(all(feature = "std", not(loom)))]
pub type Nodes = crate::Pool;
/// The default source of nodes: `Pool` with the feature `std`, else the global allocator.
#[cfg(not(all(feature = "std", not(loom))))]
pub type Nodes = Global;

/// `Box::new` that reports a failed allocation instead of aborting.
///
/// # Errors
/// When there is no memory; the value is then dropped.
///
/// ```
/// let boxed = maple::try_box(7u32)?;
/// assert_eq!(*boxed, 7);
/// # Ok::<(), maple::AllocError>(())
/// ```
pub fn try_box<T>(value: T) -> Result<Box<T>, AllocError> {
    try_box_with(|| value)
}

/// Like [`try_box`], but makes the value after the allocation succeeded.
pub(crate) fn try_box_with<T>(value: impl FnOnce() -> T) -> Result<Box<T>, AllocError> {
    /// Frees the block if `value` panics.
    struct Block(NonNull<u8>, Layout);
    impl Drop for Block {
        fn drop(&mut self) {
            if self.1.size() != 0 {
                // SAFETY: it came from `alloc` with this layout.
                unsafe { dealloc(self.0.as_ptr(), self.1) }
            }
        }
    }

    let layout = Layout::new::<T>();
    let ptr = if layout.size() == 0 {
        NonNull::<T>::dangling().cast()
    } else {
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc(layout) }).ok_or(AllocError)?
    };
    let block = Block(ptr, layout);
    let value = value();
    core::mem::forget(block);
    // SAFETY: a fresh block of the layout of `T` (or dangling for size zero), which a box may own.
    unsafe {
        ptr.cast::<T>().write(value);
        Ok(Box::from_raw(ptr.cast::<T>().as_ptr()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_of_any_size() {
        assert_eq!(*try_box([1u64, 2, 3]).unwrap(), [1, 2, 3]);
        assert_eq!(*try_box(()).unwrap(), ());
        #[repr(align(128))]
        #[derive(Clone)]
        struct Wide(u8);
        let wide = try_box(Wide(9)).unwrap();
        assert_eq!(core::ptr::from_ref(&*wide).addr() % 128, 0);
        assert_eq!(wide.0, 9);
    }

    #[test]
    fn no_leak_when_the_value_panics() {
        extern crate std;
        // The panic must not leak the block; Miri's leak check verifies that.
        let outcome = std::panic::catch_unwind(|| try_box_with(|| -> u64 { panic!("no value") }));
        assert!(outcome.is_err());
    }
}
