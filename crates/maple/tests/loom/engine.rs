//! A grace period on loom's atomics, as small as can be, and mutants of it that must be caught.
//!
//! Readers are counted. What is retired waits in a list. Who has retired something takes the list
//! when its guard ends, looks at the count, and frees the list if nobody is there: whoever comes
//! later took its guard after the list was complete, so it cannot reach what is on it.

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

// SAFETY: what is retired may be freed by any thread.
unsafe impl Send for Domain {}
// SAFETY: the list is behind a lock.
unsafe impl Sync for Domain {}

loom::lazy_static! {
    static ref DOMAIN: Domain =
        Domain { readers: AtomicUsize::new(0), waiting: Mutex::new(Vec::new()) };
}

/// Which engine: the right one, or what is wrong with it.
pub(crate) trait Kind: 'static {
    /// How a guard is counted. It must see what was unlinked before it came: Acquire at least.
    const PIN: Ordering = Ordering::AcqRel;
    /// Whether the end of a guard is known to come after what was done under it.
    const UNPIN: Ordering = Ordering::AcqRel;
    /// Whether readers are waited for.
    const WAITS: bool = true;
}

/// The right engine.
pub(crate) struct Right;
impl Kind for Right {}

/// Frees at once.
pub(crate) struct Hasty;
impl Kind for Hasty {
    const WAITS: bool = false;
}

/// A reader may begin with a root from before the grace period.
pub(crate) struct LooseStart;
impl Kind for LooseStart {
    const PIN: Ordering = Ordering::Relaxed;
}

/// The free may begin before the reader's last look.
pub(crate) struct LooseEnd;
impl Kind for LooseEnd {
    const UNPIN: Ordering = Ordering::Relaxed;
}

/// The engine of that kind.
pub(crate) struct Counting<K>(PhantomData<K>);

/// Its guard.
pub(crate) struct Guard<K: Kind> {
    retired: Cell<bool>,
    kind: PhantomData<K>,
}

// SAFETY: each entry of the list is freed once, after it was retired.
unsafe impl<K: Kind> Reclaim for Counting<K> {
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
            // SAFETY: it is not: that is what the tests are to notice.
            unsafe { free(ptr) }
        }
    }
}

// SAFETY: for `Right`, see the module's text. The others are wrong on purpose.
unsafe impl<K: Kind> Concurrent for Counting<K> {}

impl<K: Kind> Drop for Guard<K> {
    fn drop(&mut self) {
        DOMAIN.readers.fetch_sub(1, K::UNPIN);
        if self.retired.get() {
            collect();
        }
    }
}

/// Frees what has been retired if no reader is there; returns how many pieces still wait.
pub(crate) fn collect() -> usize {
    let mut waiting = DOMAIN.waiting.lock().unwrap();
    // Also a write, so that it has a place in the order of the readers' own.
    if DOMAIN.readers.fetch_add(0, Ordering::AcqRel) == 0 {
        for (ptr, free) in waiting.drain(..) {
            // SAFETY: no reader is there, and later ones cannot reach it.
            unsafe { free(ptr) }
        }
    }
    waiting.len()
}

/// To be called first: the statics are then older than every thread.
pub(crate) fn begin() {
    collect();
}
