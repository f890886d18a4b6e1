//! Corner cases of Linux that random calls under `samara trace` found, each observed on Linux 6.18.

mod common;

use common::{Calls, File, HEAP, PAGE, Space, anonymous, of_file, space, vmas};
use vma::{
    Advice, AttachRequest, Error, Layout, LockAll, MapFlags, Profile, RemapRequest, VmFlags,
};

const AT: usize = 0x1000_0000_0000;

fn page(n: usize) -> usize {
    AT + n * PAGE
}

fn fixed_move(from: usize, pages: usize, to: usize, keeps: bool) -> RemapRequest {
    let dont_unmap = keeps.then_some(page(to));
    RemapRequest { dont_unmap, ..RemapRequest::moving(page(from), pages * PAGE, page(to)) }
}

/// An empty address space on a processor with protection keys.
fn keyed_space() -> Space {
    let profile = Profile { protection_keys: true, ..Profile::LINUX_6_18 };
    Space::new(profile, Layout { mmap_base: AT, ..Layout::default() })
}

/// The first page, length in pages and flags of every VMA.
fn shape(calls: &Calls<'_>) -> Vec<(usize, usize, String)> {
    vmas(calls, AT)
}

/// The first page and length in pages of every VMA.
fn ranges(calls: &Calls<'_>) -> Vec<(usize, usize)> {
    shape(calls).into_iter().map(|(first, pages, _)| (first, pages)).collect()
}

#[test]
fn a_copy_that_joins_its_source_is_made_once() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 6, 1)).unwrap();
    calls.mlock(page(0), 6 * PAGE, true).unwrap();
    calls.mmap(anonymous(page(6), 4, 1)).unwrap();
    calls.mremap(fixed_move(4, 1, 6, true)).unwrap();
    let plain = "rd,mr,mw,me".to_string();
    assert_eq!(shape(&calls), [(0, 7, plain.clone()), (7, 3, plain)]);
}

#[test]
fn a_segment_piece_between_two_joins_the_left_one_only() {
    let mut space = space();
    let mut calls = space.get_mut();
    let attach = AttachRequest {
        addr: Some(page(0)),
        ..AttachRequest::new(File::segment(4 * PAGE), 4 * PAGE)
    };
    calls.shmat(attach).unwrap();
    calls.mremap(fixed_move(1, 1, 20, false)).unwrap();
    assert_eq!(ranges(&calls), [(0, 1), (2, 2), (20, 1)]);
    calls.mremap(fixed_move(20, 1, 1, false)).unwrap();
    assert_eq!(ranges(&calls), [(0, 2), (2, 2)]);
}

#[test]
fn unmapping_up_to_a_sealed_vma_leaves_a_cut() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 4, 3)).unwrap();
    calls.mmap(anonymous(page(4), 1, 1)).unwrap();
    calls.mseal(page(4), PAGE).unwrap();
    assert_eq!(calls.munmap(page(2), 3 * PAGE), Err(Error::Sealed));
    assert_eq!(ranges(&calls), [(0, 2), (2, 2), (4, 1)]);
    // A range inside the sealed VMA splits nothing.
    calls.mmap(anonymous(page(8), 4, 3)).unwrap();
    calls.mseal(page(8), 4 * PAGE).unwrap();
    assert_eq!(calls.munmap(page(9), PAGE), Err(Error::Sealed));
    assert_eq!(ranges(&calls)[3..], [(8, 4)]);
}

#[test]
fn droppable_memory_joins_nothing_while_all_to_come_is_locked() {
    let mut space = space();
    let mut calls = space.get_mut();
    let droppable = |at| {
        let mut request = anonymous(page(at), 1, 3);
        request.flags = MapFlags::DROPPABLE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        request
    };
    calls.mlockall(LockAll { future: true, ..LockAll::default() }).unwrap();
    calls.mmap(droppable(0)).unwrap();
    calls.mmap(droppable(1)).unwrap();
    calls.munlockall().unwrap();
    calls.mmap(droppable(2)).unwrap();
    let flags = "rd,wr,mr,mw,me,nr,wf,dd,dp".to_string();
    assert_eq!(shape(&calls), [(0, 1, flags.clone()), (1, 2, flags)]);
}

#[test]
fn an_inherited_vma_that_grows_joins_unwritten_memory() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 2, 3)).unwrap();
    calls.first_write(page(0)).unwrap();
    let mut child = calls.fork().unwrap();
    let mut child = child.get_mut();
    child.mmap(anonymous(page(3), 4, 3)).unwrap();
    let grow = RemapRequest { new_len: 3 * PAGE, fixed: None, ..fixed_move(0, 2, 0, false) };
    assert_eq!(child.mremap(grow), Ok(page(0)));
    assert_eq!(ranges(&child), [(0, 7)]);
    // The result is inherited.
    child.mmap(anonymous(page(7), 1, 3)).unwrap();
    assert_eq!(ranges(&child), [(0, 7), (7, 1)]);
}

