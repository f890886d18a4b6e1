//! Results of two calls that meet, which must be those of one order of the two.

use std::sync::{Arc, Mutex};

use crate::common::*;
use crate::half_way::{AT, Call, SHARED, meet};
use machine::{Asid, Frame};
use mm::*;

/// A page moves before or after its first write: it is never shared with a fork.
#[test]
fn a_move_of_a_monitor_and_a_first_write() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.set_userfault_handler(Arc::new(Never::default()));
        space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap();
        space.userfault_register(AT, PAGE, UserFaultModes::MISSING, Uffd::new(1)).unwrap();
        // So that a first write needs no lock; and the zero page.
        space.write(AT + 2 * PAGE, &[1]).unwrap();
        assert_eq!(byte(space, AT + PAGE), 0);
    };
    meet(
        prepare,
        [
            |_, space, ()| {
                let moved = space.userfault_move(AT, AT + PAGE, PAGE, false);
                assert!(moved.is_ok(), "{moved:?}");
            },
            |sim, space, ()| _ = store(sim, space, AT + PAGE, 7),
        ],
        |_, ()| {},
    );
}

/// A seal does not fail because memory is read.
#[test]
fn a_seal_and_a_read() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let memory = memfd(shared, 1);
        memory.write(0, &[7]).unwrap();
        let file = Backing::open(memory.clone(), false).unwrap();
        space.mmap_object(AT, PAGE, 1, SHARED, file, 0).unwrap();
        memory
    };
    meet(
        prepare,
        [
            |_, _, memory| memory.add_seals(Seals::WRITE).unwrap(),
            |_, space, _| assert_eq!(byte(space, AT), 7),
        ],
        |_, _| {},
    );
}

/// All pages of a range are pinned, whatever forks and discards meanwhile.
#[test]
fn a_pin_a_fork_and_an_advice() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        space.write(AT, &[1; 2 * PAGE]).unwrap();
        Mutex::new(None)
    };
    let pin: Call<Mutex<Option<Space>>> = |_, space, _| {
        let mut frames = [Frame::default(); 2];
        let pins = space.pin_pages(AT, Access::Write, &mut frames).unwrap();
        assert_eq!(pins.frames().len(), 2);
    };
    meet(
        prepare,
        [pin, |_, space, child| {
            *child.lock().unwrap() = Some(space.fork(Asid(2)).unwrap());
            for _ in 0..4 {
                space.madvise(AT + PAGE, PAGE, Advice::DontNeed).unwrap();
            }
        }],
        |_, _| {},
    );
}

/// A page that a map keeps in memory is there for all, though a reclaim would like to have it.
#[test]
fn mincore_and_an_eviction_that_fails() {
    let prepare = |shared: &SharedPaging, space: &mut Space| {
        let file = File::try_new(shared, Zeros, PAGE as u64).unwrap();
        for at in [AT, AT + PAGE] {
            let opened = Backing::open(file.clone(), true).unwrap();
            space.mmap_object(at, PAGE, 1, SHARED, opened, 0).unwrap();
        }
        assert_eq!(byte(space, AT + PAGE), 0);
        file
    };
    meet(
        prepare,
        [
            |_, _, file| assert!(!file.evict(0)),
            |_, space, _| {
                let mut found = [9];
                space.mincore(AT, &mut found).unwrap();
                assert_eq!(found, [1]);
            },
        ],
        |_, _| {},
    );
}

/// A scan protects the pages of which it tells, also one that is read for the first time meanwhile.
#[test]
fn a_scan_that_protects_and_a_first_read() {
    let prepare = |_: &SharedPaging, space: &mut Space| {
        let handler = Never { asynchronous: true, marks_absent: true, ..Never::default() };
        space.set_userfault_handler(Arc::new(handler));
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        space.write(AT + PAGE, &[1]).unwrap();
        space.userfault_register(AT, 2 * PAGE, UserFaultModes::WP, Uffd::new(1)).unwrap();
    };
    meet(
        prepare,
        [
            |_, space, ()| {
                let category_mask = PageCategories::WRITTEN;
                let what = Scan { category_mask, wp_matching: true, ..Scan::default() };
                let found = space.scan(AT..AT + PAGE, &what).unwrap();
                assert_eq!(found.regions.len(), 1);
            },
            |sim, space, ()| assert_eq!(load(sim, space, AT), Ok(0)),
        ],
        |space, ()| {
            let entry = pagemap_entry(space, AT);
            assert!(entry & pagemap::WRITE_PROTECTED != 0, "{entry:#x}");
        },
    );
}
