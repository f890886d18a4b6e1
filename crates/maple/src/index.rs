//! The type of indices, and the atomic that holds one.

macro_rules! index {
    ($index:ident, $atomic:ident) => {
        /// An index of a tree, or a number of indices: a length, an alignment.
        ///
        /// On 64-bit targets it is `usize`. On 32-bit targets it has 64 bits, too, so keys may be
        /// file offsets, disk blocks or physical addresses. Code for both writes `Index`, or uses
        /// a map with a [`Key`](crate::Key).
        ///
        /// | target | `Index` |
        /// |---|---|
        /// | 64-bit | `usize` |
        /// | 32-bit with 64-bit atomics (`target_has_atomic = "64"`): i686, wasm32, armv7 | `u64` |
        /// | 32-bit without: riscv32imac, thumbv7m | `usize`; `u64` and `i64` are no keys there |
        ///
        /// The last line has this reason. An inner node has the length of the largest hole below
        /// each child, which readers load while a writer stores it. Half of an old and half of a
        /// new length may be less than both. A search for free space would then skip a hole that is
        /// there all the time.
        ///
        /// ```
        /// use maple::{Index, MapleTree};
        /// let mut tree = MapleTree::<u16>::new();
        /// tree.get_mut().store_range(10..=19, 7)?;
        /// assert_eq!(tree.find(&tree.pin(), 12..=Index::MAX), Some((10..=19, 7)));
        /// # Ok::<(), maple::Error>(())
        /// ```
        pub type Index = $index;

        /// An index that several threads access.
        pub(crate) use core::sync::atomic::$atomic as AtomicIndex;
    };
}

// Loom's models run on 64-bit hosts only.
#[cfg(all(target_pointer_width = "32", target_has_atomic = "64", not(loom)))]
index!(u64, AtomicU64);
#[cfg(not(all(target_pointer_width = "32", target_has_atomic = "64", not(loom))))]
index!(usize, AtomicUsize);
