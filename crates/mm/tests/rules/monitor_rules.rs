//! Rules of userfaultfd and PAGEMAP_SCAN that the comparison with Linux has found, each alone.

use crate::common::*;
use machine::Asid;
use mm::{Error, *};
use std::sync::Arc;

const AT: usize = 0x5000_0000;
const WHOLE: usize = 16 * PAGE;

/// A space with a monitor that resolves nothing, and an object of 16 pages.
fn with_rules(asynchronous: bool, test: impl FnOnce(&Space, Memfd)) {
    with_space(4096, |_, shared, _| {
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(Arc::new(Never { asynchronous, ..Never::default() }));
        test(&space, memfd(shared, 16));
    });
}

/// Maps private memory, and registers it.
fn private(space: &Space, at: usize, pages: usize, modes: UserFaultModes) {
    space.mmap(at, pages * PAGE, 3, FIXED).unwrap();
    space.userfault_register(at, pages * PAGE, modes, Uffd::new(7)).unwrap();
}

/// Maps the object at `AT`, and registers it.
fn object(space: &Space, memory: &Memfd, shared: bool, modes: UserFaultModes) {
    let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let file = opened(memory);
    space.mmap_object(AT, WHOLE, 3, kind | MapFlags::FIXED, file, 0).unwrap();
    space.userfault_register(AT, WHOLE, modes, Uffd::new(7)).unwrap();
}

fn page(number: usize) -> usize {
    AT + number * PAGE
}

/// The pages that were resolved, and the errno; or 0 and 0.
fn said(result: Result<(), Resolved>) -> (usize, i32) {
    result.map_or_else(|stopped| (stopped.done / PAGE, stopped.error.errno()), |()| (0, 0))
}

fn byte(space: &Space, at: usize) -> Result<u8, FaultError> {
    let mut byte = [0];
    space.read(at, &mut byte).map(|()| byte[0]).map_err(|failed| failed.error)
}

#[test]
fn contents_replace_markers_and_nothing_else_does() {
    with_rules(false, |space, memory| {
        private(space, AT, 16, UserFaultModes::MISSING);
        space.madvise(page(0), 2 * PAGE, Advice::GuardInstall).unwrap();
        space.userfault_poison(page(2), 2 * PAGE).unwrap();
        for at in [page(0), page(2)] {
            assert_eq!(said(space.userfault_zeropage(at, PAGE)), (0, 17));
            assert_eq!(said(space.userfault_poison(at, PAGE)), (0, 17));
        }
        assert_eq!(said(space.userfault_copy(page(0), &[5; 4 * PAGE], false)), (0, 0));
        assert_eq!((byte(space, page(0)), byte(space, page(3))), (Ok(5), Ok(5)));
        // One that is there stays.
        assert_eq!(said(space.userfault_copy(page(3), &[6; PAGE], false)), (0, 17));
        memory.write(0, &[8]).unwrap();
        object(space, &memory, true, UserFaultModes::MINOR);
        space.userfault_poison(AT, PAGE).unwrap();
        assert!(matches!(byte(space, AT), Err(FaultError::Poisoned(_))));
        assert_eq!(said(space.userfault_continue(AT, PAGE, false)), (0, 0));
        assert_eq!(byte(space, AT), Ok(8));
    });
}

/// The page is absent, and has a mark of write-protection: its monitor is asked, and the fault
/// ends.
#[test]
fn a_minor_fault_at_a_mark_is_the_monitors() {
    with_rules(false, |space, memory| {
        memory.write(0, &[8]).unwrap();
        object(space, &memory, true, UserFaultModes::MINOR | UserFaultModes::WP);
        space.userfault_write_protect(AT, WHOLE, true).unwrap();
        assert!(matches!(byte(space, AT), Err(FaultError::UserFault(_))));
        assert_eq!(said(space.userfault_continue(AT, PAGE, true)), (0, 0));
        assert_eq!(byte(space, AT), Ok(8));
    });
}

