//! A range map with lock-free readers.
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

pub use crate::alloc::{AllocError, Global, NodeAlloc, try_box};
pub use crate::cursor::{Paused, ReadCursor, WriteCursor};
pub use crate::dump::Dump;
pub use crate::entry::{ArcRef, Entry, Raw};
pub use crate::error::{Error, Refused};
pub use crate::iter::Iter;
pub use crate::lock::{OwnerLock, TreeLock, WriteToken};
pub use crate::stats::Stats;
pub use crate::tree::MapleTree;
pub use crate::validate::{Rule, Violation};
pub use crate::writer::{Erased, Writer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
