//! Swap that panics, lies, or names slots that do not exist.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use machine::FrameSource;
use mm::*;
use paging::{Paging, X86_64L4};
use sim::Sim;

use super::*;

#[derive(Default)]
struct Mad {
    /// The slot of each page.
    slot: AtomicU64,
    panics: AtomicBool,
    /// References to slots.
    held: AtomicUsize,
}

impl Swap for Mad {
    fn write(&self, _: &[u8; PAGE]) -> Option<u64> {
        assert!(!self.panics.load(Relaxed), "the disk");
        self.held.fetch_add(1, Relaxed);
        Some(self.slot.load(Relaxed))
    }

    /// Says that it has read the page, and has not.
    fn read(&self, _: u64, _: &mut [u8; PAGE]) -> bool {
        true
    }

    fn hold(&self, _: u64) -> bool {
        self.held.fetch_add(1, Relaxed);
        true
    }

    fn release(&self, _: u64) {
        self.held.fetch_sub(1, Relaxed);
    }
}

/// Runs a test in a space whose pages go to such a swap. Nothing is left afterwards.
fn with_mad(test: impl FnOnce(&Arc<Mad>, &Space)) {
    let mad = Arc::new(Mad::default());
    on_machine(one_cpu(256), Some(mad.clone()), |_, shared| {
        test(&mad, &new_space(shared, 1).unwrap());
    });
    assert_eq!(mad.held.load(Relaxed), 0, "slots are left");
}

/// Maps memory, fills it, and gives it back.
fn leave_secrets(space: &Space) {
    let at = space.mmap(0, 64 * PAGE, 3, PRIVATE).unwrap();
    space.write(at, &[0xaa; 64 * PAGE]).unwrap();
    space.munmap(at, 64 * PAGE).unwrap();
}

#[test]
fn a_panic_leaves_no_frame_behind() {
    with_mad(|mad, space| {
        let at = space.mmap(0, 8 * PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[5; 8 * PAGE]).unwrap();
        mad.panics.store(true, Relaxed);
        panics(|| space.reclaim(8));
        let mut found = [0; 8 * PAGE];
        space.read(at, &mut found).unwrap();
        assert_eq!(found, [5; 8 * PAGE]);
        space.write(at, &[6; 8 * PAGE]).unwrap();
    });
}

#[test]
fn a_slot_that_no_entry_can_name_is_given_up() {
    with_mad(|mad, space| {
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[5; PAGE]).unwrap();
        let slots = Paging::<Sim, X86_64L4>::SLOTS;
        for slot in [slots, u64::MAX - slots, u64::MAX - slots + 1, u64::MAX] {
            mad.slot.store(slot, Relaxed);
            assert_eq!(space.reclaim(1).unwrap().swapped, 0);
            assert_eq!(mad.held.load(Relaxed), 0);
        }
        mad.slot.store(slots - 1, Relaxed);
        assert_eq!(space.reclaim(1).unwrap().swapped, 1);
    });
}

#[test]
fn a_page_that_swap_does_not_fill_is_zero() {
    with_mad(|_, space| {
        let at = space.mmap(0, PAGE, 3, PRIVATE).unwrap();
        space.write(at, &[5; PAGE]).unwrap();
        assert_eq!(space.reclaim(1).unwrap().swapped, 1);
        leave_secrets(space);
        let mut found = [1; PAGE];
        space.read(at, &mut found).unwrap();
        assert_eq!(found, [0; PAGE]);
    });
}

#[test]
fn a_page_of_an_object_that_is_not_filled_is_zero() {
    with_space(256, |sim, shared, space| {
        leave_secrets(space);
        let memory = memfd(shared, 1);
        let filled = MemoryPages::fill(&*memory, 0, &|_| Ok(()), &mut |frame, put| {
            assert!(put());
            // SAFETY: the reference for an entry, which is not stored.
            unsafe { sim.release(frame) }.unwrap();
        });
        assert_eq!(filled, Ok(true));
        let mut found = [1; PAGE];
        memory.read(0, &mut found);
        assert_eq!(found, [0; PAGE]);
    });
}
