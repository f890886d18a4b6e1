//! Blocks of pages: which writes bring in several pages, and that each is a page of its own.

use crate::common::*;
use mm::*;

const AT: usize = 0x4000_0000;

/// Blocks of these orders everywhere.
fn blocks(orders: &[u8]) -> FaultBlocks {
    let always = orders.iter().fold(0, |all, order| all | 1 << order);
    FaultBlocks { always, madvise: 0 }
}

/// The pages that are present, as numbers from `AT` on.
fn present(space: &Space) -> Vec<usize> {
    (0..1024).filter(|page| space.resident(AT + page * PAGE..AT + (page + 1) * PAGE) == 1).collect()
}

#[test]
fn a_write_brings_in_the_largest_block_that_fits() {
    with_space(4096, |sim, _, space| {
        space.set_fault_blocks(blocks(&[2, 4])).unwrap();
        space.mmap(AT + 2 * PAGE, 40 * PAGE, 3, FIXED).unwrap();
        // 16 pages would begin before the VMA.
        store(sim, space, AT + 5 * PAGE, 7).unwrap();
        assert_eq!(present(space), (4..8).collect::<Vec<_>>());
        assert_eq!(load(sim, space, AT + 5 * PAGE), Ok(7));
        assert_eq!(load(sim, space, AT + 6 * PAGE), Ok(0));
        // The first block has no room for four.
        store(sim, space, AT + 2 * PAGE, 7).unwrap();
        assert_eq!(present(space)[0], 2);
        assert_eq!(present(space).len(), 5);
        store(sim, space, AT + 21 * PAGE, 7).unwrap();
        assert_eq!(present(space)[5..], (16..32).collect::<Vec<_>>());
        // At the end, four of ten pages.
        store(sim, space, AT + 33 * PAGE, 7).unwrap();
        assert_eq!(present(space)[21..], (32..36).collect::<Vec<_>>());
    });
}

#[test]
fn a_page_that_is_there_keeps_a_block_out() {
    with_space(4096, |sim, _, space| {
        space.mmap(AT, 64 * PAGE, 3, FIXED).unwrap();
        // A page, the zero frame, and a guard.
        store(sim, space, AT + 3 * PAGE, 1).unwrap();
        load(sim, space, AT + 19 * PAGE).unwrap();
        space.madvise(AT + 35 * PAGE, PAGE, Advice::GuardInstall).unwrap();
        space.set_fault_blocks(blocks(&[2, 4])).unwrap();
        for start in [0, 16, 32] {
            store(sim, space, AT + start * PAGE, 1).unwrap();
            store(sim, space, AT + (start + 5) * PAGE, 1).unwrap();
        }
        let expected = [0, 16, 32].iter().flat_map(|start| {
            let other = if *start == 32 { None } else { Some(start + 3) };
            [*start].into_iter().chain(other).chain(start + 4..start + 8)
        });
        assert_eq!(present(space), expected.collect::<Vec<_>>());
        // A write to the zero frame copies that page alone.
        store(sim, space, AT + 19 * PAGE, 1).unwrap();
        assert_eq!(space.resident(AT..AT + 64 * PAGE), 17);
    });
}

