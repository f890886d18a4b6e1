//! A heap that refuses allocations of this thread, while a test asks for it.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    alloc::{GlobalAlloc, Layout as Block, System},
    cell::Cell,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
    // For a crate without the standard prelude.
    thread_local,
    vec::Vec,
};

use maple::{NodeAlloc, Nodes};

struct Failing;

thread_local! {
    /// The allocations that it still grants.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Whether it refuses all that follow, or one.
    static ALL: Cell<bool> = const { Cell::new(false) };
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: as the system allocator.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        match LEFT.get() {
            usize::MAX => {}
            0 => {
                REFUSED.set(REFUSED.get() + 1);
                if !ALL.get() {
                    LEFT.set(usize::MAX);
                }
                return std::ptr::null_mut();
            }
            left => LEFT.set(left - 1),
        }
        // SAFETY: passed on.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        // SAFETY: passed on.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static HEAP: Failing = Failing;

/// Other threads wait until this is dropped: they share a pool of nodes, so one of them at a time
/// counts allocations.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f`. The heap grants so many allocations, and refuses the next one, or with `all`, all that
/// follow. Returns whether it has refused one.
///
/// A workspace's build may give trees a pool of nodes, which would grant an allocation without the
/// heap. So the free nodes are held meanwhile.
pub(crate) fn refusing<T>(granted: usize, all: bool, f: impl FnOnce() -> T) -> (T, bool) {
    let _held = FreeNodes::hold();
    ALL.set(all);
    REFUSED.set(0);
    LEFT.set(granted);
    let done = f();
    LEFT.set(usize::MAX);
    (done, REFUSED.get() > 0)
}

/// Sets how many allocations the heap still grants this thread; `None`: all. Returns the last
/// setting.
pub(crate) fn grant(granted: Option<usize>) -> Option<usize> {
    ALL.set(true);
    Some(LEFT.replace(granted.unwrap_or(usize::MAX))).filter(|left| *left != usize::MAX)
}

/// Runs `f` with the heap as it is otherwise.
pub(crate) fn with_heap<T>(f: impl FnOnce() -> T) -> T {
    let left = LEFT.replace(usize::MAX);
    let done = f();
    LEFT.set(left);
    done
}

/// All nodes that trees could get without the heap.
struct FreeNodes(Vec<(NonNull<u8>, Block)>);

impl FreeNodes {
    fn hold() -> FreeNodes {
        let mut held = Vec::with_capacity(1 << 16);
        ALL.set(true);
        LEFT.set(0);
        for lines in 1..=64 {
            let node = Block::from_size_align(64 * lines, 64).unwrap();
            while held.len() < held.capacity()
                && let Ok(block) = Nodes::allocate(node)
            {
                held.push((block, node));
            }
        }
        LEFT.set(usize::MAX);
        assert!(held.len() < held.capacity(), "more nodes are free than the test can hold");
        FreeNodes(held)
    }
}

impl Drop for FreeNodes {
    fn drop(&mut self) {
        for &(block, node) in &self.0 {
            // SAFETY: `hold` allocated it with this layout, and it has no other user.
            unsafe { Nodes::deallocate(block, node) };
        }
    }
}