#[test]
fn a_mark_of_guard_pages_spreads_by_merging() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 8, 3)).unwrap();
    calls.madvise(page(2), PAGE, Advice::GuardInstall).unwrap();
    calls.mmap(anonymous(page(8), 2, 3)).unwrap();
    assert_eq!(shape(&calls), [(0, 10, "rd,wr,mr,mw,me,gu,ac".to_string())]);
    // An anonymous VMA becomes faulted, so a forked one joins no new VMA. A VMA of a file does not.
    let file = File::regular();
    calls.mmap(of_file(&file, page(20), 1, 1, 0)).unwrap();
    calls.madvise(page(20), PAGE, Advice::GuardInstall).unwrap();
    let mut child = calls.fork().unwrap();
    let mut child = child.get_mut();
    child.mmap(anonymous(page(10), 1, 3)).unwrap();
    child.mmap(of_file(&file, page(21), 1, 1, 1)).unwrap();
    assert_eq!(ranges(&child), [(0, 10), (10, 1), (20, 2)]);
}

#[test]
fn memory_merge_does_nothing_twice() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 1, 3)).unwrap();
    calls.madvise(page(0), PAGE, Advice::Mergeable).unwrap();
    calls.set_memory_merge(false).unwrap();
    assert_eq!(shape(&calls)[0].2, "rd,wr,mr,mw,me,ac,mg");
    calls.set_memory_merge(true).unwrap();
    calls.madvise(page(0), PAGE, Advice::Unmergeable).unwrap();
    calls.set_memory_merge(true).unwrap();
    assert_eq!(shape(&calls)[0].2, "rd,wr,mr,mw,me,ac");
}

#[test]
fn maps_with_and_without_map_sync_stay_apart() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 1, 3)).unwrap();
    let mut synchronous = anonymous(page(1), 1, 3);
    synchronous.flags |= MapFlags::SYNC;
    calls.mmap(synchronous).unwrap();
    assert_eq!(ranges(&calls), [(0, 1), (1, 1)]);
    assert!(calls.area_at(page(1)).unwrap().vma.flags.contains(VmFlags::SYNC));
}

#[test]
fn a_second_map_of_a_shared_range_cuts_nothing() {
    let mut space = space();
    let mut calls = space.get_mut();
    let mut shared = of_file(&File::regular(), page(0), 4, 3, 0);
    shared.flags = MapFlags::SHARED | MapFlags::FIXED;
    calls.mmap(shared).unwrap();
    let twice = RemapRequest { old_len: 0, new_len: PAGE, ..fixed_move(1, 1, 20, false) };
    calls.mremap(twice).unwrap();
    assert_eq!(ranges(&calls), [(0, 4), (20, 1)]);
    assert_eq!(calls.area_at(page(20)).unwrap().vma.offset_at(page(20)), 1);
}

#[test]
fn a_segment_is_found_above_where_it_was_cut() {
    let mut space = space();
    let mut calls = space.get_mut();
    let attach = AttachRequest {
        addr: Some(page(2)),
        ..AttachRequest::new(File::segment(4 * PAGE), 4 * PAGE)
    };
    calls.shmat(attach).unwrap();
    // Another map covers the start of the segment and begins below it.
    calls.mmap(anonymous(page(0), 3, 3)).unwrap();
    calls.shmdt(page(2)).unwrap();
    assert_eq!(ranges(&calls), [(0, 3)]);
}

#[test]
fn growing_up_is_refused_only_where_something_is_mapped() {
    const GROWSUP: u32 = 0x0200_0000;
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 4, 3)).unwrap();
    calls.mmap(anonymous(page(8), 4, 3)).unwrap();
    let mut protect = |at, pages, more| calls.mprotect(page(at), pages * PAGE, 1 | more, None);
    assert_eq!(protect(0, 12, GROWSUP), Err(Error::BadFlags));
    assert_eq!(protect(4, 2, GROWSUP), Err(Error::Unmapped));
    assert_eq!(protect(6, 4, GROWSUP), Err(Error::Unmapped));
    assert_eq!(protect(4, 2, GROWSUP | 0x0100_0000), Err(Error::BadFlags));
    assert_eq!(protect(4, 0, GROWSUP), Ok(()));
}

