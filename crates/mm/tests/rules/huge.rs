//! Huge pages: as small ones to a program, whatever cuts, copies, moves or pins them.

use crate::common::*;
use machine::{Asid, Frame, VirtAddr};
use mm::*;
use sim::Sim;
use std::sync::atomic::Ordering::SeqCst;

const AT: usize = 0x4000_0000;

fn huge_space(shared: &SharedPaging, asid: u16) -> Space {
    let space = new_space(shared, asid).unwrap();
    space.set_huge_pages(HugePages::Always).unwrap();
    space
}

/// Runs a test in a space with huge pages that is active on the only CPU.
fn with_huge(frames: u64, test: impl FnOnce(&Sim, &SharedPaging, &Space)) {
    with_space(frames, |sim, shared, space| {
        space.set_huge_pages(HugePages::Always).unwrap();
        test(sim, shared, space);
    });
}

fn huge_bytes(space: &Space) -> usize {
    space.usage(0..1 << 46).huge
}

#[test]
fn a_first_touch_brings_in_two_mib() {
    with_huge(4096, |sim, _, space| {
        space.mmap(AT + PAGE, 3 * HUGE, 3, FIXED).unwrap();
        store(sim, space, AT + HUGE + 0x5008, 7).unwrap();
        assert_eq!(space.resident(AT..AT + 4 * HUGE), 512);
        assert_eq!(huge_bytes(space), HUGE);
        assert_eq!(load(sim, space, AT + HUGE + 0x5008), Ok(7));
        assert_eq!(load(sim, space, AT + HUGE), Ok(0));
        // At the ends of the VMA there is no room for one.
        store(sim, space, AT + PAGE, 1).unwrap();
        store(sim, space, AT + 3 * HUGE, 1).unwrap();
        assert_eq!(space.resident(AT..AT + 4 * HUGE), 514);
        let mut smaps = String::new();
        space.write_smaps(&mut smaps).unwrap();
        assert!(smaps.contains("AnonHugePages:      2048 kB"), "{smaps}");
        assert!(smaps.contains("THPeligible:           1"), "{smaps}");
        let mut entries = [0; 3];
        space.pagemap(AT + HUGE + 3 * PAGE, &mut entries);
        assert_eq!(entries[1], entries[0] + 1);
        assert!(entries[0] & pagemap::PRESENT != 0);
        let mut present = [0; 514];
        space.mincore(AT + HUGE - PAGE, &mut present).unwrap();
        assert_eq!((present[0], present[1], present[512], present[513]), (0, 1, 1, 0));
    });
}

#[test]
fn locked_memory_comes_in_huge_pages() {
    with_huge(4096, |sim, _, space| {
        space.mmap(AT + PAGE, 3 * HUGE, 3, FIXED).unwrap();
        let before = sim.stats().flushes;
        space.mlock(AT + PAGE, 3 * HUGE, false).unwrap();
        assert_eq!(sim.stats().flushes - before, 0, "each page is touched once");
        assert_eq!((huge_bytes(space), space.resident(AT..AT + 4 * HUGE)), (2 * HUGE, 1536));
        space.munlock(AT + PAGE, 3 * HUGE).unwrap();
        space.madvise(AT + PAGE, 3 * HUGE, Advice::DontNeed).unwrap();
        space.madvise(AT + PAGE, 3 * HUGE, Advice::PopulateWrite).unwrap();
        assert_eq!((huge_bytes(space), space.resident(AT..AT + 4 * HUGE)), (2 * HUGE, 1536));
    });
}

