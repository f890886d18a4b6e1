//! Each allocation of a call fails, and all after it: the call says so, and nothing has changed
//! (I7). With memory again, the call succeeds.

use crate::common::*;
use machine::Asid;
use mm::*;
use sim::Sim;

const NEAR: usize = 0x3fff_e000;
const FAR: usize = 0x55_0000_0000;
/// Pages on both sides of the border of two tables.
const PAGES: usize = 4;
const LEN: usize = PAGES * PAGE;

/// A program's view of a space: its VMAs, its pages, and their first words.
fn seen(sim: &Sim, space: &Space) -> (String, Vec<bool>, Vec<Result<u64, FaultError>>) {
    let pages = || (0..PAGES).flat_map(|page| [NEAR + page * PAGE, FAR + page * PAGE]);
    let present = pages().map(|at| space.resident(at..at + PAGE) == 1).collect();
    (listing(space), present, pages().map(|at| load(sim, space, at)).collect())
}

/// Runs `call` on a space with `PAGES` written pages, and on its child, with each allocation
/// failing in turn.
fn each_allocation_fails<T>(least: u64, call: impl Fn(&Sim, &Space, &Space) -> Result<T, Error>) {
    each_allocation(least, |nth| {
        let mut any = false;
        with_space(256, |sim, _, parent| {
            parent.mmap(NEAR, LEN, 3, FIXED).unwrap();
            for page in 0..PAGES {
                store(sim, parent, NEAR + page * PAGE, page as u64 + 1).unwrap();
            }
            let child = parent.fork(Asid(2)).unwrap();
            activate(&child);
            let of_child = seen(sim, &child);
            activate(parent);
            let of_parent = seen(sim, parent);
            activate(&child);
            let (outcome, failed) = without_frames(sim, nth, true, || call(sim, parent, &child));
            match outcome {
                Ok(_) => assert!(!failed, "memory came from nowhere"),
                Err(error) => {
                    assert!(failed, "{error} though memory is left");
                    assert_eq!(error.errno(), 12, "{error}");
                    assert_eq!(seen(sim, &child), of_child, "after {error}");
                    // No VMA is left busy: a fault is handled.
                    store(sim, &child, NEAR + PAGE, 2).unwrap();
                    drop(call(sim, parent, &child).unwrap());
                }
            }
            activate(parent);
            leave(&child);
            assert_eq!(seen(sim, parent), of_parent);
            any = failed;
        });
        any
    });
}

#[test]
fn calls_fail_whole() {
    each_allocation_fails(1, |_, _, child| child.fork(Asid(3)));
    let request = RemapRequest::moving(NEAR, LEN, FAR);
    each_allocation_fails(3, |_, _, child| child.mremap(request));
    // Parts of tables that the parent shares.
    let (at, len) = (NEAR + PAGE, 2 * PAGE);
    each_allocation_fails(2, |_, _, child| child.munmap(at, len));
    each_allocation_fails(2, |_, _, child| child.mmap(at, len, 1, FIXED));
    each_allocation_fails(2, |_, _, child| child.mprotect(at, len, 1, None));
    each_allocation_fails(2, |_, _, child| child.madvise(NEAR, PAGE, Advice::DontNeed));
    each_allocation_fails(3, |sim, _, child| {
        // The same value, so that the parent's pages and the child's stay alike.
        store(sim, child, NEAR, 1).map_err(Error::from)
    });
}

/// Pinned pages are copied for the child. Copies made before the failure are given back.
#[test]
fn fork_of_pinned_pages_fails_whole() {
    each_allocation_fails(3, |_, _, child| {
        let mut frames = [machine::Frame::default(); PAGES];
        let pins = child.pin_pages(NEAR, Access::Write, &mut frames);
        let done = child.fork(Asid(3)).map(drop);
        drop(pins);
        done
    });
}

/// The end of a space needs no memory, whatever it shares.
#[test]
fn a_child_ends_without_memory() {
    with_space(256, |sim, _, parent| {
        parent.mmap(NEAR, LEN, 3, FIXED).unwrap();
        store(sim, parent, NEAR, 1).unwrap();
        let child = parent.fork(Asid(2)).unwrap();
        let grandchild = child.fork(Asid(3)).unwrap();
        store(sim, parent, NEAR, 2).unwrap();
        let ((), asked) = without_frames(sim, 1, true, || drop((child, grandchild)));
        assert!(!asked, "the end of a space asked for memory");
        assert_eq!(load(sim, parent, NEAR), Ok(2));
    });
}
