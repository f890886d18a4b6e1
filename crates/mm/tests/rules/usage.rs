//! The listings of smaps and pagemap, and the totals.

use crate::common::*;
use machine::Asid;
use mm::*;

const AT: usize = 0x4000_0000;

#[test]
fn smaps_is_as_linux_writes_it() {
    with_space(256, |sim, _, space| {
        space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        load(sim, space, AT + PAGE).unwrap();
        space.mlock(AT, PAGE, false).unwrap();
        let mut text = String::new();
        space.write_smaps(&mut text).unwrap();
        let first = "\
40000000-40001000 rw-p 00000000 00:00 0 \n\
Size:                  4 kB\n\
KernelPageSize:        4 kB\n\
MMUPageSize:           4 kB\n\
Rss:                   4 kB\n\
Pss:                   4 kB\n\
Pss_Dirty:             4 kB\n\
Shared_Clean:          0 kB\n\
Shared_Dirty:          0 kB\n\
Private_Clean:         0 kB\n\
Private_Dirty:         4 kB\n\
Referenced:            4 kB\n\
Anonymous:             4 kB\n\
KSM:                   0 kB\n\
LazyFree:              0 kB\n\
AnonHugePages:         0 kB\n\
ShmemPmdMapped:        0 kB\n\
FilePmdMapped:         0 kB\n\
Shared_Hugetlb:        0 kB\n\
Private_Hugetlb:       0 kB\n\
Swap:                  0 kB\n\
SwapPss:               0 kB\n\
Locked:                4 kB\n\
THPeligible:           0\n\
VmFlags: rd wr mr mw me lo ac \n\
40001000-40003000 ";
        assert!(text.starts_with(first), "{text}");
        // The zero frame does not count.
        let totals = space.totals();
        assert_eq!((totals.size, totals.data, totals.locked), (3 * PAGE, 3 * PAGE, PAGE));
        assert_eq!((totals.resident, totals.anonymous), (PAGE, PAGE));
    });
}

#[test]
fn smaps_rollup_is_as_linux_writes_it() {
    with_space(256, |sim, _, space| {
        let rollup = || {
            let mut text = String::new();
            space.write_smaps_rollup(&mut text).unwrap();
            text
        };
        let line =
            "00000000-00000000 ---p 00000000 00:00 0                                  [rollup]\n";
        assert!(rollup().starts_with(line), "{}", rollup());
        space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        load(sim, space, AT + PAGE).unwrap();
        space.mlock(AT, PAGE, false).unwrap();
        let memory = MapFlags::SHARED | MapFlags::ANONYMOUS | MapFlags::FIXED;
        let far = 0x7000_0000_0000;
        space.mmap(far, 2 * PAGE, 3, memory).unwrap();
        load(sim, space, far).unwrap();
        store(sim, space, far + PAGE, 1).unwrap();
        let expected = "\
40000000-700000002000 ---p 00000000 00:00 0                              [rollup]\n\
Rss:                  12 kB\n\
Pss:                  12 kB\n\
Pss_Dirty:             8 kB\n\
Pss_Anon:              4 kB\n\
Pss_File:              0 kB\n\
Pss_Shmem:             8 kB\n\
Shared_Clean:          0 kB\n\
Shared_Dirty:          0 kB\n\
Private_Clean:         4 kB\n\
Private_Dirty:         8 kB\n\
Referenced:           12 kB\n\
Anonymous:             4 kB\n\
KSM:                   0 kB\n\
LazyFree:              0 kB\n\
AnonHugePages:         0 kB\n\
ShmemPmdMapped:        0 kB\n\
FilePmdMapped:         0 kB\n\
Shared_Hugetlb:        0 kB\n\
Private_Hugetlb:       0 kB\n\
Swap:                  0 kB\n\
SwapPss:               0 kB\n\
Locked:                4 kB\n";
        assert_eq!(rollup(), expected);
        // The sums of a fork are those of its VMAs.
        let fork = space.fork(Asid(2)).unwrap();
        assert!(rollup().contains("Pss:                   6 kB\n"), "{}", rollup());
        drop(fork);
        assert_eq!(rollup(), expected);
    });
}

