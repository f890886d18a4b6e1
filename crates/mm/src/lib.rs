//! Address spaces: VMAs and the calls on them, with the rules of Linux.
#![no_std]
extern crate alloc;

mod advise;
mod anon;
mod brk;
mod error;
mod fault;
mod file;
mod flags;
mod fork;
mod lock;
mod map;
mod maps;
mod merge;
mod place;
mod profile;
mod protect;
mod remap;
mod space;
mod special;
mod tree;
mod unmap;
mod vma;
mod watch;

pub use advise::Advice;
pub use error::Error;
pub use file::{MappedFile, Placement};
pub use flags::{UnknownFlag, VmFlags};
pub use lock::LockAll;
pub use map::{MapFlags, MapRequest};
pub use profile::Profile;
pub use remap::RemapRequest;
pub use space::{AddressSpace, Layout, Writer};
pub use special::WholeVma;
pub use tree::Area;
pub use vma::{PAGE_SIZE, Policy, Uffd, Vma};
