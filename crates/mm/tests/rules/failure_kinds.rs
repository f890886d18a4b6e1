//! Each allocation of a call fails, and all after it (I7), as in the test `failure`: for huge
//! pages, for a monitor's calls, and for swap.

use std::sync::Arc;

use crate::common::*;
use machine::Asid;
use mm::*;
use sim::Sim;

const AT: usize = 0x4000_0000;
const FAR: usize = 0x55_0000_0000;

/// A program's view: the VMAs and the present pages. A call that fails may have split some.
fn seen(space: &Space) -> (String, Vec<usize>) {
    let present = (0..4).flat_map(|chunk| [AT + chunk * HUGE, FAR + chunk * HUGE]);
    let present = present.flat_map(|at| [at..at + PAGE, at + PAGE..at + HUGE]);
    (listing(space), present.map(|range| space.resident(range)).collect())
}

/// Runs `call` with each allocation failing in turn, each time on a new space, which `prepare` has
/// filled, and on its child, if `forks`. If the call fails, it fails with ENOMEM, the space is as
/// it was, as far as `is_whole`, and the call succeeds with memory.
struct Case<P, C> {
    prepare: P,
    call: C,
    forks: bool,
    is_whole: bool,
    /// At least so many allocations.
    least: u64,
}

impl<P: Fn(&Sim, &Space), C: Fn(&Sim, &Space) -> Result<(), Error>> Case<P, C> {
    fn run(&self) {
        each_allocation(self.least, |nth| {
            let mut any = false;
            on_machine(one_cpu(8192), None, |sim, shared| {
                let mut space = new_space(shared, 1).unwrap();
                space.set_userfault_handler(Arc::new(Never {
                    marks_absent: true,
                    ..Never::default()
                }));
                space.set_huge_pages(HugePages::Always).unwrap();
                activate(&space);
                space.mmap(AT, 3 * HUGE, 3, FIXED).unwrap();
                (self.prepare)(sim, &space);
                let child = self.forks.then(|| space.fork(Asid(2)).unwrap());
                let of_child = child.as_ref().map(seen);
                let before = seen(&space);
                let (outcome, failed) = without_frames(sim, nth, true, || (self.call)(sim, &space));
                if let Err(error) = outcome {
                    assert!(failed, "{error} though memory is left");
                    assert_eq!(error.errno(), 12, "{error}");
                    if self.is_whole {
                        assert_eq!(seen(&space), before, "allocation {nth}: after {error}");
                    }
                    (self.call)(sim, &space).unwrap();
                }
                assert_eq!(child.as_ref().map(seen), of_child);
                any = failed;
                (space, child)
            });
            any
        });
    }
}

/// Two huge pages, and small ones behind them.
fn huge_pages(sim: &Sim, space: &Space) {
    space.madvise(AT + 2 * HUGE, HUGE, Advice::NoHugePage).unwrap();
    (0..3).for_each(|chunk| store(sim, space, AT + chunk * HUGE, 1).unwrap());
}

fn of_huge_pages(least: u64, call: impl Fn(&Sim, &Space) -> Result<(), Error>) {
    for forks in [false, true] {
        Case { prepare: huge_pages, call: &call, forks, is_whole: true, least }.run();
    }
}

#[test]
fn cutting_huge_pages_fails_whole() {
    let range = (AT + PAGE, HUGE);
    of_huge_pages(2, |_, space| space.munmap(range.0, range.1));
    of_huge_pages(2, |_, space| space.mprotect(range.0, range.1, 1, None));
    of_huge_pages(2, |_, space| space.madvise(range.0, range.1, Advice::DontNeed));
    of_huge_pages(2, |_, space| space.mmap(range.0, range.1, 1, FIXED).map(drop));
}

fn to_far(len: usize, from: usize, dont_unmap: bool) -> RemapRequest {
    let dont_unmap = dont_unmap.then_some(FAR);
    RemapRequest { dont_unmap, ..RemapRequest::moving(from, len, FAR) }
}

#[test]
fn moving_huge_pages_fails_whole() {
    // Whole ones, parts, and pages that end up at other places of 2 MiB.
    of_huge_pages(1, |_, space| space.mremap(to_far(2 * HUGE, AT, false)).map(drop));
    of_huge_pages(1, |_, space| space.mremap(to_far(HUGE, AT + PAGE, false)).map(drop));
    of_huge_pages(1, |_, space| space.mremap(to_far(HUGE, AT, true)).map(drop));
}

