//! A minimal engine for grace periods on loom's atomics, and mutants of it that the tests must
//! catch.
//!
//! A counter counts the readers, and a list holds the retired pieces. When a guard under which
//! something was retired ends, it takes the list's lock and reads the counter. If the counter is
//! zero, it frees the pieces on the list. This is correct: a guard taken later sees that the pieces
//! are unlinked, so its reader cannot reach them.

use grace::{Concurrent, Reclaim};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

type Free = unsafe fn(NonNull<()>);

struct Domain {
    readers: AtomicUsize,
    waiting: Mutex<Vec<(NonNull<()>, Free)>>,
}

// SAFETY: any thread may free a retired piece.
unsafe impl Send for Domain {}
// SAFETY: the list is behind a lock.
unsafe impl Sync for Domain {}

loom::lazy_static! {
    static ref DOMAIN: Domain =
        Domain { readers: AtomicUsize::new(0), waiting: Mutex::new(Vec::new()) };
}

/// The kind of engine: the correct one, or a mutant.
pub(crate) trait EngineKind: 'static {
    /// The ordering of taking a guard. Acquire at least: the guard must see what was unlinked
    /// before.
    const PIN: Ordering = Ordering::AcqRel;
    /// The ordering of ending a guard. Release at least: accesses under the guard happen before its
    /// end.
    const UNPIN: Ordering = Ordering::AcqRel;
    /// Whether a free waits for readers.
    const WAITS: bool = true;
}

/// The correct engine.
pub(crate) struct Right;
impl EngineKind for Right {}

/// Mutant: frees at once.
pub(crate) struct Hasty;
impl EngineKind for Hasty {
    const WAITS: bool = false;
}

/// Mutant: a reader may start at a root from before the grace period.
pub(crate) struct LooseStart;
impl EngineKind for LooseStart {
    const PIN: Ordering = Ordering::Relaxed;
}

/// Mutant: the free may begin before the reader's last access.
pub(crate) struct LooseEnd;
impl EngineKind for LooseEnd {
    const UNPIN: Ordering = Ordering::Relaxed;
}

/// The engine of a kind.
pub(crate) struct Counting<K>(PhantomData<K>);

/// The guard of an engine.
pub(crate) struct Guard<K: EngineKind> {
    retired: Cell<bool>,
    kind: PhantomData<K>,
}

// SAFETY: each piece on the list is freed once, after it was retired.
unsafe impl<K: EngineKind> Reclaim for Counting<K> {
    type Guard = Guard<K>;

    fn pin() -> Guard<K> {
        DOMAIN.readers.fetch_add(1, K::PIN);
        Guard { retired: Cell::new(false), kind: PhantomData }
    }

    unsafe fn retire(guard: &Guard<K>, ptr: NonNull<()>, free: Free) {
        if K::WAITS {
            guard.retired.set(true);
            DOMAIN.waiting.lock().unwrap().push((ptr, free));
        } else {
            // SAFETY: none. The tests must detect this mutant.
            unsafe { free(ptr) }
        }
    }
}

// SAFETY: for `Right`, see the module. The others are wrong on purpose.
unsafe impl<K: EngineKind> Concurrent for Counting<K> {}

impl<K: EngineKind> Drop for Guard<K> {
    fn drop(&mut self) {
        DOMAIN.readers.fetch_sub(1, K::UNPIN);
        if self.retired.get() {
            collect();
        }
    }
}

/// Frees the retired pieces if there is no reader. Returns the number of pieces that still wait.
pub(crate) fn collect() -> usize {
    let mut waiting = DOMAIN.waiting.lock().unwrap();
    // A read-modify-write, so that it has a place in the modification order of the counter.
    if DOMAIN.readers.fetch_add(0, Ordering::AcqRel) == 0 {
        for (ptr, free) in waiting.drain(..) {
            // SAFETY: there is no reader, and later readers cannot reach the piece.
            unsafe { free(ptr) }
        }
    }
    waiting.len()
}

/// Must be called first, so that the statics are older than every thread.
pub(crate) fn begin() {
    collect();
}
