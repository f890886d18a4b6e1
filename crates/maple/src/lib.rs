//! A map from ranges of indices to entries of one word, read without locks.
//!
//! The indices are `0..=usize::MAX`; ranges are inclusive. A [`MapleTree`] is a B-tree of ranges in
//! the spirit of Linux's maple tree, made for address spaces: many lookups, by many processors,
//! beside one writer at a time.
//!
//! ```
//! use maple::{Epoch, MapleTree};
//!
//! let tree = MapleTree::<u32, Epoch>::new();
//! tree.store_range(0x1000..=0x4fff, 1)?;
//! tree.store_range(0x2000..=0x2fff, 2)?; // splits what it overlaps
//!
//! let guard = tree.pin(); // no lock, no wait
//! assert_eq!(tree.load(&guard, 0x2abc), Some(2));
//! assert_eq!(tree.lookup(&guard, 0x3000), Some((0x3000..=0x4fff, 1)));
//! assert_eq!(tree.load(&guard, 0x5000), None);
//!
//! // The lowest free page above 0x1000.
//! assert_eq!(tree.empty_area(&guard, 0x1000..=usize::MAX, 0x1000, 0x1000)?, 0x5000);
//! # Ok::<(), maple::Error>(())
//! ```
//!
//! # Which interface
//!
//! | to | use |
//! |---|---|
//! | read, beside a writer or not | [`MapleTree`]'s functions under a guard from [`MapleTree::pin`] |
//! | write once | [`MapleTree::store_range`] and its like: they take the tree's lock |
//! | write several times under one lock | [`MapleTree::lock`], which gives a [`Writer`] |
//! | write under a lock of one's own | [`MapleTree::with_token`], [`MapleTree::writer`] |
//! | write as the only owner | [`MapleTree::get_mut`]: in place, nothing deferred |
//! | build alone, then share | [`MapleTree::into_shared`] |
//! | move about | [`ReadCursor`], [`WriteCursor`], [`Iter`]; the states are in [`mod@cursor`] |
//! | never fail at a bad moment | [`Writer::preallocate`], [`Writer::preallocate_writes`], [`RefCounted`] entries |
//!
//! # How it is made
//!
//! A *leaf* holds consecutive ranges, each an entry or a hole, packed into 256 bytes: a bound costs
//! four bytes, as a number of pages (or of indices) above the leaf's base, and eight in a *wide*
//! leaf, where that does not fit; an entry costs eight more, its word. That is 14 entries with
//! holes between them, or 19 that touch. An *inner node* holds up to 16 children, the separators
//! between them, and the largest hole below each, in 384 bytes. Holes that touch are one hole,
//! across leaves too; equal entries that touch stay apart. All leaves are at the same depth; a tree
//! without entries has no nodes.
//!
//! **A write** within one leaf makes a changed copy of it and puts that in its parent's slot; a
//! full leaf is cut in two, and its parent copied. Whatever is wider is planned level by level:
//! nodes are built aside, published by one pointer store, and what they replace is retired. So:
//!
//! - a reader sees a write whole or not at all (I1): there is one store;
//! - a failed write leaves nothing behind (I7): memory is had before anything changes;
//! - readers never wait, allocate, or write shared memory (I2): they follow pointers. They may run
//!   in an interrupt that landed on a writer, if the engine's guard may be taken there.
//!
//! Leaves and separators that readers can reach are never changed: so readers may compare all
//! bounds of a node at once, by vectors, which must not race. With the feature `std` the processor
//! is asked what it has; a kernel takes the scalar way, with the instructions that count bits
//! (`popcnt`, `bmi1`, `bmi2`) where `cpuid`, asked once, names them.
//!
//! **A reader's way** stays good while nodes are replaced under it, without checks and without
//! starting again; the essay in `descent.rs` has the proof. What it has seen stays allocated for as
//! long as its guard.
//!
//! **A search for free space** goes by the gaps alone and never scans leaves that cannot serve.
//!
//! **A duplicate** of a tree shares its nodes, if entries are shared pointers or plain values: it
//! takes the same time whatever the size. Nodes count their parents; who writes first copies the
//! nodes on the way to what is written. See `node/refs.rs` and `write/unshare.rs`.
//!
//! # Costs
//!
//! | operation | cost |
//! |---|---|
//! | [`load`](MapleTree::load) | a node a level: three cache lines, four of the leaf, one acquire load; no branch that depends on the keys |
//! | step of an iterator or cursor | two bounds and a word; every dozen or so, the next leaf, brought near before |
//! | store or erase within a leaf | one walk (none in a run of entries side by side by one writer), one block, four cache lines written, one release store, two words for the grace period (and one block for twenty of those); by the only owner: no allocation and no free, unless the leaf's form changes |
//! | a full leaf | two leaves and their parent; by the only owner: one leaf |
//! | split or merge that goes further | one to three nodes a level |
//! | store over many ranges | up to three nodes a level; what is covered whole is let go by subtrees |
//! | duplicate | one count; the first write after it copies a node a level |
//! | free space | as a load, if the first leaf has some; else height times width, and a few leaves more if holes fail by alignment |
//! | [`largest_gap`](MapleTree::largest_gap) | the root alone |
//! | memory | 8 + 4 bytes an entry and 4 a hole, at 100 % fill; about 31 bytes an entry with holes and 24 without after stores in random order, all in |
//!
//! Only letting go of a subtree recurses, as deep as the tree is high. A write takes about 7 KiB of
//! stack, a cursor less than 1 KiB, an iterator twice that.
//!
//! A [`Writer`] collects what it removes and hands it to the engine some twenty at a time, the rest
//! when it is dropped: so nobody should keep one for long without writing, and one that is
//! forgotten leaks what it collected. When that is freed is the engine's to say; it is asked to
//! hurry for large subtrees.
//!
//! # What an entry's code may do
//!
//! Entries are dropped by whichever thread ends the grace period, perhaps while that thread holds a
//! lock of this tree or of another one over the same engine. So an entry's `drop` must not take
//! such a lock. Nor may its `clone` ([`Entry::try_dup`]), which runs with the tree's lock held.
//!
//! # Features
//!
//! - `std`: `grace::Epoch`, the operating system's mutex instead of a spin lock, nodes from a
//!   `Pool` with a cache for each thread, and the processor's vectors.
//!
//! Without features the crate is `no_std` and needs `alloc`.
//!
//! Pointers have 64 or 32 bits. Where they have 32, indices do too, and a `u32` is no entry: it
//! leaves no word for the hole.
#![no_std]
#![deny(missing_docs)]

