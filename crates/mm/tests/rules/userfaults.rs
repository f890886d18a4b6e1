//! userfaultfd, write-protection and soft-dirty pages, and the scan.

use std::sync::{Arc, Mutex, Weak};

use crate::common::*;
use machine::{Asid, Frame};
use mm::*;
use sim::Sim;

const SHARED: MapFlags = MapFlags::SHARED;

/// A monitor that resolves each fault at once, and writes down what it saw.
struct Monitor {
    space: Mutex<Weak<Space>>,
    seen: Mutex<Vec<(usize, UserFaultKind)>>,
    answers: bool,
    asynchronous: bool,
}

impl Monitor {
    fn new(answers: bool, asynchronous: bool) -> Arc<Self> {
        Arc::new(Monitor { space: Mutex::default(), seen: Mutex::default(), answers, asynchronous })
    }

    fn seen(&self) -> Vec<(usize, UserFaultKind)> {
        core::mem::take(&mut self.seen.lock().unwrap())
    }
}

impl UserFaultHandler for Monitor {
    fn handle(&self, fault: UserFault) -> bool {
        let page = fault.at.get() as usize & !(PAGE - 1);
        self.seen.lock().unwrap().push((page, fault.kind));
        assert_eq!(fault.uffd, 7);
        let space = self.space.lock().unwrap().upgrade().unwrap();
        if self.answers {
            match fault.kind {
                UserFaultKind::Missing => {
                    space.userfault_copy(page, &[0x11; PAGE], false).unwrap();
                }
                UserFaultKind::Minor => space.userfault_continue(page, PAGE, false).unwrap(),
                UserFaultKind::WriteProtected => {
                    space.userfault_write_protect(page, PAGE, false).unwrap();
                }
            }
        }
        self.answers
    }

    fn is_write_protect_async(&self, _: u64) -> bool {
        self.asynchronous
    }
}

/// A space with a monitor, registered for these modes over 16 pages at the address passed.
fn with_monitor(
    modes: UserFaultModes,
    monitor: &Arc<Monitor>,
    object: bool,
    test: impl FnOnce(&Sim, &SharedPaging, &Space, usize),
) {
    with_space(4096, |sim, shared, _| {
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(monitor.clone());
        let space = Arc::new(space);
        *monitor.space.lock().unwrap() = Arc::downgrade(&space);
        let at = match object {
            false => space.mmap(0, 16 * PAGE, 3, PRIVATE).unwrap(),
            true => {
                let memory = memfd(shared, 16);
                memory.write(5 * PAGE as u64, b"here").unwrap();
                space.mmap_object(0, 16 * PAGE, 3, SHARED, opened(&memory), 0).unwrap()
            }
        };
        space.userfault_register(at, 16 * PAGE, modes, Uffd::new(7)).unwrap();
        test(sim, shared, &space, at);
    });
}

