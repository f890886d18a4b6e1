//! Read sections, and the grace periods that wait for them.
//!
//! Each thread that reads has a *record*: 0, or the epoch in which its outermost section began. The
//! epoch is a number that only grows. A writer that has unlinked something raises it, and the new
//! epoch is the *target* of what it unlinked. The grace period is over when each record is 0 or at
//! least the target.
//!
//! # Correctness
//!
//! Let a writer unlink `p` and then get the target `t`, and let a later scan find a record free or
//! with an epoch of at least `t`. There are three cases for a section of that record's thread.
//!
//! - The section ended before the scan read the record. Its end is a Release store, and so is the
//!   begin of the next section. The scan acquires it. So the accesses of the section happen before
//!   the free.
//! - The section began, but the scan did not see it. Then the fence of the scan comes before the
//!   fence of the section in the order of all SeqCst fences. So the section reads what was written
//!   before the scan: it cannot reach `p`.
//! - The scan saw its epoch, which is at least `t`. The section has read the epoch from the writer
//!   that set `t` or from a later one, and its fence acquires that. So it cannot reach `p`.
//!
//! A scan that succeeds is remembered in `Domain::done` for all targets up to its own. Their
//! unlinking happens before the scan, because each target is made by an atomic addition to the
//! epoch that releases and acquires.
//!
//! An epoch read long ago may be lower than the present one. That delays frees and is right.
//!
//! # Cost
//!
//! A section costs an exchange in the thread's own cache line and a store. It never waits,
//! allocates or runs a free (I2). A scan reads a cache line for each thread that has ever read at
//! the same time; writers make one for each block of retired pieces.

use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use core::cell::Cell;
use core::ptr;

/// The state of one thread. Records are never freed: a new thread takes over one whose thread has
/// ended. Aligned to two cache lines, because CPUs prefetch lines in pairs.
#[repr(align(128))]
pub(crate) struct Record {
    /// 0, or the epoch in which the outermost section began.
    epoch: AtomicU64,
    /// Whether a thread owns the record.
    used: AtomicBool,
    /// Written before the record is published.
    next: Cell<*const Record>,
    /// The depth of sections. Only the owner uses it and the next one.
    depth: Cell<u32>,
    /// The number of outermost sections so far.
    sections: Cell<u64>,
}

// SAFETY: other threads use the atomics, and `next` only after it was published. The remaining
// cells are the owner's, and a change of owners is ordered by `used`.
unsafe impl Sync for Record {}

/// All epochs and records of one domain.
pub(crate) struct Domain {
    epoch: AtomicU64,
    /// The largest target that is known to be over.
    done: AtomicU64,
    records: AtomicPtr<Record>,
}

impl Record {
    pub(crate) fn new() -> Record {
        Record {
            epoch: AtomicU64::new(0),
            used: AtomicBool::new(true),
            next: Cell::new(ptr::null()),
            depth: Cell::new(0),
            sections: Cell::new(0),
        }
    }

    /// The depth of the calling thread's sections. Only for the owner.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// The number of the present outermost section. Only for the owner.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.sections.get()
    }

    /// Begins a section. Returns false if they nest too deeply. Only for the owner.
    #[inline]
    pub(crate) fn enter(&self, domain: &Domain) -> bool {
        let depth = self.depth.get();
        if depth == u32::MAX {
            return false;
        }
        self.depth.set(depth + 1);
        if depth == 0 {
            self.sections.set(self.sections.get() + 1);
            // Relaxed: the fence below acquires it.
            let epoch = domain.epoch.load(Ordering::Relaxed);
            if cfg!(all(target_arch = "x86_64", not(loom))) {
                // SeqCst: on x86 an exchange is a full barrier, and takes a third of the time of
                // the fence. The compiler moves nothing across it because of the next line. It
                // releases the accesses of earlier sections, as below.
                self.epoch.swap(epoch, Ordering::SeqCst);
                core::sync::atomic::compiler_fence(Ordering::SeqCst);
            } else {
                // Release: a scan that sees this section has acquired the earlier ones.
                self.epoch.store(epoch, Ordering::Release);
                // SeqCst: pairs with the fence of `is_over`.
                fence(Ordering::SeqCst);
            }
        }
        true
    }

    /// Ends a section. Returns false if there is none. Only for the owner.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        let Some(depth) = self.depth.get().checked_sub(1) else { return false };
        self.depth.set(depth);
        if depth == 0 {
            // Release: the accesses of the section come before the free; pairs with `is_over`.
            self.epoch.store(0, Ordering::Release);
        }
        true
    }

    /// Gives the record up when its thread ends. Returns whether a section was still open. Only for
    /// the owner.
    pub(crate) fn give_up(&self) -> bool {
        let open = self.depth.replace(0) != 0;
        // Release: as in `leave`.
        self.epoch.store(0, Ordering::Release);
        // Release: the next owner sees the cells.
        self.used.store(false, Ordering::Release);
        open
    }
}

impl Domain {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Domain {
        Domain {
            epoch: AtomicU64::new(1),
            done: AtomicU64::new(0),
            records: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Domain {
        Domain {
            epoch: AtomicU64::new(1),
            done: AtomicU64::new(0),
            records: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// A record whose thread has ended, for the caller to own.
    pub(crate) fn reuse(&self) -> Option<&Record> {
        self.records().find(|record| {
            // Acquire: pairs with the Release of `give_up`. Relaxed on failure: nothing was read.
            let taken =
                record.used.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        })
    }

    /// Adds a record, which the calling thread owns.
    pub(crate) fn add(&self, record: &'static Record) {
        // Relaxed: the exchange below decides.
        let mut first = self.records.load(Ordering::Relaxed);
        loop {
            record.next.set(first);
            // Release: publishes the record; pairs with the Acquire of `records`. The scan of a
            // section's grace period sees the record: its fence comes after that of the section, or
            // the section cannot reach what was unlinked.
            match self.records.compare_exchange(
                first,
                ptr::from_ref(record).cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        // Acquire: pairs with the Release of `add`. Older records were added before, by the same
        // chain of exchanges.
        let mut next = self.records.load(Ordering::Acquire).cast_const();
        core::iter::from_fn(move || {
            // SAFETY: null or a record, which is never freed.
            let record = unsafe { next.as_ref() }?;
            next = record.next.get();
            Some(record)
        })
    }

    /// The target of everything that the calling thread has unlinked so far.
    pub(crate) fn target(&self) -> u64 {
        // AcqRel: sections that read this epoch or a later one see what was unlinked; and later
        // targets cover this one.
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether all sections that could reach what was unlinked before `target` have ended.
    pub(crate) fn is_over(&self, target: u64) -> bool {
        // Acquire: pairs with the Release below, so the sections have ended for this thread, too.
        self.done.load(Ordering::Acquire) >= target || self.scan(target)
    }

    /// As [`Domain::is_over`], but looks at all records.
    fn scan(&self, target: u64) -> bool {
        // SeqCst: pairs with the fence of `enter`.
        fence(Ordering::SeqCst);
        let over = self.records().all(|record| {
            // Acquire: pairs with the Release of `leave` and `enter`.
            let epoch = record.epoch.load(Ordering::Acquire);
            epoch == 0 || epoch >= target
        });
        if over {
            // Release: passes on what was acquired.
            self.done.fetch_max(target, Ordering::Release);
        }
        over
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