#[test]
fn the_policy_and_the_advice_decide() {
    with_huge(4096, |sim, shared, space| {
        let at = space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        space.madvise(at, HUGE, Advice::NoHugePage).unwrap();
        store(sim, space, at, 1).unwrap();
        assert_eq!(huge_bytes(space), 0);
        // The policy of advice.
        let other = new_space(shared, 2).unwrap();
        other.set_huge_pages(HugePages::Madvise).unwrap();
        let at = other.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        other.madvise(at, HUGE, Advice::HugePage).unwrap();
        other.write(at, &[1]).unwrap();
        other.write(at + HUGE, &[1]).unwrap();
        assert_eq!((huge_bytes(&other), other.resident(at..at + 2 * HUGE)), (HUGE, 513));
        // Disabled while the space is in use: no new ones, and those that exist stay.
        other.madvise(at + HUGE, HUGE, Advice::HugePage).unwrap();
        other.madvise(at + HUGE, HUGE, Advice::DontNeed).unwrap();
        other.set_huge_pages(HugePages::Disabled).unwrap();
        other.madvise(at + HUGE, HUGE, Advice::PopulateWrite).unwrap();
        assert_eq!(huge_bytes(&other), HUGE);
        let refused = other.madvise(at + HUGE, HUGE, Advice::Collapse).unwrap_err();
        assert_eq!(refused, Error::Collapse(CollapseError::NoPages));
        assert_eq!(other.fork(Asid(4)).unwrap().huge_pages(), HugePages::Disabled);
        other.set_huge_pages(HugePages::Never).unwrap();
        other.madvise(at + HUGE, HUGE, Advice::Collapse).unwrap();
        assert_eq!(huge_bytes(&other), 2 * HUGE);
        // None at all, which is where a space begins.
        let other = new_space(shared, 3).unwrap();
        let at = other.mmap(AT, HUGE, 3, FIXED).unwrap();
        other.madvise(at, HUGE, Advice::HugePage).unwrap();
        other.write(at, &[1]).unwrap();
        assert_eq!(huge_bytes(&other), 0);
    });
}

#[test]
fn reads_find_the_huge_zero_page() {
    with_huge(4096, |sim, _, space| {
        let at = space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        assert_eq!(load(sim, space, at + 8), Ok(0));
        assert_eq!(load(sim, space, at + HUGE + 8), Ok(0));
        assert_eq!(space.totals().resident, 0, "the zero page does not count");
        store(sim, space, at + PAGE, 5).unwrap();
        assert_eq!((huge_bytes(space), load(sim, space, at + PAGE)), (HUGE, Ok(5)));
        // A part of the zero page is unmapped; a page written in the rest is a small one.
        space.munmap(at + HUGE, PAGE).unwrap();
        store(sim, space, at + HUGE + PAGE, 6).unwrap();
        assert_eq!(huge_bytes(space), HUGE);
        assert_eq!(load(sim, space, at + HUGE + 2 * PAGE), Ok(0));
    });
}

#[test]
fn a_page_that_is_cut_keeps_its_contents() {
    with_huge(8192, |sim, _, space| {
        let value = |page: usize| page as u64 + 1;
        for what in 0..7 {
            space.mmap(AT, HUGE, 3, FIXED).unwrap();
            (0..512).step_by(5).for_each(|page| {
                store(sim, space, AT + page * PAGE, value(page)).unwrap();
            });
            assert_eq!(huge_bytes(space), HUGE);
            let (from, len) = (AT + 100 * PAGE, 105 * PAGE);
            match what {
                0 => space.munmap(from, len).unwrap(),
                1 => space.madvise(from, len, Advice::DontNeed).unwrap(),
                2 => space.mprotect(from, len, 1, None).unwrap(),
                3 => space.madvise(from, len, Advice::GuardInstall).unwrap(),
                4 => drop(space.mmap(from, len, 3, FIXED).unwrap()),
                5 => space.mlock(from, len, false).unwrap(),
                _ => drop(space.mremap(RemapRequest::moving(from, len, AT + 2 * HUGE)).unwrap()),
            }
            for page in (0..512).step_by(5) {
                let cut = (100..205).contains(&page);
                let found = load(sim, space, AT + page * PAGE);
                match (cut, what) {
                    (false, _) | (true, 2 | 5) => assert_eq!(found, Ok(value(page)), "{what}"),
                    (true, 0) => assert!(matches!(found, Err(FaultError::Unmapped(_)))),
                    (true, 1 | 4) => assert_eq!(found, Ok(0), "{what}"),
                    (true, 3) => assert!(matches!(found, Err(FaultError::Guard(_)))),
                    _ => {
                        let moved = AT + 2 * HUGE + (page - 100) * PAGE;
                        assert_eq!(load(sim, space, moved), Ok(value(page)));
                    }
                }
            }
            space.munmap(AT, 4 * HUGE).unwrap();
        }
    });
}

