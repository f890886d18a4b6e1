//! munmap of VMAs that no fault has used removes no pages; of all others it removes every page,
//! however the page came there.

mod common;

use common::*;
use grace::Reclaim as _;
use machine::{Asid, VirtAddr, VirtRange};
use mm::*;
use sim::{Grace, Sim};

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
    // The new map joins the untouched VMA below it, and then the touched one above.
    leaves_nothing(|sim, space| {
        space.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!(load(sim, space, BASE + 2 * PAGE), Ok(0));
        space.mmap(BASE + PAGE, PAGE, 3, FIXED).unwrap();
        let mut maps = String::new();
        space.write_maps(&mut maps).unwrap();
        assert_eq!(maps.lines().count(), 1, "{maps}");
    });
    // The touched VMA is below.
    leaves_nothing(|sim, space| {
        space.munmap(BASE + PAGE, PAGE).unwrap();
        assert_eq!(load(sim, space, BASE), Ok(0));
        space.mmap(BASE + PAGE, PAGE, 3, FIXED).unwrap();
    });
}

#[test]
fn a_move_takes_the_mark_along() {
    leaves_nothing(|sim, space| {
        assert_eq!(load(sim, space, BASE), Ok(0));
        let away = BASE + (64 << 20);
        for (addr, to) in [(BASE, away), (away, BASE)] {
            let (old_len, new_len, fixed) = (4 * PAGE, 4 * PAGE, Some(to));
            let may_move = true;
            let request =
                RemapRequest { addr, old_len, new_len, may_move, fixed, dont_unmap: None };
            space.mremap(request).unwrap();
        }
    });
}

#[test]
fn a_child_reads_what_its_parent_has_not_touched() {
    with_space(512, |sim, _, space| {
        space.mmap(BASE, 2 * PAGE, 3, FIXED).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        assert_eq!(load(sim, space, BASE), Ok(0));
        // SAFETY: no other mapping is needed, and no other tables have the tag.
        unsafe { child.activate() };
        assert_eq!(load(sim, &child, BASE + PAGE), Ok(0));
        for one in [space, &child] {
            one.munmap(BASE, 2 * PAGE).unwrap();
            assert_eq!(present(one, 2 * PAGE), 0);
        }
        // SAFETY: as above; the child is not active any more.
        unsafe {
            space.activate();
            child.leave();
        }
    });
}
