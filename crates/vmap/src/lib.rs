//! Kernel virtual areas: memory mapped for the kernel itself, whose cost does not grow with the
//! number of CPUs.
//!
//! # The problem
//! Before a kernel can reuse a virtual address, every CPU must drop its cached translation. The
//! classic design sends IPIs to all CPUs at each unmapping (a TLB shootdown), under one lock, with
//! all areas in one list. Each additional CPU makes every unmapping slower.
//!
//! # One idea
//! Address space is plentiful. An unmapped range is not flushed: it *waits*. Its addresses are
//! reused only after every CPU has flushed its TLB for its own reasons and has reported that
//! flush. This is a grace period for TLBs instead of readers ([`TlbGrace`]). If the CPUs have timer
//! ticks, it costs each CPU one flush per tick and no IPI at all. Without ticks, one broadcast
//! serves tens of thousands of unmappings.
//!
//! # Modules
//! A line uses only those below it.
//! ```text
//! malloc, realloc, map, ram, reserve     the calls
//!    |
//! create, request, release, info, read   areas come, go and are looked at
//!    |
//! space, tables                          all zones; the rollback of page tables
//!    |
//! zone                                   free, used and waiting addresses
//!    |
//! area, block          check             one area; runs of pages; may a caller ask for this?
//!    |
//! error
//! ```
//! | module | contents |
//! |---|---|
//! | [`paging`] | TLB grace periods: [`TlbGrace`] |
//! | `space` | one address space for areas: [`Vmap`] |
//! | `tables` | rollback of page-table pages after a call fails |
//! | `request` | [`Request`], which expresses all demands; [`create`](Vmap::create) |
//! | `create`, `release` | creation of areas; return of their addresses |
//! | `check` | the checks of safe calls, and why they suffice |
//! | `zone` | a part of the space, per CPU or common: a tree of areas, and a queue of waiting areas |
//! | `zone/place` | the search for free addresses, and placement at an address |
//! | `area` | one area and its states |
//! | `block`, `block/bits` | 2 MiB of addresses from which one CPU takes small runs |
//! | `ram` | [`vm_map_ram`](Vmap::vm_map_ram), [`vm_unmap_ram`](Vmap::vm_unmap_ram) |
//! | `map` | [`vmap`](Vmap::vmap), [`vunmap`](Vmap::vunmap), [`ioremap`](Vmap::ioremap), [`vmalloc_to_page`](Vmap::vmalloc_to_page) |
//! | `malloc`, `realloc` | [`vmalloc`](Vmap::vmalloc), [`vfree`](Vmap::vfree), [`vrealloc`](Vmap::vrealloc) and their variants |
//! | `reserve` | [`reserve`](Vmap::reserve), [`unreserve`](Vmap::unreserve) |
//! | `info` | [`vmallocinfo`](Vmap::vmallocinfo), [`get_vmalloc_info`](Vmap::get_vmalloc_info), [`find_vm_area`](Vmap::find_vm_area) |
//! | `read` | [`vread`](Vmap::vread), [`vwrite`](Vmap::vwrite) |
//!
//! # Layout of the address space
//! ```text
//! the space:  | CPU 0's zone | CPU 1's zone | ... | the common zone                        |
//! a zone:     | block | area, guard | guard, area | (waits) | block |        free          |
//! a block:    | 4 pages in use | 4 wait | 16 in use | free ...                             |
//! ```
//! A CPU takes addresses from its own zone first, and from the others when that zone is full. An
//! area that is larger than a quarter of a CPU's zone comes from the common zone first. Small,
//! short-lived mappings come from blocks, without a zone's lock or tree. A caller that names the
//! address of an area ([`Request::at`]) gets it in the zone that the address lies in.
//!
//! # Cost
//! | call | lines shared with other CPUs that it writes, while each CPU unmaps its own mappings | locks |
//! |---|---|---|
//! | `vm_map_ram`, up to 64 pages | none | of one page-table page, which belongs to this CPU |
//! | `vm_unmap_ram` | none; on another CPU than the one that mapped it, lines of the block and of its page-table page | of one page-table page; plus one locked instruction |
//! | `vmap`, `vmalloc`, `vunmap`, `vfree` | none | of page-table pages of this CPU's zone; the zone's, once |
//! | readers | none | none |
//!
//! No entry grows with the number of CPUs (I8). A test whether a grace period has ended reads one
//! line per CPU. It runs at ticks, when a CPU's blocks have no free run left, and once per as many
//! unmappings as there are CPUs.
//!
//! # Example
//! ```
//! use machine::{FrameSource, PageSize, NodePolicy, Translated, VirtAddr, VirtRange};
//! use paging::{Attrs, PageTables, Paging, X86_64L4};
//! use sim::{Config, Grace, Sim};
//! use std::sync::Arc;
//! use vmap::{TlbGrace, Options, Vmap};
//!
//! let sim = Sim::new(Config::default()).unwrap();
//! let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
//! let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
//! let tables = sim.on_cpu(0, || {
//!     let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
//!     // SAFETY: the example needs no other mapping.
//!     unsafe { tables.activate() };
//!     tlb_grace.idle_exit();
//!     let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30).unwrap();
//!     // SAFETY: no other code maps at these addresses.
//!     let vmap = unsafe {
//!         Vmap::try_new(tables.clone(), tlb_grace.clone(), space, Options::default())
//!     };
//!     let vmap = vmap.unwrap();
//!
//!     let at = vmap.vzalloc(10_000).unwrap();
//!     // SAFETY: ordinary memory, and ours.
//!     unsafe { sim.store(at, 42) }.unwrap();
//!     assert_eq!(vmap.find_vm_area(at).unwrap().pages, 3);
//!     let before = sim.stats().flushes;
//!     // SAFETY: the area is not used any more.
//!     unsafe { vmap.vfree(at) }.unwrap();
//!     assert!(unsafe { vmap.vfree(at) }.is_err());
//!     assert_eq!(sim.stats().flushes, before, "it waits");
//!     vmap.vm_unmap_aliases();
//!     tables
//! });
//! // The CPU has stopped: no page tables are active there.
//! sim.on_cpu(0, || drop(tables));
//! ```
//!
//! The crate is `no_std`. It allocates each area's record and its tree nodes from the heap. If an
//! allocation fails, the call returns [`Error::OutOfMemory`] and has changed nothing.
//!
//! # Features
//! - `listing` (default): `vmallocinfo`, and the call site that created each area.
//! - `small`: small code, as `samara-maple` has it. Calls take longer.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
// The unit tests share a machine with the other tests.
#[cfg(all(test, not(loom)))]
extern crate self as vmap;
#[cfg(any(test, doctest))]
extern crate std;

mod area;
mod block;
mod check;
mod create;
mod error;
mod info;
mod malloc;
mod map;
mod ram;
mod read;
mod realloc;
mod release;
mod request;
mod reserve;
mod space;
mod sync;
mod tables;
mod zone;

pub use area::{AreaState, Guard, Made};
pub use error::{Culprit, Error};
pub use info::{AreaInfo, VmallocInfo};
pub use paging::{TlbGrace, TlbGraceStats};
pub use request::{Allocation, Contents, Request};
pub use space::{Options, Vmap};

/// The bytes of a page.
const PAGE: u64 = machine::PageSize::Size4K.bytes();

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