#[test]
fn whole_pages_move_as_they_are() {
    with_huge(16384, |sim, _, space| {
        let (from, to) = (AT + 509 * PAGE, AT + 8 * HUGE + 509 * PAGE);
        space.mmap(AT, 4 * HUGE, 3, FIXED).unwrap();
        for page in (0..4 * 512).step_by(5) {
            store(sim, space, AT + page * PAGE, page as u64 + 1).unwrap();
        }
        // A table that is left empty at the target is in the way of none.
        space.mmap(AT + 9 * HUGE + PAGE, PAGE, 3, FIXED).unwrap();
        store(sim, space, AT + 9 * HUGE + PAGE, 1).unwrap();
        assert_eq!(huge_bytes(space), 4 * HUGE);
        let move_to = |addr, len, to| space.mremap(RemapRequest::moving(addr, len, to));
        // Two whole pages, and parts of their neighbours.
        let before = sim.stats().flushes;
        move_to(from, 2 * HUGE + 10 * PAGE, to).unwrap();
        assert_eq!(huge_bytes(space), 2 * HUGE);
        assert_eq!(space.usage(AT + 9 * HUGE..AT + 11 * HUGE).huge, 2 * HUGE);
        for page in (0..4 * 512).step_by(5) {
            let moved = (509..509 + 2 * 512 + 10).contains(&page);
            let at = AT + page * PAGE + if moved { 8 * HUGE } else { 0 };
            assert_eq!(load(sim, space, at), Ok(page as u64 + 1), "{page}");
        }
        assert!(load(sim, space, AT + HUGE).is_err());
        assert!(sim.stats().flushes > before);
        // Elsewhere within 2 MiB they become small.
        move_to(AT + 9 * HUGE, HUGE, AT + 16 * HUGE + PAGE).unwrap();
        assert_eq!(huge_bytes(space), HUGE);
        // A fork shares them; the child moves its own.
        let child = space.fork(Asid(2)).unwrap();
        load(sim, space, AT + 10 * HUGE).unwrap();
        move_to(AT + 10 * HUGE, HUGE, AT + 20 * HUGE).unwrap();
        assert!(load(sim, space, AT + 10 * HUGE).is_err());
        let word = word(&child, AT + 10 * HUGE + 6 * PAGE);
        let moved = load(sim, space, AT + 20 * HUGE + 6 * PAGE).unwrap();
        assert_eq!((word, huge_bytes(space)), (moved, HUGE));
        assert_eq!(huge_bytes(&child), HUGE);
        drop(child);
        // Nothing else flushes: the tables are the space's own, and stay.
        load(sim, space, AT + 20 * HUGE).unwrap();
        move_to(AT + 20 * HUGE, HUGE, AT + 24 * HUGE).unwrap();
        assert!(load(sim, space, AT + 20 * HUGE).is_err());
    });
}

#[test]
fn forks_share_and_copy_parts() {
    with_huge(8192, |sim, _, space| {
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        store(sim, space, AT + HUGE, 2).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(huge_bytes(&child), 2 * HUGE);
        store(sim, space, AT + PAGE, 3).unwrap();
        assert_eq!((huge_bytes(space), huge_bytes(&child)), (HUGE, 2 * HUGE));
        let word = word(&child, AT + PAGE);
        assert_eq!(word, 0);
        child.write(AT + HUGE + 8, &[9]).unwrap();
        assert_eq!(load(sim, space, AT + HUGE + 8), Ok(0));
        drop(child);
        // The last holder takes the whole page over.
        store(sim, space, AT + HUGE, 4).unwrap();
        assert_eq!(load(sim, space, AT), Ok(1));
        assert_eq!(huge_bytes(space), HUGE);
        // The child of a space with huge pages has the policy.
        let child = space.fork(Asid(2)).unwrap();
        child.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        child.write(AT, &[1]).unwrap();
        assert_eq!(huge_bytes(&child), HUGE);
    });
}

