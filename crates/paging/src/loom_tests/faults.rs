//! A fault beside a call that stores its record and sweeps: no page of the old record is left.
//!
//! The record is one word, stored with Release and loaded with Acquire, as the tree of VMAs
//! publishes its nodes. The loops of `with_entry` and `sweep` are copied. A sweep that finds no
//! table relies on the upper table's lock for its order, so only loom shows what that lock does: on
//! a sequentially consistent machine the sweep could leave it out.

use super::{Entry, entry, lock};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use loom::thread;
use std::vec::Vec;

const OLD: u64 = 1;
const HOLE: u64 = 2;
const PAGE: u64 = 7;

/// The steps of a fault and a sweep.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Right,
    /// The fault looks for the last time before it has the lock.
    LooksEarly,
    /// The sweep goes on where it finds no table, without the upper table's lock.
    SkipsAbsentTable,
    /// The sweep goes on where it finds no page, without the table's lock.
    SkipsAbsentPage,
}

/// A record, an upper table with one entry, and two lower tables that the entry may lead to, with
/// one entry each. The first lower table is linked when a run begins, or none is.
struct Range {
    record: AtomicU64,
    upper: AtomicU32,
    link: Entry,
    lower: [AtomicU32; 2],
    entries: [Entry; 2],
}

impl Range {
    fn new(linked: bool) -> Arc<Range> {
        let linked = u32::from(linked);
        Arc::new(Range {
            record: AtomicU64::new(OLD),
            upper: AtomicU32::new(linked),
            link: entry(u64::from(linked)),
            // A second page of the linked table keeps it alive.
            lower: [AtomicU32::new(linked), AtomicU32::new(0)],
            entries: [entry(0), entry(0)],
        })
    }

    /// As `with_entry`, with a `decide` that maps the page if the record is still the one that the
    /// fault saw. A new table is the second one.
    fn fault(&self, way: Way) {
        if self.record.load(Acquire) != OLD {
            return;
        }
        loop {
            let early = way != Way::LooksEarly || self.record.load(Acquire) == OLD;
            let table = match self.link.load() {
                0 => {
                    self.link();
                    continue;
                }
                table => table as usize - 1,
            };
            let Some(mut locked) = lock(&self.lower[table]) else {
                thread::yield_now();
                continue;
            };
            let is_current = match way {
                Way::LooksEarly => early,
                _ => self.record.load(Acquire) == OLD,
            };
            if is_current && self.entries[table].load() == 0 {
                self.entries[table].store(PAGE);
                locked.count += 1;
            }
            return;
        }
    }

    /// As `table_for`, where there is no table.
    fn link(&self) {
        let Some(mut upper) = lock(&self.upper) else { unreachable!("the top stays") };
        let _ = upper.link(&self.link, 2, |value| Ok::<_, ()>(value == 0));
    }

    /// A fault that finds a table, or ends.
    fn fault_if_linked(&self, way: Way) {
        if self.link.load() != 0 {
            self.fault(way);
        }
    }

    /// As a call that makes a hole: stores its record, sweeps.
    fn call(&self, way: Way) {
        self.record.store(HOLE, Release);
        loop {
            let mut table = self.link.load();
            if table == 0 {
                if way == Way::SkipsAbsentTable {
                    return;
                }
                let Some(_upper) = lock(&self.upper) else { unreachable!("the top stays") };
                table = self.link.load();
                if table == 0 {
                    return;
                }
                continue;
            }
            let table = table as usize - 1;
            if way == Way::SkipsAbsentPage && self.entries[table].load() == 0 {
                return;
            }
            let Some(mut locked) = lock(&self.lower[table]) else { continue };
            if self.entries[table].load() != 0 {
                self.entries[table].swap(0);
                locked.count -= 1;
            }
            return;
        }
    }
}

/// Asserts that no page is left after some threads beside a call.
fn beside_a_sweep(linked: bool, way: Way, threads: &'static [fn(&Range, Way)]) {
    let mut model = loom::model::Builder::new();
    // More threads have too many orders to try all.
    model.preemption_bound = (threads.len() > 1).then_some(3);
    model.check(move || {
        let range = Range::new(linked);
        let each = |run: &fn(&Range, Way)| {
            let (range, run) = (Arc::clone(&range), *run);
            thread::spawn(move || run(&range, way))
        };
        let threads: Vec<_> = threads.iter().map(each).collect();
        range.call(way);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for entry in &range.entries {
            assert_eq!(entry.load(), 0, "a page is left in a swept range");
        }
        assert_eq!(range.lower[1].load(Acquire), 0);
    });
}

fn fault_and_sweep(linked: bool, way: Way) {
    beside_a_sweep(linked, way, &[Range::fault]);
}

#[test]
fn a_fault_in_a_table_that_is_there() {
    fault_and_sweep(true, Way::Right);
}

#[test]
fn a_fault_that_links_a_table() {
    fault_and_sweep(false, Way::Right);
}

/// One fault links the table. Another finds it, and is the first to take its lock.
#[test]
fn two_faults_in_a_new_table() {
    beside_a_sweep(false, Way::Right, &[|range, _| range.link(), Range::fault_if_linked]);
}

#[test]
#[should_panic(expected = "a page is left in a swept range")]
fn a_look_before_the_lock_is_caught() {
    fault_and_sweep(true, Way::LooksEarly);
}

#[test]
#[should_panic(expected = "a page is left in a swept range")]
fn a_look_before_the_table_is_linked_is_caught() {
    fault_and_sweep(false, Way::LooksEarly);
}

#[test]
#[should_panic(expected = "a page is left in a swept range")]
fn a_sweep_that_skips_absent_tables_is_caught() {
    fault_and_sweep(false, Way::SkipsAbsentTable);
}

#[test]
#[should_panic(expected = "a page is left in a swept range")]
fn a_skipped_table_that_another_fault_has_linked_is_caught() {
    let way = Way::SkipsAbsentTable;
    beside_a_sweep(false, way, &[|range, _| range.link(), Range::fault_if_linked]);
}

#[test]
#[should_panic(expected = "a page is left in a swept range")]
fn a_sweep_that_skips_absent_pages_is_caught() {
    fault_and_sweep(true, Way::SkipsAbsentPage);
}
