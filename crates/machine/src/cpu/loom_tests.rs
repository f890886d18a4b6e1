//! [`AtomicCpuSet`] under loom: a CPU enters or leaves the set while another CPU unmaps a page and
//! reads the set to flush.
//!
//! The set and the entry ([`EntryWord`]) are the real ones. The TLB is the value that the model's
//! CPU has loaded.

use super::{AtomicCpuSet, CpuId};
use crate::mutant::{Mutant, caught};
use crate::word::EntryWord;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

const MAPPED: u64 = 5;

struct Space {
    entry: EntryWord<AtomicU64>,
    cpus: AtomicCpuSet,
    /// The page behind the entry.
    page: UnsafeCell<u64>,
}

fn space() -> Arc<Space> {
    Arc::new(Space {
        entry: EntryWord::new(AtomicU64::new(MAPPED)),
        cpus: AtomicCpuSet::new(),
        page: UnsafeCell::new(0),
    })
}

fn cpu() -> CpuId {
    CpuId::new(70).unwrap()
}

/// A CPU enters the set and walks, while another unmaps and reads the set.
fn enters() {
    loom::model(|| {
        let space = space();
        let walker = thread::spawn({
            let space = Arc::clone(&space);
            move || {
                space.cpus.insert(cpu());
                space.entry.load() == MAPPED
            }
        });
        space.entry.store(0);
        let is_target = space.cpus.load().contains(cpu());
        let cached = walker.join().unwrap();
        assert!(is_target || !cached, "a CPU has cached the page and is no target of the flush");
    });
}

/// A CPU uses a page, flushes and leaves the set. Another unmaps the page, and reuses it if the set
/// says that no flush is needed.
fn leaves() {
    loom::model(|| {
        let space = space();
        space.cpus.insert(cpu());
        let user = thread::spawn({
            let space = Arc::clone(&space);
            move || {
                if space.entry.load() == MAPPED {
                    // SAFETY: the page is mapped, and this CPU is in the set. Loom checks that it
                    // is not reused.
                    space.page.with(|page| assert_eq!(unsafe { *page }, 0));
                }
                space.cpus.remove(cpu());
            }
        });
        space.entry.store(0);
        if !space.cpus.load().contains(cpu()) {
            // SAFETY: no CPU uses it. Loom checks that.
            space.page.with_mut(|page| unsafe { *page = 1 });
        }
        user.join().unwrap();
    });
}

#[test]
fn loom_a_cpu_that_has_cached_is_a_target_of_the_flush() {
    enters();
}

#[test]
fn loom_a_cpu_that_is_no_target_has_flushed() {
    leaves();
}

#[test]
fn loom_sets_without_order_are_caught() {
    const MISSED: &str = "is no target of the flush";
    caught(Mutant::InsertUnfenced, enters, MISSED);
    caught(Mutant::LoadUnfenced, enters, MISSED);
    const UNORDERED: &str = "Causality violation";
    caught(Mutant::RemoveRelaxed, leaves, UNORDERED);
    caught(Mutant::LoadRelaxed, leaves, UNORDERED);
}
