//! Address spaces: VMAs and the calls on them, with the rules of Linux, byte for byte.
//!
//! An [`AddressSpace`] holds its VMAs in a [`maple::MapleTree`], keyed by address. Page faults and
//! listings read it under a guard, without a lock; calls take the write right, a [`Writer`], whose
//! methods are the calls:
//!
//! | call | method | file |
//! |---|---|---|
//! | mmap | [`Writer::mmap`], [`Writer::choose_address`] | `map`, `place` |
//! | munmap | [`Writer::munmap`] | `unmap` |
//! | mprotect, pkey_mprotect | [`Writer::mprotect`] | `protect` |
//! | mremap | [`Writer::mremap`] | `remap` |
//! | brk | [`Writer::brk`] | `brk` |
//! | madvise | [`Writer::madvise`] | `advise` |
//! | mlock, mlock2, munlock, mlockall, munlockall | [`Writer::mlock`] and its neighbours | `lock` |
//! | fork | [`Writer::fork`] | `fork` |
//! | execve, drivers | [`AddressSpace::new`], [`Writer::adopt`] | `space`, `special` |
//! | shmat, shmdt | [`Writer::shmat`], [`Writer::shmdt`] | `shm` |
//! | mbind, mseal, remap_file_pages, prctl | [`Writer::mbind`] and its neighbours | `special` |
//! | userfaultfd | [`Writer::watch`], [`Writer::unwatch`], [`Writer::close_watch`] | `watch` |
//! | first write to a VMA, stack growth | [`Writer::first_write`], [`Writer::grow_down`] | `fault` |
//! | /proc/PID/maps | [`Writer::write_maps`] | `maps` |
//!
//! # Why it is right
//!
//! *One change, one store.* The contents of a [`Vma`] do not mention its range: the offset is kept
//! relative to the address. So a VMA that is split, cut or extended keeps its contents, and what a
//! call does to a VMA is always "these contents, over this range": one store into the tree, which
//! cuts, splits and swallows what it overlaps. A reader sees the address space before or after it
//! (I1); a failed allocation leaves it as it was (I7). Merging is decided before the store
//! (`merge`): the outcome of any merge is again one range with one set of contents.
//!
//! *What no listing shows.* Whether VMAs merge depends on more than can be seen: the open file
//! description, the offset of anonymous memory, and which VMAs may share anonymous pages (`anon`).
//! All of it is kept as Linux keeps it, and the proof is the mirror in the crate `trace`: real
//! programs run, and after every call our listing must equal the kernel's.
//!
//! *What the host brings.* The crate knows nothing of processes, page tables or files. A host
//! implements [`MappedFile`], says which kernel's rules hold ([`Profile`]), and reports what
//! happens without a call: a first write, a stack that grew. Pages come later behind the same
//! calls.
#![no_std]
#![cfg_attr(not(test), forbid(unsafe_code))]
extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("mm models address spaces of 47 bits and more: it needs pointers of 64 bits");

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
mod shm;
mod space;
mod special;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
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
pub use maple::Counted;
pub use profile::Profile;
pub use remap::RemapRequest;
pub use shm::AttachRequest;
pub use space::{AddressSpace, Layout, Writer};
pub use special::WholeVma;
pub use tree::Area;
pub use vma::{PAGE_SIZE, Policy, Uffd, Vma};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