#[test]
fn missing_pages_come_from_the_monitor() {
    let monitor = Monitor::new(true, false);
    with_monitor(UserFaultModes::MISSING, &monitor, false, |_, _, space, at| {
        assert_eq!(byte(space, at + 3), 0x11);
        space.write(at + PAGE, &[5]).unwrap();
        assert_eq!((byte(space, at + PAGE), byte(space, at + PAGE + 1)), (5, 0x11));
        let missing = UserFaultKind::Missing;
        assert_eq!(monitor.seen(), [(at, missing), (at + PAGE, missing)]);
        // Present pages are not replaced.
        let present = space.userfault_copy(at, &[1; 2 * PAGE], false).unwrap_err();
        assert_eq!((present.done, present.error.errno()), (0, 17));
        let most = space.userfault_zeropage(at + 2 * PAGE, 3 * PAGE);
        most.unwrap();
        assert_eq!(byte(space, at + 2 * PAGE), 0);
        assert!(monitor.seen().is_empty());
        // Discarded, it is missing again.
        space.madvise(at, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(byte(space, at), 0x11);
        assert_eq!(monitor.seen().len(), 1);
        // Not registered any more: zeros.
        space.userfault_unregister(at, 16 * PAGE).unwrap();
        assert_eq!(byte(space, at + 9 * PAGE), 0);
        let gone = space.userfault_copy(at + 10 * PAGE, &[1; PAGE], false).unwrap_err();
        assert_eq!(gone.error.errno(), 2);
        assert_eq!(space.userfault_copy(at + 1, &[1; PAGE], false).unwrap_err().error.errno(), 22);
    });
}

#[test]
fn a_fault_that_no_monitor_resolves_fails() {
    let monitor = Monitor::new(false, false);
    with_monitor(UserFaultModes::MISSING, &monitor, false, |_, _, space, at| {
        let failed = space.write(at + 8, &[1]).unwrap_err();
        assert!(matches!(failed.error, FaultError::UserFault(_)));
        // A child is not registered.
        let child = space.fork(Asid(3)).unwrap();
        assert_eq!(byte(&child, at), 0);
        space.userfault_close(7).unwrap();
        assert_eq!(byte(space, at), 0);
    });
}

#[test]
fn objects_have_missing_and_minor_faults() {
    let monitor = Monitor::new(true, false);
    let modes = UserFaultModes::MISSING | UserFaultModes::MINOR;
    with_monitor(modes, &monitor, true, |_, _, space, at| {
        assert_eq!(byte(space, at + 5 * PAGE), b'h');
        assert_eq!(byte(space, at + 6 * PAGE), 0x11);
        let seen = monitor.seen();
        assert_eq!(
            seen,
            [(at + 5 * PAGE, UserFaultKind::Minor), (at + 6 * PAGE, UserFaultKind::Missing)]
        );
        let absent = space.userfault_continue(at, PAGE, false).unwrap_err();
        assert_eq!(absent.error.errno(), 14);
        // The copy is in the object, too.
        let zero = space.userfault_zeropage(at + 5 * PAGE, PAGE).unwrap_err();
        assert_eq!(zero.error.errno(), 17);
    });
}

#[test]
fn writes_to_protected_pages_are_the_monitors() {
    let monitor = Monitor::new(true, false);
    with_monitor(UserFaultModes::WP, &monitor, false, |_, _, space, at| {
        space.write(at, &[1; 4 * PAGE]).unwrap();
        space.userfault_write_protect(at, 3 * PAGE, true).unwrap();
        assert_eq!(byte(space, at), 1);
        assert!(monitor.seen().is_empty(), "reads do not fault");
        let mut entry = [0; 4];
        space.pagemap(at, &mut entry);
        let protected = entry.map(|entry| entry & pagemap::WRITE_PROTECTED != 0);
        assert_eq!(protected, [true, true, true, false]);
        space.write(at + PAGE, &[2]).unwrap();
        assert_eq!(monitor.seen(), [(at + PAGE, UserFaultKind::WriteProtected)]);
        space.write(at + PAGE, &[3]).unwrap();
        assert!(monitor.seen().is_empty());
        // The mark survives mprotect, a collapse is refused, and a child has no monitor.
        space.mprotect(at, 4 * PAGE, 1, None).unwrap();
        space.mprotect(at, 4 * PAGE, 3, None).unwrap();
        let child = space.fork(Asid(3)).unwrap();
        child.write(at, &[9]).unwrap();
        assert!(monitor.seen().is_empty());
        space.write(at, &[4]).unwrap();
        assert_eq!(monitor.seen(), [(at, UserFaultKind::WriteProtected)]);
        assert_eq!((byte(space, at), byte(&child, at)), (4, 9));
        let outside = space.userfault_write_protect(at + 16 * PAGE, PAGE, true).unwrap_err();
        assert_eq!(outside.errno(), 2);
        // A device that pins a page for writing asks, too.
        space.userfault_write_protect(at, PAGE, true).unwrap();
        let mut frames = [Frame::default()];
        drop(space.pin_pages(at, Access::Write, &mut frames).unwrap());
        assert_eq!(monitor.seen().len(), 1);
        // Copied in protected.
        space.userfault_copy(at + 8 * PAGE, &[6; PAGE], true).unwrap();
        space.write(at + 8 * PAGE, &[7]).unwrap();
        assert_eq!(monitor.seen().len(), 1);
    });
}

/// Write-protected pages stay small; those of memory that is not registered any more do not.
#[test]
fn protected_pages_do_not_collapse() {
    with_space(4096, |_, _, space| {
        let (at, len) = (0x4000_0000, 512 * PAGE);
        space.mmap(at, len, 3, FIXED).unwrap();
        space.write(at, &[1; 3 * PAGE]).unwrap();
        space.userfault_register(at, len, UserFaultModes::WP, Uffd::new(7)).unwrap();
        space.userfault_write_protect(at, len, true).unwrap();
        assert_eq!(space.madvise(at, len, Advice::Collapse).unwrap_err().errno(), 22);
        space.userfault_unregister(at, len).unwrap();
        space.madvise(at, len, Advice::Collapse).unwrap();
        assert_eq!((space.usage(at..at + len).huge, byte(space, at + PAGE)), (len, 1));
    });
}

#[test]
fn private_pages_move_without_a_copy() {
    let monitor = Monitor::new(true, false);
    with_monitor(UserFaultModes::MISSING, &monitor, false, |_, _, space, at| {
        let from = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.write(from, &[8; 2 * PAGE]).unwrap();
        let mut frames = [Frame::default(); 1];
        let pins = space.pin_pages(from, Access::Write, &mut frames).unwrap();
        let frame = pins.frames()[0];
        let move_all = || {
            let done = space.userfault_move(at, from, 4 * PAGE, true);
            done.map_err(|stopped| stopped.error.errno())
        };
        assert_eq!(move_all(), Err(16), "a page is pinned");
        drop(pins);
        let holes = space.userfault_move(at, from + 2 * PAGE, 2 * PAGE, false).unwrap_err();
        assert_eq!((holes.done, holes.error.errno()), (0, 2));
        assert_eq!(byte(space, from), 8);
        move_all().unwrap();
        assert_eq!((byte(space, at), byte(space, at + PAGE), byte(space, from)), (8, 8, 0));
        let number = pagemap_entry(space, at) & ((1 << 55) - 1);
        assert_eq!(number, frame.number(), "the same frame");
        assert_eq!(byte(space, at + 2 * PAGE), 0x11, "still missing");
        assert_eq!(move_all(), Err(17), "pages are in the way");
        // A host that does not look first is refused, too, and nothing is lost.
        let rash = space.with_vmas(|calls| calls.move_private(at..at + PAGE, at + PAGE));
        assert_eq!(rash.unwrap_err().errno(), 17);
        assert_eq!((byte(space, at), byte(space, at + PAGE)), (8, 8));
        let child = space.fork(Asid(3)).unwrap();
        assert_eq!(
            space.userfault_move(at + 8 * PAGE, at, PAGE, false).unwrap_err().error.errno(),
            16
        );
        drop(child);
        assert_eq!(space.userfault_move(from, at, PAGE, false).unwrap_err().error.errno(), 22);
        assert_eq!(space.userfault_move(at, at, PAGE, false).unwrap_err().error.errno(), 17);
    });
}

#[test]
fn poisoned_pages_are_bus_errors() {
    let monitor = Monitor::new(true, false);
    with_monitor(UserFaultModes::MISSING, &monitor, false, |sim, _, space, at| {
        space.userfault_poison(at, PAGE).unwrap();
        let mut byte = [0];
        let lost = space.read(at, &mut byte).unwrap_err();
        assert!(matches!(lost.error, FaultError::Poisoned(_)), "{lost}");
        assert_eq!(space.userfault_poison(at, PAGE).unwrap_err().error.errno(), 17);
        // It is inherited, and no guard.
        let child = space.fork(Asid(3)).unwrap();
        space.madvise(at, PAGE, Advice::GuardRemove).unwrap();
        assert!(matches!(space.read(at, &mut byte).unwrap_err().error, FaultError::Poisoned(_)));
        assert!(matches!(load(sim, &child, at), Err(FaultError::Poisoned(_)) | Ok(_)));
        space.madvise(at, PAGE, Advice::DontNeed).unwrap();
        space.read(at, &mut byte).unwrap();
        assert_eq!(byte, [0x11]);
    });
}

#[test]
fn a_monitor_resolves_ranges_within_one_vma() {
    with_space(4096, |_, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        space.userfault_register(at, 2 * PAGE, UserFaultModes::MISSING, Uffd::new(7)).unwrap();
        let refused = space.userfault_copy(at + PAGE, &[1; 2 * PAGE], false).unwrap_err();
        assert_eq!((refused.done, refused.error.errno()), (0, 2));
        assert_eq!(space.resident(at..at + 4 * PAGE), 0);
        space.userfault_copy(at, &[1; 2 * PAGE], false).unwrap();
        let refused = space.userfault_zeropage(at, 2 * PAGE).unwrap_err();
        assert_eq!((refused.done, refused.error.errno()), (0, 17));
    });
}

