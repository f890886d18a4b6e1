//! Absent entries that CPUs have cached: they fault until they are published or flushed.

mod common;

use common::*;
use machine::*;
use sim::{Config, Sim, Violation};
use std::panic::{AssertUnwindSafe, catch_unwind};

const AT: u64 = 0x40_0000_1000;
const HIGH: u64 = 0xffff_8000_0000_2000;

fn caching_absent(test: impl FnOnce(&Sim, &Space)) {
    with_space(Config { cpus: 2, frames: 256, caches_absent: true, ..Config::default() }, test);
}

fn kind(result: Result<u64, Fault>) -> Option<FaultKind> {
    result.err().map(|fault| fault.kind)
}

#[test]
fn a_new_page_faults_until_it_is_published() {
    caching_absent(|sim, space| {
        space.map(AT, page(sim));
        for _ in 0..2 {
            assert_eq!(kind(space.load(AT)), Some(FaultKind::NotPresent));
        }
        // Another range, and another space.
        sim.published(Some(Asid(1)), range(AT + 4096, 4096));
        sim.published(Some(Asid(2)), range(AT, 4096));
        assert_eq!(kind(space.load(AT)), Some(FaultKind::NotPresent));
        sim.published(Some(Asid(1)), range(AT, 4096));
        assert_eq!(space.load(AT), Ok(0));
        // The tables on the way are known now, but not the entry of another page.
        space.map(AT + 4096, page(sim));
        assert_eq!(kind(space.load(AT + 4096)), Some(FaultKind::NotPresent));
        // A change of a valid entry needs nothing.
        space.flush(AT, 8192, true);
        assert_eq!(space.load(AT + 4096), Ok(0));
        let frame = space.unmap(AT);
        space.flush(AT, 4096, false);
        space.map(AT, frame);
        assert_eq!(kind(space.load(AT)), Some(FaultKind::NotPresent), "valid once more");
    });
}

#[test]
fn a_space_is_published_on_one_cpu_and_the_kernel_on_all() {
    caching_absent(|sim, space| {
        space.map(AT, page(sim));
        sim.published(Some(Asid(1)), range(AT, 4096));
        space.map(HIGH, page(sim));
        sim.published(None, range(HIGH, 4096));
        sim.on_cpu(1, || {
            let other = Space { sim: sim.clone(), root: space.root };
            other.activate(1);
            // A CPU that was off has read nothing before.
            assert_eq!(other.load(AT), Ok(0));
            space.map(AT + 4096, page(sim));
            assert_eq!(kind(other.load(AT + 4096)), Some(FaultKind::NotPresent));
            sim.published(Some(Asid(1)), range(AT + 4096, 4096));
            assert_eq!(other.load(AT + 4096), Ok(0));
            space.map(HIGH + 4096, page(sim));
            sim.published(None, range(HIGH + 4096, 4096));
        });
        assert_eq!(kind(space.load(AT + 4096)), Some(FaultKind::NotPresent), "on this CPU");
        sim.published(Some(Asid(1)), range(AT + 4096, 4096));
        assert_eq!(space.load(AT + 4096), Ok(0));
        assert_eq!(space.load(HIGH + 4096), Ok(0));
    });
}

#[test]
fn a_table_that_was_filled_before_it_is_linked_is_seen_with_its_link() {
    caching_absent(|sim, space| {
        space.map(AT, page(sim));
        sim.published(Some(Asid(1)), range(AT, 4096));
        let table = space.unlink(AT, 0);
        space.flush(AT, 4096, true);
        // SAFETY: a table of this test.
        let entry = unsafe { sim.entry(table, 5) }.unwrap();
        entry.store(page(sim).start().get() | RW);
        space.slot(AT, 1).store(table.start().get() | RW | 4);
        let fifth = AT - 4096 + 5 * 4096;
        assert_eq!(kind(space.load(fifth)), Some(FaultKind::NotPresent));
        sim.published(Some(Asid(1)), range(AT, 4096));
        assert_eq!(space.load(fifth), Ok(0));
    });
}

#[test]
fn activation_without_keep_drops_absent_entries() {
    caching_absent(|sim, space| {
        space.map(AT, page(sim));
        space.activate(1);
        assert_eq!(kind(space.load(AT)), Some(FaultKind::NotPresent));
        // SAFETY: the same tables, with the same tag.
        unsafe { sim.activate(space.root, Asid(1), false) };
        assert_eq!(space.load(AT), Ok(0));
    });
}

#[test]
fn the_kernel_must_publish() {
    caching_absent(|sim, space| {
        space.map(HIGH, page(sim));
        // The tables on the way are not published, but there is no page either.
        assert_eq!(kind(space.load(HIGH + 4096)), Some(FaultKind::NotPresent));
        assert!(catch_unwind(AssertUnwindSafe(|| space.load(HIGH))).is_err());
        let found = sim.found().expect("a report").violation;
        let is_it =
            matches!(found, Violation::Unpublished { address, .. } if address == virt(HIGH));
        assert!(is_it, "{found:?}");
        let text = found.to_string();
        assert!(text.contains("call Tlb::published"), "{text}");
    });
}

/// Without the caches, nothing changes.
#[test]
fn an_ordinary_x86_cpu_caches_nothing_absent() {
    with_space(Config { frames: 256, ..Config::default() }, |sim, space| {
        space.map(HIGH, page(sim));
        assert_eq!(space.load(HIGH), Ok(0));
    });
}