#[test]
fn pages_of_a_fork_are_shared_until_they_are_written() {
    with_space(256, |sim, _, space| {
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        store(sim, space, AT + PAGE, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        for of in [space, &child] {
            let usage = of.usage(AT..AT + 2 * PAGE);
            assert_eq!((usage.resident, usage.proportional), (2 * PAGE, PAGE));
            assert_eq!((usage.shared_dirty, usage.private_dirty), (2 * PAGE, 0));
        }
        store(sim, space, AT, 2).unwrap();
        let usage = space.usage(AT..AT + 2 * PAGE);
        assert_eq!((usage.shared_dirty, usage.private_dirty), (PAGE, PAGE));
        assert_eq!(usage.proportional, PAGE + PAGE / 2);
        // The child's copy is its own again.
        let usage = child.usage(AT..AT + PAGE);
        assert_eq!((usage.resident, usage.proportional), (PAGE, PAGE));
        drop(child);
        let usage = space.usage(AT..AT + 2 * PAGE);
        assert_eq!((usage.shared_dirty, usage.private_dirty), (0, 2 * PAGE));
    });
}

/// The tables of a page are shared in part: two of three spaces share one, or some share an upper
/// table only. Each space counts the maps of all.
#[test]
fn each_space_of_a_family_counts_the_maps_of_all() {
    with_space(256, |sim, _, space| {
        // In one table each, and in one upper table.
        let (near, far) = (AT + PAGE, AT + (2 << 20));
        space.mmap(AT, 4 << 20, 3, FIXED).unwrap();
        for at in [AT, near, far] {
            store(sim, space, at, 1).unwrap();
        }
        let counts = |of: &Space, at: usize| {
            let usage = of.usage(at..at + PAGE);
            let shared = usage.shared_clean + usage.shared_dirty;
            assert_eq!(shared + usage.private_clean + usage.private_dirty, PAGE);
            (PAGE / usage.proportional, shared == PAGE)
        };
        // The page is copied: its CPU has none of them.
        let write = |of: &Space, byte| of.write(AT, &[byte]).unwrap();
        let one = space.fork(Asid(2)).unwrap();
        // It has tables of its own at `AT` now; the page next to it is shared by two tables.
        write(&one, 2);
        let two = one.fork(Asid(3)).unwrap();
        for of in [space, &one, &two] {
            assert_eq!(counts(of, near), (3, true));
            assert_eq!(counts(of, far), (3, true));
        }
        assert_eq!(counts(space, AT), (1, false));
        assert_eq!(counts(&one, AT), (2, true));
        // Two tables in one listing.
        let all = space.usage(AT..AT + (4 << 20));
        assert_eq!((all.resident, all.proportional), (3 * PAGE, PAGE + 2 * (PAGE / 3)));
        // Three tables.
        write(&two, 3);
        for of in [space, &one, &two] {
            assert_eq!(counts(of, AT), (1, false));
            assert_eq!(counts(of, near), (3, true));
            assert_eq!(counts(of, far), (3, true));
        }
        drop(space.fork(Asid(4)).unwrap());
        drop(one);
        for of in [space, &two] {
            assert_eq!(counts(of, near), (2, true));
            assert_eq!(counts(of, far), (2, true));
        }
        two.munmap(AT, 4 << 20).unwrap();
        for at in [AT, near, far] {
            assert_eq!(counts(space, at), (1, false));
            assert_ne!(pagemap_entry(space, at) & pagemap::EXCLUSIVE, 0);
        }
    });
}

/// A page that its space has moved is where it was in the tables that the children share.
#[test]
fn a_moved_page_counts_the_maps_at_its_old_address() {
    with_space(1024, |sim, _, space| {
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        let children = [space.fork(Asid(2)).unwrap(), space.fork(Asid(3)).unwrap()];
        let to = AT + (64 << 20);
        space.mremap(RemapRequest::moving(AT, PAGE, to)).unwrap();
        assert_eq!(space.usage(to..to + PAGE).proportional, PAGE / 3);
        for child in &children {
            assert_eq!(child.usage(AT..AT + PAGE).proportional, PAGE / 3);
        }
    });
}

#[test]
fn shares_of_many_pages_add_up_as_on_linux() {
    with_space(1024, |_, _, space| {
        space.mmap(AT, 300 * PAGE, 3, FIXED | MapFlags::POPULATE).unwrap();
        let _children = [space.fork(Asid(2)).unwrap(), space.fork(Asid(3)).unwrap()];
        let usage = space.usage(AT..AT + 300 * PAGE);
        // A third of 300 pages, but for the fractions of a byte that Linux leaves out.
        assert_eq!((usage.proportional, usage.proportional_dirty), (409_599, 409_599));
    });
}

/// Pages that software brings in or writes are referenced and dirty, as on Linux.
#[test]
fn pages_that_software_writes_are_dirty() {
    with_space(256, |sim, shared, space| {
        let check = |at: usize, dirty: usize, name: &str| {
            let usage = space.usage(at..at + 2 * PAGE);
            let expected = (2 * PAGE, dirty, 2 * PAGE, 2 * PAGE - dirty);
            let clean = usage.private_clean + usage.shared_clean;
            assert_eq!(
                (usage.resident, usage.proportional_dirty, usage.referenced, clean),
                expected,
                "{name}"
            );
        };
        let new = |flags: MapFlags| space.mmap(0, 2 * PAGE, 3, flags).unwrap();
        check(new(PRIVATE | MapFlags::POPULATE), 2 * PAGE, "populate");
        let at = new(PRIVATE);
        space.mlock(at, 2 * PAGE, false).unwrap();
        check(at, 2 * PAGE, "mlock");
        let at = new(PRIVATE);
        space.write(at + PAGE - 1, &[1, 2]).unwrap();
        check(at, 2 * PAGE, "process_vm_writev");
        let memory = MapFlags::SHARED | MapFlags::ANONYMOUS;
        let at = new(memory);
        space.madvise(at, 2 * PAGE, Advice::PopulateRead).unwrap();
        check(at, 0, "shared, read");
        let at = new(memory);
        space.madvise(at, 2 * PAGE, Advice::PopulateWrite).unwrap();
        check(at, 2 * PAGE, "shared, written");
        // A block of pages for the write of one, of which the other ones are not referenced.
        space.set_fault_blocks(FaultBlocks { always: 1 << 2, madvise: 0 }).unwrap();
        space.mmap(AT, 4 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        let usage = space.usage(AT..AT + 4 * PAGE);
        assert_eq!((usage.private_dirty, usage.referenced), (4 * PAGE, PAGE));
        space.set_fault_blocks(FaultBlocks { always: 0, madvise: 0 }).unwrap();
        let file = memfd(shared, 2);
        let at = new(PRIVATE);
        let backing = Backing::open(file, true).unwrap();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        space.mmap_object(at, 2 * PAGE, 3, flags, backing, 0).unwrap();
        load(sim, space, at).unwrap();
        space.write(at + PAGE, &[1]).unwrap();
        check(at, PAGE, "one copied");
        space.mprotect(at, 2 * PAGE, 0, None).unwrap();
        check(at, PAGE, "protected");
    });
}

#[test]
fn pagemap_tells_frames_and_whose_they_are() {
    with_space(256, |sim, shared, space| {
        let memory = memfd(shared, 2);
        let map = |at, kind| {
            space.mmap_object(at, 2 * PAGE, 3, kind | MapFlags::FIXED, opened(&memory), 0).unwrap();
        };
        map(AT, MapFlags::SHARED);
        map(AT + 2 * PAGE, MapFlags::PRIVATE);
        store(sim, space, AT, 1).unwrap();
        load(sim, space, AT + 2 * PAGE).unwrap();
        store(sim, space, AT + 3 * PAGE, 1).unwrap();
        let mut entries = [9; 5];
        space.pagemap(AT, &mut entries);
        // Each page is new, and so soft-dirty.
        let present = pagemap::PRESENT | pagemap::SOFT_DIRTY;
        let of_object = present | pagemap::OF_OBJECT;
        let bits = entries.map(|entry| entry & !((1 << 55) - 1));
        // Read and written by two maps; not touched; copied; a hole.
        assert_eq!(bits[0], of_object);
        assert_eq!(bits[1], pagemap::SOFT_DIRTY);
        assert_eq!(bits[2], of_object);
        assert_eq!(bits[3], present | pagemap::EXCLUSIVE);
        assert_eq!(entries[4], 0);
        assert_eq!(entries[0], entries[2], "one frame");
        assert_ne!(entries[0] << 9, entries[3] << 9, "two frames");
        let usage = space.usage(AT..AT + 4 * PAGE);
        assert_eq!((usage.resident, usage.anonymous), (3 * PAGE, PAGE));
        // The last page of addresses, and beyond.
        space.pagemap(usize::MAX, &mut entries);
        assert_eq!(entries, [0; 5]);
    });
}

/// In parts of one, two and all VMAs, from any address.
#[test]
fn the_parts_of_a_listing_are_the_whole() {
    with_space(256, |sim, _, space| {
        for at in 0..5 {
            space.mmap(AT + 2 * at * PAGE, PAGE, 3, FIXED).unwrap();
            store(sim, space, AT + 2 * at * PAGE, 1).unwrap();
        }
        // A number of ten digits.
        space.mmap(1 << 40, 1 << 40, 0, FIXED).unwrap();
        let (mut maps, mut smaps) = (String::new(), String::new());
        space.write_maps(&mut maps).unwrap();
        space.write_smaps(&mut smaps).unwrap();
        assert!(smaps.contains("\nSize:           1073741824 kB\n"), "{smaps}");
        for most in [1, 2, 5, 6, 7] {
            let (mut parts, mut next, mut count) = ([String::new(), String::new()], Some(0), 0);
            while let Some(from) = next {
                next = space.write_maps_from(from, most, &mut parts[0]).unwrap();
                assert_eq!(space.write_smaps_from(from, most, &mut parts[1]).unwrap(), next);
                count += 1;
            }
            assert_eq!(parts, [&*maps, &*smaps]);
            assert_eq!(count, 6 / most + 1, "parts of {most}");
        }
        let mut rest = String::new();
        let next = space.write_maps_from(AT + 8 * PAGE + 1, 1, &mut rest).unwrap();
        assert_eq!(next, Some(AT + 9 * PAGE));
        assert!(maps.contains(&rest) && rest.starts_with("40008000-"), "{rest}");
    });
}