#[test]
fn what_a_call_left_when_it_failed_is_taken_over() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 8, 3)).unwrap();
    calls.first_write(page(0)).unwrap();
    calls.mseal(page(6), PAGE).unwrap();
    // A hole, also over a sealed VMA; then part of a VMA; then one VMA from two.
    calls.settle(page(5), page(7), None).unwrap();
    assert_eq!(ranges(&calls), [(0, 5), (7, 1)]);
    let protected: VmFlags = "rd,mr,mw,me,ac".parse().unwrap();
    calls.settle(page(1), page(2), Some(protected)).unwrap();
    assert_eq!(shape(&calls)[1], (1, 1, protected.to_string()));
    let written: VmFlags = "rd,wr,mr,mw,me,ac".parse().unwrap();
    calls.settle(page(0), page(5), Some(written)).unwrap();
    assert_eq!(ranges(&calls), [(0, 5), (7, 1)]);
    assert!(calls.area_at(page(4)).unwrap().vma.is_faulted(), "it stays faulted");
    assert_eq!(calls.settle(page(4), page(8), Some(written)), Err(Error::Unmapped));
    assert_eq!(calls.settle(page(4) + 1, page(8), None), Err(Error::Unaligned));
}

/// A first write in page 0 does not mark page 2.
fn are_written_apart(mut space: Space) {
    let guard = space.pin();
    let (_, seen) = space.lookup(&guard, page(0)).unwrap();
    assert!(!space.first_write(&guard, page(0), seen), "both parts are this object");
    space.get_mut().first_write(page(0)).unwrap();
    let calls = space.get_mut();
    let faulted = |n| calls.area_at(page(n)).unwrap().vma.is_faulted();
    assert_eq!([faulted(0), faulted(2)], [true, false]);
}

#[test]
fn a_hole_that_is_taken_over_leaves_parts_that_are_written_apart() {
    let mut space = space();
    space.get_mut().mmap(anonymous(page(0), 3, 3)).unwrap();
    space.get_mut().settle(page(1), page(2), None).unwrap();
    are_written_apart(space);
}

/// A page that moves joins the VMA from which it comes, and leaves a hole there.
#[test]
fn a_move_within_a_vma_leaves_parts_that_are_written_apart() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 3, 3)).unwrap();
    // The joined VMA is a new object: only the neighbour is new to soft-dirty.
    calls.clear_soft_dirty().unwrap();
    calls.mmap(anonymous(page(4), 1, 3)).unwrap();
    calls.mremap(fixed_move(1, 1, 3, false)).unwrap();
    assert_eq!(ranges(&calls), [(0, 1), (2, 3)]);
    drop(calls);
    are_written_apart(space);
}

#[test]
fn a_process_denies_itself_executable_memory() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 1, 5)).unwrap();
    calls.mmap(anonymous(page(2), 1, 3)).unwrap();
    assert_eq!(calls.set_deny_exec(2), Err(Error::BadFlags));
    assert_eq!(calls.set_deny_exec(4), Err(Error::BadFlags));
    calls.set_deny_exec(0).unwrap();
    calls.set_deny_exec(3).unwrap();
    calls.set_deny_exec(3).unwrap();
    assert_eq!(calls.set_deny_exec(1), Err(Error::DenyExecSet));
    assert_eq!(calls.set_deny_exec(0), Err(Error::DenyExecSet));
    assert_eq!(calls.mmap(anonymous(page(4), 1, 7)), Err(Error::Access));
    calls.mmap(anonymous(page(4), 1, 5)).unwrap();
    // Memory stays executable, and does not become so.
    calls.mprotect(page(0), PAGE, 4, None).unwrap();
    assert_eq!(calls.mprotect(page(0), PAGE, 7, None), Err(Error::Access));
    assert_eq!(calls.mprotect(page(2), PAGE, 5, None), Err(Error::Access));
    calls.mprotect(page(2), PAGE, 1, None).unwrap();
    let mut child = calls.fork().unwrap();
    assert_eq!((calls.deny_exec(), child.get_mut().deny_exec()), (3, 0));
    child.get_mut().set_deny_exec(1).unwrap();
    let mut child = child.get_mut();
    assert_eq!(child.fork().unwrap().get_mut().deny_exec(), 1);
}

