//! The rules of RULES.md, one test each, with the same numbers.

mod common;

use common::{BASE, Calls, File, HEAP, PAGE, anonymous, of_file, space, vmas};
use vma::{
    Advice, AttachRequest, Error, LockAll, MapFlags, MapRequest, Policy, RemapRequest, Uffd,
    VmFlags,
};

const AT: usize = 0x7ffe_0000_0000;

fn map(calls: &mut Calls<'_>, first: usize, pages: usize, prot: u32) -> usize {
    calls.mmap(anonymous(AT + first * PAGE, pages, prot)).unwrap()
}

/// The first page and length in pages of each VMA from `AT` on.
fn shape(calls: &Calls<'_>) -> Vec<(usize, usize)> {
    vmas(calls, AT).into_iter().map(|(first, pages, _)| (first, pages)).collect()
}

fn flags(calls: &Calls<'_>, page: usize) -> String {
    calls.area_at(AT + page * PAGE).unwrap().vma.flags.to_string()
}

#[test]
fn rule_1_accounting_keeps_vmas_apart() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 2, 3);
    map(&mut calls, 2, 2, 1);
    calls.first_write(AT).unwrap();
    // A VMA that was written stays accounted when it becomes read-only. One that was never written
    // does not.
    calls.mprotect(AT, 2 * PAGE, 1, None).unwrap();
    assert_eq!(shape(&calls), [(0, 2), (2, 2)]);
    assert_eq!(flags(&calls, 0), "rd,mr,mw,me,ac");
    // A VMA that was never written loses the flag, and merges.
    calls.mprotect(AT + 2 * PAGE, 2 * PAGE, 3, None).unwrap();
    calls.mprotect(AT + 2 * PAGE, 2 * PAGE, 1, None).unwrap();
    assert_eq!(flags(&calls, 2), "rd,mr,mw,me");
    let mut free = anonymous(AT + 8 * PAGE, 1, 3);
    free.flags |= MapFlags::NORESERVE;
    calls.mmap(free).unwrap();
    assert_eq!(flags(&calls, 8), "rd,wr,mr,mw,me,nr");
}

#[test]
fn rule_2_private_pages_of_two_families_do_not_merge() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 2, 3);
    map(&mut calls, 4, 2, 3);
    calls.first_write(AT).unwrap();
    calls.first_write(AT + 4 * PAGE).unwrap();
    map(&mut calls, 2, 2, 3);
    assert_eq!(shape(&calls), [(0, 4), (4, 2)], "each has its own anon_vma");
    // A first write takes the neighbour's anon_vma if only the access differs. Then they merge.
    map(&mut calls, 20, 2, 3);
    map(&mut calls, 22, 2, 1);
    calls.first_write(AT + 20 * PAGE).unwrap();
    calls.mprotect(AT + 22 * PAGE, 2 * PAGE, 7, None).unwrap();
    calls.first_write(AT + 22 * PAGE).unwrap();
    calls.mprotect(AT + 22 * PAGE, 2 * PAGE, 3, None).unwrap();
    assert_eq!(shape(&calls)[2..], [(20, 4)]);
}

#[test]
fn rule_3_what_fork_gave_does_not_merge_with_what_saw_no_write() {
    let mut parent = space();
    let mut calls = parent.get_mut();
    map(&mut calls, 0, 2, 3);
    calls.first_write(AT).unwrap();
    map(&mut calls, 8, 1, 3);
    calls.madvise(AT + 8 * PAGE, PAGE, Advice::DontFork).unwrap();
    map(&mut calls, 10, 1, 3);
    calls.mlock(AT + 10 * PAGE, PAGE, true).unwrap();
    let mut child = calls.fork().unwrap();
    map(&mut calls, 2, 1, 3);
    assert_eq!(shape(&calls)[0], (0, 3), "in the parent it merges");
    let mut calls = child.get_mut();
    map(&mut calls, 2, 1, 3);
    assert_eq!(shape(&calls), [(0, 2), (2, 1), (10, 1)]);
    assert_eq!(flags(&calls, 10), "rd,wr,mr,mw,me,ac", "locks stay with the parent");
}

#[test]
fn rule_4_stacks_of_threads_stay_apart() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 1, 3);
    let mut stack = anonymous(AT + PAGE, 1, 3);
    stack.flags |= MapFlags::STACK;
    calls.mmap(stack).unwrap();
    assert_eq!(shape(&calls), [(0, 1), (1, 1)]);
    assert_eq!(flags(&calls, 1), "rd,wr,mr,mw,me,ac,nh");
}

