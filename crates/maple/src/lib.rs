//! A map from ranges of indices to entries of one word, read without locks.
//!
//! The indices are `0..=usize::MAX`; ranges are inclusive. A [`MapleTree`] is a B-tree of ranges in the
//! spirit of Linux's maple tree, made for address spaces: many lookups, by many processors, beside one
//! writer at a time.
//!
//! ```
//! use grace::Epoch;
//! use maple::MapleTree;
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
//! | never fail at a bad moment | [`Writer::preallocate`], [`Writer::preallocate_writes`], [`Counted`] entries |
//!
//! # How it is made
//!
//! A *leaf* holds up to 16 consecutive ranges, each with a word: an entry, or null for a hole. An *inner
//! node* holds up to ten children, the separators between them, and the largest hole below each. Nodes
//! are 256 bytes. Holes that touch are one hole, across leaves too; equal entries that touch stay apart.
//! All leaves are at the same depth; a tree without entries has no nodes.
//!
//! **A write** builds the nodes it needs aside, publishes them by one pointer store, brings the gaps above
//! up to date, and retires what it replaced. The store goes where the separators need not change: mostly
//! into the leaf's parent. Leaves and separators that readers can reach are never changed. So:
//!
//! - a reader sees a write whole or not at all (I1): there is one store;
//! - a failed write leaves nothing behind (I7): memory is had before anything changes;
//! - readers never wait, allocate, or write shared memory (I2): they follow pointers. They may run in an
//!   interrupt that landed on a writer, if the engine's guard may be taken there.
//!
//! **A reader's way** stays good while nodes are replaced under it, without checks and without starting
//! again; the essay in `path.rs` has the proof. What it has seen stays allocated for as long as its guard.
//!
//! **A search for free space** goes by the gaps alone and never scans leaves that cannot serve.
//!
//! # Costs
//!
//! | operation | cost |
//! |---|---|
//! | [`load`](MapleTree::load) | a node a level: 2 to 3 cache lines each, one acquire load, one branch |
//! | step of an iterator or cursor | a bound and a word; every dozen or so, the way to the next leaf |
//! | store or erase within a leaf | one walk, one node allocated, about 4 cache lines written, one release store, one deferred free; by the only owner: no allocation and no free |
//! | split or merge | one to two more nodes a level |
//! | store over many ranges | up to three nodes a level, and a deferred free for each node and entry that goes |
//! | free space | height times width, unless holes that are long enough fail by alignment |
//! | memory | 16 bytes a range, entry or hole, at 100 % fill; 13 of 16 slots after stores in one direction |
//!
//! Nothing recurses. A write takes about 5 KiB of stack, a cursor less than 1 KiB, an iterator twice that.
//!
//! # What an entry's code may do
//!
//! Entries are dropped by whichever thread ends the grace period, perhaps while that thread holds a lock of
//! this tree or of another one over the same engine. So an entry's `drop` must not take such a lock. Nor
//! may its `clone` ([`Entry::try_dup`]), which runs with the tree's lock held.
//!
//! # Features
//!
//! - `std`: `grace::Epoch`, and the operating system's mutex instead of a spin lock.
//! - `small-nodes`: four slots a node, so that small tests reach every shape. For tests only.
//!
//! Without features the crate is `no_std` and needs `alloc`.
#![no_std]
#![deny(missing_docs)]

extern crate alloc as std_alloc;
#[cfg(any(test, feature = "std", loom))]
extern crate std;

mod alloc;
pub mod cursor;
mod dump;
mod duplicate;
mod entry;
mod error;
mod gap;
mod iter;
mod layout;
mod lock;
mod node;
mod path;
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
pub use crate::entry::{ArcRef, Counted, CountedRef, Entry, Raw};
pub use crate::error::{Error, Refused};
pub use crate::iter::Iter;
pub use crate::lock::{OwnerLock, TreeLock, WriteToken};
#[cfg(all(feature = "std", not(loom)))]
pub use crate::pool::{Pool, PoolStats};
pub use crate::stats::Stats;
pub use crate::tree::MapleTree;
pub use crate::validate::{Rule, Violation};
pub use crate::writer::{Erased, Writer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
