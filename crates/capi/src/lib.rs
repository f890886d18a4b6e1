//! The range tree [`maple`] as a C library: `libsamara_range`.
//!
//! C programs include `samara_range.h`, which documents each call; this crate has no interface for
//! Rust. `README.md` has an example, and says how to build and install the library.
//!
//! # How it works
//!
//! A [`samara_tree`] holds a [`maple::MapleTree`] whose entries are bare pointers of the program.
//! Reads take no lock. They run in read sections (`section.rs`), which the thread records in a
//! cache line of its own. Writes take the lock of the tree (`lock.rs`). Removed nodes, and removed
//! entries of a tree that releases entries, go to the queue of the tree (`queue.rs`). A later call
//! that writes to the tree frees and releases them, after the read sections that could see them
//! have ended. So readers run no frees and no callbacks. A tree may use the RCU of the program
//! instead (`rcu.rs`, `samara_range_urcu.h`).
//!
//! # Why another engine
//!
//! `grace::Epoch` is crossbeam-epoch, which aborts when it has no memory, lets readers run deferred
//! frees, and frees at an unknown time. C programs need an error code, readers that run none of the
//! program's callbacks, and a call that waits until all is freed.
//!
//! # Guarantees
//!
//! - No call aborts: memory that a write may need for its pieces is reserved before it begins
//!   (I7). Panics do not cross into C.
//! - A call that is given nonsense returns an errno, as far as that can be seen. A debug build also
//!   prints the cause. The header has the obligations of callers.
//! - References that the program counts (`retain`, `release`) are one for each range of each tree.
//!
//! # Where things are
//!
//! ```text
//!   tree_calls   read_calls   write_calls   alloc_calls   cursor     the calls of the header
//!        \________________________|______________________/
//!                                 |
//!                      tree, lock                                    a tree and its writer
//!                       |                |
//!          section (read sections)     queue, rcu                    when removed nodes are freed
//!                       |                |
//!                    thread ---------- memory                        threads; allocations
//!                        \                /
//!                            thread_key                              the end of a thread
//! ```
//!
//! # Misuse
//!
//! The header names the misuse that each call refuses. Beyond that:
//!
//! | misuse | result |
//! |---|---|
//! | a cursor that was not set up, of a section or lock that has ended, of another thread | an error: each use compares numbers of sections and locks. Random bytes that happen to be a cursor are the caller's fault |
//! | a section that a thread never ends | frees wait; the end of the thread ends its section |
//! | `dlclose` while threads that used the library live | the library stays loaded (`-z nodelete`) |
#![deny(missing_docs)]
// The caller's obligations are in the documentation of each call, which is the header's.
#![allow(clippy::missing_safety_doc)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("samara-capi needs pointers of 64 bits: indices are uint64_t");
#[cfg(not(unix))]
compile_error!("samara-capi needs POSIX threads");

#[cfg_attr(loom, allow(dead_code))]
mod section;
mod sync;

// The header has the functions in the order of these groups.
#[cfg(not(loom))]
mod memory;

#[cfg(not(loom))]
mod tree;

#[cfg(not(loom))]
mod thread;

#[cfg(not(loom))]
mod read_calls;

#[cfg(not(loom))]
mod cursor;

#[cfg(not(loom))]
mod write_calls;

#[cfg(not(loom))]
mod alloc_calls;

#[cfg(not(loom))]
mod lock;

#[cfg(not(loom))]
mod tree_calls;

#[cfg(not(loom))]
mod rcu;

#[cfg(not(loom))]
mod cancel;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod entry;
#[cfg(not(loom))]
mod errno;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod refcount;
#[cfg(not(loom))]
mod thread_key;

#[cfg(not(loom))]
mod exports {
    pub use crate::alloc_calls::*;
    pub use crate::cursor::*;
    pub use crate::lock::*;
    pub use crate::memory::*;
    pub use crate::rcu::*;
    pub use crate::read_calls::*;
    pub use crate::thread::*;
    pub use crate::tree::*;
    pub use crate::tree_calls::*;
    pub use crate::write_calls::*;

    /// The tree inside of a handle.
    /// cbindgen:ignore
    pub(crate) type Map = maple::MapleTree<
        crate::entry::Word,
        crate::engine::Engine,
        crate::memory::Memory,
        maple::OwnerLock,
    >;
    /// Its writer.
    /// cbindgen:ignore
    pub(crate) type Writer<'t> =
        maple::Writer<'t, crate::entry::Word, crate::engine::Engine, crate::memory::Memory>;
    /// A writer that stays when a lock is released.
    /// cbindgen:ignore
    pub(crate) struct Session(pub(crate) Writer<'static>);
}
#[cfg(not(loom))]
pub use exports::*;