#[test]
fn pages_that_the_object_does_not_have() {
    with_rules(false, |space, memory| {
        object(space, &memory, true, UserFaultModes::MISSING | UserFaultModes::MINOR);
        assert_eq!(said(space.userfault_continue(page(0), PAGE, false)), (0, 14), "absent");
        memory.write(3 * PAGE as u64, &[8]).unwrap();
        memory.set_size(4 * PAGE as u64).unwrap();
        assert_eq!(said(space.userfault_continue(page(3), 2 * PAGE, false)), (1, 22), "the end");
        assert_eq!(said(space.userfault_copy(page(4), &[1; PAGE], false)), (0, 14));
        assert_eq!(said(space.userfault_zeropage(page(4), PAGE)), (0, 14));
        assert_eq!(said(space.userfault_poison(page(4), PAGE)), (0, 14));
        private(space, AT, 16, UserFaultModes::MISSING);
        assert_eq!(said(space.userfault_continue(AT, PAGE, false)), (0, 22), "no object");
        assert_eq!(said(space.userfault_copy(AT, &[1; PAGE], true)), (0, 22), "not for WP");
    });
}

#[test]
fn moves_say_how_far_they_came() {
    with_rules(false, |space, _| {
        let to = |number: usize| page(32 + number);
        private(space, to(0), 16, UserFaultModes::MISSING);
        space.mmap(AT, WHOLE, 3, FIXED).unwrap();
        space.write(AT, &[9; 2 * PAGE]).unwrap();
        // A hole, a guard page, a page in the way.
        space.madvise(page(3), PAGE, Advice::GuardInstall).unwrap();
        assert_eq!(said(space.userfault_move(to(0), page(0), 3 * PAGE, false)), (2, 2));
        assert_eq!(byte(space, to(1)), Ok(9));
        assert_eq!(said(space.userfault_move(to(2), page(2), 2 * PAGE, true)), (1, 14));
        assert_eq!(said(space.userfault_move(to(1), page(4), PAGE, false)), (0, 17));
        // Zeros that were only read move, too.
        byte(space, page(5)).unwrap();
        assert_eq!(said(space.userfault_move(to(5), page(5), PAGE, false)), (0, 0));
        assert_eq!(byte(space, to(5)), Ok(0));
        // Ranges that overlap move page by page.
        assert_eq!(said(space.userfault_move(to(4), to(5), 2 * PAGE, true)), (0, 0));
        assert_eq!(byte(space, to(4)), Ok(0));
    });
}

#[test]
fn moves_between_vmas_that_do_not_fit() {
    with_rules(false, |space, memory| {
        let to = page(32);
        private(space, to, 16, UserFaultModes::MISSING);
        let refused = |from: usize, to: usize| said(space.userfault_move(to, from, PAGE, true)).1;
        assert_eq!(refused(AT, to), 2, "nothing mapped");
        object(space, &memory, false, UserFaultModes::MISSING);
        assert_eq!(refused(AT, to), 22, "of an object");
        space.mmap(AT, WHOLE, 1, FIXED).unwrap();
        assert_eq!(refused(AT, to), 22, "not writable");
        space.mmap(AT, WHOLE, 3, FIXED).unwrap();
        assert_eq!(refused(to, AT), 22, "the target is not registered");
        space.mlock(AT, PAGE, false).unwrap();
        assert_eq!(refused(AT, to), 22, "one is locked");
        assert_eq!(said(space.userfault_move(to, page(15), 2 * PAGE, true)).1, 22, "two VMAs");
    });
}

#[test]
fn moved_pages_are_not_write_protected() {
    with_rules(false, |space, _| {
        private(space, AT, 32, UserFaultModes::WP);
        space.write(AT, &[9]).unwrap();
        space.userfault_write_protect(AT, PAGE, true).unwrap();
        // One that does not move stays protected.
        assert_eq!(said(space.userfault_move(page(20), AT, 2 * PAGE, false)), (1, 2));
        space.write(page(20), &[8]).unwrap();
        assert_eq!(byte(space, page(20)), Ok(8));
        space.userfault_write_protect(page(20), PAGE, true).unwrap();
        assert_eq!(said(space.userfault_move(page(20), page(20), PAGE, true)), (0, 17));
        assert!(space.write(page(20), &[8]).is_err());
        // So does one that is pinned.
        let mut frames = [machine::Frame::default()];
        let pin = space.pin_pages(page(20), Access::Read, &mut frames).unwrap();
        assert_eq!(said(space.userfault_move(AT, page(20), PAGE, false)), (0, 16));
        assert!(space.write(page(20), &[8]).is_err());
        drop(pin);
        assert_eq!(said(space.userfault_move(AT, page(20), PAGE, false)), (0, 0));
    });
}