#[test]
fn copying_a_part_of_a_huge_page_fails_whole() {
    let write = |sim: &Sim, space: &Space| store(sim, space, AT, 1).map_err(Error::from);
    Case { prepare: huge_pages, call: write, forks: true, is_whole: false, least: 2 }.run();
}

#[test]
fn huge_faults_forks_and_collapses_fail_whole() {
    let none = |_: &Sim, _: &Space| {};
    // Without a block, a small page comes.
    let touch = |sim: &Sim, space: &Space| store(sim, space, AT, 1).map_err(Error::from);
    Case { prepare: none, call: touch, forks: false, is_whole: false, least: 2 }.run();
    let lock = |_: &Sim, space: &Space| {
        space.madvise(AT, 2 * HUGE, Advice::PopulateWrite)?;
        space.madvise(AT, 3 * HUGE, Advice::PopulateRead)
    };
    Case { prepare: none, call: lock, forks: false, is_whole: false, least: 3 }.run();
    of_huge_pages(1, |_, space| space.fork(Asid(3)).map(drop));
    let collapse = |_: &Sim, space: &Space| {
        space.madvise(AT + 2 * HUGE, HUGE, Advice::HugePage)?;
        space.madvise(AT, 3 * HUGE, Advice::Collapse)
    };
    for forks in [false, true] {
        Case { prepare: huge_pages, call: collapse, forks, is_whole: false, least: 1 }.run();
    }
    let guards = |_: &Sim, space: &Space| {
        space.madvise(AT + PAGE, HUGE, Advice::GuardInstall)?;
        space.madvise(AT + 2 * PAGE, HUGE, Advice::GuardRemove)
    };
    Case { prepare: huge_pages, call: guards, forks: true, is_whole: false, least: 2 }.run();
}

/// Memory that a monitor fills, with a page in it, and a page of other memory.
fn registered(sim: &Sim, space: &Space) {
    space.mmap(FAR, HUGE, 3, FIXED).unwrap();
    space.madvise(FAR, HUGE, Advice::NoHugePage).unwrap();
    (0..2).for_each(|page| store(sim, space, FAR + page * PAGE, 2).unwrap());
    store(sim, space, AT + HUGE, 1).unwrap();
    let modes = UserFaultModes::MISSING | UserFaultModes::WP;
    space.userfault_register(AT, 3 * HUGE, modes, Uffd::new(1)).unwrap();
}

#[test]
fn a_monitors_calls_fail_at_a_page() {
    // The bytes that are resolved before the failure are there, and the others are not.
    let of = |result: Result<(), Resolved>, space: &Space, at: usize| match result {
        Err(stopped) if stopped.error.errno() == 12 => {
            assert_eq!(space.resident(at..at + 2 * PAGE) * PAGE, stopped.done);
            let done = stopped.done;
            // So that the call can be repeated.
            if done > 0 {
                space.madvise(at, done, Advice::DontNeed).unwrap();
            }
            Err(stopped.error)
        }
        other => other.map_err(|stopped| stopped.error),
    };
    let at = AT + HUGE - PAGE;
    let near = AT + PAGE;
    let fill =
        |_: &Sim, space: &Space| of(space.userfault_copy(near, &[3; 2 * PAGE], false), space, near);
    Case { prepare: registered, call: fill, forks: false, is_whole: false, least: 3 }.run();
    let zero = |_: &Sim, space: &Space| of(space.userfault_zeropage(near, 2 * PAGE), space, near);
    Case { prepare: registered, call: zero, forks: false, is_whole: false, least: 2 }.run();
    let take = |_: &Sim, space: &Space| {
        let done = space.userfault_move(near, FAR, PAGE, false);
        done.map_err(|stopped| stopped.error)
    };
    Case { prepare: registered, call: take, forks: false, is_whole: true, least: 1 }.run();
    let poison = |_: &Sim, space: &Space| {
        space.userfault_poison(near, PAGE).map_err(|stopped| stopped.error)
    };
    Case { prepare: registered, call: poison, forks: false, is_whole: true, least: 1 }.run();
    // It splits a huge page, and marks an absent one.
    let protect = |_: &Sim, space: &Space| space.userfault_write_protect(at, 2 * PAGE, true);
    for forks in [false, true] {
        Case { prepare: registered, call: protect, forks, is_whole: false, least: 2 }.run();
    }
    let scan = |_: &Sim, space: &Space| {
        space.userfault_unregister(AT, 3 * HUGE)?;
        let modes = UserFaultModes::MISSING | UserFaultModes::WP;
        space.userfault_register(AT, 3 * HUGE, modes, Uffd::new(2))
    };
    Case { prepare: registered, call: scan, forks: true, is_whole: false, least: 0 }.run();
}
