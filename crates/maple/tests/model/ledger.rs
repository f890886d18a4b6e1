//! Entries and nodes that are counted, and whose allocation fails on demand.
//!
//! Every entry has a unique number in a [`Ledger`], which detects entries that are dropped twice or
//! never. [`Pool`] counts nodes. [`with_budget`] makes the nth allocation of a thread fail, of a
//! node or an entry.

use maple::{AllocError, Entry, Error, Global, NodeAlloc, Raw};
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

thread_local! {
    static BUDGET: Cell<Option<usize>> = const { Cell::new(None) };
    /// The budget applies to nodes only; duplicates of entries always succeed.
    static NODES_ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with at most `n` allocations of nodes and duplicates.
pub(crate) fn with_budget<T>(n: Option<usize>, work: impl FnOnce() -> T) -> T {
    let before = BUDGET.replace(n);
    let outcome = work();
    BUDGET.set(before);
    outcome
}

/// Runs `work` with at most `n` allocations of nodes, and any number of duplicates.
pub(crate) fn with_node_budget<T>(n: usize, work: impl FnOnce() -> T) -> T {
    NODES_ONLY.set(true);
    let outcome = with_budget(Some(n), work);
    NODES_ONLY.set(false);
    outcome
}

fn spend() -> Result<(), AllocError> {
    match BUDGET.get() {
        Some(0) => Err(AllocError),
        Some(n) => {
            BUDGET.set(Some(n - 1));
            Ok(())
        }
        None => Ok(()),
    }
}

thread_local! {
    /// The blocks that this thread allocated and that are not freed yet, by any thread. Each test
    /// is a thread of its own.
    static NODES: &'static AtomicIsize = Box::leak(Box::default());
}

/// The global allocator with a count of live blocks, separate for each test. One type for all
/// tests: otherwise the tree would be compiled for each of them.
pub(crate) struct Pool;

impl Pool {
    /// The number of live blocks.
    pub(crate) fn live() -> isize {
        // Relaxed: a count. The caller joined the threads or waited before it compares.
        NODES.with(|nodes| nodes.load(Ordering::Relaxed))
    }
}

/// Each block is preceded by a reference to its counter.
fn with_front(layout: Layout) -> Layout {
    assert!(layout.align() >= size_of::<&AtomicIsize>());
    Layout::from_size_align(layout.align() + layout.size(), layout.align()).unwrap()
}

// SAFETY: forwards to `Global`, or refuses.
unsafe impl NodeAlloc for Pool {
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        spend()?;
        let front = Global::allocate(with_front(layout))?;
        let nodes = NODES.with(|nodes| *nodes);
        nodes.fetch_add(1, Ordering::Relaxed);
        // Poison: the tree must not depend on bytes that a new node does not write. SAFETY: this
        // function owns the block, which is that large, and aligned for the front.
        unsafe {
            front.cast::<&AtomicIsize>().write(nodes);
            let block = front.add(layout.align());
            block.write_bytes(0xa5, layout.size());
            Ok(block)
        }
    }

    unsafe fn deallocate(block: NonNull<u8>, layout: Layout) {
        // Poison: a reader that still uses the node finds garbage instead of a valid node. SAFETY:
        // the caller's promise: the block has that size, its front before it, and no user.
        unsafe {
            block.write_bytes(0x5a, layout.size());
            let front = block.sub(layout.align());
            front.cast::<&'static AtomicIsize>().read().fetch_sub(1, Ordering::Relaxed);
            Global::deallocate(front, with_front(layout))
        }
    }
}

/// The live entries.
#[derive(Default)]
pub(crate) struct Ledger {
    next: AtomicU64,
    values: AtomicU64,
    live: Mutex<HashSet<u64>>,
    twice: AtomicU64,
}

impl Ledger {
    /// A value that no entry has yet.
    pub(crate) fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number of live entries.
    pub(crate) fn live(&self) -> usize {
        self.live.lock().unwrap().len()
    }

    /// The number of drops of entries that were not alive.
    pub(crate) fn twice(&self) -> u64 {
        self.twice.load(Ordering::Relaxed)
    }
}

/// An entry, with a value that its duplicates have, too. With `SHARES`, duplicates are references
/// to the same content.
pub(crate) struct Item<const SHARES: bool = false>(Arc<Content>);

/// The content of an [`Item`].
pub(crate) struct Content {
    value: u64,
    seal: AtomicU64,
    number: u64,
    ledger: Arc<Ledger>,
}

const KEY: u64 = 0x5eed_0fa0_5a3a_4a61;

impl<const S: bool> Item<S> {
    /// A new entry, recorded in the ledger.
    pub(crate) fn new(ledger: &Arc<Ledger>, value: u64) -> Item<S> {
        let number = ledger.next.fetch_add(1, Ordering::Relaxed);
        assert!(ledger.live.lock().unwrap().insert(number));
        let seal = AtomicU64::new(value ^ KEY);
        Item(Arc::new(Content { value, seal, number, ledger: ledger.clone() }))
    }

    /// The value.
    pub(crate) fn value(&self) -> u64 {
        self.0.value()
    }
}

impl Content {
    /// The value; panics if the content was dropped.
    pub(crate) fn value(&self) -> u64 {
        assert_eq!(
            self.seal.load(Ordering::Relaxed),
            self.value ^ KEY,
            "an entry was read after its drop"
        );
        self.value
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let alive = self.ledger.live.lock().unwrap().remove(&self.number);
        if !alive || self.seal.swap(0, Ordering::Relaxed) != self.value ^ KEY {
            self.ledger.twice.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<const S: bool> Item<S> {
    fn word(self) -> Raw {
        let content = Arc::into_raw(self.0).cast_mut().cast();
        // SAFETY: a pointer into an `Arc` is not null.
        unsafe { NonNull::new_unchecked(content) }
    }
}

// SAFETY: the word is the pointer; a duplicate is a new content, or one more reference to the same.
unsafe impl<const S: bool> Entry for Item<S> {
    type Ref<'g> = &'g Content;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = S;

    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(self.word())
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        Item(unsafe { Arc::from_raw(raw.cast().as_ptr()) })
    }

    unsafe fn borrow<'g>(raw: Raw) -> &'g Content {
        // SAFETY: the caller's promise.
        unsafe { raw.cast().as_ref() }
    }

    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        if S {
            // SAFETY: the caller's promise.
            unsafe { Arc::increment_strong_count(raw.cast::<Content>().as_ptr()) }
            return Ok(raw);
        }
        if !NODES_ONLY.get() {
            spend()?;
        }
        // SAFETY: the caller's promise.
        let source = unsafe { Self::borrow(raw) };
        Ok(Item::<S>::new(&source.ledger, source.value()).word())
    }
}
