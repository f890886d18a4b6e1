//! A map from ranges of indices to entries of one word, with lock-free readers.
//!
//! The indices are `0..=Index::MAX`, see [`Index`]; ranges are inclusive. A [`MapleTree`] is a
//! B-tree of ranges, in the spirit of Linux's maple tree. It is made for address spaces: many
//! lookups on many CPUs, concurrently with one writer at a time.
//!
//! ```
//! use maple::{Epoch, Index, MapleTree};
//!
//! let tree = MapleTree::<u32, Epoch>::new();
//! tree.store_range(0x1000..=0x4fff, 1)?;
//! tree.store_range(0x2000..=0x2fff, 2)?; // splits the first range
//!
//! let guard = tree.pin(); // no lock, no wait
//! assert_eq!(tree.load(&guard, 0x2abc), Some(2));
//! assert_eq!(tree.lookup(&guard, 0x3000), Some((0x3000..=0x4fff, 1)));
//! assert_eq!(tree.load(&guard, 0x5000), None);
//!
//! // The lowest free page above 0x1000.
//! assert_eq!(tree.empty_area(&guard, 0x1000..=Index::MAX, 0x1000, 0x1000)?, 0x5000);
//! # Ok::<(), maple::Error>(())
//! ```
//!
//! # Which interface to use
//!
//! | task | use |
//! |---|---|
//! | a map like those of the standard library, with one owner | [`RangeMap`] |
//! | a map that threads read while one writes | [`SharedMap`] |
//! | the tree itself: read, with or without writers | [`MapleTree`]'s functions under a guard from [`MapleTree::pin`] |
//! | write once | [`MapleTree::store_range`] and similar functions: they take the tree's lock |
//! | write several times under one lock | [`MapleTree::lock`], which returns a [`Writer`] |
//! | write under a lock of your own | [`MapleTree::with_token`], [`MapleTree::writer`] |
//! | write as the only owner | [`MapleTree::get_mut`]: changes in place, defers nothing |
//! | build alone, then share | [`MapleTree::into_shared`] |
//! | move through the ranges | [`Iter`], [`ReadCursor`], [`WriteCursor`]; [`mod@cursor`] explains the states |
//! | several writes that readers see as one | [`SharedMap::transaction`], [`Writer::transaction`] |
//! | the state of a moment, read without a guard | [`SharedMap::snapshot`], [`Writer::snapshot`] |
//! | what has changed between two states | [`RangeMap::diff`], [`MapleTree::diff`] |
//! | a set of keys, as ranges | [`RangeSet`] |
//! | store an entry that contains its place | [`RangeMap::alloc_with`], [`Writer::alloc_range_with`] |
//! | write without running out of memory | [`Writer::preallocate`], [`Writer::preallocate_writes`], [`RefCounted`] entries |
//!
//! # How it works
//!
//! A *leaf* holds consecutive ranges, each an entry or a hole, packed into 256 bytes. A bound takes
//! four bytes: a number of pages (or of indices) above the leaf's base. If the bounds do not fit
//! this form, the leaf is *wide* and a bound takes eight bytes; reads and writes take as long. An
//! entry takes eight more, for its word. So a leaf holds 14 entries with holes between them, or 19
//! entries that touch; a wide one 10, or 15. An *inner node* takes 384 bytes. It holds up to 16
//! children, the separators between them, and the length of the largest hole below each child, its
//! *gap*.
//!
//! Neighbouring holes are always merged, across leaves too. Equal neighbouring entries are not. All
//! leaves are on the same level. A tree without entries has no nodes.
//!
//! **Writes.** A write within one leaf makes a changed copy of the leaf and stores the copy's
//! address in the parent. If the leaf is full, it is split, and the parent is copied. A larger
//! write is planned level by level: new nodes are filled before readers can reach them, one pointer
//! store publishes them, and the replaced nodes are retired. So:
//!
//! - A reader sees a write whole or not at all (I1), because there is one store.
//! - A failed write has no effect (I7), because all memory is allocated before anything changes.
//! - Readers never wait, allocate, or write shared memory (I2): they only follow pointers. They may
//!   run in an interrupt that interrupts a writer, if the engine allows its guard there.
//!
//! Leaves and separators that readers can reach never change. So a reader may compare all bounds of
//! a node at once with SIMD, whose loads are not atomic. With the feature `std` the CPU's features
//! are detected at run time. In a kernel the search is scalar, and uses `popcnt`, `bmi1` and `bmi2`
//! if `cpuid` reports them.
//!
//! **Walks.** A reader's path stays valid while nodes on it are replaced. It needs no checks and no
//! restart; `descent.rs` has the proof. The nodes and entries that a reader has met stay allocated
//! as long as its guard.
//!
//! **Free space.** A search for free space follows the gaps and skips subtrees without a hole that
//! is long enough.
//!
//! **Duplicates.** If entries are shared pointers or plain values, a duplicate of a tree shares its
//! nodes, and duplicating takes constant time. Each node has a reference count. The first write to
//! a shared node copies it and the nodes above it. See `node/refs.rs` and `share/unshare.rs`.
//!
//! # Where things are
//!
//! | module | contents |
//! |---|---|
//! | `tree`, `simple`, `sole` | the tree; one write a call; the tree that one CPU mostly uses |
//! | `map` | maps and sets with keys, with a module for each trait and call |
//! | `entry`, `erased` | what can be an entry, and as which word; entries that were erased |
//! | `layout`, `node` | the sizes of nodes; nodes, and all loops over one: scalar, SIMD, NEON |
//! | `descent` | paths: `seek` finds an entry with its range, `spot` steps from there, `partial` is a path without ranges, `unpack` serves iterators |
//! | `iter`, `cursor`, `gap`, `diff` | iterators and their two ends, cursors, free ranges, differences |
//! | `lock`, `writer` | the right to write; the writer, and in `transaction` its transactions and merging stores |
//! | `write` | the kinds of writes, and why readers see each at once |
//! | `share` | duplicates that share nodes |
//! | `alloc` | where nodes come from: an allocator, or a `Pool` |
//! | `validate`, `dump`, `stats` | every invariant of a tree, checked; a tree printed; its size |
//!
//! Each uses those below it. A line leads to what a module uses first.
//!
//! ```text
//!                      map
//!                       |
//!         tree, simple, sole ---- writer, lock
//!          |          |            |        |
//!     iter, cursor   share ----- write     validate, dump, stats
//!          |      gap   |          |        |
//!          |     /   diff          |        |
//!         descent -----------------'--------'
//!            |
//!          node ---- layout
//!            |
//!         entry ---- alloc ---- sync, grace
//! ```
//!
//! # Costs
//!
//! | operation | cost |
//! |---|---|
//! | [`load`](MapleTree::load) | per level three cache lines and one acquire load; in the leaf up to four cache lines; no mispredicted branch but for the leaf's form and for holes |
//! | [`find`](MapleTree::find), first step of an iterator or cursor | that of a load, and two selections per level; for a random index about every tenth reads another leaf |
//! | step of an iterator or cursor | two bounds and a word; at the end of a leaf the next leaf, which is prefetched |
//! | store or erase within a leaf | one descent (none in a sequential run by one writer); one allocation; four cache lines written; one release store; two words for the grace period, and one allocation per twenty writes for these. An only owner allocates and frees nothing unless the leaf's form changes |
//! | store into a full leaf | two leaves and their parent; for an only owner one leaf |
//! | larger split or merge | one to three nodes per level |
//! | store over many ranges | up to three nodes per level; covered subtrees are retired whole |
//! | duplicate | one increment; the first write after it copies one node per level |
//! | search for free space | that of a load if the first leaf has room; otherwise height times width, and some more leaves if holes fail by alignment |
//! | [`largest_gap`](MapleTree::largest_gap) | the root alone |
//! | memory | 12 bytes per entry and 4 per hole in full leaves; about 31 bytes per entry with holes and 24 without after stores in random order, everything included; 44 with holes in wide leaves |
//!
//! Only freeing a subtree recurses, as deep as the tree is high. A write uses about 7 KiB of stack,
//! a cursor less than 1 KiB, an iterator 2.2 KiB.
//!
//! A [`Writer`] collects the nodes and entries that it removes. It hands them to the engine about
//! twenty at a time, and the rest when it is dropped. So do not keep a writer for long without
//! writing; a forgotten writer leaks them. The engine decides when they are freed. After the
//! removal of a large subtree the writer tells it to free as soon as it can.
//!
//! # Rules for the code of entries
//!
//! Entries are dropped by the thread that ends the grace period. That thread may hold the lock of
//! this tree, or of another tree over the same engine. So an entry's `drop` must not take such a
//! lock. Nor may its `clone` ([`Entry::try_dup`]), which runs while the tree's lock is held. The
//! `clone` of an entry of a [`SoleTree`] must not read such a tree either: it may run in a write in
//! place, for which the readers of other CPUs wait.
//!
//! # Guards in async code
//!
//! A guard, a [`View`](map::View) and a [`Writer`] belong to the thread that took them: they are
//! not `Send`, so a future that holds one across an `await` cannot move to another thread, and an
//! executor that needs `Send` futures does not accept it. That is right: a guard delays every free,
//! and a writer holds a lock, for as long as the task waits. Take the guard, copy what you need out
//! of it ([`ArcRef::to_arc`], a number), drop it, and then await. Writes that take the lock
//! themselves ([`MapleTree::store_range`], [`SharedMap::store`]) may be called anywhere between
//! two awaits; they block the thread for the time of one write of another thread at most.
//!
//! # Features
//!
//! - `serde`: a [`RangeMap`] can be serialised, as a sequence of triples.
//! - `rayon`: a [`RangeMap`] can be iterated in parallel.
//! - `small`: code of a fifth of the size, for kernels. Writes take up to twice as many
//!   instructions.
//! - `std` (on by default): `Epoch`, the operating system's mutex instead of a spin lock, nodes
//!   from a `Pool` with a cache per thread, and SIMD.
//!
//! Without it the crate is `no_std` and needs `alloc`.
//!
//! # Targets
//!
//! Pointers may have 64 or 32 bits. Indices have 64 bits in both cases. The exception are 32-bit
//! targets without 64-bit atomics, such as riscv32imac, where indices have 32 bits: see [`Index`].
#![no_std]
#![deny(missing_docs)]
// A cast between an index and another integer does nothing on some targets. Tests have many.
#![cfg_attr(any(test, target_pointer_width = "32"), allow(clippy::unnecessary_cast))]

