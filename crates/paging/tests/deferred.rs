//! Deferred flushes that are never passed to `flush_deferred`: dropping them performs them.

mod common;

use common::*;
use machine::*;
use paging::X86_64L4;
use sim::{Config, Grace};
use std::sync::Arc;

/// A dropped deferred flush is performed on all CPUs, also when its tables are gone. So is one that
/// is passed to other tables.
#[test]
fn deferred_flushes_are_never_lost() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { cpus: 3, frames: 96, ..Config::default() });
    // CPUs 1 and 2 have run, so a flush on all CPUs is one flush on each.
    (1..3).for_each(|cpu| sim.on_cpu(cpu, || ()));
    sim.on_cpu(0, || {
        let user = |asid| Space::<Grace>::user(&shared, Asid(asid), None).unwrap();
        let (one, two) = (user(1), user(2));
        let range = pages(0x5000, 1);
        let flushes = |what: &mut dyn FnMut()| {
            let (before, waiting) = (sim.stats().flushes, shared.waiting());
            what();
            assert!(sim.settle());
            (sim.stats().flushes - before, waiting)
        };
        // The spaces are active on no CPU, so a flush by their CPU sets flushes nowhere.
        let mut deferred = Some(unmap_prune(range, &one).defer());
        assert_eq!(flushes(&mut || one.flush_deferred(deferred.take().unwrap())), (0, 3));
        let mut deferred = Some(unmap_prune(range, &one).defer());
        assert!(!deferred.as_ref().unwrap().is_nothing());
        assert_eq!(flushes(&mut || drop(deferred.take())), (3, 3), "dropped");
        assert_eq!(shared.waiting(), 0);
        let mut deferred = Some(unmap_prune(range, &one).defer());
        assert_eq!(
            flushes(&mut || two.flush_deferred(deferred.take().unwrap())),
            (3, 3),
            "the wrong tables"
        );
        let (mut deferred, mut other) =
            (one.deferred_flush(), Some(unmap_prune(range, &two).defer()));
        assert_eq!(
            flushes(&mut || deferred.join(other.take().unwrap())),
            (3, 3),
            "of other tables"
        );
        assert_eq!(flushes(&mut || unmap_prune(range, &two).defer_to(&mut deferred)).0, 0);
        assert!(deferred.is_nothing());
        deferred.join(unmap_prune(range, &one).defer());
        unmap_prune(range, &one).defer_to(&mut deferred);
        assert_eq!((shared.waiting(), deferred.range()), (6, Some(range)));
        drop(one);
        let mut deferred = Some(deferred);
        assert_eq!(flushes(&mut || drop(deferred.take())), (3, 6), "its tables are gone");
        drop(two);
    });
    all_given_back(&sim, &shared).unwrap();
}

/// A flush that is left to the caller is performed at once if tables wait for it: they come back.
#[test]
fn a_flush_left_to_the_caller_keeps_no_table() {
    on_machine(2, 96, |sim, shared| {
        let space = Space::<Grace>::user(shared, Asid(1), None).unwrap();
        let pending = unmap_prune(pages(0x5000, 1), &space);
        assert_eq!(shared.waiting(), 3);
        // SAFETY: the space has no user, and nothing is mapped there again.
        assert_eq!(unsafe { pending.leave() }, None, "it is done");
        assert!(sim.settle());
        assert_eq!(shared.waiting(), 0, "tables are lost");
    });
}

/// Waiting tables keep their `Paging` alive, by one reference of each CPU that retired some. The
/// last chain that comes back drops the `Paging`.
#[test]
fn a_waiting_chain_keeps_its_paging() {
    let (sim, shared) = machine_of::<X86_64L4>(Config { frames: 96, ..Config::default() });
    let (one, two) = (pages(0x5000, 1), pages(0x4000_0000, 1));
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    assert_eq!(Arc::strong_count(&shared), 2);
    for (cpu, references) in [(0, 3), (1, 4)] {
        sim.on_cpu(cpu, || {
            // Two chains.
            unmap_prune(one, &space).flush();
            unmap_prune(two, &space).flush();
            assert!(shared.waiting() > 3 && Arc::strong_count(&shared) == references);
        });
    }
    // No other owner is left.
    let waiting = Arc::downgrade(&shared);
    sim.on_cpu(0, || drop(Leaked::into_inner(space)));
    drop(shared);
    let shared = waiting.upgrade().expect("tables wait for it");
    all_given_back(&sim, &shared).unwrap();
    assert_eq!((shared.waiting(), Arc::strong_count(&shared)), (0, 1));
}