#[test]
fn truncation_takes_poison_and_holes_take_zero_pages() {
    with_rules(false, |space, memory| {
        object(space, &memory, false, UserFaultModes::MISSING);
        space.userfault_zeropage(page(0), 2 * PAGE).unwrap();
        space.userfault_copy(page(2), &[7; PAGE], false).unwrap();
        space.userfault_poison(page(3), PAGE).unwrap();
        space.madvise(page(4), PAGE, Advice::GuardInstall).unwrap();
        memory.punch_hole(PAGE as u64..5 * PAGE as u64).unwrap();
        let there = [0, 1, 2].map(|number| space.resident(page(number)..page(number + 1)));
        assert_eq!(there, [1, 0, 1], "the copy stays");
        assert!(matches!(byte(space, page(3)), Err(FaultError::Poisoned(_))));
        memory.set_size(0).unwrap();
        memory.set_size(WHOLE as u64).unwrap();
        assert!(matches!(byte(space, page(3)), Err(FaultError::UserFault(_))), "missing again");
        assert!(matches!(byte(space, page(4)), Err(FaultError::Guard(_))), "a guard");
    });
}

#[test]
fn a_fault_maps_the_pages_around_before_it_asks() {
    for (modes, around) in
        [(UserFaultModes::MISSING, 1), (UserFaultModes::MISSING | UserFaultModes::MINOR, 0)]
    {
        with_rules(false, |space, memory| {
            memory.write(5 * PAGE as u64, &[8]).unwrap();
            object(space, &memory, true, modes);
            assert!(matches!(byte(space, page(4)), Err(FaultError::UserFault(_))));
            assert_eq!(space.resident(AT..AT + WHOLE), around);
        });
    }
    // A page that the fault itself brings in is no minor fault.
    with_rules(false, |space, memory| {
        object(space, &memory, true, UserFaultModes::MINOR);
        assert_eq!(byte(space, page(4)), Ok(0));
    });
}

#[test]
fn populating_ends_where_the_monitor_must_help() {
    with_rules(false, |space, _| {
        private(space, AT, 2, UserFaultModes::MISSING);
        space.mmap(page(2), 2 * PAGE, 3, FIXED).unwrap();
        let populated = space.madvise(page(1), 2 * PAGE, Advice::PopulateWrite);
        assert_eq!(populated.unwrap_err().errno(), 14);
        // The VMA behind it has had no first write, so both join.
        space.userfault_unregister(AT, 2 * PAGE).unwrap();
        let listing = listing(space);
        assert_eq!(listing.lines().count(), 1, "{listing}");
        private(space, AT, 2, UserFaultModes::MISSING);
        space.userfault_poison(AT, PAGE).unwrap();
        assert_eq!(space.madvise(AT, PAGE, Advice::PopulateRead).unwrap_err().errno(), 133);
        assert_eq!(space.mlock(AT, PAGE, false).unwrap_err().errno(), 12);
    });
}

#[test]
fn holes_in_ranges_of_calls() {
    with_rules(false, |space, _| {
        let modes = UserFaultModes::WP;
        let register = |at, len, modes| space.userfault_register(at, len, modes, Uffd::new(7));
        let errno = |result: Result<(), Error>| result.map_or_else(|error| error.errno(), |()| 0);
        assert_eq!(errno(register(AT, PAGE, modes)), 22, "nothing is mapped");
        assert_eq!(errno(space.userfault_unregister(AT, PAGE)), 22);
        assert_eq!(errno(space.userfault_write_protect(AT, PAGE, true)), 2);
        private(space, AT, 1, modes);
        private(space, page(2), 1, modes);
        assert_eq!(errno(space.userfault_write_protect(AT, 4 * PAGE, true)), 0);
        assert_eq!(errno(register(AT, 4 * PAGE, modes)), 0);
        assert_eq!(errno(register(AT, 4 * PAGE, UserFaultModes::MINOR)), 22, "no object");
        assert_eq!(errno(register(AT, PAGE + 1, modes)), 22);
        assert_eq!(errno(space.userfault_unregister(AT, PAGE + 1)), 22);
    });
}

