//! Address spaces with pages: VMAs ([`vma`]) and page tables ([`paging`]) as one memory manager.
//!
//! An [`AddressSpace`] has the calls of a program and the faults of its CPUs. The calls change the
//! VMAs and, where pages are concerned, the page tables. A fault takes no lock of the address space
//! and none of the VMA: [`protocol`] explains why that is right.
//!
//! | call | method | file |
//! |---|---|---|
//! | page fault | [`AddressSpace::handle_fault`] | `fault`, `fault/attempt` |
//! | mmap, munmap, mprotect, brk, shmat, shmdt | the methods of these names | `change/calls` |
//! | madvise | [`AddressSpace::madvise`] | `change/madvise`, `change/collapse` |
//! | huge pages | [`AddressSpace::set_huge_pages`] | `fault/huge_page`, `space/huge_state`, `change/collapse` |
//! | maps of objects | [`AddressSpace::mmap_object`] | `change/calls`, `object` |
//! | memfd: truncate, holes, seals, read, write | [`Shmem`] | `object/shmem`, `object/seals`, `object/read_write`, `object/page_index` |
//! | guard pages | [`AddressSpace::madvise`] | `change/guard_pages` |
//! | files: read, write, read-ahead, write-back | [`File`], [`PageSource`] | `object/file`, `object/cache` |
//! | an object takes pages back from all spaces | [`Mappings::take_back`] | `object/mappings`, `object/mapped_objects` |
//! | the memory of devices | [`DeviceMemory`] | `object/device_memory` |
//! | msync | [`AddressSpace::msync`] | `change/msync` |
//! | all other calls on VMAs | [`AddressSpace::with_vmas`] | `change/calls` |
//! | mremap; mlock, munlock, mlockall, munlockall | the methods of these names | `change/mlock`, `change/mremap`, `change/move_pages` |
//! | copies of a program's memory, pins | [`AddressSpace::read`], [`AddressSpace::copy_from_user`], [`AddressSpace::pin_pages`], [`AddressSpace::pin_pages_long_term`] | `pins` |
//! | a debugger's copies | [`AddressSpace::peek`], [`AddressSpace::poke`] | `pins/foll_force` |
//! | reclaim, swap | [`AddressSpace::reclaim`], [`Swap`] | `reclaim` |
//! | userfaultfd | [`AddressSpace::userfault_register`] and its neighbours, [`UserFaultHandler`] | `monitor` |
//! | soft-dirty and referenced pages; PAGEMAP_SCAN | [`AddressSpace::clear_soft_dirty`], [`AddressSpace::scan`] | `monitor/page_marks`, `monitor/pagemap_scan` |
//! | mincore; resident pages; maps | [`AddressSpace::mincore`] and its neighbours | `listing/mincore` |
//! | smaps, pagemap, totals | [`AddressSpace::write_smaps`] and its neighbours | `listing` |
//! | exec | [`AddressSpace::exec`] | `change/calls` |
//! | fork | [`AddressSpace::fork`] | `space/fork` |
//! | a limit of frames for a group; promised memory; limits | [`FrameGroup`], [`Commitment`], [`AddressSpace::set_limits`] | `space/group`, `space/commitment` |
//! | frames that run out; the pages of a program that is to end | [`AddressSpace::set_shortage_handler`], [`AddressSpace::reap`] | `space/shortage` |
//! | munmap without IPIs, by TLB grace periods | [`AddressSpace::set_unmap_policy`] | `change/unmap_policy`, `change/deferred_unmap`, `change/wait_lists` |
//! | a space's end | `Drop` | `space` |
//!
//! # Modules
//!
//! ```text
//! change/calls .. mmap, munmap, fork, exec     monitor .... userfaultfd, marks of pages
//!    |                                         reclaim .... swap, aging
//!    |       fault .. a kind of page per file  listing .... smaps, pagemap, mincore
//!    |          |                              pins ....... copies, pinned frames
//!    |          |                                 |
//! change/page_host .. the pages of a call; change/sweep, change/gather: frames until the flush
//!    |          |                                 |
//! object ..... memfd, files, devices; object/mappings: an object's way back to the spaces
//!    |          |                                 |
//! space ...... `Core`: the VMAs, the tables and the counts of a space
//!    |
//! change/deferred_unmap, change/wait_lists, change/release: unmapped frames that wait, and go
//! entry_marks, addresses, error: marks and entries that stand for no page; ranges; errors
//!    |
//! vma, paging, grace, machine
//! ```
//!
//! The calls of `monitor` and `reclaim` resolve pages as faults do, with `fault/rights`,
//! `fault/frame_ref` and `fault/new_frame`.
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
//!
//! # Who owns what, until when
//!
//! | what | owner | until |
//! |---|---|---|
//! | a VMA | the tree of [`vma`]; a guard keeps it for a reader | it is replaced, and the readers are gone |
//! | a frame that is mapped | each entry that leads to it holds a reference (none to the zero page or a guard page) | the entry has changed, and the flush is done |
//! | a frame that a sweep has taken | the `Gather`, or the list of a TLB grace period (`change/wait_lists`) | its flush, or the period, is over |
//! | a table that became empty | the pending flush in the same gather | the flush, then a grace period of readers |
//! | addresses that wait | the ranges of the list; no VMA is placed there | the period is over, or a call claims them |
//! | a page of an object | the object's index, and each entry | it is truncated or evicted, and taken back from all spaces |
//! | a frame that a fault has prepared | `fault/new_frame` | it is mapped, or the fault ends |
//! | a pinned frame | the pin | it is released, also after the map has gone |
//! | a slot of swap | each swap entry | the page came back, or its map has gone |
#![no_std]
#![deny(missing_docs)]
extern crate alloc;

