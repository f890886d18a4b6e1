//! munmap of VMAs that no fault has used removes no pages; of all others it removes every page,
//! however the page came there.

use crate::common::*;
use grace::Reclaim as _;
use machine::{Asid, VirtAddr, VirtRange};
use mm::*;
use sim::{Config, Failure, Grace, Sim, seeded};

/// The pages of a range that are present.
fn present(space: &Space, len: usize) -> usize {
    let guard = Grace::pin();
    let range = VirtRange::new(VirtAddr::new(BASE as u64), len as u64).unwrap();
    space.walk(&guard).pages(range).count()
}

/// Maps, lets `bring_in` bring in pages, and unmaps. No page is left, and the next map is empty.
fn leaves_nothing(bring_in: impl FnOnce(&Sim, &Space)) {
    with_space(256, |sim, _, space| {
        let len = 4 * PAGE;
        space.mmap(BASE, len, 3, FIXED).unwrap();
        bring_in(sim, space);
        assert_ne!(present(space, len), 0, "the test brings in no page");
        space.munmap(BASE, len).unwrap();
        assert_eq!(present(space, len), 0);
        space.mmap(BASE, len, 3, FIXED).unwrap();
        for page in 0..4 {
            assert_eq!(load(sim, space, BASE + page * PAGE), Ok(0));
        }
    });
}

#[test]
fn reads_and_writes() {
    leaves_nothing(|sim, space| assert_eq!(load(sim, space, BASE), Ok(0)));
    leaves_nothing(|sim, space| store(sim, space, BASE, 5).unwrap());
    leaves_nothing(|_, space| space.madvise(BASE, PAGE, Advice::PopulateRead).unwrap());
}

#[test]
fn guard_pages() {
    leaves_nothing(|_, space| space.madvise(BASE, PAGE, Advice::GuardInstall).unwrap());
    // Those of a file give the VMA no anon_vma.
    with_space(256, |sim, shared, space| {
        let memory = memfd(shared, 1);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        space.mmap_object(BASE, PAGE, 3, flags, opened(&memory), 0).unwrap();
        space.madvise(BASE, PAGE, Advice::GuardInstall).unwrap();
        space.munmap(BASE, PAGE).unwrap();
        space.mmap(BASE, PAGE, 3, FIXED).unwrap();
        assert_eq!(load(sim, space, BASE), Ok(0));
    });
}

#[test]
fn a_part_after_a_cut() {
    leaves_nothing(|sim, space| {
        // Each call stores another VMA, or the same over another range.
        assert_eq!(load(sim, space, BASE + PAGE), Ok(0));
        space.mprotect(BASE, PAGE, 1, None).unwrap();
        space.mprotect(BASE + PAGE, 2 * PAGE, 1, None).unwrap();
        space.munmap(BASE + 3 * PAGE, PAGE).unwrap();
    });
}

#[test]
fn a_merge_with_a_touched_neighbour() {
    // The new map joins the VMAs on both sides, of which one is touched.
    for touched in [BASE, BASE + 2 * PAGE] {
        leaves_nothing(|sim, space| {
            space.munmap(BASE, 4 * PAGE).unwrap();
            for (at, len) in [(BASE, PAGE), (BASE + 2 * PAGE, 2 * PAGE)] {
                space.mmap(at, len, 3, FIXED).unwrap();
            }
            assert_eq!(load(sim, space, touched), Ok(0));
            space.mmap(BASE + PAGE, PAGE, 3, FIXED).unwrap();
            let maps = listing(space);
            assert_eq!(maps.lines().count(), 1, "{maps}");
        });
    }
}

#[test]
fn a_move_takes_the_mark_along() {
    leaves_nothing(|sim, space| {
        assert_eq!(load(sim, space, BASE), Ok(0));
        let away = BASE + (64 << 20);
        for (addr, to) in [(BASE, away), (away, BASE)] {
            space.mremap(RemapRequest::moving(addr, 4 * PAGE, to)).unwrap();
        }
    });
}

#[test]
fn a_child_reads_what_its_parent_has_not_touched() {
    with_space(512, |sim, _, space| {
        space.mmap(BASE, 2 * PAGE, 3, FIXED).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(load(sim, space, BASE), Ok(0));
        activate(&child);
        assert_eq!(load(sim, &child, BASE + PAGE), Ok(0));
        for one in [space, &child] {
            one.munmap(BASE, 2 * PAGE).unwrap();
            assert_eq!(present(one, 2 * PAGE), 0);
        }
        activate(space);
        leave(&child);
    });
}

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 1000 };

/// One CPU unmaps a part of an untouched VMA. Others read the part and the rest. A read of the part
/// that began before must not leave a page in the hole.
fn during_faults(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), ..racing(3, 128) };
    let race = Race::new(config, |space| _ = space.mmap(BASE, 2 * PAGE, 3, FIXED).unwrap());
    let (sim, space) = (&race.sim, &*race.space);
    let unmaps = race.active(|| space.munmap(BASE, PAGE).unwrap());
    let reads = |page: usize| {
        race.active(move || match load(sim, space, BASE + page * PAGE) {
            Ok(0) | Err(FaultError::Unmapped(_)) => {}
            other => panic!("{other:?}"),
        })
    };
    seeded(sim, seed, vec![unmaps, reads(0), reads(1)])?;
    sim.on_cpu(0, || assert_eq!(present(space, PAGE), 0, "a page is in the hole"));
    race.end(())
}

#[test]
fn a_part_is_unmapped_during_faults() {
    each_seed(SEEDS, during_faults);
}
