//! Tests of the pool with threads: frees on other threads, ends of threads, and memory that goes
//! back.
use pool::{Pool, PoolStats};
use std::alloc::Layout;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// A block, filled with a byte that it remembers.
struct Block {
    ptr: NonNull<u8>,
    layout: Layout,
    fill: u8,
}

// SAFETY: the block is owned.
unsafe impl Send for Block {}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).unwrap()
}

impl Block {
    fn new(size: usize, fill: u8) -> Self {
        let layout = layout(size);
        let ptr = Pool::take(layout).unwrap();
        assert_eq!(ptr.addr().get() % 64, 0);
        // SAFETY: the test owns the block, which has that size.
        unsafe { ptr.write_bytes(fill, size) };
        Block { ptr, layout, fill }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the test owns the block, which has that size and is filled. Through a reference,
        // as users may access it.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) };
        assert!(*bytes == [self.fill; 512][..bytes.len()], "a block was overwritten");
        bytes.fill(!self.fill);
        // SAFETY: the test owned the block until now. The pointer has provenance for the block
        // only.
        unsafe { Pool::give_back(NonNull::from(bytes).cast(), self.layout) }
    }
}

/// Runs a test alone; the pool is empty before and after it.
fn alone(test: impl FnOnce()) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    Pool::trim();
    assert_eq!(Pool::stats(), PoolStats::default());
    test();
    Pool::trim();
    assert_eq!(Pool::stats(), PoolStats::default());
    drop(one);
}

fn dice(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn blocks_stay_their_owners() {
    const THREADS: usize = 4;
    /// More blocks than a cache holds.
    const RUN: usize = if cfg!(miri) { 100 } else { 600 };
    let steps = if cfg!(miri) { 150 } else { 40_000 };
    alone(|| {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel()).unzip();
        let work = |(n, inbox): (usize, mpsc::Receiver<Block>)| {
            let senders = senders.clone();
            thread::spawn(move || {
                let (mut own, mut state) = (Vec::new(), n as u64);
                for _ in 0..steps {
                    match dice(&mut state) % 8 {
                        // Runs of blocks of one size, so that its cache fills and empties.
                        0 => {
                            let size = 1 + dice(&mut state) % 512;
                            let run = dice(&mut state) % RUN;
                            own.extend((0..run).map(|_| Block::new(size, dice(&mut state) as u8)));
                        }
                        1 => own.truncate(own.len() - own.len().min(dice(&mut state) % RUN)),
                        2..5 if !own.is_empty() => {
                            let block = own.swap_remove(dice(&mut state) % own.len());
                            // The send fails if the other thread has ended; then the block is
                            // dropped here.
                            let _ = senders[dice(&mut state) % THREADS].send(block);
                        }
                        5 => own.extend(inbox.try_iter()),
                        _ => own.push(Block::new(256, dice(&mut state) as u8)),
                    }
                }
            })
        };
        let threads: Vec<_> = receivers.into_iter().enumerate().map(work).collect();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(senders);
        assert_eq!(Pool::stats().used, 0);
    });
}

#[test]
fn neighbours_in_time_are_neighbours_in_memory() {
    alone(|| {
        let blocks: Vec<_> = (0..255).map(|n| Block::new(256, n)).collect();
        let places: Vec<_> = blocks.iter().map(|block| block.ptr.addr().get()).collect();
        assert!(places.is_sorted_by(|a, b| a + 256 == *b), "{places:x?}");
    });
}

#[test]
fn a_thread_that_ends_keeps_nothing() {
    alone(|| {
        let thread = thread::spawn(|| {
            // More blocks than a cache holds.
            let blocks: Vec<_> = (0..600).map(|n| Block::new(384, n as u8)).collect();
            let used = Pool::stats().used;
            assert!(used >= 600 * 384);
            drop(blocks);
            assert!(Pool::stats().used > 0, "the cache kept no block");
        });
        thread.join().unwrap();
        assert_eq!(Pool::stats().used, 0);
        assert!(Pool::stats().held > 0);
    });
}

