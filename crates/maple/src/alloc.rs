//! Where nodes come from: an allocator that can fail.

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
/// It is a type, not a value, because a node is freed after a grace period, maybe when its tree is
/// gone. There are two layouts: leaves have 256 bytes, inner nodes 384 (on 64-bit machines), both
/// aligned to 64. Writers call it with the tree's lock held; readers never do (I2).
///
/// # Safety
///
/// A block that `allocate` returned is valid for the layout, and nobody else's, until it is given
/// back to `deallocate`, from whichever thread.
///
/// ```
/// use core::{alloc::Layout, ptr::NonNull};
/// use maple::{AllocError, Global, MapleTree, NodeAlloc};
///
/// /// Has no memory at all.
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
    /// A new block of that layout, its contents undefined.
    ///
    /// # Errors
    /// When there is no memory.
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError>;

    /// Takes a block back.
    ///
    /// # Safety
    /// The block came from `allocate` with the same layout and is not used any more.
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

// SAFETY: the global allocator keeps exactly these promises, for every thread.
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

/// Where nodes come from if nothing else is said: the [`Pool`](crate::Pool) with the feature `std`,
/// else the global allocator.
#[cfg(all(feature = "std", not(loom)))]
pub type Nodes = crate::Pool;
/// Where nodes come from if nothing else is said: `Pool` with the feature `std`, else the global
/// allocator.
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

/// As [`try_box`], but the value is made only once its memory is there.
pub(crate) fn try_box_with<T>(value: impl FnOnce() -> T) -> Result<Box<T>, AllocError> {
    /// Gives the block back if `value` panics.
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
    // SAFETY: a fresh block of the layout of `T` (or dangling for no size), which is what a box
    // owns.
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
        // Miri's leak check is the judge.
        let outcome = std::panic::catch_unwind(|| try_box_with(|| -> u64 { panic!("no value") }));
        assert!(outcome.is_err());
    }
}