mod access;
mod addresses;
mod change;
mod entry_marks;
mod error;
mod fault;
mod listing;
#[cfg(all(test, loom))]
mod loom_objects;
#[cfg(all(test, loom))]
mod loom_reclaim;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, loom))]
mod loom_waiting;
mod monitor;
mod object;
mod pins;
pub mod protocol;
mod reclaim;
mod space;
mod thresholds;

pub use access::Access;
pub use change::locked_call::Calls;
pub use change::msync::SyncFlags;
pub use change::page_host::PageHost;
pub use change::unmap_policy::UnmapPolicy;
pub use error::{CollapseError, Error, FaultError, ObjectError, UserFaultError};
pub use fault::FaultOutcome;
pub use fault::fault_blocks::FaultBlocks;
pub use fault::huge_page::HugePages;
pub use listing::pagemap;
pub use listing::smaps::{Totals, Usage};
pub use monitor::Resolved;
pub use monitor::handler::{
    UserFault, UserFaultChange, UserFaultEvent, UserFaultEvents, UserFaultHandler, UserFaultKind,
};
pub use monitor::pagemap_scan::{PageCategories, PageRegion, Scan, Scanned};
pub use monitor::userfault::UserFaultModes;
pub use object::backing::Backing;
pub use object::device_memory::DeviceMemory;
pub use object::file::{File, PageSource};
pub use object::mappings::Mappings;
pub use object::seals::Seals;
pub use object::shmem::{Shmem, ShmemKind};
pub use object::{CachedPages, MemoryPages, Object, ObjectInfo};
pub use paging::Swap;
pub use pins::UserPins;
pub use pins::user_copy::CopyError;
pub use reclaim::Reclaimed;
pub use space::AddressSpace;
pub use space::commitment::{Commitment, Overcommit};
pub use space::group::{FrameGroup, GroupError, OnLimit};
pub use space::shared::{Shared, WeakShared};
pub use vma::{
    Advice, AttachRequest, Layout, Limits, LockAll, MapFlags, Profile, RemapRequest, Sizes, Uffd,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