#[test]
fn pins_keep_a_huge_page_through_forks_and_cuts() {
    with_huge(8192, |sim, _, space| {
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        store(sim, space, AT + 3 * PAGE, 1).unwrap();
        let mut frames = [Frame::default(); 4];
        let pins = space.pin_pages(AT + 2 * PAGE, Access::Write, &mut frames).unwrap();
        assert_eq!(pins.frames().len(), 4);
        let child = space.fork(Asid(2)).unwrap();
        // The holder of the pins sees the program's write: the page is still the same.
        store(sim, space, AT + 3 * PAGE, 2).unwrap();
        let seen = pinned_words(sim, pins.frames()[1])[0].load(SeqCst);
        assert_eq!(seen, 2);
        let found = word(&child, AT + 3 * PAGE);
        assert_eq!(found, 1);
        space.munmap(AT + PAGE, 4 * PAGE).unwrap();
        assert_eq!(pinned_words(sim, pins.frames()[1])[0].load(SeqCst), 2);
        store(sim, space, AT + 100 * PAGE, 3).unwrap();
        drop(pins);
        drop(child);
        assert_eq!(load(sim, space, AT + 100 * PAGE), Ok(3));
    });
}

#[test]
fn a_group_counts_and_refuses_huge_pages() {
    with_space(4096, |sim, shared, _| {
        let group = FrameGroup::try_new(sim, 600, Box::new(())).unwrap();
        let mut space = huge_space(shared, 2);
        space.set_group(&group).unwrap();
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        space.write(AT, &[1]).unwrap();
        assert_eq!(group.used(), 512);
        // The second one does not fit: a small page comes.
        space.write(AT + HUGE, &[1]).unwrap();
        assert_eq!((group.used(), huge_bytes(&space)), (513, HUGE));
        // Cut in two, each half counts until its last frame is free.
        space.munmap(AT, 256 * PAGE).unwrap();
        assert_eq!(group.used(), 257);
        let child = space.fork(Asid(3)).unwrap();
        drop(child);
        drop(space);
        assert_eq!(group.used(), 0);
    });
}

