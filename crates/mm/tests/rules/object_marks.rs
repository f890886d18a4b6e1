//! Write-protection of absent pages of objects: the rules, each alone.

use crate::common::*;
use machine::Asid;
use mm::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const AT: usize = 0x5000_0000;
const PAGES: usize = 8;

/// A space with 8 registered pages of shared memory, which are protected.
fn with_protected(asynchronous: bool, flags: MapFlags, test: impl FnOnce(&World)) {
    with_space(4096, |_, shared, _| {
        let counts = Arc::new(Never { asynchronous, ..Never::default() });
        let mut space = new_space(shared, 2).unwrap();
        space.set_userfault_handler(counts.clone());
        let memory = memfd(shared, PAGES);
        let world = World { space, memory, counts };
        world.map(flags);
        world.space.userfault_write_protect(AT, PAGES * PAGE, true).unwrap();
        test(&world);
    });
}

struct World {
    space: Space,
    memory: Memfd,
    counts: Arc<Never>,
}

impl World {
    fn map(&self, flags: MapFlags) {
        let file = opened(&self.memory);
        let flags = flags | MapFlags::FIXED;
        self.space.mmap_object(AT, PAGES * PAGE, 3, flags, file, 0).unwrap();
        let modes = UserFaultModes::WP;
        self.space.userfault_register(AT, PAGES * PAGE, modes, Uffd::new(7)).unwrap();
    }

    fn write(&self, number: usize) -> bool {
        self.space.write(page(number), &[1]).is_ok()
    }

    fn read(&self, number: usize) -> u8 {
        byte(&self.space, page(number))
    }

    fn read_all(&self) {
        (0..PAGES).for_each(|number| assert_eq!(self.read(number), 0));
    }

    fn is_protected(&self, number: usize) -> bool {
        pagemap_entry(&self.space, page(number)) & pagemap::WRITE_PROTECTED != 0
    }

    /// The numbers of the pages that count as written.
    fn written(&self, wp_matching: bool) -> Vec<usize> {
        let written = PageCategories::WRITTEN;
        let what = Scan { category_mask: written, wp_matching, ..Scan::default() };
        let found = self.space.scan(AT..page(PAGES), &what).unwrap();
        let pages =
            found.regions.iter().flat_map(|region| (region.start..region.end).step_by(PAGE));
        pages.map(|at| (at - AT) / PAGE).collect()
    }

    fn all_protected(&self) -> bool {
        (0..PAGES).all(|number| self.is_protected(number))
    }
}

fn page(number: usize) -> usize {
    AT + number * PAGE
}

#[test]
fn absent_pages_of_objects_are_protected() {
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        with_protected(false, flags, |world| {
            assert_eq!(world.space.totals().resident, 0);
            assert!(world.all_protected());
            assert_eq!(world.read(0), 0);
            assert!(world.all_protected(), "also the page that was read");
            assert!(!world.write(0) && !world.write(1));
            assert_eq!(world.counts.writes.load(Relaxed), 2);
            assert!(world.all_protected());
            world.space.userfault_write_protect(AT, 3 * PAGE, false).unwrap();
            assert!((0..3).all(|number| world.write(number)) && !world.write(3));
            assert_eq!(world.counts.writes.load(Relaxed), 3);
            assert_eq!((world.read(2), world.read(4)), (1, 0));
        });
    }
}

#[test]
fn protection_stays_when_pages_go() {
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        with_protected(false, flags, |world| {
            let bytes = (PAGES * PAGE) as u64;
            world.read_all();
            world.space.madvise(AT, PAGES * PAGE, Advice::DontNeed).unwrap();
            assert!(world.all_protected(), "MADV_DONTNEED");
            world.space.madvise(AT, PAGES * PAGE, Advice::DontNeed).unwrap();
            assert!(world.all_protected(), "of marks");
            world.read_all();
            world.memory.set_size(PAGE as u64).unwrap();
            world.memory.set_size(bytes).unwrap();
            assert!(world.all_protected(), "truncation");
            world.read_all();
            world.memory.punch_hole(0..bytes).unwrap();
            assert!(world.all_protected(), "a hole");
            assert_eq!(world.space.totals().resident, 0);
            assert!(!world.write(3));
            // An unmapping removes it.
            world.space.munmap(AT, PAGES * PAGE).unwrap();
            world.map(flags);
            assert!((0..PAGES).all(|number| !world.is_protected(number) && world.write(number)));
        });
    }
}

#[test]
fn protection_stays_when_pages_are_reclaimed() {
    with_protected(false, MapFlags::SHARED, |world| {
        world.read_all();
        (0..3).for_each(|_| assert!(world.space.reclaim(100).is_ok()));
        assert_eq!(world.space.totals().resident, 0, "all were unmapped");
        assert!(world.all_protected());
        assert!(!world.write(0));
    });
}

#[test]
fn a_fork_leaves_the_parent_protected() {
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        with_protected(false, flags, |world| {
            assert_eq!(world.read(0), 0);
            let child = world.space.fork(Asid(3)).unwrap();
            // A hole goes through tables that both share.
            world.memory.punch_hole(0..PAGE as u64).unwrap();
            assert_eq!(pagemap_entry(&child, page(1)) & pagemap::WRITE_PROTECTED, 0);
            child.write(page(0), &[5]).unwrap();
            child.write(page(1), &[5]).unwrap();
            assert!(world.all_protected());
            assert!(!world.write(0) && !world.write(1));
            let seen = if flags == MapFlags::SHARED { 5 } else { 0 };
            assert_eq!((world.read(0), world.read(1)), (seen, seen));
            // A later registration finds none of the child's marks, also where a page came in.
            child.read(page(2), &mut [0]).unwrap();
            child.userfault_register(AT, PAGES * PAGE, UserFaultModes::WP, Uffd::new(9)).unwrap();
            child.write(page(2), &[1]).unwrap();
            child.write(page(4), &[1]).unwrap();
        });
    }
}

#[test]
fn reads_map_the_pages_around_over_old_marks() {
    with_protected(false, MapFlags::SHARED, |world| {
        world.read_all();
        world.space.madvise(AT, PAGES * PAGE, Advice::DontNeed).unwrap();
        world.space.userfault_unregister(AT, PAGES * PAGE).unwrap();
        assert_eq!((world.read(0), world.space.totals().resident), (0, PAGES * PAGE));
        let modes = UserFaultModes::WP;
        world.space.userfault_register(AT, PAGES * PAGE, modes, Uffd::new(8)).unwrap();
        assert!((0..PAGES).all(|number| !world.is_protected(number)));
        assert!((0..PAGES).all(|number| world.write(number)));
    });
}

#[test]
fn scans_mark_absent_pages_of_objects() {
    for flags in [MapFlags::SHARED, MapFlags::PRIVATE] {
        with_protected(true, flags, |world| {
            assert!(world.written(false).is_empty());
            assert!(world.write(2) && world.write(5));
            assert_eq!(world.read(3), 0);
            assert_eq!(world.written(true), [2, 5]);
            assert!(world.written(false).is_empty());
            world.space.userfault_write_protect(AT, PAGES * PAGE, false).unwrap();
            world.space.madvise(AT, PAGES * PAGE, Advice::DontNeed).unwrap();
            assert_eq!(world.written(true), (0..PAGES).collect::<Vec<_>>());
            assert!(world.written(false).is_empty() && world.all_protected());
            assert!(world.write(7));
            assert_eq!(world.written(false), [7]);
        });
    }
}
