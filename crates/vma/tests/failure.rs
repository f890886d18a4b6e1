//! Tests I7: every allocation of every call fails once, and then the address space must be
//! unchanged.
//!
//! The allocator of this test program fails on request. Each call is made on a fresh address space
//! with its first allocation failing, then with its second, and so on until the call succeeds.

mod common;
#[path = "common/failing_heap.rs"]
mod failing_heap;

use common::{Calls, File, HEAP, PAGE, anonymous, of_file, picture, space, vmas};
use failing_heap::{alone, refusing};
use vma::{Advice, AttachRequest, Error, RemapRequest, Uffd, VmFlags};

/// Runs `work`. All allocations after the first `n` fail.
fn with_allocations<T>(n: usize, work: impl FnOnce() -> T) -> T {
    refusing(n, true, work).0
}

const AT: usize = 0x7ffe_0000_0000;

/// Maps one VMA of each kind: faulted anonymous memory, a private file and a shared one, with many
/// small VMAs around them.
fn prepare(calls: &mut Calls<'_>, file: &File) {
    for i in 0..40 {
        calls.mmap(anonymous(AT + (100 + 2 * i) * PAGE, 1, 3)).unwrap();
    }
    calls.mmap(anonymous(AT, 16, 3)).unwrap();
    calls.first_write(AT).unwrap();
    calls.mmap(of_file(file, AT + 20 * PAGE, 8, 1, 0)).unwrap();
    calls.mmap(anonymous(AT + 30 * PAGE, 8, 1)).unwrap();
    assert_eq!(calls.brk(HEAP + 4 * PAGE), HEAP + 4 * PAGE);
}

/// Fails each allocation of `call` in turn. Returns the number of allocations.
fn fail_each(call: impl Fn(&mut Calls<'_>, &File) -> Result<(), Error>) -> usize {
    fail_each_after(|_| {}, call)
}

/// As [`fail_each`], in an address space that was prepared further.
fn fail_each_after(
    further: impl Fn(&mut Calls<'_>),
    call: impl Fn(&mut Calls<'_>, &File) -> Result<(), Error>,
) -> usize {
    let _alone = alone();
    for n in 0.. {
        let file = File::segment(4 * PAGE);
        let mut space = space();
        let mut calls = space.get_mut();
        prepare(&mut calls, &file);
        further(&mut calls);
        let before = picture(&calls);
        let outcome = with_allocations(n, || call(&mut calls, &file));
        match outcome {
            Ok(()) => return n,
            Err(Error::OutOfMemory) => assert_eq!(picture(&calls), before, "allocation {n} failed"),
            Err(other) => panic!("{other:?} when allocation {n} failed"),
        }
        // A call that failed for lack of memory succeeds with enough of it.
        call(&mut calls, &file).unwrap();
    }
    unreachable!()
}

#[test]
fn maps() {
    assert!(fail_each(|calls, _| calls.mmap(anonymous(0, 4, 3)).map(drop)) >= 1);
    assert!(
        fail_each(|calls, file| calls.mmap(of_file(file, AT + 2 * PAGE, 2, 1, 0)).map(drop)) >= 1
    );
    let whole = |calls: &mut Calls<'_>, _: &File| calls.mmap(anonymous(AT, 200, 1)).map(drop);
    assert!(fail_each(whole) >= 1);
}

#[test]
fn unmaps() {
    // The only owner of a tree cuts one leaf in place. A change over several leaves needs nodes.
    fail_each(|calls, _| calls.munmap(AT + 4 * PAGE, 2 * PAGE));
    assert!(fail_each(|calls, _| calls.munmap(AT + PAGE, 150 * PAGE)) >= 1);
}

#[test]
fn changes_of_part_of_a_vma() {
    for (start, pages) in [(0, 2), (4, 2), (14, 2), (0, 16)] {
        let at = AT + start * PAGE;
        assert!(fail_each(|calls, _| calls.mprotect(at, pages * PAGE, 1, None)) >= 1);
        assert!(fail_each(|calls, _| calls.madvise(at, pages * PAGE, Advice::DontFork)) >= 1);
        assert!(fail_each(|calls, _| calls.madvise(at, pages * PAGE, Advice::GuardInstall)) >= 1);
        assert!(fail_each(|calls, _| calls.mlock(at, pages * PAGE, true)) >= 1);
        assert!(fail_each(|calls, _| calls.mseal(at, pages * PAGE)) >= 1);
        let policy = vma::Policy { mode: 2, nodes: 1, home: None };
        assert!(fail_each(|calls, _| calls.mbind(at, pages * PAGE, Some(policy))) >= 1);
        let uffd = Uffd { id: 3, follows_fork: false, follows_remap: false };
        let watch = |calls: &mut Calls<'_>, _: &File| {
            calls.watch(at, pages * PAGE, VmFlags::UFFD_MISSING, uffd)
        };
        assert!(fail_each(watch) >= 1);
    }
}

#[test]
fn moves() {
    let request = |addr, old: usize, new: usize, fixed| RemapRequest {
        addr,
        old_len: old * PAGE,
        new_len: new * PAGE,
        may_move: true,
        fixed,
        ..RemapRequest::default()
    };
    // Growth in place, growth by a move, growth from the middle of a VMA, and shrinking.
    for (start, old, new) in [(0, 16, 18), (0, 16, 60), (4, 2, 60), (0, 16, 3)] {
        fail_each(|calls, _| calls.mremap(request(AT + start * PAGE, old, new, None)).map(drop));
    }
    // The target of the fixed move is free here. FIXED would first unmap it, as in Linux.
    let to = Some(AT + 60 * PAGE);
    let moved = fail_each(|calls, _| calls.mremap(request(AT + 4 * PAGE, 2, 2, to)).map(drop));
    assert!(moved >= 2);
}

#[test]
fn heap_first_writes_and_segments() {
    let grow = |calls: &mut Calls<'_>, _: &File| match calls.brk(HEAP + 9 * PAGE) {
        brk if brk == HEAP + 9 * PAGE => Ok(()),
        _ => Err(Error::OutOfMemory),
    };
    fail_each(grow);
    assert!(fail_each(|calls, _| calls.first_write(AT + 30 * PAGE)) >= 1);
    let attach = |calls: &mut Calls<'_>, file: &File| {
        let request = AttachRequest::new(file.clone(), 4 * PAGE);
        calls.shmat(request).map(drop)
    };
    assert!(fail_each(attach) >= 1);
}