/// Which of four pages are soft-dirty.
fn dirty(space: &Space, at: usize) -> [bool; 4] {
    let mut entries = [0; 4];
    space.pagemap(at, &mut entries);
    entries.map(|entry| entry & pagemap::SOFT_DIRTY != 0)
}

/// The rules of Documentation/admin-guide/mm/soft-dirty.rst: a new VMA is dirty as a whole.
#[test]
fn soft_dirty_tells_what_is_new() {
    with_space(4096, |_, _, space| {
        let at = 0x5000_0000;
        let map = |page: usize, prot| space.mmap(at + page * PAGE, 4 * PAGE, prot, FIXED).unwrap();
        map(0, 3);
        // All are, before they are cleared first; no page is where nothing is mapped.
        assert_eq!((dirty(space, at), dirty(space, at + 4 * PAGE)), ([true; 4], [false; 4]));
        space.write(at, &[1; 2 * PAGE]).unwrap();
        space.clear_soft_dirty().unwrap();
        assert_eq!(dirty(space, at), [false; 4]);
        space.write(at + 2 * PAGE, &[1]).unwrap();
        assert_eq!(dirty(space, at), [false, false, true, false]);
        // A new VMA, and one that joins an old one.
        map(8, 3);
        map(12, 1);
        assert_eq!((dirty(space, at + 8 * PAGE), dirty(space, at)[0]), ([true; 4], false));
        map(4, 3);
        assert_eq!((dirty(space, at), dirty(space, at + 4 * PAGE)), ([true; 4], [true; 4]));
        // A child begins as its parent.
        let child = space.fork(Asid(2)).unwrap();
        space.clear_soft_dirty().unwrap();
        assert_eq!(
            (dirty(space, at + 8 * PAGE), dirty(&child, at + 8 * PAGE)[3]),
            ([false; 4], true)
        );
        let grandchild = space.fork(Asid(3)).unwrap();
        grandchild.mmap(at + 20 * PAGE, PAGE, 3, FIXED).unwrap();
        let new = dirty(&grandchild, at + 20 * PAGE)[0];
        assert_eq!((dirty(&grandchild, at), new), ([false; 4], true));
        // A part that keeps its VMA stays clean; a discarded page is as before.
        space.madvise(at, PAGE, Advice::DontNeed).unwrap();
        space.munmap(at + PAGE, PAGE).unwrap();
        assert_eq!(dirty(space, at), [false; 4]);
        let mut listing = String::new();
        space.write_smaps(&mut listing).unwrap();
        assert!(!listing.contains(" sd"), "{listing}");
    });
}

