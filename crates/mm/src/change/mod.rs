//! The calls that change maps, and their effects on pages.
//!
//! | module | contents |
//! |---|---|
//! | `calls`, `madvise`, `mlock`, `mremap`, `msync` | the calls by name; those that are more than a line |
//! | `locked_call`, `page_host` | a call with the mmap lock, and its cleanup; the door to pages |
//! | `sweep`, `gather`, `release` | a change of a range of pages; its frames, until the flush |
//! | `move_pages`, `collapse`, `guard_pages` | moves without a copy; MADV_COLLAPSE; guard pages |
//! | `teardown` | the end of a space |
//! | `unmap_policy`, `deferred_unmap` | munmap without IPIs: the choice, why it is right |
//! | `wait_lists`, `range_list` | its lists |
//!
//! # The way of a call
//!
//! A call takes the mmap lock (`AddressSpace::change`). [`vma`] looks at VMAs and plans *steps*:
//! munmap is one step for its whole range; a call that changes VMAs in several ways (mprotect,
//! madvise, mremap of several VMAs) makes one after the other. Each step goes this way:
//!
//! ```text
//! plan     vma                         may the call be made, which VMAs follow, which page work
//! admit    PageHost::admit             memory is promised, an object learns of its map
//! hold     vma::CallStep::hold         what a move must find unchanged is busy
//! prepare  PageHost::prepare_work      tables of its own, and those for huge pages that are cut
//! close    vma::CallStep::close        a hole, other rights, or a busy VMA for another map
//! pages    PageHost::carry_out         faults that have looked before look again
//!                                      (`count_change`); then a sweep of the tables: its gathers
//!                                      flush, and give the frames back
//! open     vma::CallStep::open         the new VMA without the busy mark, joined with neighbours
//! after    CallUnderWay::settle        without the mmap lock: promises, periods that have ended
//! ```
//!
//! Nothing fails once `close` has stored, but an advice. So any other step that fails has changed
//! nothing; the documents of a call say whether the steps before it stay. A step without work on
//! pages (a map in a hole, an untouched VMA that goes, a flag) is one store in `vma`. The
//! differences:
//!
//! - An advice prepares in `carry_out`, part by part. MADV_COLLAPSE makes 2 MiB busy at a time;
//!   MADV_GUARD_INSTALL stores page by page behind its sweep.
//! - A move splits huge pages and takes its tables when it prepares. MADV_COLLAPSE and UFFDIO_MOVE
//!   (`monitor/move_ioctl`) take the rights from pages, flush, and then look for pins: no pin
//!   without a lock succeeds any more.
//! - Reclaim gives the lock up between its steps, and leaves a mark in the entry.
//! - A monitor's calls store single entries (`monitor/fill`), and marks sweep without a change of
//!   VMAs (`monitor/page_marks`).
//!
//! A new call that removes or changes pages is a new kind of [`vma::Work`], which does not compile
//! until `prepare_work` and `carry_out` know it. Its sweep has a closure that gives the change of
//! each page. Frames of entries go back by `release`, after a flush.

pub(crate) mod calls;
pub(crate) mod collapse;
pub(crate) mod deferred_unmap;
pub(crate) mod gather;
pub(crate) mod guard_pages;
pub(crate) mod locked_call;
pub(crate) mod madvise;
pub(crate) mod mlock;
pub(crate) mod move_pages;
pub(crate) mod mremap;
pub(crate) mod msync;
pub(crate) mod page_host;
pub(crate) mod range_list;
pub(crate) mod release;
pub(crate) mod sweep;
mod teardown;
pub(crate) mod unmap_policy;
pub(crate) mod wait_lists;
