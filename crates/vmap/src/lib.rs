//! Kernel virtual areas: memory that is mapped for the kernel itself, on any number of CPUs,
//! without slowing down.
//!
//! # What used to be slow
//! To unmap kernel addresses every CPU must forget their translations. So it was done by
//! interrupting all of them at each unmapping, under one lock, with the areas in a list. It takes
//! longer with each CPU that is added.
//!
//! # One idea
//! Addresses are vast. What was unmapped is not flushed but *waits*: its addresses are not handed
//! out again until every CPU has flushed for a reason of its own, which each announces. That is a
//! grace period, of TLBs instead of readers ([`TlbGrace`]). If CPUs have timers it costs a flush a
//! tick on each, and nobody is interrupted, ever; if not, one broadcast serves tens of thousands of
//! unmappings.
//!
//! # What is where
//! | module | what |
//! |---|---|
//! | `tlb_grace` | TLB grace periods: [`TlbGrace`] |
//! | `vmap` | a space: [`Vmap`] |
//! | `tables` | page tables that a call has made before it failed |
//! | `make`, `back` | how areas are made and claimed; how addresses come back |
//! | `check` | what a safe call may map, and why that is harmless |
//! | `zone` | a part of the space, each CPU's or common: a tree of areas, and those that wait |
//! | `area` | one area, and what may become of it |
//! | `block`, `block/bits` | 2 MiB of addresses that one CPU takes small runs of |
//! | `ram` | [`vm_map_ram`](Vmap::vm_map_ram), [`vm_unmap_ram`](Vmap::vm_unmap_ram) |
//! | `map` | [`vmap`](Vmap::vmap), [`vunmap`](Vmap::vunmap), [`ioremap`](Vmap::ioremap), [`vmalloc_to_page`](Vmap::vmalloc_to_page) |
//! | `malloc`, `realloc` | [`vmalloc`](Vmap::vmalloc), [`vfree`](Vmap::vfree), [`vrealloc`](Vmap::vrealloc) and their like |
//! | `info` | [`vmallocinfo`](Vmap::vmallocinfo), [`get_vmalloc_info`](Vmap::get_vmalloc_info), [`find_vm_area`](Vmap::find_vm_area) |
//! | `read` | [`vread`](Vmap::vread), [`vwrite`](Vmap::vwrite) |
//!
//! # Where addresses are
//! ```text
//! the space:  | CPU 0's zone | CPU 1's zone | ... | the common zone                        |
//! a zone:     | block | area, guard | area, guard | (waits) | block |        free          |
//! a block:    | 4 pages in use | 4 wait | 16 in use | free ...                             |
//! ```
//! A CPU takes from its own zone first; from the others when that is full; what is larger than a
//! quarter of it, from the common one. Small maps that do not live long come from blocks, without a
//! zone's lock or tree.
//!
//! # What each costs
//! | call | shared lines written, while CPUs keep to what is theirs | locks |
//! |---|---|---|
//! | `vm_map_ram`, up to 64 pages | none | one table's, which is this CPU's |
//! | `vm_unmap_ram` | none; on another CPU than it was mapped, the block's and the table's | one table's, and one locked instruction |
//! | `vmap`, `vmalloc`, `vunmap`, `vfree` | none | those of tables of this CPU's zone, and the zone's, once |
//! | readers | none | none |
//!
//! None grows with the number of CPUs (I8). Whoever looks whether a grace period is over reads a
//! line of each CPU: at ticks, where a CPU's blocks have no run left, and after as many unmappings
//! as there are CPUs.
//!
//! # Example
//! ```
//! use machine::{FrameSource, PageSize, Place, Translated, VirtAddr, VirtRange};
//! use paging::{Attrs, PageTables, Paging, X86_64L4};
//! use sim::{Config, Grace, Sim};
//! use std::sync::Arc;
//! use vmap::{TlbGrace, Options, Vmap};
//!
//! let sim = Sim::new(Config::default()).unwrap();
//! let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
//! let flushes = TlbGrace::try_new(sim.clone()).unwrap();
//! let tables = sim.on_cpu(0, || {
//!     let tables = Arc::new(PageTables::<_, _, Grace>::kernel(&paging).unwrap());
//!     // SAFETY: the example needs nothing mapped but this.
//!     unsafe { tables.activate() };
//!     flushes.idle_exit();
//!     let space = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 30).unwrap();
//!     // SAFETY: nobody else uses these addresses.
//!     let vmap = unsafe { Vmap::try_new(tables.clone(), flushes.clone(), space, Options::default()) };
//!     let vmap = vmap.unwrap();
//!
//!     let at = vmap.vzalloc(10_000).unwrap();
//!     // SAFETY: ordinary memory, and ours.
//!     unsafe { sim.store(at, 42) }.unwrap();
//!     assert_eq!(vmap.find_vm_area(at).unwrap().pages, 3);
//!     let before = sim.counts().flushes;
//!     // SAFETY: nobody uses it any more.
//!     unsafe { vmap.vfree(at) }.unwrap();
//!     assert!(unsafe { vmap.vfree(at) }.is_err());
//!     assert_eq!(sim.counts().flushes, before, "it waits");
//!     vmap.vm_unmap_aliases();
//!     tables
//! });
//! // The CPU has stopped: nothing is active there.
//! sim.on_cpu(0, || drop(tables));
//! ```
//!
//! `no_std`; allocates from the heap: an area's record, its place in the tree. When there is none,
//! calls fail with [`Error::OutOfMemory`], and nothing has changed.
//!
//! # Features
//! - `listing` (on unless turned off): `vmallocinfo`, and who made each area.
#![no_std]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(any(test, doctest))]
extern crate std;

mod area;
mod back;
mod block;
mod check;
mod error;
mod info;
mod make;
mod malloc;
mod map;
mod ram;
mod read;
mod realloc;
mod sync;
mod tables;
mod tlb_grace;
mod vmap;
mod zone;

pub use area::{Made, State};
pub use error::{Culprit, Error};
pub use info::{AreaInfo, VmallocInfo};
pub use malloc::Request;
pub use tlb_grace::{TlbGrace, TlbGraceStats};
pub use vmap::{Options, Vmap};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
