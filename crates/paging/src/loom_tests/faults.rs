//! A fault concurrent with a call that stores its record and sweeps: no page of the old record is
//! left.
//!
//! The record is one word, stored with Release and loaded with Acquire, as the tree of VMAs
//! publishes its nodes. A sweep that finds no table relies on the upper table's lock for its order,
//! so only loom shows what that lock does: on a sequentially consistent machine the sweep could
//! leave it out.

use super::world::{AFTER, AT, LEVELS, NEXT, Space, World};
use crate::cursor::EntryChange;
use crate::format::Attrs;
use grace::Reclaim;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use machine::Frame;
use sim::{ModelGrace, model};
use std::vec::Vec;

const OLD: u64 = 1;
const HOLE: u64 = 2;

/// The tables when a run begins.
#[derive(Clone, Copy, PartialEq)]
enum Begin {
    /// There is no table.
    Empty,
    /// There is no lowest table.
    Upper,
    /// A page that stays is in the table.
    Table,
    /// A page that the sweep removes is in the table, so the table may die.
    Dying,
}

#[derive(Clone)]
struct Range {
    record: Arc<AtomicU64>,
    space: Space,
}

impl Range {
    fn is_current(&self) -> bool {
        self.record.load(Acquire) == OLD
    }

    /// Maps `frame` if the record is still the one that the fault saw.
    fn fault(&self, frame: Frame) {
        if !self.is_current() {
            return;
        }
        let done = self.space.change(AT, |found| match found {
            None if self.is_current() => EntryChange::Set(frame, Attrs::USER_RW),
            _ => EntryChange::Keep,
        });
        assert!(done);
    }

    /// As [`fault`](Self::fault), if a walk finds a table, which is then locked without another
    /// walk.
    fn fault_if_linked(&self, frame: Frame) {
        let guard = ModelGrace::pin();
        let found = self.space.walk(&guard).look(AT);
        if !self.is_current() || !found.has_table() {
            return;
        }
        // SAFETY: the model owns its spaces and frames. The flush follows.
        let done = unsafe {
            self.space.with_found(&guard, &found, |page| match page {
                None if self.is_current() => (EntryChange::Set(frame, Attrs::USER_RW), ()),
                _ => (EntryChange::Keep, ()),
            })
        };
        done.unwrap().1.flush();
    }

    /// Maps another page of the table: links it.
    fn link(&self, frame: Frame) {
        let done = self.space.change(NEXT, |_| EntryChange::Set(frame, Attrs::USER_RW));
        assert!(done);
    }

    /// As a call that makes a hole of `count` pages.
    fn call(&self, count: u64) {
        self.record.store(HOLE, Release);
        self.space.remove(AT, count);
    }
}

type Fault = fn(&Range, Frame);

/// Asserts that no page is left after some threads ran concurrently with a call.
fn beside_a_sweep(
    name: &'static str,
    begin: Begin,
    threads: &'static [Fault],
    preemptions: Option<usize>,
) {
    model(name, LEVELS, preemptions, move |machine| {
        let world = World::new(machine);
        let range = Range { record: Arc::new(AtomicU64::new(OLD)), space: world.space(1) };
        match begin {
            Begin::Empty => {}
            Begin::Upper => range.space.map(AFTER, world.frame(), Attrs::USER_RW),
            Begin::Table | Begin::Dying => range.space.map(NEXT, world.frame(), Attrs::USER_RW),
        }
        let each = |(run, cpu): (&Fault, usize)| {
            let (range, run, frame) = (range.clone(), *run, world.frame());
            machine.spawn(cpu, move || run(&range, frame))
        };
        let threads: Vec<_> = threads.iter().zip(1..).map(each).collect();
        range.call(if begin == Begin::Dying { 2 } else { 1 });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(range.space.get(AT), None, "a page is left in a swept range");
        // The counts of the tables are right: after the last page, no table is left.
        range.space.remove(AT, 2);
        range.space.remove(AFTER, 1);
        assert!(range.space.is_empty(), "an empty table is left");
    });
}

#[test]
fn a_fault_in_a_table_that_is_there() {
    beside_a_sweep("fault, table", Begin::Table, &[Range::fault], None);
}

#[test]
fn a_fault_in_a_table_that_was_found() {
    let fault: &[Fault] = &[Range::fault_if_linked];
    beside_a_sweep("fault, found table", Begin::Table, fault, None);
}

#[test]
fn a_fault_that_links_a_table() {
    beside_a_sweep("fault, no table", Begin::Empty, &[Range::fault], Some(3));
}

#[test]
fn a_fault_in_a_table_that_dies() {
    beside_a_sweep("fault, dying table", Begin::Dying, &[Range::fault], Some(3));
    let fault: &[Fault] = &[Range::fault_if_linked];
    beside_a_sweep("fault, dying found table", Begin::Dying, fault, Some(3));
}

/// One fault links the table. Another finds it, and is the first to take its lock.
#[test]
fn two_faults_in_a_new_table() {
    let faults: &[Fault] = &[Range::link, Range::fault_if_linked];
    beside_a_sweep("two faults, no table", Begin::Upper, faults, Some(1));
}