#[test]
fn without_a_block_small_pages_do() {
    with_huge(900, |sim, _, space| {
        space.mmap(AT, 4 * HUGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        store(sim, space, AT + HUGE, 2).unwrap();
        assert_eq!((huge_bytes(space), space.resident(AT..AT + 4 * HUGE)), (HUGE, 513));
    });
}

#[test]
fn a_debugger_reaches_huge_pages() {
    with_huge(4096, |_, _, space| {
        space.mmap(AT, HUGE, 3, FIXED).unwrap();
        space.write(AT, b"huge").unwrap();
        space.mprotect(AT, HUGE, 0, None).unwrap();
        space.poke(AT + 1, b"o").unwrap();
        let mut found = [0; 4];
        space.peek(AT, &mut found).unwrap();
        assert_eq!(&found, b"hoge");
        assert_eq!(huge_bytes(space), HUGE);
    });
}

#[test]
fn a_fault_out_of_memory_changes_nothing() {
    with_huge(4096, |sim, _, space| {
        space.mmap(AT, 2 * HUGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        for nth in 1..8 {
            sim.fail_alloc(nth, true);
            let at = VirtAddr::new((AT + 5 * PAGE) as u64);
            let written = space.handle_fault(at, Access::Write);
            let cut = child.munmap(AT + 7 * PAGE, PAGE);
            sim.fail_alloc(0, false);
            let mut found = [0; 1];
            for space in [space, &child] {
                space.read(AT, &mut found).unwrap();
                assert_eq!(found, [1]);
            }
            if written.is_ok() && cut.is_ok() {
                break;
            }
            let whole = child.read(AT + 7 * PAGE, &mut found);
            assert_eq!(whole.is_ok(), cut.is_err());
            if cut.is_ok() {
                break;
            }
        }
    });
}

#[test]
fn collapse_makes_written_memory_huge() {
    with_space(8192, |sim, _, space| {
        let at = space.mmap(AT, 3 * HUGE, 3, FIXED).unwrap();
        let refused = |done: Result<(), Error>| done.unwrap_err().errno();
        assert_eq!(refused(space.madvise(at, HUGE, Advice::Collapse)), 22, "never written");
        for page in (0..600).step_by(3) {
            store(sim, space, at + page * PAGE, page as u64).unwrap();
        }
        load(sim, space, at + PAGE).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        store(sim, space, at + 3 * PAGE, 1000).unwrap();
        // The second one is collapsed, too; the third has no page.
        assert_eq!(refused(space.madvise(at, 3 * HUGE, Advice::Collapse)), 22);
        assert_eq!((huge_bytes(space), huge_bytes(&child)), (2 * HUGE, 0));
        for page in 0..700 {
            let written = if page % 3 == 0 && page < 600 { page as u64 } else { 0 };
            let expected = if page == 3 { 1000 } else { written };
            assert_eq!(load(sim, space, at + page * PAGE), Ok(expected), "{page}");
            let word = word(&child, at + page * PAGE);
            assert_eq!(word, written);
        }
        space.madvise(at, 2 * HUGE, Advice::Collapse).unwrap();
        drop(child);
        // A part is cut off again.
        space.munmap(at + PAGE, PAGE).unwrap();
        assert_eq!(load(sim, space, at + 3 * PAGE), Ok(1000));
        store(sim, space, at + 4 * PAGE, 4).unwrap();
        assert_eq!(huge_bytes(space), HUGE);
        // The first VMA has no room for a huge page.
        assert_eq!(refused(space.madvise(at, HUGE, Advice::Collapse)), 22);
    });
}

#[test]
fn what_cannot_become_huge_stays_as_it_was() {
    with_space(8192, |sim, shared, space| {
        let at = space.mmap(AT, HUGE, 3, FIXED).unwrap();
        (0..512).for_each(|page| store(sim, space, at + page * PAGE, page as u64).unwrap());
        let refused = |space: &Space| {
            let done = space.madvise(at, HUGE, Advice::Collapse);
            (0..512).for_each(|page| {
                assert_eq!(load(sim, space, at + page * PAGE), Ok(page as u64));
                store(sim, space, at + page * PAGE, page as u64).unwrap();
            });
            done.map_err(|error| error.errno())
        };
        let mut frames = [Frame::default()];
        let pins = space.pin_pages(at + 5 * PAGE, Access::Write, &mut frames).unwrap();
        assert_eq!(refused(space), Err(11), "a page is pinned");
        assert_eq!(pinned_words(sim, pins.frames()[0])[0].load(SeqCst), 5);
        drop(pins);
        space.madvise(at, HUGE, Advice::NoHugePage).unwrap();
        assert_eq!(refused(space), Err(22));
        space.madvise(at, HUGE, Advice::HugePage).unwrap();
        for nth in 1..20 {
            sim.fail_alloc(nth, true);
            let done = space.madvise(at, HUGE, Advice::Collapse);
            let failed = sim.alloc_failed();
            sim.fail_alloc(0, false);
            if !failed {
                done.unwrap();
                break;
            }
            assert_eq!(done.unwrap_err().errno(), 12);
            assert_eq!(huge_bytes(space), 0);
        }
        assert_eq!(refused(space), Ok(()));
        assert_eq!(huge_bytes(space), HUGE);
        // A guard page, an object, a device of a group.
        space.madvise(at + PAGE, PAGE, Advice::GuardInstall).unwrap();
        let guarded = space.madvise(at, HUGE, Advice::Collapse).unwrap_err();
        assert_eq!(guarded, Error::Collapse(CollapseError::NoPages));
        assert_eq!(load(sim, space, at + 2 * PAGE), Ok(2));
        let memory = memfd(shared, HUGE / PAGE);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let at = space.mmap_object(AT + HUGE, HUGE, 3, flags, opened(&memory), 0);
        let shared = space.madvise(at.unwrap(), HUGE, Advice::Collapse).unwrap_err();
        assert_eq!(shared.errno(), 22);
        assert_eq!(space.madvise(AT + 100 * HUGE, HUGE, Advice::Collapse).unwrap_err().errno(), 12);
    });
}
