//! Address spaces with pages: VMAs ([`vma`]) and page tables ([`paging`]) as one memory manager.
//!
//! An [`AddressSpace`] has the calls of a program and the faults of its CPUs. The calls change the
//! VMAs and, where pages are concerned, the page tables. A fault takes no lock of the address space
//! and none of the VMA: [`protocol`] explains why that is right.
//!
//! | call | method | file |
//! |---|---|---|
//! | page fault | [`AddressSpace::handle_fault`] | `fault`, `anon` |
//! | mmap, munmap, mprotect, brk, madvise, shmat, shmdt | the methods of these names | `calls` |
//! | huge pages | [`AddressSpace::set_huge_pages`] | `huge`, `policy`, `collapse` |
//! | maps of objects | [`AddressSpace::mmap_object`] | `calls`, `object` |
//! | memfd: truncate, holes, seals, read, write | [`Shmem`] | `shmem`, `index` |
//! | guard pages | [`AddressSpace::madvise`] | `guard` |
//! | files: read, write, read-ahead, write-back | [`File`], [`PageSource`] | `file`, `cache` |
//! | an object takes pages back from all spaces | [`Mappings::take_back`] | `mappings`, `visit` |
//! | the memory of devices | [`DeviceMemory`] | `device` |
//! | msync | [`AddressSpace::msync`] | `sync` |
//! | all other calls on VMAs | [`AddressSpace::with_vmas`] | `calls` |
//! | mremap; mlock, munlock, mlockall, munlockall | the methods of these names | `lock` |
//! | copies of a program's memory, pins | [`AddressSpace::read`], [`AddressSpace::copy_from_user`], [`AddressSpace::pin_pages`], [`AddressSpace::pin_pages_long_term`] | `access`, `pin`, `pinned`, `long_term` |
//! | a debugger's copies | [`AddressSpace::peek`], [`AddressSpace::poke`] | `force` |
//! | reclaim, swap | [`AddressSpace::reclaim`], [`Swap`] | `reclaim`, `swap` |
//! | userfaultfd | [`AddressSpace::userfault_register`] and its neighbours, [`UserFaultHandler`] | `userfault`, `userfault_events`, `monitor`, `userfault_move`, `absent` |
//! | soft-dirty and referenced pages; PAGEMAP_SCAN | [`AddressSpace::clear_soft_dirty`], [`AddressSpace::scan`] | `track`, `scan` |
//! | mincore; resident pages; maps | [`AddressSpace::mincore`] and its neighbours | `look` |
//! | smaps, pagemap, totals | [`AddressSpace::write_smaps`] and its neighbours | `usage`, `kin`, `rollup` |
//! | exec | [`AddressSpace::exec`] | `calls` |
//! | fork | [`AddressSpace::fork`] | `fork` |
//! | a limit of frames for a group; promised memory; limits | [`FrameGroup`], [`Commitment`], [`AddressSpace::set_limits`] | `group`, `commitment` |
//! | munmap without IPIs, by TLB grace periods | [`AddressSpace::set_unmap_policy`] | `waiting`, `bags` |
//! | a space's end | `Drop` | `space` |
//!
//! # What there is so far
//!
//! Anonymous memory, private and shared, with stacks that grow, huge pages, copy-on-write and fork;
//! memfd, SysV segments, files over a host's page source, the memory of devices, and objects of the
//! host's own ([`Object`]); userfaultfd; reclaim to the host's swap. MAP_HUGETLB, and huge pages of
//! objects, are refused with [`Error::NotSupported`] or come as small ones.
//!
//! # The host's part
//!
//! A host implements the traits of [`machine`], calls [`AddressSpace::handle_fault`] from its fault
//! handler, and activates the space on the CPUs that run its program.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;

mod absent;
mod access;
mod anon;
mod around;
mod bags;
mod batch;
mod block;
mod cache;
mod call;
mod calls;
mod changes;
mod collapse;
mod commitment;
mod device;
mod error;
mod fault;
mod file;
mod force;
mod fork;
mod fresh;
mod group;
mod guard;
mod hook;
mod huge;
mod index;
mod kin;
mod lock;
mod long_term;
mod look;
#[cfg(all(test, loom))]
mod loom_objects;
#[cfg(all(test, loom))]
mod loom_reclaim;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, loom))]
mod loom_waiting;
mod mappings;
mod monitor;
mod object;
mod pin;
mod pinned;
mod policy;
pub mod protocol;
mod ranges;
mod reclaim;
mod reference;
mod rights;
mod rollup;
mod scan;
mod shared;
mod shmem;
mod space;
mod swap;
mod sync;
mod touch;
mod track;
mod usage;
mod userfault;
mod userfault_events;
mod userfault_move;
mod visit;
mod waiting;
mod zero;

pub use access::CopyError;
pub use block::FaultBlocks;
pub use collapse::CollapseError;
pub use commitment::{Commitment, Overcommit};
pub use device::DeviceMemory;
pub use error::{Error, FaultError};
pub use fault::Outcome;
pub use file::{File, PageSource};
pub use group::{FrameGroup, GroupError, OnLimit};
pub use huge::HugePages;
pub use mappings::Mappings;
pub use monitor::Resolved;
pub use object::{Backing, Object, ObjectError};
pub use paging::Swap;
pub use pin::UserPins;
pub use reclaim::Reclaimed;
pub use rights::Access;
pub use scan::{PageCategories, PageRegion, Scan, Scanned};
pub use shared::{Shared, WeakShared};
pub use shmem::{Seals, Shmem, ShmemKind};
pub use space::AddressSpace;
pub use sync::SyncFlags;
pub use usage::{Totals, Usage, pagemap};
pub use userfault::{UserFault, UserFaultError, UserFaultHandler, UserFaultKind, UserFaultModes};
pub use userfault_events::{UserFaultChange, UserFaultEvent, UserFaultEvents};
pub use vma::{
    Advice, AttachRequest, Layout, Limits, LockAll, MapFlags, Profile, RemapRequest, Sizes, Uffd,
};
pub use waiting::UnmapPolicy;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
