//! Tests of the pool on a global allocator that fails, counts, and uses the pool itself.
use pool::{Pool, PoolStats};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const SLAB: usize = 64 << 10;
const LARGE: usize = 2 << 20;
/// The most blocks that the allocator takes at once.
const MOST_OWN: usize = 400;
const BLOCK: Layout = match Layout::from_size_align(256, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("the layout is invalid"),
};

thread_local! {
    /// The allocator refuses chunks of this size or larger.
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// The number of blocks that the allocator takes from the pool and frees when it is asked for a
    /// chunk.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// The bytes of all allocated chunks.
static CHUNKS: AtomicUsize = AtomicUsize::new(0);

struct Program;

#[global_allocator]
static PROGRAM: Program = Program;

fn is_chunk(layout: Layout) -> bool {
    layout.align() >= SLAB
}

// SAFETY: forwards to the system's allocator, or refuses.
unsafe impl GlobalAlloc for Program {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_chunk(layout) {
            if layout.size() >= LIMIT.get() {
                return std::ptr::null_mut();
            }
            let mut blocks = [None; MOST_OWN];
            for block in &mut blocks[..OWN.replace(0)] {
                *block = Pool::take(BLOCK);
            }
            for block in blocks.into_iter().flatten() {
                // SAFETY: this function owns the block.
                unsafe { Pool::give_back(block, BLOCK) };
            }
            // Relaxed: a count, read while no thread changes it.
            CHUNKS.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if is_chunk(layout) {
            CHUNKS.fetch_sub(layout.size(), Ordering::Relaxed);
            assert_eq!(ptr.addr() % layout.align(), 0);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// A set of blocks without duplicates; its drop frees them.
#[derive(Default)]
struct Blocks(BTreeSet<NonNull<u8>>);

impl Blocks {
    fn add(&mut self) -> Option<()> {
        let block = Pool::take(BLOCK)?;
        // SAFETY: the test owns the block, which has that size.
        unsafe { block.write_bytes(0xa5, BLOCK.size()) };
        assert!(self.0.insert(block), "a block was allocated twice");
        Some(())
    }

    /// Allocates until there is no memory.
    fn add_all(&mut self) {
        while self.add().is_some() {}
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for &block in &self.0 {
            // SAFETY: the set owns the block.
            unsafe { Pool::give_back(block, BLOCK) };
        }
    }
}

/// Runs a test alone; every chunk is freed before and after it.
fn alone(test: impl FnOnce()) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap();
    Pool::trim();
    assert_eq!((Pool::stats(), CHUNKS.load(Ordering::Relaxed)), (PoolStats::default(), 0));
    test();
    Pool::trim();
    assert_eq!((Pool::stats(), CHUNKS.load(Ordering::Relaxed)), (PoolStats::default(), 0));
    drop(one);
}

/// The number of blocks that a cache gets from its depot at a time. The pool is empty before and
/// after the call.
fn batch() -> usize {
    let block = Pool::take(BLOCK).unwrap();
    let batch = Pool::stats().used / BLOCK.size();
    // SAFETY: this function owns the block.
    unsafe { Pool::give_back(block, BLOCK) };
    Pool::trim();
    batch
}

fn held() -> usize {
    let held = Pool::stats().held;
    assert_eq!(held, CHUNKS.load(Ordering::Relaxed));
    held
}

#[test]
fn a_failure_loses_nothing() {
    alone(|| {
        let mut blocks = Blocks::default();
        LIMIT.set(0);
        assert_eq!(blocks.add(), None);
        assert_eq!(Pool::stats(), PoolStats::default());
        LIMIT.set(usize::MAX);
        blocks.add().unwrap();
        assert_eq!(held(), SLAB);
        // The pool serves its free blocks, to the last one.
        LIMIT.set(0);
        blocks.add_all();
        assert_eq!(blocks.0.len(), 255);
        assert_eq!((held(), Pool::stats().used), (SLAB, 255 * 256));
        assert_eq!(blocks.add(), None);
        LIMIT.set(usize::MAX);
        blocks.add().unwrap();
        assert_eq!(held(), 2 * SLAB);
    });
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn small_chunks_do_where_large_ones_fail() {
    alone(|| {
        let mut blocks = Blocks::default();
        LIMIT.set(LARGE);
        for _ in 0..3 * LARGE / BLOCK.size() {
            blocks.add().unwrap();
        }
        assert!(held() > 3 * LARGE && held() < 4 * LARGE);
        assert!(!held().is_multiple_of(LARGE));
        LIMIT.set(usize::MAX);
        let before = held();
        while held() == before {
            blocks.add().unwrap();
        }
        assert_eq!(held(), before + LARGE);
    });
}

#[test]
fn the_global_allocator_may_use_the_pool() {
    alone(|| {
        let batch = batch();
        // A cache holds two batches. The blocks that the allocator frees fill it up to there.
        let cache = 2 * batch;
        let counts = [1, batch - 1, batch, batch + 1, cache - 1, cache, cache + 1, MOST_OWN];
        assert!(counts.is_sorted_by(|a, b| a < b), "batches of {batch} blocks");
        let (counts, rounds) = if cfg!(miri) { (&counts[5..6], 2) } else { (&counts[..], 3) };
        for &own in counts {
            let mut blocks = Blocks::default();
            for _ in 0..rounds {
                // Then the next batch needs a chunk, and the blocks of the allocator need one, too.
                LIMIT.set(0);
                blocks.add_all();
                LIMIT.set(usize::MAX);
                OWN.set(own);
                blocks.add().unwrap();
                assert_eq!(OWN.get(), 0);
                held();
            }
            drop(blocks);
            Pool::trim();
            assert_eq!(held(), 0);
        }
    });
}
