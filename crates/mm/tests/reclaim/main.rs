//! Reclaim: cold pages go to swap or back to their files, and come again as they were.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod marks;
mod model;
mod races;
#[path = "../common/ram.rs"]
mod ram;

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU64, Ordering},
};

use common::*;
use machine::{Asid, Frame};
use mm::*;
use proptest::{collection::vec, prelude::*};
use ram::Ram;
use sim::{Failure, Program, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 5_000 };
const AT: usize = 0x4000_0000;

/// Runs a test in a space with swap that is active on the only CPU.
fn with_swap(frames: u64, test: impl FnOnce(&Sim, &SharedPaging, &Arc<Ram>, &Space)) {
    let ram = Arc::new(Ram::default());
    on_machine(one_cpu(frames), Some(ram.clone()), |sim, shared| {
        let space = new_space(shared, 1).unwrap();
        activate(&space);
        test(sim, shared, &ram, &space);
        space
    });
    assert_eq!(ram.used(), 0, "every slot is free");
}

/// A host that makes room by reclaim in the space that asks.
struct Reclaims(Arc<OnceLock<Weak<Space>>>);

impl OnLimit for Reclaims {
    fn make_room(&self, needed: usize) -> bool {
        let Some(space) = self.0.get().and_then(Weak::upgrade) else { return false };
        // Not active, so no TLB sets the bits of use again.
        let aged = space.clear_referenced();
        aged.is_ok() && space.reclaim(needed).is_ok_and(|done| done.swapped > 0)
    }
}

/// A buffer that is larger than the limit of the group: each page that comes in would push out
/// another one, again and again, if nothing were pinned before all are there.
#[test]
fn a_lasting_pin_of_more_than_a_group_may_have_ends() {
    const LIMIT: usize = 8;
    with_swap(256, |sim, shared, _, _| {
        let asks = Arc::new(OnceLock::new());
        let group = FrameGroup::try_new(sim, LIMIT, Box::new(Reclaims(Arc::clone(&asks)))).unwrap();
        let mut space = new_space(shared, 2).unwrap();
        space.set_group(&group).unwrap();
        let space = Arc::new(space);
        asks.set(Arc::downgrade(&space)).unwrap();
        let at = space.mmap(0, 3 * LIMIT * PAGE, 3, PRIVATE).unwrap();
        for page in 0..3 * LIMIT {
            space.write(at + page * PAGE, &(page as u64).to_le_bytes()).unwrap();
        }
        let mut frames = [Frame::default(); 3 * LIMIT];
        let pins = space.pin_pages_long_term(at, &mut frames).unwrap();
        assert_eq!(pins.frames().len(), LIMIT);
        drop(pins);
        let mut found = [0; 8];
        for page in 0..3 * LIMIT {
            space.read(at + page * PAGE, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), page as u64);
        }
    });
}

/// As in Linux, pages in swap are no obstacle.
#[test]
fn pages_in_swap_become_a_huge_page() {
    with_swap(2048, |_, _, ram, space| {
        space.mmap(AT, HUGE, 3, FIXED).unwrap();
        for page in 0..9 {
            space.write(AT + page * PAGE, &(page as u64 + 1).to_le_bytes()).unwrap();
        }
        age(space);
        assert!(space.reclaim(5).unwrap().swapped > 0);
        space.madvise(AT, HUGE, Advice::Collapse).unwrap();
        assert_eq!((ram.used(), space.resident(AT..AT + HUGE)), (0, HUGE / PAGE));
        for page in 0..9 {
            assert_eq!(word(space, AT + page * PAGE), page as u64 + 1);
        }
    });
}

/// Forgets that pages were used: the CPU drops its translations, too.
fn age(space: &Space) {
    space.clear_referenced().unwrap();
    leave(space);
    activate(space);
}