#[test]
fn forks() {
    let lock = |calls: &mut Calls<'_>| {
        for i in 0..10 {
            calls.mlock(AT + (100 + 8 * i) * PAGE, PAGE, true).unwrap();
        }
    };
    let forks = fail_each_after(lock, |calls, _| calls.fork().map(drop));
    // Each of these VMAs needs contents without the lock.
    assert!(forks >= 10);
}

/// Before the child splits a VMA with its parent's pages, the VMA gets an anon_vma of its own.
#[test]
fn splits_of_inherited_vmas() {
    let alone = alone();
    for n in 0.. {
        let file = File::segment(4 * PAGE);
        let mut space = space();
        prepare(&mut space.get_mut(), &file);
        let mut child = space.get_mut().fork().unwrap();
        let mut child = child.get_mut();
        let before = picture(&child);
        let outcome = with_allocations(n, || child.munmap(AT + 4 * PAGE, PAGE));
        if outcome.is_ok() {
            assert!(n >= 1);
            break;
        }
        assert_eq!(outcome, Err(Error::OutOfMemory));
        assert_eq!(picture(&child), before, "allocation {n} failed");
    }
    drop(alone);
    let part = |calls: &mut Calls<'_>, _: &File| {
        calls.fork()?.get_mut().mprotect(AT + 4 * PAGE, PAGE, 1, None)
    };
    assert!(fail_each(part) >= 2);
}

/// The child shares the parent's tree, so equal VMAs cost no memory, however many there are and
/// whether or not they have private pages.
#[test]
fn a_fork_allocates_nothing() {
    let mut space = space();
    let mut calls = space.get_mut();
    for i in 0..5000 {
        calls.mmap(anonymous(AT + 2 * i * PAGE, 1, 3)).unwrap();
        if i % 3 == 0 {
            calls.first_write(AT + 2 * i * PAGE).unwrap();
        }
    }
    let before = picture(&calls);
    let mut child = with_allocations(0, || calls.fork()).unwrap();
    assert_eq!(picture(&child.get_mut()), before);
    // From here on both change independently.
    child.get_mut().munmap(AT, 2 * PAGE).unwrap();
    calls.mprotect(AT + 4 * PAGE, PAGE, 1, None).unwrap();
    assert_eq!(child.get_mut().count(), 4999);
    assert_eq!(vmas(&child.get_mut(), AT)[1].2, "rd,wr,mr,mw,me,ac");
    assert_eq!(vmas(&calls, AT)[2].2, "rd,mr,mw,me");
    // fork changes only the VMAs that must differ.
    calls.mlock(AT + 8 * PAGE, PAGE, true).unwrap();
    calls.madvise(AT + 16 * PAGE, PAGE, Advice::DontFork).unwrap();
    let mut child = calls.fork().unwrap();
    assert_eq!(child.get_mut().count(), 4999);
    assert_eq!(vmas(&child.get_mut(), AT)[4].2, "rd,wr,mr,mw,me,ac");
}