#[test]
fn rule_5_written_memory_keeps_its_offset_when_moved() {
    for written in [false, true] {
        let mut space = space();
        let mut calls = space.get_mut();
        map(&mut calls, 0, 2, 3);
        map(&mut calls, 22, 2, 3);
        if written {
            calls.first_write(AT + 22 * PAGE).unwrap();
        }
        let (from, to) = (AT + 22 * PAGE, AT + 2 * PAGE);
        calls.mremap(fixed_move(from, 2, to)).unwrap();
        let expected: &[_] = if written { &[(0, 2), (2, 2)] } else { &[(0, 4)] };
        assert_eq!(shape(&calls), expected);
    }
}

#[test]
fn rule_6_two_opens_of_one_file_do_not_merge() {
    let mut space = space();
    let mut calls = space.get_mut();
    let (one, two) = (File::regular(), File::regular());
    calls.mmap(of_file(&one, AT, 1, 1, 0)).unwrap();
    calls.mmap(of_file(&one, AT + PAGE, 1, 1, 1)).unwrap();
    calls.mmap(of_file(&two, AT + 2 * PAGE, 1, 1, 2)).unwrap();
    calls.mmap(of_file(&two, AT + 3 * PAGE, 1, 1, 9)).unwrap();
    assert_eq!(shape(&calls), [(0, 2), (2, 1), (3, 1)], "nor with another offset");
}

#[test]
fn rule_7_the_heap_grows_by_itself_alone() {
    let mut space = space();
    let mut calls = space.get_mut();
    // A VMA that ends exactly where the heap starts is not extended.
    calls.mmap(anonymous(HEAP - PAGE, 1, 3)).unwrap();
    assert_eq!(calls.brk(HEAP + PAGE), HEAP + PAGE);
    assert_eq!(vmas(&calls, HEAP - PAGE).len(), 2);
    assert_eq!(calls.brk(HEAP + 3 * PAGE), HEAP + 3 * PAGE);
    assert_eq!(vmas(&calls, HEAP)[0].1, 3);
    assert_eq!(calls.brk(HEAP - 1), HEAP + 3 * PAGE, "the break never goes below the heap's start");
    let mut text = String::new();
    calls.write_maps(&mut text).unwrap();
    assert!(text.lines().nth(1).unwrap().ends_with("                          [heap]"), "{text}");
}

#[test]
fn rule_8_a_call_that_meets_a_hole_has_changed_what_precedes_it() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 2, 3);
    map(&mut calls, 3, 2, 3);
    assert_eq!(calls.mprotect(AT, 5 * PAGE, 1, None), Err(Error::Unmapped));
    assert_eq!(
        (flags(&calls, 0), flags(&calls, 3)),
        ("rd,mr,mw,me".into(), "rd,wr,mr,mw,me,ac".into())
    );
    // madvise skips the hole, and still returns an error.
    assert_eq!(calls.madvise(AT, 5 * PAGE, Advice::DontDump), Err(Error::Unmapped));
    assert!(flags(&calls, 0).ends_with("dd") && flags(&calls, 3).ends_with("dd"));
}

#[test]
fn rule_9_advice_about_pages_splits_nothing() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 4, 3);
    for advice in [Advice::DontNeed, Advice::Free, Advice::WillNeed, Advice::Cold] {
        calls.madvise(AT + PAGE, PAGE, advice).unwrap();
    }
    assert_eq!(shape(&calls), [(0, 4)]);
    calls.madvise(AT + PAGE, PAGE, Advice::Random).unwrap();
    assert_eq!(shape(&calls), [(0, 1), (1, 1), (2, 2)]);
    calls.madvise(AT + PAGE, PAGE, Advice::Normal).unwrap();
    assert_eq!(shape(&calls), [(0, 4)]);
    calls.mbind(AT, PAGE, Some(Policy { mode: 2, nodes: 1, home: None })).unwrap();
    let uffd = Uffd { id: 1, follows_fork: false, follows_remap: false };
    calls.watch(AT + 2 * PAGE, PAGE, VmFlags::UFFD_MISSING, uffd).unwrap();
    assert_eq!(shape(&calls), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    calls.mbind(AT, PAGE, None).unwrap();
    calls.close_watch(1).unwrap();
    assert_eq!(shape(&calls), [(0, 4)]);
}