#[test]
fn soft_dirty_tells_what_was_written() {
    with_space(4096, |sim, _, space| {
        let at = space.mmap(0, 8 * PAGE, 3, PRIVATE).unwrap();
        let flags = MapFlags::SHARED | MapFlags::ANONYMOUS;
        let shared = space.mmap(0, 4 * PAGE, 3, flags).unwrap();
        space.write(at, &[1; 4 * PAGE]).unwrap();
        space.write(shared, &[1; 4 * PAGE]).unwrap();
        let dirty = |at| dirty(space, at);
        assert_eq!(dirty(at), [true; 4]);
        space.clear_soft_dirty().unwrap();
        assert_eq!((dirty(at), dirty(shared)), ([false; 4], [false; 4]));
        store(sim, space, at + PAGE, 2).unwrap();
        store(sim, space, shared + 2 * PAGE, 2).unwrap();
        load(sim, space, at).unwrap();
        // Also by a debugger, and where the rights come and go.
        space.mprotect(at, 4 * PAGE, 1, None).unwrap();
        space.poke(at + 3 * PAGE, &[9]).unwrap();
        space.mprotect(at, 4 * PAGE, 3, None).unwrap();
        assert_eq!(dirty(at), [false, true, false, true]);
        assert_eq!(dirty(shared), [false, false, true, false]);
        // A child writes to its own.
        let child = space.fork(Asid(2)).unwrap();
        child.write(at, &[3]).unwrap();
        assert_eq!(dirty(at), [false, true, false, true]);
        let moved = space.mremap(RemapRequest::moving(at, 4 * PAGE, at + 64 * PAGE));
        // As in Linux: the contents are new at these addresses.
        assert_eq!(dirty(moved.unwrap()), [true; 4]);
        space.write(at + 64 * PAGE, &[3]).unwrap();
    });
}

