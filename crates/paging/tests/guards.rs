//! Calls that change tables hold their guard until their last access. Shown by an engine that frees
//! as soon as it may.
//!
//! The engine for kernels frees late: a grace period takes three quiescent states of each CPU, so a
//! walk without a guard is almost never noticed there. [`Prompt`] keeps the contract of an engine
//! and not a moment longer.

mod common;

use common::*;
use grace::{Concurrent, Reclaim};
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Program, Stale, seeded};
use std::cell::RefCell;
use std::ptr::NonNull;

/// Frees a retired piece as soon as the last guard is dropped that was held when it was retired.
struct Prompt;

/// A guard, by its number.
struct Section(u64);

/// The state of the machine on this host thread. With the deterministic driver, all CPUs run there.
#[derive(Default)]
struct GuardLog {
    last: u64,
    /// The guards that are held.
    held: Vec<u64>,
    waiting: Vec<Waiting>,
}

/// A retired piece, and the guards held then that are still held.
struct Waiting {
    guards: Vec<u64>,
    ptr: NonNull<()>,
    free: unsafe fn(NonNull<()>),
}

thread_local! {
    static GUARD_LOG: RefCell<GuardLog> = RefCell::default();
}

impl GuardLog {
    /// Ends a guard, and returns the pieces that no guard protects any more.
    fn end(&mut self, gone: u64) -> Vec<Waiting> {
        self.held.retain(|guard| *guard != gone);
        let held = &self.held;
        let free = |waiting: &mut Waiting| {
            waiting.guards.retain(|guard| held.contains(guard));
            waiting.guards.is_empty()
        };
        self.waiting.extract_if(.., free).collect()
    }
}

impl Prompt {
    /// Ends a guard, and frees the pieces that only it protected.
    fn end(gone: u64) {
        let due = GUARD_LOG.with_borrow_mut(|log| log.end(gone));
        if !std::thread::panicking() {
            // SAFETY: no guard is left of those that were held when it was retired.
            due.into_iter().for_each(|due| unsafe { (due.free)(due.ptr) });
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        Prompt::end(self.0);
    }
}

// SAFETY: a retired piece is freed after all guards that were held then are gone.
unsafe impl Reclaim for Prompt {
    type Guard = Section;

    fn pin() -> Section {
        GUARD_LOG.with_borrow_mut(|log| {
            log.last += 1;
            log.held.push(log.last);
            Section(log.last)
        })
    }

    unsafe fn retire(_: &Section, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        GUARD_LOG.with_borrow_mut(|state| {
            let guards = state.held.clone();
            state.waiting.push(Waiting { guards, ptr, free });
        });
    }
}
// SAFETY: as above.
unsafe impl Concurrent for Prompt {}

/// The last page of a table, and of the table above it. The next page is in other tables.
const AT: u64 = 0x3fff_f000;

/// One CPU maps and unmaps pages; another unmaps all pages, so each page goes to one of the two.
/// Tables come and go.
fn both_unmap(seed: u64) -> Result<(), Failure> {
    GUARD_LOG.take();
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let (sim, shared) = machine_of::<X86_64L4>(Config { frames: 96, checks, ..Config::default() });
    let space: Leaked<Space<Prompt>> = leaked_user(&sim, &shared);
    let unmap = |range: VirtRange| {
        let mut gone = Vec::new();
        space.unmap_own(range, |page| gone.push(page.frame)).unwrap().flush();
        gone.iter().for_each(|frame| release(&sim, *frame));
        gone.len()
    };
    let (mut of_one, mut of_other) = (0, 0);
    let one = || {
        for round in 0..6 {
            let range = pages(AT + ((round & 1) << 12), 1);
            space.map_own(range, block(&sim, 0), Attrs::USER_RW).unwrap();
            (0..4 * (round & 3)).for_each(|_| sim.step(SharedAccess::Other));
            of_one += unmap(range);
        }
    };
    let other = || (0..8).for_each(|_| of_other += unmap(pages(AT, 2)));
    seeded(&sim, seed, vec![Box::new(one) as Program, Box::new(other)])?;
    assert_eq!(of_one + of_other, 6);
    GUARD_LOG.with_borrow(|state| assert!(state.held.is_empty() && state.waiting.is_empty()));
    sim.on_cpu(0, || {
        assert_eq!(tables(&sim), 1, "empty tables stay");
        // One of `shared`, one of the space: chains have come back on either CPU.
        assert_eq!(std::sync::Arc::strong_count(&shared), 2);
    });
    end(&sim, &shared, space)
}

#[test]
fn one_of_two_unmaps_gets_each_page() {
    right(1000, both_unmap);
}
