//! The heap is exhausted while tables are retired: none is lost, and all come back.

mod common;

use common::*;
use grace::quiescent::BATCH;
use machine::Asid;
use paging::Attrs;
use sim::{Config, Grace, Sim};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A heap that refuses the blocks of the grace-period engine while this thread says so.
struct Failing;

thread_local! {
    static FAIL: Cell<bool> = const { Cell::new(false) };
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// The size of such a block: its pieces, of two words each, and four words about them.
const BLOCK: usize = BATCH * 16 + 32;

// SAFETY: as the system allocator.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() == BLOCK && FAIL.get() {
            REFUSED.set(REFUSED.get() + 1);
            return std::ptr::null_mut();
        }
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Failing = Failing;

/// Exhausted from the very first flush on, for this number of flushes in a row.
fn exhausted(flushes: u64) {
    let sim = Sim::new(Config { cpus: 2, frames: 512, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    sim.on_cpu(0, || {
        let space = Space::<Grace>::user(&shared, Asid(1), None).unwrap();
        let frame = block(&sim, 0);
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
        release(&sim, frame);
    });
    all_given_back(&sim, &shared).unwrap();
    assert_ne!(REFUSED.take(), 0, "the engine never asked the heap for a block");
}

#[test]
fn tables_come_back_though_the_heap_is_exhausted() {
    for flushes in [1, 2, BATCH as u64] {
        exhausted(flushes);
    }
}
