//! Absent pages that were write-protected: the rules, each alone.

use crate::common::*;
use machine::Asid;
use mm::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const AT: usize = 0x5000_0000;

/// A space with 16 registered pages.
fn with_marks(
    asynchronous: bool,
    modes: UserFaultModes,
    test: impl FnOnce(&Space, &Never, &SharedPaging),
) {
    with_space(4096, |_, shared, _| {
        let marks = Arc::new(Never { asynchronous, marks_absent: true, ..Never::default() });
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(marks.clone());
        space.mmap(AT, 16 * PAGE, 3, FIXED).unwrap();
        space.userfault_register(AT, 16 * PAGE, modes, Uffd::new(7)).unwrap();
        test(&space, &marks, shared);
    });
}

fn page(number: usize) -> usize {
    AT + number * PAGE
}

fn protect(space: &Space, from: usize, pages: usize, protect: bool) {
    space.userfault_write_protect(page(from), pages * PAGE, protect).unwrap();
}

fn write(space: &Space, number: usize) -> bool {
    space.write(page(number), &[1]).is_ok()
}

fn read(space: &Space, number: usize) -> u8 {
    byte(space, page(number))
}

fn entries(space: &Space, from: usize, pages: usize) -> Vec<u64> {
    let mut entries = vec![0; pages];
    space.pagemap(page(from), &mut entries);
    entries.iter().map(|entry| entry & !pagemap::SOFT_DIRTY).collect()
}

/// The numbers of the pages that count as written.
fn written(space: &Space, wp_matching: bool, max_pages: usize) -> Vec<usize> {
    let what =
        Scan { category_mask: PageCategories::WRITTEN, wp_matching, max_pages, ..Scan::default() };
    let found = space.scan(AT..page(16), &what).unwrap();
    let pages = found.regions.iter().flat_map(|region| (region.start..region.end).step_by(PAGE));
    pages.map(|at| (at - AT) / PAGE).collect()
}

#[test]
fn a_page_comes_in_with_its_mark() {
    with_marks(false, UserFaultModes::WP, |space, marks, _| {
        protect(space, 0, 4, true);
        assert_eq!(entries(space, 3, 2), [pagemap::WRITE_PROTECTED, 0]);
        let mut present = [9; 5];
        space.mincore(AT, &mut present).unwrap();
        assert_eq!((present, space.totals().resident), ([0; 5], 0), "it is absent");
        assert_eq!(read(space, 0), 0);
        assert!(!write(space, 0) && !write(space, 1), "a page that was read, and one that was not");
        assert_eq!((marks.writes.load(Relaxed), marks.missing.load(Relaxed)), (2, 0));
        assert!(entries(space, 0, 2).iter().all(|entry| entry & pagemap::WRITE_PROTECTED != 0));
        assert!(space.madvise(page(2), PAGE, Advice::PopulateWrite).is_err());
        assert!(write(space, 4), "no mark");
        protect(space, 0, 4, false);
        assert_eq!(entries(space, 3, 1), [0]);
        assert!((0..4).all(|number| write(space, number)));
        assert_eq!(marks.writes.load(Relaxed), 3);
    });
}

#[test]
fn a_monitor_of_absent_pages_is_asked_first() {
    let modes = UserFaultModes::MISSING | UserFaultModes::WP;
    with_marks(false, modes, |space, marks, _| {
        protect(space, 0, 3, true);
        assert!(!write(space, 0));
        assert_eq!((marks.writes.load(Relaxed), marks.missing.load(Relaxed)), (0, 1));
        // Contents replace the mark; zeros and poison do not.
        assert!(space.userfault_zeropage(page(1), PAGE).is_err());
        assert!(space.userfault_poison(page(1), PAGE).is_err());
        space.userfault_copy(page(1), &[5; PAGE], false).unwrap();
        assert!(write(space, 1));
        // A mark is no page that could move, and a page in the way of another.
        let other = space.mmap(AT + HUGE, PAGE, 3, FIXED).unwrap();
        let moved = |to, from| space.userfault_move(to, from, PAGE, true).unwrap_err();
        space.write(other, &[1]).unwrap();
        assert_eq!(moved(page(2), other).error.errno(), 17);
        space.madvise(other, PAGE, Advice::DontNeed).unwrap();
        space.userfault_register(other, PAGE, UserFaultModes::MISSING, Uffd::new(7)).unwrap();
        assert_eq!(moved(other, page(2)).error.errno(), 14);
    });
}