#[test]
fn marks_of_an_earlier_registration_mean_nothing() {
    with_rules(false, |space, _| {
        private(space, AT, 2, UserFaultModes::WP);
        space.write(AT, &[1; 2 * PAGE]).unwrap();
        space.userfault_write_protect(AT, 2 * PAGE, true).unwrap();
        assert!(space.write(AT, &[2]).is_err());
        let mut child = space.fork(Asid(3)).unwrap();
        child.set_userfault_handler(Arc::new(Never::default()));
        space.userfault_unregister(AT, 2 * PAGE).unwrap();
        let all = Scan { return_mask: PageCategories::WRITTEN, ..Scan::default() };
        let written = space.scan(AT..page(2), &all).unwrap().regions;
        assert_eq!(written[0].categories, PageCategories::WRITTEN);
        for space in [space, &child] {
            space.userfault_register(AT, 2 * PAGE, UserFaultModes::WP, Uffd::new(7)).unwrap();
            space.write(AT, &[2]).unwrap();
        }
    });
}

#[test]
fn scans_of_memory_that_is_not_asynchronous() {
    let protect = |check_wp_async| Scan {
        category_mask: PageCategories::PRESENT,
        return_mask: PageCategories::all(),
        wp_matching: true,
        check_wp_async,
        ..Scan::default()
    };
    with_rules(false, |space, _| {
        private(space, AT, 2, UserFaultModes::WP);
        space.write(AT, &[1]).unwrap();
        assert_eq!(space.scan(AT..page(2), &protect(true)).unwrap_err().errno(), 1);
        // Left out.
        assert_eq!(space.scan(AT..page(2), &protect(false)).unwrap().regions, []);
        space.write(AT, &[2]).unwrap();
    });
    with_rules(true, |space, _| {
        private(space, AT, 2, UserFaultModes::WP);
        space.write(AT, &[1]).unwrap();
        let found = space.scan(AT..page(2), &protect(true)).unwrap().regions;
        assert!(found[0].categories.contains(PageCategories::WPALLOWED));
    });
}

#[test]
fn scans_of_absent_pages_and_markers() {
    with_rules(false, |space, _| {
        private(space, AT, 5, UserFaultModes::MISSING);
        space.madvise(page(1), PAGE, Advice::GuardInstall).unwrap();
        space.userfault_poison(page(2), PAGE).unwrap();
        space.userfault_zeropage(page(3), PAGE).unwrap();
        let known = PageCategories::all() - PageCategories::SOFT_DIRTY;
        let scan = Scan { return_mask: known, ..Scan::default() };
        let (written, swapped) = (PageCategories::WRITTEN, PageCategories::SWAPPED);
        let zero = PageCategories::PRESENT | PageCategories::PFNZERO;
        let expected = [
            written,
            written | swapped | PageCategories::GUARD,
            written | swapped,
            written | zero,
            written,
        ];
        let found = space.scan(AT..page(5), &scan).unwrap();
        assert_eq!(found.regions.iter().map(|r| r.categories).collect::<Vec<_>>(), expected);
        // It ends at the first page without room: pages that do not match are passed over.
        let two = Scan { max_regions: 2, ..scan };
        assert_eq!(space.scan(AT..page(5), &two).unwrap().walk_end, page(2));
        let one = Scan { max_pages: 1, category_mask: swapped, ..scan };
        assert_eq!(space.scan(AT..page(5), &one).unwrap().walk_end, page(2));
    });
}

#[test]
fn a_write_to_a_protected_page_gives_its_vma_no_anon_vma() {
    with_rules(false, |space, _| {
        private(space, AT, 6, UserFaultModes::WP);
        assert_eq!(byte(space, page(2)), Ok(0));
        space.userfault_write_protect(AT, 6 * PAGE, true).unwrap();
        space.userfault_unregister(page(5), PAGE).unwrap();
        // It gives the last VMA an anon_vma, before it finds that the page is not registered.
        assert_eq!(said(space.userfault_continue(page(5), PAGE, false)), (0, 2));
        let failed = space.write(page(2), &[1]).unwrap_err();
        assert!(matches!(failed.error, FaultError::UserFault(_)), "{failed:?}");
        // So the middle can join the last: two anon_vmas would keep them apart.
        space.userfault_unregister(page(3), 2 * PAGE).unwrap();
        let maps = listing(space);
        assert_eq!(maps.lines().count(), 2, "{maps}");
    });
}
