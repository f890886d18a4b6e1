//! Blocks of pages: which writes bring in several pages, and that each is a page of its own.

use crate::common::*;
use mm::*;
use paging::{Aarch64, Format, Sv48Napot};
use sim::Arch;

const AT: usize = 0x4000_0000;

/// Blocks of these orders everywhere.
fn blocks(orders: &[u8]) -> FaultBlocks {
    let always = orders.iter().fold(0, |all, order| all | 1 << order);
    FaultBlocks { always, madvise: 0 }
}

/// The pages that are present, as numbers from `AT` on.
fn present<F: Format>(space: &SpaceOf<F>) -> Vec<usize> {
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

/// Where hardware can cache 16 neighbours as one translation, they are.
#[test]
fn a_block_is_a_group() {
    fn on<F: Format>(arch: Arch) {
        with_space_of::<F>(arch, 4096, |sim, _, space| {
            space.set_fault_blocks(blocks(&[4])).unwrap();
            space.mmap(AT, 64 * PAGE, 3, FIXED).unwrap();
            let walks = |from: usize| {
                let before = sim.stats().walks;
                let page = |number: usize| AT + (from + number) * PAGE;
                (0..16).for_each(|number| assert_eq!(load(sim, space, page(number)), Ok(0)));
                sim.stats().walks - before
            };
            // The write itself loads the group into the TLB.
            store(sim, space, AT + 21 * PAGE + 8, 7).unwrap();
            assert_eq!(present(space), (16..32).collect::<Vec<_>>());
            assert_eq!(walks(16), 0);
            // A page goes, and comes back alone. The others are single now.
            space.madvise(AT + 20 * PAGE, PAGE, Advice::DontNeed).unwrap();
            assert_eq!(present(space).len(), 15);
            store(sim, space, AT + 20 * PAGE, 9).unwrap();
            assert_eq!(load(sim, space, AT + 20 * PAGE), Ok(9));
            assert_eq!(load(sim, space, AT + 21 * PAGE + 8), Ok(7));
            // A fork shares them, and a write of the child copies one page.
            store(sim, space, AT + 5 * PAGE, 1).unwrap();
            let child = space.fork(machine::Asid(2)).unwrap();
            store(sim, space, AT + 5 * PAGE, 2).unwrap();
            activate(&child);
            assert_eq!(load(sim, &child, AT + 5 * PAGE), Ok(1));
            store(sim, &child, AT + 6 * PAGE, 3).unwrap();
            assert_eq!(child.resident(AT..AT + 64 * PAGE), 32);
            activate(space);
            drop(child);
            assert_eq!(load(sim, space, AT + 6 * PAGE), Ok(0));
            // No groups: a part of a VMA, pages around one that is there, and a read.
            space.munmap(AT + 34 * PAGE, PAGE).unwrap();
            store(sim, space, AT + 33 * PAGE, 1).unwrap();
            load(sim, space, AT + 50 * PAGE).unwrap();
            store(sim, space, AT + 51 * PAGE, 1).unwrap();
            assert_eq!(space.resident(AT + 32 * PAGE..AT + 64 * PAGE), 3);
            // A larger block has several groups.
            space.set_fault_blocks(blocks(&[2, 6])).unwrap();
            space.mmap(AT + 64 * PAGE, 64 * PAGE, 3, FIXED).unwrap();
            let before = sim.stats().walks;
            store(sim, space, AT + 100 * PAGE, 1).unwrap();
            (64..128).for_each(|page| assert!(load(sim, space, AT + page * PAGE).is_ok()));
            // For the fault, and one for each group.
            assert_eq!(sim.stats().walks - before, 5);
            // Without a block as large as a group, the pages are single.
            space.set_fault_blocks(blocks(&[2])).unwrap();
            space.mmap(AT + 128 * PAGE, 64 * PAGE, 3, FIXED).unwrap();
            store(sim, space, AT + 128 * PAGE, 1).unwrap();
            assert_eq!(space.resident(AT + 128 * PAGE..AT + 192 * PAGE), 4);
        });
    }
    on::<Aarch64>(Arch::Aarch64);
    on::<Sv48Napot>(Arch::RiscVNapot);
}

/// Without a block of frames for it, the page comes in alone.
#[test]
fn no_memory_for_a_group() {
    with_space_of::<Aarch64>(Arch::Aarch64, 64, |sim, shared, space| {
        space.set_fault_blocks(blocks(&[4])).unwrap();
        space.mmap(AT, 64 * PAGE, 3, FIXED).unwrap();
        // Frames between which none are neighbours.
        let mut held = Vec::new();
        while let Ok(frame) = machine::FrameSource::alloc(sim, 0, machine::NodePolicy::Local) {
            held.push(frame);
        }
        let (keep, give): (Vec<_>, Vec<_>) = held.iter().partition(|frame| frame.number() % 4 != 0);
        // SAFETY: they are ours, and never mapped.
        let free = |frame| unsafe { machine::FrameSource::free(sim, frame) }.unwrap();
        give.into_iter().for_each(free);
        store(sim, space, AT + 5 * PAGE, 1).unwrap();
        let alone = present(space).len();
        assert!((1..16).contains(&alone), "{alone} pages");
        assert_eq!(load(sim, space, AT + 5 * PAGE), Ok(1));
        keep.into_iter().for_each(free);
        let _ = shared;
    });
}