#[test]
fn rule_10_lines_are_those_of_the_kernel() {
    let mut space = space();
    let mut calls = space.get_mut();
    let file = File::read_only();
    let shared =
        MapRequest { flags: MapFlags::SHARED | MapFlags::FIXED, ..of_file(&file, AT, 1, 1, 3) };
    calls.mmap(shared).unwrap();
    map(&mut calls, 1, 1, 0);
    let mut text = String::new();
    calls.write_maps(&mut text).unwrap();
    let pad = " ".repeat(25);
    let expected = format!(
        "7ffe00000000-7ffe00001000 r--s 00003000 08:01 42{pad}/file\n\
         7ffe00001000-7ffe00002000 ---p 00000000 00:00 0 \n"
    );
    assert_eq!(text, expected);
    assert_eq!(
        flags(&calls, 0),
        "rd,mr,me,ms",
        "a read-only file never becomes writable when shared"
    );
}

#[test]
fn rule_11_addresses() {
    let mut space = space();
    let mut calls = space.get_mut();
    let top = calls.mmap(anonymous(0, 1, 3)).unwrap();
    assert_eq!(top, BASE - PAGE, "the highest gap below the base");
    let huge = calls.mmap(anonymous(0, 512, 3)).unwrap();
    assert_eq!((huge % (2 << 20), huge), (0, BASE - (4 << 20)), "a multiple of 2 MiB is aligned");
    let file = calls.mmap(of_file(&File::huge_aligned(), 0, 1200, 1, 3)).unwrap();
    assert_eq!((file - 3 * PAGE) % (2 << 20), 0, "so is a map with a whole 2 MiB of a file");
    let mut stack = anonymous(AT, 1, 3);
    stack.flags |= MapFlags::GROWSDOWN;
    calls.mmap(stack).unwrap();
    let hint = MapRequest {
        flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS,
        ..anonymous(AT - 9 * PAGE, 1, 3)
    };
    assert_ne!(calls.mmap(hint.clone()), Ok(AT - 9 * PAGE), "256 pages below a stack stay free");
    let free = MapRequest { addr: AT - 900 * PAGE, ..hint.clone() };
    assert_eq!(calls.mmap(free), Ok(AT - 900 * PAGE), "a free hint is taken");
    let mut only_there = anonymous(AT, 1, 3);
    only_there.flags = hint.flags | MapFlags::FIXED_NOREPLACE;
    assert_eq!(calls.mmap(only_there), Err(Error::Occupied));
}

fn fixed_move(from: usize, pages: usize, to: usize) -> RemapRequest {
    RemapRequest::moving(from, pages * PAGE, to)
}

#[test]
fn rule_12_a_fixed_move_takes_several_vmas_and_keeps_their_holes() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 2, 3);
    map(&mut calls, 3, 1, 1);
    map(&mut calls, 20, 5, 4);
    calls.mremap(fixed_move(AT, 4, AT + 20 * PAGE)).unwrap();
    // Where the source has a hole, the target stays unchanged.
    assert_eq!(shape(&calls), [(20, 2), (22, 1), (23, 1), (24, 1)]);
    assert_eq!(calls.mremap(fixed_move(AT, 4, AT + 40 * PAGE)), Err(Error::NotOneVma));
    let stay =
        RemapRequest { dont_unmap: Some(0), fixed: None, ..fixed_move(AT + 20 * PAGE, 2, 0) };
    let moved = calls.mremap(stay).unwrap();
    assert_eq!(calls.area_at(moved).unwrap().vma.flags.to_string(), "rd,wr,mr,mw,me,ac");
    assert_eq!(flags(&calls, 20), "rd,wr,mr,mw,me,ac", "DONTUNMAP keeps the account flag");
}

#[test]
fn rule_13_locked_memory_that_becomes_writable_is_written_at_once() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 1, 1);
    calls.mlock(AT, PAGE, false).unwrap();
    assert!(!calls.area_at(AT).unwrap().vma.is_faulted());
    calls.mprotect(AT, PAGE, 3, None).unwrap();
    assert!(calls.area_at(AT).unwrap().vma.is_faulted());
    calls.mlockall(LockAll { future: true, ..LockAll::default() }).unwrap();
    map(&mut calls, 10, 1, 3);
    assert!(calls.area_at(AT + 10 * PAGE).unwrap().vma.is_faulted());
    assert_eq!(flags(&calls, 10), "rd,wr,mr,mw,me,lo,ac");
    calls.munlockall().unwrap();
    assert_eq!(flags(&calls, 10), "rd,wr,mr,mw,me,ac");
}