#[test]
fn referenced_pages_age() {
    with_space(4096, |sim, _, space| {
        let at = space.mmap(0, 4 * PAGE, 3, PRIVATE).unwrap();
        (0..4).for_each(|page| store(sim, space, at + page * PAGE, 1).unwrap());
        assert_eq!(space.usage(at..at + 4 * PAGE).referenced, 4 * PAGE);
        space.clear_referenced().unwrap();
        assert_eq!(space.usage(at..at + 4 * PAGE).referenced, 0);
        assert_eq!(space.usage(at..at + 4 * PAGE).private_dirty, 4 * PAGE);
        // A CPU that has cached the old entry need not set the bit.
        leave(space);
        activate(space);
        load(sim, space, at + PAGE).unwrap();
        assert_eq!(space.usage(at..at + 4 * PAGE).referenced, PAGE);
    });
}

#[test]
fn a_scan_finds_and_protects_in_one_step() {
    let monitor = Monitor::new(false, true);
    with_monitor(UserFaultModes::WP, &monitor, false, |_, _, space, at| {
        let written = PageCategories::WRITTEN;
        let scan = Scan {
            category_mask: written | PageCategories::PRESENT,
            return_mask: written,
            wp_matching: true,
            ..Scan::default()
        };
        let find = |scan: &Scan| -> Vec<_> {
            let found = space.scan(at..at + 16 * PAGE, scan).unwrap();
            let page = |addr| (addr - at) / PAGE;
            found.regions.iter().map(|found| (page(found.start), page(found.end))).collect()
        };
        space.write(at + PAGE, &[1; 3 * PAGE]).unwrap();
        space.write(at + 9 * PAGE, &[1]).unwrap();
        assert_eq!(find(&scan), [(1, 4), (9, 10)]);
        assert_eq!(find(&scan), []);
        // Asynchronous: a write gives the page its rights back, without the monitor.
        space.write(at + 2 * PAGE, &[2]).unwrap();
        assert!(monitor.seen().is_empty());
        let look = Scan { wp_matching: false, ..scan };
        assert_eq!((find(&look), find(&look)), (vec![(2, 3)], vec![(2, 3)]));
        // A limit ends the scan where the next one begins.
        space.write(at + 3 * PAGE, &[2]).unwrap();
        let one = Scan { max_pages: 1, ..scan };
        let found = space.scan(at..at + 16 * PAGE, &one).unwrap();
        assert_eq!(found.walk_end, at + 3 * PAGE);
        assert_eq!(find(&one), [(3, 4)]);
        // Absent pages, by inversion.
        let absent = Scan {
            category_mask: PageCategories::PRESENT,
            category_inverted: PageCategories::PRESENT,
            return_mask: PageCategories::all(),
            ..Scan::default()
        };
        assert_eq!(find(&absent), [(0, 1), (4, 9), (10, 16)]);
        let zero = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        assert_eq!(byte(space, zero), 0);
        let all = Scan { return_mask: PageCategories::all(), ..Scan::default() };
        let found = space.scan(zero..zero + PAGE, &all).unwrap().regions[0].categories;
        assert!(found.contains(PageCategories::PFNZERO | PageCategories::PRESENT));
        assert!(space.scan(zero + 1..zero + PAGE, &all).is_err());
    });
}