#[test]
fn a_personality_makes_readable_memory_executable() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 1, 3)).unwrap();
    calls.set_read_implies_exec(true);
    calls.mmap(anonymous(page(2), 1, 1)).unwrap();
    calls.mmap(anonymous(page(4), 1, 2)).unwrap();
    calls.mprotect(page(0), PAGE, 1, None).unwrap();
    let flags = |calls: &Calls<'_>| -> Vec<String> {
        shape(calls).into_iter().map(|(_, _, flags)| flags).collect()
    };
    let expected = ["rd,ex,mr,mw,me", "rd,ex,mr,mw,me", "wr,mr,mw,me,ac"];
    assert_eq!(flags(&calls), expected);
    calls.brk(HEAP + PAGE);
    assert_eq!(calls.area_at(HEAP).unwrap().vma.flags.to_string(), "rd,wr,ex,mr,mw,me,ac");
    calls.set_read_implies_exec(false);
    calls.mprotect(page(0), PAGE, 1, None).unwrap();
    assert_eq!(flags(&calls)[0], "rd,mr,mw,me");
}

#[test]
fn a_sealed_file_stays_unwritable_when_its_pages_are_remapped() {
    let mut space = space();
    let mut calls = space.get_mut();
    let file = File::regular();
    let mut request = of_file(&file, page(0), 4, 1, 0);
    request.flags = MapFlags::SHARED | MapFlags::FIXED;
    request.driver_flags = Some("rd,sh,mr,me,ms".parse().unwrap());
    calls.mmap(request).unwrap();
    calls.remap_file_pages(page(1), PAGE, 3).unwrap();
    assert!(shape(&calls).iter().all(|(_, _, flags)| flags == "rd,sh,mr,me,ms"));
    assert_eq!(calls.mprotect(page(1), PAGE, 3, None), Err(Error::Access));
}

#[test]
fn populating_needs_the_right_that_it_uses() {
    let mut space = space();
    let mut calls = space.get_mut();
    for prot in 0..8 {
        calls.mmap(anonymous(page(0), 2, prot)).unwrap();
        let expected = |needed| if prot & needed == 0 { Err(Error::WrongKind) } else { Ok(()) };
        assert_eq!(calls.madvise(page(0), PAGE, Advice::PopulateRead), expected(1), "{prot}");
        assert_eq!(calls.madvise(page(0), PAGE, Advice::PopulateWrite), expected(2), "{prot}");
    }
}

#[test]
fn discarding_is_refused_where_pages_must_stay() {
    let mut space = space();
    let mut calls = space.get_mut();
    let file = File::regular();
    calls.mmap(anonymous(page(0), 1, 3)).unwrap();
    calls.mmap(of_file(&file, page(1), 1, 3, 0)).unwrap();
    let mut shared = of_file(&file, page(2), 1, 3, 0);
    shared.flags = MapFlags::SHARED | MapFlags::FIXED;
    calls.mmap(shared).unwrap();
    calls.mmap(anonymous(page(3), 1, 3)).unwrap();
    calls.mlock(page(3), PAGE, false).unwrap();
    let (fine, wrong) = (Ok(()), Err(Error::WrongKind));
    // On anonymous memory, on a private file, on a shared file, on locked memory.
    for (advice, expected) in [
        (Advice::DontNeed, [fine, fine, fine, wrong]),
        (Advice::DontNeedLocked, [fine; 4]),
        (Advice::Free, [fine, wrong, wrong, wrong]),
        (Advice::Cold, [fine, fine, fine, wrong]),
        (Advice::PageOut, [fine, fine, fine, wrong]),
        (Advice::Remove, [wrong, Err(Error::Access), fine, wrong]),
    ] {
        let seen = [0, 1, 2, 3].map(|at| calls.madvise(page(at), PAGE, advice));
        assert_eq!(seen, expected, "{advice:?}");
    }
}

/// The protection keys of the first pages.
fn keys<const PAGES: usize>(calls: &Calls<'_>) -> [u8; PAGES] {
    std::array::from_fn(|n| calls.area_at(page(n)).unwrap().vma.flags.pkey())
}