#[test]
fn rule_14_remapped_file_pages_and_grown_stacks() {
    let mut space = space();
    let mut calls = space.get_mut();
    let file = File::regular();
    let shared =
        MapRequest { flags: MapFlags::SHARED | MapFlags::FIXED, ..of_file(&file, AT, 4, 3, 0) };
    calls.mmap(shared).unwrap();
    calls.madvise(AT, 4 * PAGE, Advice::Random).unwrap();
    calls.remap_file_pages(AT + PAGE, PAGE, 7).unwrap();
    assert_eq!(shape(&calls), [(0, 1), (1, 1), (2, 2)]);
    let area = calls.area_at(AT + PAGE).unwrap();
    assert_eq!(area.vma.offset_at(area.start), 7);
    assert_eq!(area.vma.flags.to_string(), "rd,wr,sh,mr,mw,me,ms", "with fresh flags");
    let mut stack = anonymous(AT + 600 * PAGE, 1, 3);
    stack.flags |= MapFlags::GROWSDOWN;
    calls.mmap(stack).unwrap();
    calls.grow_down(AT + 601 * PAGE, AT + 590 * PAGE).unwrap();
    assert_eq!(shape(&calls)[3], (590, 11));
    assert_eq!(calls.grow_down(AT + 601 * PAGE, AT + PAGE), Err(Error::NoSpace));
}

#[test]
fn sealed_vmas_stay() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 4, 1);
    calls.mseal(AT + 2 * PAGE, 2 * PAGE).unwrap();
    for refused in [
        calls.munmap(AT + 2 * PAGE, PAGE),
        calls.mprotect(AT + 3 * PAGE, PAGE, 3, None),
        calls.mmap(anonymous(AT + 2 * PAGE, 1, 3)).map(drop),
        calls.mremap(fixed_move(AT + 2 * PAGE, 1, AT + 9 * PAGE)).map(drop),
        calls.madvise(AT + 2 * PAGE, PAGE, Advice::DontNeed),
    ] {
        assert_eq!(refused, Err(Error::Sealed));
    }
    assert_eq!(shape(&calls), [(0, 2), (2, 2)]);
    // Linux splits at the start of the range before it meets the seal, and does not undo the split.
    assert_eq!(calls.munmap(AT + PAGE, 2 * PAGE), Err(Error::Sealed));
    assert_eq!(shape(&calls), [(0, 1), (1, 1), (2, 2)]);
}

#[test]
fn segments_detach_as_a_whole() {
    let mut space = space();
    let mut calls = space.get_mut();
    let request =
        AttachRequest { addr: Some(AT), ..AttachRequest::new(File::segment(4 * PAGE), 4 * PAGE) };
    assert_eq!(calls.shmat(request.clone()), Ok(AT));
    assert_eq!(calls.shmat(request), Err(Error::WrongKind), "the range is in use");
    calls.munmap(AT, PAGE).unwrap();
    calls.mprotect(AT + 2 * PAGE, PAGE, 1, None).unwrap();
    assert_eq!(shape(&calls), [(1, 1), (2, 1), (3, 1)]);
    calls.shmdt(AT).unwrap();
    assert_eq!(calls.count(), 0);
    assert_eq!(calls.shmdt(AT), Err(Error::WrongKind));
}

#[test]
fn bad_arguments_change_nothing() {
    let mut space = space();
    let mut calls = space.get_mut();
    map(&mut calls, 0, 2, 3);
    let before = common::picture(&calls);
    assert_eq!(calls.munmap(AT + 1, PAGE), Err(Error::Unaligned));
    assert_eq!(calls.munmap(AT, 0), Err(Error::BadRange));
    assert_eq!(calls.munmap(AT, usize::MAX), Err(Error::BadRange));
    assert_eq!(calls.mprotect(AT, PAGE, 64, None), Err(Error::BadFlags));
    assert_eq!(calls.mmap(MapRequest { len: 0, ..anonymous(0, 1, 3) }), Err(Error::BadRange));
    assert_eq!(
        calls.mmap(MapRequest { len: usize::MAX, ..anonymous(0, 1, 3) }),
        Err(Error::TooLong)
    );
    let both = MapRequest { flags: MapFlags::empty(), ..anonymous(0, 1, 3) };
    assert_eq!(calls.mmap(both), Err(Error::BadFlags));
    let writable =
        MapRequest { flags: MapFlags::SHARED, ..of_file(&File::read_only(), 0, 1, 3, 0) };
    assert_eq!(calls.mmap(writable), Err(Error::Access));
    assert_eq!(calls.mremap(fixed_move(AT, 2, AT + PAGE)), Err(Error::BadRange), "onto itself");
    assert_eq!(common::picture(&calls), before);
}