#[test]
fn one_block_freed_elsewhere() {
    alone(|| {
        let blocks: Vec<_> = (0..3).map(|n| Block::new(256, n)).collect();
        for block in blocks {
            // The thread's first call into the pool is a free.
            thread::spawn(|| drop(block)).join().unwrap();
        }
        Pool::trim();
        assert_eq!(Pool::stats().used, 0);
    });
}

#[test]
fn all_blocks_freed_elsewhere() {
    alone(|| {
        let first = Block::new(256, 0);
        // The block, and those in this thread's cache.
        let batch = Pool::stats().used;
        let blocks: Vec<_> = (1..1000).map(|n| Block::new(256, n as u8)).collect();
        thread::spawn(|| drop((first, blocks))).join().unwrap();
        // The frees do not lose the blocks in this thread's cache: the rest of its last batch.
        assert!(Pool::stats().used < batch);
        let blocks: Vec<_> = (0..1000).map(|n| Block::new(256, n as u8)).collect();
        assert!(Pool::stats().used >= 1000 * 256);
        drop(blocks);
    });
}

/// Blocks that a thread-local destructor frees; then it allocates and frees others.
struct Late(RefCell<Vec<Block>>);

static ENDED: AtomicUsize = AtomicUsize::new(0);

impl Drop for Late {
    fn drop(&mut self) {
        self.0.borrow_mut().clear();
        let blocks: Vec<_> = (0..100).map(|n| Block::new(256, n)).collect();
        drop(blocks);
        drop(Block::new(64, 7));
        // Relaxed: the join orders it.
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn destructors_of_thread_locals_may_use_it() {
    thread_local! {
        static BEFORE: Late = const { Late(RefCell::new(Vec::new())) };
        static AFTER: Late = const { Late(RefCell::new(Vec::new())) };
    }
    alone(|| {
        let thread = thread::spawn(|| {
            // `BEFORE` is registered before the pool's own destructor, `AFTER` after it, so one of
            // them runs later than the pool's.
            BEFORE.with(|late| late.0.borrow_mut().clear());
            let mut blocks: Vec<_> = (0..40).map(|n| Block::new(256, n)).collect();
            BEFORE.with(|late| late.0.borrow_mut().extend(blocks.drain(..20)));
            AFTER.with(|late| late.0.borrow_mut().extend(blocks));
        });
        thread.join().unwrap();
        assert_eq!(ENDED.load(Ordering::Relaxed), 2);
        assert_eq!(Pool::stats().used, 0);
        // The thread's first call into the pool is in a destructor.
        thread::spawn(|| BEFORE.with(|late| late.0.borrow_mut().clear())).join().unwrap();
        assert_eq!(ENDED.load(Ordering::Relaxed), 3);
        assert_eq!(Pool::stats().used, 0);
    });
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn blocks_dropped_in_any_order_go_back() {
    const ROUNDS: usize = 3;
    alone(|| {
        let mut state = 1;
        for _ in 0..ROUNDS {
            let mut blocks: Vec<_> = (0..100_000).map(|n| Block::new(256, n as u8)).collect();
            let PoolStats { held, used } = Pool::stats();
            // Little more than the blocks in use: remainders of slabs and one chunk.
            assert!(held - used <= used / 64 + (2 << 20), "{held} {used}");
            while !blocks.is_empty() {
                blocks.swap_remove(dice(&mut state) % blocks.len());
            }
            // Without `trim`, although the blocks that were freed last came from all chunks.
            assert!(Pool::stats().held <= 4 << 20);
        }
    });
}

#[test]
fn other_layouts_go_to_the_global_allocator() {
    alone(|| {
        for layout in [layout(513), layout(4096), Layout::from_size_align(256, 128).unwrap()] {
            let block = Pool::take(layout).unwrap();
            assert_eq!(block.addr().get() % layout.align(), 0);
            // SAFETY: the test owns the block, which has that size.
            unsafe { block.write_bytes(1, layout.size()) };
            assert_eq!(Pool::stats(), PoolStats::default());
            // SAFETY: the block came from `Pool::allocate` with this layout.
            unsafe { Pool::give_back(block, layout) };
        }
        drop(Block::new(512, 1));
        assert_ne!(Pool::stats(), PoolStats::default());
    });
}