#[test]
fn what_discards_pages_removes_marks() {
    with_marks(true, UserFaultModes::WP, |space, _, _| {
        protect(space, 0, 16, true);
        assert!(written(space, false, 0).is_empty());
        space.madvise(page(0), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(written(space, false, 0), [0]);
        // A guard takes its place, and leaves none.
        space.madvise(page(1), PAGE, Advice::GuardInstall).unwrap();
        assert_eq!(entries(space, 1, 1), [pagemap::GUARD]);
        space.madvise(page(0), 3 * PAGE, Advice::GuardRemove).unwrap();
        assert_eq!(written(space, false, 0), [0, 1]);
        space.munmap(page(2), PAGE).unwrap();
        space.mmap(page(2), PAGE, 3, FIXED).unwrap();
        assert_eq!(entries(space, 2, 1), [0]);
    });
}

#[test]
fn scans_mark_absent_pages() {
    with_marks(true, UserFaultModes::WP, |space, _, _| {
        assert!(write(space, 3));
        assert_eq!(written(space, true, 6), [0, 1, 2, 3, 4, 5], "a part");
        assert_eq!(written(space, true, 0), (6..16).collect::<Vec<_>>());
        assert!(written(space, true, 0).is_empty());
        assert_eq!((read(space, 1), read(space, 3)), (0, 1));
        assert!(written(space, false, 0).is_empty(), "a read is no write");
        assert!([0, 1, 3].into_iter().all(|number| write(space, number)));
        assert_eq!(written(space, true, 0), [0, 1, 3]);
        assert!(written(space, false, 0).is_empty());
    });
}

#[test]
fn marks_mean_nothing_without_a_registration() {
    with_marks(false, UserFaultModes::WP, |space, marks, _| {
        protect(space, 0, 16, true);
        let child = space.fork(Asid(3)).unwrap();
        assert!(write(&child, 0));
        assert_eq!(entries(&child, 1, 1), [0]);
        child.userfault_register(AT, 16 * PAGE, UserFaultModes::MISSING, Uffd::new(7)).unwrap();
        child.userfault_zeropage(page(1), PAGE).unwrap();
        assert!(write(&child, 1));
        space.userfault_unregister(AT, 8 * PAGE).unwrap();
        assert!(write(space, 0) && write(space, 1) && !write(space, 8));
        space.userfault_register(AT, 8 * PAGE, UserFaultModes::WP, Uffd::new(7)).unwrap();
        assert_eq!(entries(space, 2, 1), [0]);
        assert!(write(space, 2));
        assert_eq!((marks.writes.load(Relaxed), marks.missing.load(Relaxed)), (1, 0));
    });
}

#[test]
fn a_part_of_a_huge_page_is_told_of_when_it_is_split() {
    with_marks(true, UserFaultModes::WP, |space, _, _| {
        space.set_huge_pages(HugePages::Always).unwrap();
        let at = space.mmap(AT + HUGE, 2 * HUGE, 3, FIXED).unwrap();
        space.userfault_register(at, 2 * HUGE, UserFaultModes::WP, Uffd::new(8)).unwrap();
        protect(space, 512, 1024, true);
        space.userfault_unregister(at, 2 * HUGE).unwrap();
        space.madvise(at, 2 * HUGE, Advice::DontNeed).unwrap();
        space.userfault_register(at, 2 * HUGE, UserFaultModes::WP, Uffd::new(8)).unwrap();
        space.write(at + 5, &[1]).unwrap();
        space.write(at + HUGE, &[2]).unwrap();
        let huge = || space.usage(at..at + 2 * HUGE).huge / HUGE;
        assert_eq!(huge(), 2);
        let what = Scan {
            category_mask: PageCategories::WRITTEN,
            return_mask: PageCategories::HUGE,
            wp_matching: true,
            max_pages: 700,
            ..Scan::default()
        };
        let found = space.scan(at..at + 2 * HUGE, &what).unwrap();
        let ends = found.regions.iter().map(|region| (region.end - at, region.categories));
        let (whole, part) = (PageCategories::HUGE, PageCategories::empty());
        assert_eq!(ends.collect::<Vec<_>>(), [(HUGE, whole), (700 * PAGE, part)]);
        assert_eq!((found.walk_end - at, huge()), (700 * PAGE, 1));
        let rest = space.scan(at..at + 2 * HUGE, &Scan { max_pages: 0, ..what }).unwrap();
        assert_eq!((rest.regions[0].start - at, rest.regions[0].end - at), (700 * PAGE, 2 * HUGE));
        assert_eq!((byte(space, at + 5), byte(space, at + HUGE)), (1, 2));
    });
}

/// Runs a test in a space whose tables could not hold the marks of all its pages, with the length
/// of its registered memory at [`AT`].
fn with_little_memory(test: impl FnOnce(&Space, usize)) {
    with_space(64, |_, shared, _| {
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(Arc::new(Never {
            asynchronous: true,
            marks_absent: true,
            ..Never::default()
        }));
        let len = 64 * HUGE;
        space.mmap(AT, len, 3, FIXED).unwrap();
        space.userfault_register(AT, len, UserFaultModes::WP, Uffd::new(7)).unwrap();
        test(&space, len);
    });
}

#[test]
fn marks_without_memory_are_an_error() {
    with_little_memory(|space, len| {
        let failed = space.userfault_write_protect(AT, len, true).unwrap_err();
        assert_eq!(failed.errno(), 12);
        let what = Scan { wp_matching: true, ..Scan::default() };
        assert!(matches!(space.scan(AT..AT + len, &what), Err(error) if error.errno() == 12));
        space.munmap(AT, len).unwrap();
        let at = space.mmap(AT, PAGE, 3, FIXED).unwrap();
        space.write(at, &[1]).unwrap();
    });
}

/// The pages that a scan has protected are told of, also if there is no memory for the marks of the
/// absent pages behind them: the next scan would not tell of them.
#[test]
fn a_scan_without_memory_tells_of_the_pages_that_it_has_protected() {
    with_little_memory(|space, len| {
        space.write(AT, &[1]).unwrap();
        let (category_mask, return_mask) = (PageCategories::WRITTEN, PageCategories::PRESENT);
        let what = Scan { category_mask, return_mask, wp_matching: true, ..Scan::default() };
        let found = space.scan(AT..AT + len, &what).unwrap();
        let first = PageRegion { start: AT, end: AT + PAGE, categories: PageCategories::PRESENT };
        assert_eq!(found.regions[0], first);
        assert_ne!(pagemap_entry(space, AT) & pagemap::WRITE_PROTECTED, 0);
    });
}

/// The same for absent pages that a scan has marked.
#[test]
fn a_scan_without_memory_tells_of_the_absent_pages_that_it_has_marked() {
    with_little_memory(|space, len| {
        let category_mask = PageCategories::WRITTEN;
        let what = Scan { category_mask, wp_matching: true, ..Scan::default() };
        let found = space.scan(AT..AT + len, &what).unwrap();
        assert_eq!(found.regions[0].start, AT);
        assert_ne!(pagemap_entry(space, AT) & pagemap::WRITE_PROTECTED, 0);
        // Nothing is protected by the second scan, so it may fail.
        assert_eq!(space.scan(AT..AT + len, &what).unwrap_err().errno(), 12);
    });
}

/// A scan that finds nothing because it cannot split a huge page is an error, also if the memory
/// was missing behind that page first.
#[test]
fn a_scan_that_has_no_memory_to_split_a_page_is_an_error() {
    const FAR: usize = 0x55_0000_0000;
    with_space(4096, |sim, shared, _| {
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(Arc::new(Never { asynchronous: true, ..Never::default() }));
        space.set_huge_pages(HugePages::Always).unwrap();
        let touch = |at| {
            space.mmap(at, HUGE, 3, FIXED).unwrap();
            space.userfault_register(at, HUGE, UserFaultModes::WP, Uffd::new(8)).unwrap();
            space.write(at, &[1]).unwrap();
        };
        // The child shares the tables of the far memory only.
        touch(FAR);
        let child = space.fork(Asid(3)).unwrap();
        touch(AT);
        assert_eq!(space.usage(AT..AT + HUGE).huge, HUGE);
        shared.quick().drain();
        sim.fail_alloc(1, true);
        let category_mask = PageCategories::WRITTEN | PageCategories::PRESENT;
        let what = Scan { category_mask, wp_matching: true, max_pages: 10, ..Scan::default() };
        let found = space.scan(AT..FAR + HUGE, &what);
        assert!(sim.alloc_failed());
        assert_eq!(found.unwrap_err().errno(), 12);
        drop(child);
    });
}
