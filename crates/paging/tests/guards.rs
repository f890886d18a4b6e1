//! Calls that change tables hold their guard until their last access. Shown by an engine that frees
//! as soon as it may, and by mutants that drop the guard early.
//!
//! The engine for kernels frees late: a grace period takes three quiescent states of each CPU, so a
//! walk without a guard is almost never noticed there. [`Prompt`] keeps the contract of an engine
//! and not a moment longer.

mod common;

use common::*;
use grace::{Concurrent, Reclaim};
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Program, Sim, Stale, Violation, seeded};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Frees a retired piece as soon as the last guard is dropped that was held when it was retired.
struct Prompt;

/// A guard, by its number.
struct Section(u64);

/// The state of the machine on this host thread. With the deterministic driver, all CPUs run there.
#[derive(Default)]
struct GuardLog {
    last: u64,
    /// The guards that are held, and the CPU that holds each.
    held: Vec<(u64, CpuId)>,
    waiting: Vec<Waiting>,
    /// The mutant: the CPU, and which of its guards from now on is dropped at once.
    dropped: Option<(CpuId, u32)>,
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

fn here() -> CpuId {
    Sim::here().unwrap().current()
}

impl GuardLog {
    /// Ends some guards, and returns the pieces that no guard protects any more.
    fn end(&mut self, gone: impl Fn(u64, CpuId) -> bool) -> Vec<Waiting> {
        self.held.retain(|(guard, cpu)| !gone(*guard, *cpu));
        let held = &self.held;
        let free = |waiting: &mut Waiting| {
            waiting.guards.retain(|guard| held.iter().any(|(other, _)| other == guard));
            waiting.guards.is_empty()
        };
        self.waiting.extract_if(.., free).collect()
    }
}

impl Prompt {
    /// Ends some guards, and frees the pieces that only they protected.
    fn end(gone: impl Fn(u64, CpuId) -> bool) {
        let due = GUARD_LOG.with_borrow_mut(|state| state.end(gone));
        if !std::thread::panicking() {
            // SAFETY: no guard is left of those that were held when it was retired.
            due.into_iter().for_each(|due| unsafe { (due.free)(due.ptr) });
        }
    }

    /// The mutant: drops all guards of this CPU now.
    fn drop_early() {
        let here = here();
        Self::end(|_, cpu| cpu == here);
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        Prompt::end(|guard, _| guard == self.0);
    }
}

// SAFETY: a retired piece is freed after all guards that were held then are gone.
unsafe impl Reclaim for Prompt {
    type Guard = Section;

    fn pin() -> Section {
        let here = here();
        GUARD_LOG.with_borrow_mut(|state| {
            state.last += 1;
            let at_once = match &mut state.dropped {
                Some((cpu, left)) if *cpu == here => {
                    *left = left.saturating_sub(1);
                    *left == 0
                }
                _ => false,
            };
            if at_once {
                state.dropped = None;
            } else {
                state.held.push((state.last, here));
            }
            Section(state.last)
        })
    }

    unsafe fn retire(_: &Section, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        GUARD_LOG.with_borrow_mut(|state| {
            let guards = state.held.iter().map(|(guard, _)| *guard).collect();
            state.waiting.push(Waiting { guards, ptr, free });
        });
    }
}
// SAFETY: as above.
unsafe impl Concurrent for Prompt {}

/// When `unmap` drops the guard under which it changes entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GuardDropped {
    Never,
    BeforeTheWalk,
    WithTheTableLocked,
}

/// The last page of a table, and of the table above it. The next page is in other tables.
const AT: u64 = 0x3fff_f000;

/// One CPU maps and unmaps pages; another unmaps all pages, so each page goes to one of the two.
/// Tables come and go.
fn both_unmap(seed: u64, early: GuardDropped) -> Result<(), Failure> {
    GUARD_LOG.take();
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let (sim, shared) = machine_of::<X86_64L4>(Config { frames: 96, checks, ..Config::default() });
    // A failed run leaks it: there is no CPU on which it could be dropped.
    let space = sim.on_cpu(0, || Space::<Prompt>::user(&shared, Asid(1), None).unwrap());
    let space = ManuallyDrop::new(space);
    let unmap = |range: VirtRange, early: GuardDropped| {
        let mut gone = Vec::new();
        if early == GuardDropped::BeforeTheWalk {
            // The first guard is for the check of the ends of the range.
            GUARD_LOG.with_borrow_mut(|state| state.dropped = Some((here(), 2)));
        }
        let taken = |page: Mapping| {
            gone.push(page.frame);
            if early == GuardDropped::WithTheTableLocked {
                Prompt::drop_early();
            }
        };
        space.unmap_own(range, taken).unwrap().flush();
        GUARD_LOG.with_borrow_mut(|state| state.dropped = None);
        gone.iter().for_each(|frame| release(&sim, *frame));
        gone.len()
    };
    let (mut of_one, mut of_other) = (0, 0);
    let one = || {
        for round in 0..6 {
            let range = pages(AT + ((round & 1) << 12), 1);
            space.map_own(range, block(&sim, 0), Attrs::USER_RW).unwrap();
            (0..4 * (round & 3)).for_each(|_| sim.step(SharedAccess::Other));
            of_one += unmap(range, GuardDropped::Never);
        }
    };
    let other = || (0..8).for_each(|_| of_other += unmap(pages(AT, 2), early));
    seeded(&sim, seed, vec![Box::new(one) as Program, Box::new(other)])?;
    assert_eq!(of_one + of_other, 6);
    GUARD_LOG.with_borrow(|state| assert!(state.held.is_empty() && state.waiting.is_empty()));
    sim.on_cpu(0, || {
        assert_eq!(tables(&sim), 1, "empty tables stay");
        // One of `shared`, one of the space: chains have come back on either CPU.
        assert_eq!(std::sync::Arc::strong_count(&shared), 2);
        drop(ManuallyDrop::into_inner(space));
    });
    Ok(all_given_back(&sim, &shared)?)
}

#[test]
fn one_of_two_unmaps_gets_each_page() {
    right(1000, |seed| both_unmap(seed, GuardDropped::Never));
}

/// Other failures of a mutant do not count: it must be seen to walk in a freed table.
#[test]
fn a_guard_dropped_early_is_caught() {
    for early in [GuardDropped::BeforeTheWalk, GuardDropped::WithTheTableLocked] {
        let report = caught(20_000, |seed| match both_unmap(seed, early) {
            Err(failure) if walks_in_a_freed_table(&failure) => Err(failure),
            _ => Ok(()),
        });
        assert_eq!(report.cpu, CpuId::new(1), "{early:?}: {report}");
    }
}

fn walks_in_a_freed_table(failure: &Failure) -> bool {
    let found = failure.report().map(|report| &report.violation);
    matches!(found, Some(Violation::NotATable { address: None, .. }))
}
