//! Address spaces: VMAs and the system calls on them, with exactly the rules of Linux.
//!
//! An [`AddressSpace`] holds its VMAs in a [`maple::MapleTree`], keyed by address. Page faults and
//! listings read the tree under a guard, without a lock. A change needs a [`Writer`], which holds
//! the address space's lock. Its methods are the calls:
//!
//! | call | method | file |
//! |---|---|---|
//! | mmap | [`Writer::mmap`], [`Writer::choose_address`] | `map_request`, `mmap`, `unmapped_area` |
//! | munmap | [`Writer::munmap`] | `munmap` |
//! | mprotect, pkey_mprotect | [`Writer::mprotect`] | `mprotect` |
//! | pkey_alloc, pkey_free | [`Writer::pkey_alloc`], [`Writer::pkey_free`] | `pkey` |
//! | mremap | [`Writer::mremap`] | `mremap` |
//! | brk | [`Writer::brk`] | `brk` |
//! | madvise | [`Writer::madvise`] | `madvise`, `advice` |
//! | mlock, mlock2, munlock, mlockall, munlockall | [`Writer::mlock`] and its neighbours | `mlock` |
//! | fork | [`Writer::fork`] | `fork` |
//! | execve, drivers | [`AddressSpace::new`], [`Writer::adopt`] | `space`, `rare_calls` |
//! | shmat, shmdt | [`Writer::shmat`], [`Writer::shmdt`] | `sysv_shm` |
//! | mbind, mseal, remap_file_pages, prctl | [`Writer::mbind`] and its neighbours | `rare_calls` |
//! | userfaultfd | [`Writer::watch`], [`Writer::unwatch`], [`Writer::close_watch`], [`Writer::move_private`] | `uffd` |
//! | soft-dirty VMAs (clear_refs) | [`Writer::clear_soft_dirty`] | `soft_dirty` |
//! | first write fault in a VMA, stack growth | [`Writer::first_write`], [`Writer::grow_down`] | `fault` |
//! | /proc/PID/maps | [`Writer::write_maps`] | `proc_maps` |
//!
//! `RULES.md`, next to `src`, has the rules of Linux, by number. The files of calls use the others:
//!
//! ```text
//! mmap, munmap, mprotect, mremap, madvise, mlock, brk, uffd, ..  a call each; fault, fork
//!    |                   |
//! unmapped_area       merge ........ where a map goes; which VMAs merge
//!    |                   |
//! call_step, step_plan, host ....... the order of stores and of work on pages; the host's part
//!    |
//! space, tree, space_state ......... the tree of VMAs, and the rest of the state
//!    |
//! work, vma_counts, sizes, pkey_set  work on pages; counts of VMAs, their sizes, protection keys
//!    |
//! vma, anon_vma, mapped_file ....... a VMA; which may share anonymous pages, and which were used
//! flags, advice, profile, error .... bits and advice; the rules that differ between kernels
//! ```
//!
//! # Why it is correct
//!
//! *Each change is one store.* The contents of a [`Vma`] do not mention its range, because the
//! offset is kept relative to the address. So a VMA that is split, cut or extended keeps its
//! contents, and every change has the form "these contents over this range". That is one store into
//! the tree, which cuts, splits or overwrites the VMAs that it overlaps. A reader sees the address
//! space before the store or after it (I1). A failed allocation leaves the address space unchanged
//! (I7). Merging is decided before the store (`merge`), because the result of any merge is again
//! one range with one set of contents.
//!
//! *Hidden state.* Whether VMAs merge depends on state that no listing shows: the open file
//! description, the offset of anonymous memory, and which VMAs may share anonymous pages
//! (`anon_vma`). This crate keeps that state as Linux does. The evidence is the mirror in the crate
//! `trace`: it runs real programs, and after every call our listing must equal the kernel's.
//!
//! *The host's part.* The crate knows nothing of processes, page tables or files. A host implements
//! [`MappedFile`], chooses the kernel whose rules apply ([`Profile`]), and reports events that are
//! not calls: a first write fault, and stack growth. The crate does not manage pages.
#![no_std]
#![cfg_attr(not(test), forbid(unsafe_code))]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "samara-vma models address spaces of 47 bits and more: build it for a 64-bit target"
);

mod advice;
mod anon_vma;
mod brk;
mod call_step;
mod error;
mod fault;
mod flags;
mod fork;
mod host;
mod limits;
mod madvise;
mod map_request;
mod mapped_file;
mod merge;
mod mlock;
mod mmap;
mod mprotect;
mod mremap;
mod munmap;
mod pkey;
mod pkey_set;
mod proc_maps;
mod profile;
mod rare_calls;
mod sizes;
mod soft_dirty;
mod space;
mod space_state;
mod step_plan;
mod sysv_shm;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod uffd;
mod unmapped_area;
mod vma;
mod vma_counts;
mod work;

pub use advice::Advice;
pub use anon_vma::TouchMark;
pub use call_step::CallStep;
pub use error::Error;
pub use flags::{UnknownFlag, VmFlags};
pub use host::{Host, SpaceId};
pub use map_request::{MapFlags, MapRequest};
pub use maple::RefCounted;
pub use mapped_file::{MappedFile, NoFile, Placement};
pub use mlock::LockAll;
pub use mremap::RemapRequest;
pub use profile::Profile;
pub use rare_calls::WholeVma;
pub use sizes::{Limits, Sizes};
pub use space::{AddressSpace, MmapLock, MoreLines, Writer};
pub use space_state::Layout;
pub use sysv_shm::AttachRequest;
pub use tree::Area;
pub use vma::{PAGE_SIZE, Policy, Uffd, Vma};
pub use work::{EnteredRange, Work};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
