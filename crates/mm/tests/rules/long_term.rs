//! Pins for reading that last: the holder sees what the program writes later.

use std::sync::atomic::Ordering::SeqCst;

use crate::common::*;
use machine::{Asid, Frame, VirtAddr};
use mm::*;

const AT: usize = 0x3fff_f000;

#[test]
fn the_holder_sees_later_writes() {
    with_space(256, |sim, _, space| {
        // A page that was written and one that was not, shared with a child, and not writable.
        space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap();
        store(sim, space, AT, 1).unwrap();
        let child = space.fork(Asid(2)).unwrap();
        space.mprotect(AT, 2 * PAGE, 1, None).unwrap();
        let mut frames = [Frame::default(); 2];
        let snapshot = {
            let mut frames = [Frame::default(); 2];
            let pins = space.pin_pages(AT, Access::Read, &mut frames).unwrap();
            pins.frames().to_vec()
        };
        let pins = space.pin_pages_long_term(AT + 8, &mut frames).unwrap();
        assert!(pins.frames().iter().zip(&snapshot).all(|(own, shared)| own != shared));
        assert_eq!(
            [0, 1].map(|page| pinned_words(sim, pins.frames()[page])[0].load(SeqCst)),
            [1, 0]
        );
        assert!(store(sim, space, AT, 5).is_err(), "the rights stay");
        space.mprotect(AT, 2 * PAGE, 3, None).unwrap();
        // Another fork copies the pages for its child.
        let second = space.fork(Asid(3)).unwrap();
        for page in 0..2 {
            store(sim, space, AT + page * PAGE, 7).unwrap();
            assert_eq!(pinned_words(sim, pins.frames()[page])[0].load(SeqCst), 7);
        }
        for (other, expected) in [(&child, [1, 0]), (&second, [1, 0])] {
            assert_eq!([0, 1].map(|page| word(other, AT + page * PAGE)), expected);
        }
        drop(pins);
        // Without the pins, a fork shares the pages again.
        let before = space.resident(AT..AT + 2 * PAGE);
        let third = space.fork(Asid(4)).unwrap();
        store(sim, space, AT, 8).unwrap();
        assert_eq!((before, third.resident(AT..AT + 2 * PAGE)), (2, 2));
    });
}

#[test]
fn shared_memory_and_huge_pages_are_pinned_where_they_are() {
    with_space(2048, |sim, shared, space| {
        let memory = memfd(shared, 1);
        let at = space.mmap_object(0, PAGE, 3, MapFlags::SHARED, opened(&memory), 0).unwrap();
        let mut frames = [Frame::default()];
        let pins = space.pin_pages_long_term(at, &mut frames).unwrap();
        memory.write(0, &9_u64.to_le_bytes()).unwrap();
        assert_eq!(pinned_words(sim, pins.frames()[0])[0].load(SeqCst), 9);
        drop(pins);
        let huge = 0x4000_0000;
        space.set_huge_pages(HugePages::Always).unwrap();
        space.mmap(huge, 512 * PAGE, 3, FIXED).unwrap();
        store(sim, space, huge, 3).unwrap();
        let mut frames = [Frame::default(); 3];
        let pins = space.pin_pages_long_term(huge + 5 * PAGE, &mut frames).unwrap();
        store(sim, space, huge + 6 * PAGE, 4).unwrap();
        assert_eq!(pinned_words(sim, pins.frames()[1])[0].load(SeqCst), 4);
        assert_eq!(space.usage(huge..huge + 512 * PAGE).huge, 512 * PAGE, "it stays whole");
    });
}

#[test]
fn it_ends_where_the_program_may_not_read() {
    with_space(256, |_, _, space| {
        space.mmap(AT, 3 * PAGE, 1, FIXED).unwrap();
        space.mprotect(AT + 2 * PAGE, PAGE, 0, None).unwrap();
        let mut frames = [Frame::default(); 4];
        assert_eq!(space.pin_pages_long_term(AT, &mut frames).unwrap().frames().len(), 2);
        let denied = FaultError::Denied(VirtAddr::new((AT + 2 * PAGE) as u64), Access::Read);
        assert_eq!(space.pin_pages_long_term(AT + 2 * PAGE, &mut frames).unwrap_err(), denied);
        let hole = FaultError::Unmapped(VirtAddr::new((AT + 3 * PAGE) as u64));
        assert_eq!(space.pin_pages_long_term(AT + 3 * PAGE, &mut frames).unwrap_err(), hole);
        assert!(space.pin_pages_long_term(usize::MAX, &mut frames).is_err());
        assert!(space.pin_pages_long_term(AT, &mut []).unwrap().frames().is_empty());
    });
}

/// Memory of a device is mapped behind the page: it cannot be pinned, and the call ends there.
#[test]
fn it_ends_at_the_memory_of_a_device() {
    with_space(256, |_, shared, space| {
        let frames = machine::FrameRange::new(Frame::new(0x4_0000).unwrap(), 1).unwrap();
        // SAFETY: no program accesses it here.
        let device = unsafe {
            DeviceMemory::try_new(shared, frames, paging::Cache::Uncached, "/dev/x", (9, 1), 5)
        };
        let device = Backing::open(device.unwrap(), true).unwrap();
        space.mmap(AT, PAGE, 3, FIXED).unwrap();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        space.mmap_object(AT + PAGE, PAGE, 3, flags, device, 0).unwrap();
        let mut frames = [Frame::default(); 2];
        assert_eq!(space.pin_pages_long_term(AT, &mut frames).unwrap().frames().len(), 1);
        assert!(space.pin_pages_long_term(AT + PAGE, &mut frames[..1]).is_err());
    });
}
