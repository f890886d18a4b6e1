//! Moves of pages (mremap) that are refused: nothing changes (I7), and no table is lost.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use paging::*;
use sim::{Config, Grace};

const LARGE: u64 = 0x20_0000;
const GIANT: u64 = 0x4000_0000;
/// Five pages lie here, across two of the lowest tables.
const SMALL: u64 = 4 * LARGE - 0x3000;
/// One page lies here.
const TAKEN: u64 = 8 * LARGE;
/// A large page of 2 MiB lies here, and one of 1 GiB there.
const LARGE_PAGE: u64 = 16 * LARGE;
const GIANT_PAGE: u64 = 4 * GIANT;
/// Nothing is here.
const FREE: u64 = 2 * GIANT;

/// A program with the pages above, and whatever it has mapped.
fn program(shared: &Shared) -> (Space, Vec<Mapping>) {
    let space = Space::user(shared, Asid(1), None).unwrap();
    let device = |gib: u64| Frame::new(gib << 18).unwrap();
    let parts = [(SMALL, 5), (TAKEN, 1), (LARGE_PAGE, 512), (GIANT_PAGE, 512 * 512)];
    for ((at, count), number) in parts.into_iter().zip(64..) {
        space.map_own(pages(at, count), device(number), Attrs::USER_RW).unwrap();
    }
    let before = look(&space);
    assert_eq!(before.len(), 8);
    (space, before)
}

fn look(space: &Space) -> Vec<Mapping> {
    let all = VirtRange::between(virt(0), virt(16 * GIANT)).unwrap();
    space.walk(&Grace::pin()).pages(all).collect()
}

fn with_program(test: impl FnOnce(&Shared, Space, Vec<Mapping>)) {
    let (sim, shared) = machine_of(Config { frames: 128, ..Config::default() });
    sim.on_cpu(0, || {
        let (space, before) = program(&shared);
        test(&shared, space, before);
    });
    all_given_back(&sim, &shared).unwrap();
}

#[test]
fn a_refused_move_changes_nothing() {
    with_program(|_, space, before| {
        let cut = |at, size| Error::Cut(virt(at), size);
        let large = cut(LARGE_PAGE, PageSize::Size2M);
        let taken = Error::Occupied(virt(TAKEN));
        let top = 1 << 47;
        for (from, count, to, why) in [
            // The page in the way is the first, one in the middle, and the last of the target.
            (SMALL, 5, TAKEN, taken),
            (SMALL, 5, TAKEN - 0x2000, taken),
            (SMALL, 5, TAKEN - 0x4000, taken),
            // No page moves, but one is in the way.
            (FREE, 1, TAKEN, taken),
            // The page in the way is large, and the target is within it.
            (SMALL, 5, LARGE_PAGE + 0x7000, Error::Occupied(virt(LARGE_PAGE))),
            (SMALL, 5, GIANT_PAGE + LARGE, Error::Occupied(virt(GIANT_PAGE))),
            // The two ranges overlap, with a page there and without.
            (SMALL, 5, SMALL + 0x4000, Error::Overlap(virt(SMALL + 0x4000))),
            (SMALL, 10, SMALL + 0x5000, Error::Overlap(virt(SMALL + 0x5000))),
            (SMALL, 5, SMALL, Error::Overlap(virt(SMALL))),
            (FREE, 2, FREE - 0x1000, Error::Overlap(virt(FREE))),
            // A part of a large page, and a whole one that would lie otherwise.
            (LARGE_PAGE, 511, FREE, large),
            (LARGE_PAGE + 0x1000, 511, FREE + 0x1000, large),
            (LARGE_PAGE, 512, FREE + 0x1000, large),
            (GIANT_PAGE, 512 * 512, 8 * GIANT, cut(GIANT_PAGE, PageSize::Size1G)),
            // No such range.
            (SMALL, 0, FREE, Error::Empty),
            (SMALL, 5, FREE + 1, Error::Misaligned(virt(FREE + 1))),
            (SMALL, 5, u64::MAX - 0x1fff, Error::Empty),
            (SMALL, 5, top - 0x1000, Error::NotCanonical(virt(top + 0x3fff))),
            (SMALL, 5, !0 << 40, Error::Kernel(virt(!0 << 40))),
        ] {
            let refused = space.prepare_relocation(pages(from, count), virt(to)).map(drop);
            assert_eq!(refused, Err(why), "{count} pages from {from:#x} to {to:#x}");
            assert_eq!(look(&space), before);
        }
    });
}

/// A large page moves whole to where it lies alike, and a plan that is dropped gives its tables
/// back, which the end of the test checks.
#[test]
fn a_move_happens_only_when_it_is_carried_out() {
    with_program(|_, space, before| {
        let range = pages(LARGE_PAGE, 512);
        drop(space.prepare_relocation(range, virt(FREE)).unwrap());
        assert_eq!(look(&space), before);
        let plan = space.prepare_relocation(range, virt(FREE)).unwrap();
        space.relocate_own(plan).unwrap();
        let moved = |mut page: Mapping| {
            if page.page == virt(LARGE_PAGE) {
                page.page = virt(FREE);
            }
            page
        };
        assert_eq!(look(&space), before.into_iter().map(moved).collect::<Vec<_>>());
    });
}

/// Tables and flushes of other page tables are refused before a page moves.
#[test]
fn a_plan_serves_only_its_own_tables() {
    with_program(|shared, space, before| {
        let other = Space::user(shared, Asid(2), None).unwrap();
        let plan = || space.prepare_relocation(pages(SMALL, 5), virt(FREE)).unwrap();
        assert_eq!(other.relocate_own(plan()), Err(Error::NotTheTables));
        let mut pending = other.no_flush();
        // SAFETY: the pages are this test's.
        let moved = unsafe { space.relocate(plan(), &mut pending) };
        assert_eq!(moved, Err(Error::NotTheTables));
        pending.flush();
        assert_eq!(look(&space), before);
    });
}