#[test]
fn cold_pages_go_to_swap_and_come_back() {
    with_swap(256, |sim, _, ram, space| {
        let at = space.mmap(0, 8 * PAGE, 3, PRIVATE).unwrap();
        (0..8).for_each(|page| store(sim, space, at + page * PAGE, page as u64 + 1).unwrap());
        age(space);
        store(sim, space, at + 3 * PAGE, 40).unwrap();
        let done = space.reclaim(5).unwrap();
        assert_eq!((done.swapped, ram.used()), (5, 5));
        assert_eq!(space.resident(at..at + 8 * PAGE), 3);
        let usage = space.usage(at..at + 8 * PAGE);
        assert_eq!((usage.swap, usage.resident), (5 * PAGE, 3 * PAGE));
        let (mut entries, mut present) = ([0; 8], [0; 8]);
        space.pagemap(at, &mut entries);
        assert!(entries[0] & pagemap::SWAPPED != 0 && entries[3] & pagemap::SWAPPED == 0);
        space.mincore(at, &mut present).unwrap();
        assert_eq!((present[0], present[3]), (0, 1));
        // The rights change meanwhile, and a debugger looks.
        space.mprotect(at, 2 * PAGE, 1, None).unwrap();
        let mut found = [0];
        space.peek(at, &mut found).unwrap();
        assert_eq!(found, [1]);
        for page in 1..8 {
            let expected = if page == 3 { 40 } else { page as u64 + 1 };
            assert_eq!(load(sim, space, at + page * PAGE), Ok(expected), "{page}");
        }
        assert_eq!(ram.used(), 0);
        assert!(store(sim, space, at, 1).is_err(), "the rights are those of mprotect");
    });
}

#[test]
fn recently_used_pages_stay_for_a_round() {
    with_swap(256, |sim, _, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        (0..4).for_each(|page| store(sim, space, at + page * PAGE, 1).unwrap());
        // The first round takes the accessed bits, the second one pages.
        assert_eq!(space.reclaim(1).unwrap().swapped, 1);
        assert_eq!(space.reclaim(100).unwrap().swapped, 3);
        assert_eq!(space.totals().swap, 4 * PAGE);
    });
}

#[test]
fn the_hand_goes_on_where_it_has_stopped() {
    with_swap(256, |sim, _, _, space| {
        // In two tables.
        let far = AT + 512 * PAGE;
        space.mmap(AT, 1024 * PAGE, 3, FIXED).unwrap();
        (0..4).for_each(|page| store(sim, space, AT + page * PAGE, 1).unwrap());
        (0..4).for_each(|page| store(sim, space, far + page * PAGE, 1).unwrap());
        age(space);
        assert_eq!(space.reclaim(2).unwrap().swapped, 2);
        assert_eq!(space.reclaim(2).unwrap().swapped, 2);
        assert_eq!((space.resident(AT..far), space.resident(far..far + 512 * PAGE)), (0, 4));
        // A page that was used in another way than by translating.
        let at = |at: usize| machine::VirtAddr::new(at as u64);
        assert!(space.mark_accessed(at(far)) && !space.mark_accessed(at(far - PAGE)));
        assert_eq!(space.reclaim(3).unwrap().swapped, 3);
        assert_eq!(space.resident(far..far + PAGE), 1);
    });
}