#[test]
fn reads_files_and_forbidden_memory_get_single_pages() {
    with_space(4096, |sim, _, space| {
        space.set_fault_blocks(FaultBlocks { always: 1 << 2, madvise: 1 << 4 }).unwrap();
        space.mmap(AT, 64 * PAGE, 3, FIXED).unwrap();
        load(sim, space, AT).unwrap();
        assert_eq!(present(space), [0]);
        space.madvise(AT + 16 * PAGE, 16 * PAGE, Advice::HugePage).unwrap();
        store(sim, space, AT + 16 * PAGE, 1).unwrap();
        assert_eq!(present(space).len(), 17);
        space.madvise(AT + 32 * PAGE, 16 * PAGE, Advice::NoHugePage).unwrap();
        store(sim, space, AT + 32 * PAGE, 1).unwrap();
        assert_eq!(present(space).len(), 18);
        space.set_huge_pages(HugePages::Disabled).unwrap();
        store(sim, space, AT + 48 * PAGE, 1).unwrap();
        assert_eq!(present(space).len(), 19);
        let shared = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        space.set_huge_pages(HugePages::Never).unwrap();
        space.mmap(AT + 64 * PAGE, 16 * PAGE, 3, shared).unwrap();
        store(sim, space, AT + 64 * PAGE, 1).unwrap();
        assert_eq!(present(space).len(), 20);
        store(sim, space, AT + 52 * PAGE, 1).unwrap();
        assert_eq!(present(space).len(), 24);
    });
}

#[test]
fn each_page_of_a_block_goes_its_own_way() {
    with_space(4096, |sim, _, space| {
        space.set_fault_blocks(blocks(&[4])).unwrap();
        space.mmap(AT, 32 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        let used = space.resident(AT..AT + 32 * PAGE);
        space.munmap(AT + 4 * PAGE, PAGE).unwrap();
        space.madvise(AT + 5 * PAGE, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(space.resident(AT..AT + 32 * PAGE), used - 2);
        let child = space.fork(machine::Asid(2)).unwrap();
        assert_eq!(child.fault_blocks(), space.fault_blocks());
        // A write to a page that the child shares copies one page.
        store(sim, space, AT, 2).unwrap();
        store(sim, space, AT + 16 * PAGE, 2).unwrap();
        assert_eq!(child.resident(AT..AT + 32 * PAGE), used - 2);
        assert_eq!(space.resident(AT..AT + 32 * PAGE), used - 2 + 16);
        drop(child);
    });
}

#[test]
fn the_sizes_are_checked_and_told() {
    with_space(4096, |sim, _, space| {
        let wrong = FaultBlocks { always: 1 << 9, madvise: 0 };
        assert_eq!(
            space.set_fault_blocks(wrong),
            Err(Error::NotSupported("a block of pages of this size"))
        );
        assert_eq!(space.fault_blocks(), FaultBlocks::default());
        space.mmap(AT, 8 * PAGE, 3, FIXED).unwrap();
        let eligible = |space: &Space| {
            let mut smaps = String::new();
            space.write_smaps(&mut smaps).unwrap();
            smaps.contains("THPeligible:           1")
        };
        assert!(!eligible(space));
        space.set_fault_blocks(blocks(&[4])).unwrap();
        assert!(!eligible(space));
        space.set_fault_blocks(blocks(&[3])).unwrap();
        assert!(eligible(space));
        store(sim, space, AT, 1).unwrap();
        assert_eq!(present(space).len(), 8);
    });
}

/// The machine has few frames: a block stops where they end, and the write succeeds.
#[test]
fn a_block_stops_where_memory_ends() {
    with_space(64, |sim, _, space| {
        space.set_fault_blocks(blocks(&[8])).unwrap();
        space.mmap(AT, 256 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT + 100 * PAGE, 7).unwrap();
        assert_eq!(load(sim, space, AT + 100 * PAGE), Ok(7));
        let count = present(space).len();
        assert!((2..64).contains(&count), "{count}");
        space.madvise(AT, 256 * PAGE, Advice::DontNeed).unwrap();
    });
}

/// A monitor sees each fault of its memory.
#[test]
fn registered_memory_gets_single_pages() {
    with_space(4096, |sim, _, space| {
        space.set_fault_blocks(blocks(&[4])).unwrap();
        space.mmap(AT, 16 * PAGE, 3, FIXED).unwrap();
        space.userfault_register(AT, 16 * PAGE, UserFaultModes::WP, Uffd::new(7)).unwrap();
        store(sim, space, AT, 1).unwrap();
        assert_eq!(present(space), [0]);
    });
}
