//! Guest memory and an address allocator for rust-vmm, on the range tree.
//!
//! ```text
//!     memory    allocator    one type each, which stands for one of rust-vmm
//!          \    /
//!          maple             the range tree
//! ```
//!
//! | type | is |
//! | --- | --- |
//! | [`GuestRegions`] | a `GuestMemoryBackend` of `vm-memory`: regions by guest address |
//! | [`AddressAllocator`] | as that of `vm-allocator`: free ranges of an address space |
//!
//! Both have one owner, like the types they stand for. `GuestRegions` is made for
//! `GuestMemoryAtomic`: a monitor clones it in constant time, changes the clone, and publishes it.
#![deny(missing_docs)]

mod allocator;
mod memory;

pub use allocator::AddressAllocator;
pub use memory::GuestRegions;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
