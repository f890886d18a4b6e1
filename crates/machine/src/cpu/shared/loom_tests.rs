//! [`AtomicCpuSet`] under loom: a CPU enters or leaves the set while another CPU unmaps a page and
//! reads the set to flush.
//!
//! The set and the entry ([`EntryWord`]) are the real ones. The TLB is the value that the model's
//! CPU has loaded.

use super::{AtomicCpuSet, CpuId};
use crate::mutant::{Mutant, caught};
use crate::word::EntryWord;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
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

/// A CPU that has cached a page becomes idle, comes back, and becomes idle again, as often as
/// `turns` says. It uses what it has cached as long as the set tells it that no flush has passed
/// over it. Another unmaps the page, and reuses it if the CPU is no target.
fn idles(turns: usize) {
    loom::model(move || {
        let space = space();
        space.cpus.insert(cpu());
        // Loom remembers one access of a word. After a load of its own, a thread's exchange is not
        // seen to conflict with the other's load. So both begin with another word. Relaxed: it
        // orders nothing.
        let begun = Arc::new(AtomicU64::new(0));
        let user = thread::spawn({
            let (space, begun) = (Arc::clone(&space), Arc::clone(&begun));
            move || {
                begun.store(1, Ordering::Relaxed);
                let mut cached = true;
                for _ in 0..turns {
                    space.cpus.idle(cpu());
                    // If not, it has dropped what it had cached, and walks.
                    let keeps = space.cpus.insert(cpu());
                    cached = (keeps && cached) || space.entry.load() == MAPPED;
                    if cached {
                        // SAFETY: cached or mapped. Loom checks that it is not reused.
                        space.page.with(|page| assert_eq!(unsafe { *page }, 0));
                    }
                }
                space.cpus.idle(cpu());
            }
        });
        begun.load(Ordering::Relaxed);
        space.entry.store(0);
        let (targets, _) = space.cpus.targets();
        if !targets.contains(cpu()) {
            // SAFETY: no CPU uses it. Loom checks that.
            space.page.with_mut(|page| unsafe { *page = 1 });
        }
        user.join().unwrap();
    });
}

fn idles_twice() {
    idles(2);
}

#[test]
fn loom_an_idle_cpu_keeps_nothing_that_was_flushed() {
    idles(1);
    idles(2);
}

#[test]
fn loom_idle_cpus_without_order_are_caught() {
    const UNORDERED: &str = "Causality violation";
    caught(Mutant::IdleRelaxed, idles_twice, UNORDERED);
    caught(Mutant::TakeIdleRelaxed, idles_twice, UNORDERED);
    caught(Mutant::TargetsFromLoad, idles_twice, UNORDERED);
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