#[test]
fn execute_only_memory_has_a_key_of_its_own() {
    let mut space = keyed_space();
    let mut calls = space.get_mut();
    // The lowest key is that of execute-only memory only from the first such call on.
    assert_eq!(calls.pkey_alloc(), Ok(1));
    calls.mmap(anonymous(page(0), 1, 4)).unwrap();
    calls.mmap(anonymous(page(1), 1, 5)).unwrap();
    calls.mmap(anonymous(page(2), 1, 3)).unwrap();
    assert_eq!(keys(&calls), [2, 0, 0]);
    calls.mprotect(page(1), 2 * PAGE, 4, None).unwrap();
    assert_eq!((keys(&calls), ranges(&calls)), ([2, 2, 2], vec![(0, 3)]));
    // An added right takes the key away; a key that the program chose stays.
    calls.mprotect(page(0), PAGE, 5, None).unwrap();
    assert_eq!(keys(&calls), [0, 2, 2]);
    calls.mprotect(page(0), PAGE, 1, Some(1)).unwrap();
    calls.mprotect(page(0), PAGE, 5, None).unwrap();
    assert_eq!(keys(&calls), [1, 2, 2]);
    calls.mprotect(page(0), PAGE, 4, Some(1)).unwrap();
    calls.mprotect(page(0), PAGE, 0, None).unwrap();
    assert_eq!(keys(&calls), [1, 2, 2]);
    // PROT_SEM makes it another request.
    calls.mprotect(page(1), PAGE, 4 | 8, None).unwrap();
    assert_eq!(keys(&calls), [1, 0, 2]);
    // A program can neither use nor free the key.
    for key in [2, 3, 15, 16, 255] {
        assert_eq!(calls.mprotect(page(0), PAGE, 1, Some(key)), Err(Error::KeyNotAllocated));
        assert_eq!(calls.pkey_free(key), Err(Error::KeyNotAllocated));
    }
    let mut child = calls.fork().unwrap();
    assert_eq!(child.get_mut().pkey_alloc(), Ok(3));
    assert_eq!(child.get_mut().pkey_free(1), Ok(()));
    assert_eq!(calls.pkey_alloc(), Ok(3));
    let layout = calls.layout();
    calls.exec(layout).unwrap();
    assert_eq!(calls.pkey_alloc(), Ok(1));
    calls.mmap(anonymous(page(0), 1, 4)).unwrap();
    assert_eq!(keys(&calls), [2]);
}

#[test]
fn without_a_free_key_execute_only_memory_is_like_any_other() {
    let mut space = keyed_space();
    let mut calls = space.get_mut();
    assert!((1..16).all(|key| calls.pkey_alloc() == Ok(key)));
    assert_eq!(calls.pkey_alloc(), Err(Error::NoKey));
    calls.mmap(anonymous(page(0), 2, 4)).unwrap();
    calls.mprotect(page(1), PAGE, 1, Some(7)).unwrap();
    calls.mprotect(page(1), PAGE, 4, None).unwrap();
    assert_eq!(keys(&calls), [0, 7]);
    // Key 0 denies nothing, even if it was free.
    assert_eq!(calls.pkey_free(0), Ok(()));
    calls.mprotect(page(1), PAGE, 4, None).unwrap();
    assert_eq!((keys(&calls), calls.pkey_alloc()), ([0, 7], Err(Error::NoKey)));
}

#[test]
fn without_protection_keys_no_memory_has_one() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 1, 4)).unwrap();
    let none = (calls.pkey_alloc(), calls.pkey_free(0), calls.adopt_pkey(1, true));
    assert_eq!(none, (Err(Error::NoKey), Err(Error::KeyNotAllocated), Err(Error::NoKey)));
    calls.mprotect(page(0), PAGE, 4, None).unwrap();
    assert_eq!(keys(&calls), [0]);
    // A number that is no key is not cut to one.
    for key in [16, 17, 200, u8::MAX] {
        assert_eq!(calls.mprotect(page(0), PAGE, 1, Some(key)), Err(Error::KeyNotAllocated));
    }
    assert_eq!(keys(&calls), [0]);
}

#[test]
fn an_old_length_that_wraps_is_zero() {
    let mut space = space();
    let mut calls = space.get_mut();
    calls.mmap(anonymous(page(0), 2, 3)).unwrap();
    let wraps = |addr, old_len: usize| RemapRequest {
        addr,
        old_len,
        new_len: PAGE,
        ..fixed_move(0, 1, 20, false)
    };
    // A private map cannot be duplicated, and where nothing is mapped, there is nothing to move.
    assert_eq!(calls.mremap(wraps(page(0), usize::MAX)), Err(Error::WrongKind));
    assert_eq!(calls.mremap(wraps(page(5), usize::MAX)), Err(Error::NotOneVma));
    let at_the_end = RemapRequest { new_len: 2 * PAGE, ..wraps(usize::MAX - PAGE + 1, 2 * PAGE) };
    assert_eq!(calls.mremap(at_the_end), Err(Error::NotOneVma));
    assert_eq!(ranges(&calls), [(0, 2)]);
    // Only the end of the range wraps. Linux notices it after the target is unmapped.
    calls.mmap(anonymous(page(20), 2, 3)).unwrap();
    assert_eq!(calls.mremap(wraps(page(0), usize::MAX - PAGE)), Err(Error::BadRange));
    assert_eq!(ranges(&calls), [(0, 2), (21, 1)]);
}