#[cfg(not(any(target_pointer_width = "64", target_pointer_width = "32")))]
compile_error!("maple supports only targets with 32-bit or 64-bit pointers");
#[cfg(all(target_arch = "x86_64", not(target_pointer_width = "64")))]
compile_error!("maple does not support x32: build for i686, or for x86-64 with 64-bit pointers");

extern crate alloc as std_alloc;
#[cfg(any(test, feature = "std", loom))]
extern crate std;

mod alloc;
mod cold_path;
pub mod cursor;
mod descent;
mod diff;
mod dump;
mod entry;
mod erased;
mod error;
mod gap;
mod index;
mod iter;
mod layout;
mod lock;
pub mod map;
mod node;
#[cfg(test)]
#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
mod share;
mod simple;
mod sole;
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
pub use crate::diff::Diff;
pub use crate::dump::Dump;
pub use crate::entry::{
    Address, ArcRef, Entry, EntryMut, Owned, Raw, RefCounted, RefCountedRef, WeakRef,
};
pub use crate::erased::Erased;
pub use crate::error::{Error, Refused};
pub use crate::index::Index;
pub use crate::iter::{Holes, Iter};
pub use crate::lock::{OwnerLock, TreeLock, WriteToken};
pub use crate::map::{Key, RangeMap, RangeSet, SharedMap, Slot};
pub use crate::sole::{SoleLock, SoleTree, SoleWriter};
pub use crate::stats::Stats;
pub use crate::tree::MapleTree;
pub use crate::validate::{Rule, Violation};
pub use crate::writer::Writer;
#[cfg(feature = "std")]
pub use grace::Epoch;
pub use grace::Single;
#[cfg(all(feature = "std", not(loom)))]
pub use pool::{Pool, PoolStats};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