#[test]
fn forks_share_what_is_in_swap() {
    with_swap(512, |sim, _, ram, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        (0..4).for_each(|page| store(sim, space, at + page * PAGE, page as u64 + 1).unwrap());
        assert_eq!(space.reclaim(4).unwrap().swapped, 4);
        let child = space.fork(Asid(2)).unwrap();
        child.write(at + 8, &[9]).unwrap();
        assert_eq!((word(&child, at), word(&child, at + 8), word(space, at + 8)), (1, 9, 0));
        let grandchild = child.fork(Asid(3)).unwrap();
        child.munmap(at + PAGE, PAGE).unwrap();
        assert_eq!(word(&grandchild, at + PAGE), 2);
        space.madvise(at + 2 * PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!((word(space, at + 2 * PAGE), word(&child, at + 2 * PAGE)), (0, 3));
        space.madvise(at + 3 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        let moved = grandchild.mremap(RemapRequest::moving(at, 4 * PAGE, at + 64 * PAGE));
        assert_eq!(word(&grandchild, moved.unwrap() + 3 * PAGE), 4);
        drop((child, grandchild));
        assert_eq!(ram.used(), 1);
    });
}

#[test]
fn locked_pinned_and_shared_pages_stay() {
    with_swap(512, |sim, _, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        (0..4).for_each(|page| store(sim, space, at + page * PAGE, 1).unwrap());
        space.mlock(at, PAGE, false).unwrap();
        let mut frames = [Frame::default()];
        let pins = space.pin_pages(at + PAGE, Access::Write, &mut frames).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(space.reclaim(100).unwrap().taken(), 0);
        drop(child);
        assert_eq!(space.reclaim(100).unwrap().swapped, 2);
        assert_eq!(space.resident(at..at + 2 * PAGE), 2);
        drop(pins);
        space.munlock(at, PAGE).unwrap();
        assert_eq!(space.reclaim(100).unwrap().swapped, 2);
    });
}

#[test]
fn a_store_that_fails_keeps_or_loses_pages_clearly() {
    with_swap(256, |sim, _, ram, space| {
        let at = space.mmap(0, 2 * PAGE, 3, PRIVATE).unwrap();
        (0..2).for_each(|page| store(sim, space, at + page * PAGE, 7).unwrap());
        ram.is_full.store(true, Ordering::Relaxed);
        assert_eq!(space.reclaim(2).unwrap().taken(), 0);
        assert_eq!(load(sim, space, at), Ok(7));
        store(sim, space, at, 8).unwrap();
        ram.is_full.store(false, Ordering::Relaxed);
        assert_eq!(space.reclaim(2).unwrap().swapped, 2);
        ram.is_broken.store(true, Ordering::Relaxed);
        assert!(matches!(load(sim, space, at), Err(FaultError::Poisoned(_))));
        ram.is_broken.store(false, Ordering::Relaxed);
        assert_eq!(load(sim, space, at), Ok(8));
        // Without memory for the page, it stays in swap.
        let page = machine::VirtAddr::new((at + PAGE) as u64);
        let fault = || space.handle_fault(page, Access::Read);
        let (failed, _) = without_frames(sim, 1, true, fault);
        assert!(matches!(failed, Err(FaultError::OutOfMemory(_))), "{failed:?}");
        assert_eq!(load(sim, space, at + PAGE), Ok(7));
    });
}

#[test]
fn huge_pages_are_split_and_then_taken() {
    with_swap(4096, |_, shared, _, _| {
        let space = new_space(shared, 2).unwrap();
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mmap(AT, 512 * PAGE, 3, FIXED).unwrap();
        space.write(AT + 5 * PAGE, &[5]).unwrap();
        assert_eq!(space.usage(AT..AT + 512 * PAGE).huge, 512 * PAGE);
        let mut taken = 0;
        for _ in 0..4 {
            taken += space.reclaim(512 - taken).unwrap().swapped;
        }
        assert_eq!((taken, space.resident(AT..AT + 512 * PAGE)), (512, 0));
        assert_eq!(word(&space, AT + 5 * PAGE), 5);
    });
}

/// Memory that was never touched has no lower tables, so the hand passes it by upper entries. One
/// step for each 2 MiB of a program's largest map would be minutes, with the mmap lock.
#[test]
fn the_hand_passes_untouched_memory_by_upper_entries() {
    with_swap(256, |sim, _, _, space| {
        let len = 64 << 30;
        let at = space.mmap(0, len, 3, PRIVATE).unwrap();
        [at, at + len - PAGE].iter().for_each(|page| store(sim, space, *page, 7).unwrap());
        age(space);
        let before = sim.stats().steps;
        assert_eq!(space.reclaim(usize::MAX).unwrap().swapped, 2);
        let steps = sim.stats().steps - before;
        assert!(steps < (len / HUGE) as u64, "{steps} steps");
    });
}