#[cfg(not(any(target_pointer_width = "64", target_pointer_width = "32")))]
compile_error!("maple needs pointers of 32 or 64 bits");
#[cfg(all(target_arch = "x86_64", not(target_pointer_width = "64")))]
compile_error!("maple does not know x32: build for i686 or for x86-64 with pointers of 64 bits");

extern crate alloc as std_alloc;
#[cfg(any(test, feature = "std", loom))]
extern crate std;

mod alloc;
pub mod cursor;
mod descent;
mod dump;
mod duplicate;
mod entry;
mod erased;
mod error;
mod gap;
mod iter;
mod layout;
mod lock;
mod node;
#[cfg(all(feature = "std", not(loom)))]
mod pool;
mod simple;
mod stats;
mod sync;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod validate;
mod write;
mod writer;

pub use crate::alloc::{AllocError, Global, NodeAlloc, Nodes, try_box};
pub use crate::cursor::{Paused, ReadCursor, WriteCursor};
pub use crate::dump::Dump;
pub use crate::entry::{ArcRef, Entry, Raw, RefCounted, RefCountedRef};
pub use crate::erased::Erased;
pub use crate::error::{Error, Refused};
pub use crate::iter::Iter;
pub use crate::lock::{OwnerLock, TreeLock, WriteToken};
#[cfg(all(feature = "std", not(loom)))]
pub use crate::pool::{Pool, PoolStats};
pub use crate::stats::Stats;
pub use crate::tree::MapleTree;
pub use crate::validate::{Rule, Violation};
pub use crate::writer::Writer;
#[cfg(feature = "std")]
pub use grace::Epoch;
pub use grace::Single;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
