//! The heap is exhausted: while tables are retired, none is lost, and all come back. Constructors
//! that a host calls once return an error.

mod common;

use common::*;
use grace::quiescent::BATCH;
use machine::{Asid, PageSize};
use paging::{Attrs, Paging, TlbGrace, X86_64L4};
use sim::{Bare, Grace};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A heap that refuses the blocks of the grace-period engine while this thread says so, or has only
/// some blocks left.
struct Failing;

thread_local! {
    static FAIL: Cell<bool> = const { Cell::new(false) };
    /// The blocks that the heap has left. A freed one can be allocated again.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// The size of such a block: its pieces, of two words each, and four words about them.
const BLOCK: usize = BATCH * 16 + 32;

// SAFETY: as the system allocator.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let left = LEFT.get();
        if left != usize::MAX {
            LEFT.set(left.saturating_sub(1));
        }
        if left == 0 || (layout.size() == BLOCK && FAIL.get()) {
            REFUSED.set(REFUSED.get() + 1);
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if LEFT.get() != usize::MAX {
            LEFT.set(LEFT.get() + 1);
        }
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Failing = Failing;

/// Exhausted from the very first flush on, for this number of flushes in a row.
fn exhausted(flushes: u64) {
    on_machine(2, 512, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let frame = block(sim, 0);
        FAIL.set(true);
        for turn in 0..flushes {
            // It uses three tables of its own.
            let range = pages(0x1000 + (turn << 39), 1);
            space.map_own(range, frame, Attrs::USER_RW).unwrap();
            space.unmap_own(range, |_| ()).unwrap().flush();
        }
        assert_eq!(shared.waiting(), flushes * 3);
        FAIL.set(false);
        assert!(sim.settle());
        assert_eq!(shared.waiting(), 0, "tables of {flushes} flushes did not come back");
        release(sim, frame);
    });
    assert_ne!(REFUSED.take(), 0, "the engine never asked the heap for a block");
}

#[test]
fn tables_come_back_though_the_heap_is_exhausted() {
    for flushes in [1, 2, BATCH as u64] {
        exhausted(flushes);
    }
}

/// Calls `make` with a heap that has no block left, then one, and so on until it succeeds.
/// Returns how often it failed.
fn refused<T, E>(make: impl Fn() -> Result<T, E>) -> usize {
    for granted in 0.. {
        LEFT.set(granted);
        let made = make();
        LEFT.set(usize::MAX);
        if made.is_ok() {
            return granted;
        }
    }
    unreachable!("there is memory")
}

#[test]
fn what_a_host_makes_once_is_an_error_without_heap() {
    let bare = Bare::new(2, 512).unwrap();
    let times = refused(|| Paging::<Bare, X86_64L4>::try_new(bare.clone(), PageSize::Size1G));
    assert!(times > 6, "{times}");
    let times = refused(|| TlbGrace::try_new(bare.clone()));
    assert!(times > 1, "{times}");
}
