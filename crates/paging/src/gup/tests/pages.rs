//! Pins on one CPU: the pages that pins keep, blocks and their pieces, and refused ranges.

use super::*;
use crate::gup::TRIES;

/// A pinned page outlives its unmapping. To split it is refused, and its frame is free only after
/// the last pin.
#[test]
fn pins_keep_pages() {
    let (sim, paging, space) = machine(1, 1024 + 512);
    sim.on_cpu(0, || {
        let large = block(&sim, 9);
        let small = block(&sim, 0);
        space.map_own(pages(0x20_0000, 512), large, Attrs::USER_RW).unwrap();
        space.map_own(pages(0x40_0000, 1), small, Attrs::USER_RO).unwrap();
        let info = |frame| sim.info(frame).unwrap();
        let mut frames = [Frame::default(); 600];
        let none = |_: VirtAddr, _| false;

        // From within the large page over its end to the hole, in one step for each mapping.
        let before = sim.stats().steps;
        let start = virt(0x20_0000 + 300 * 4096 + 17);
        let pins = space.get_user_pages_fast(start, false, &mut frames, none).unwrap();
        assert!(sim.stats().steps - before < 60, "{} steps", sim.stats().steps - before);
        assert_eq!(pins.frames().len(), 213);
        assert!((0..212).all(|i| pins.frames()[i].number() == large.number() + 300 + i as u64));
        assert_eq!((info(large).pins(), info(large).refs(), info(small).pins()), (212, 213, 1));
        space.unmap_own(pages(0x20_0000, 512), |_| ()).unwrap().flush();
        release(&sim, large);
        assert_eq!(info(large).refs(), 212);
        // SAFETY: the page is ours.
        let split = unsafe { sim.split(large) };
        assert_eq!(split, Err(FrameError::InUse { frame: large, refs: 212, pins: 212 }));
        drop(pins);
        assert_eq!(info(large).refs(), 0, "the last pin gave it back");

        // For writing, the read-only page counts as a hole.
        let found = space.get_user_pages_fast(virt(0x40_0000), true, &mut frames, none);
        assert_eq!(found.map(|pins| pins.keep()).unwrap_err(), GupError::Hole(virt(0x40_0000)));
        space.unmap_own(pages(0x40_0000, 1), |_| ()).unwrap().flush();
        release(&sim, small);
    });
    end(&sim, &paging, space).unwrap();
}

/// The pieces of a split large mapping are pinned at their block, or at their own frames after the
/// block was split, too.
#[test]
fn pieces_of_blocks() {
    let (sim, paging, space) = machine(1, 1024 + 512);
    sim.on_cpu(0, || {
        let large = block(&sim, 9);
        let frame = |i| large.checked_add(i).unwrap();
        let range = pages(0x20_0000, 512);
        space.map_own(range, large, Attrs::USER_RW).unwrap();
        space.split_own(virt(0x20_0000), PageSize::Size4K).unwrap().flush();
        let mut frames = [Frame::default(); 4];
        let none = |_: VirtAddr, _| false;
        let start = virt(0x20_0000 + 511 * 4096);
        let pins = space.get_user_pages_fast(start, true, &mut frames, none).unwrap();
        assert_eq!(pins.frames(), [frame(511)]);
        assert_eq!((sim.info(large).unwrap().pins(), sim.info(frame(511)).unwrap().pins()), (1, 0));
        drop(pins);
        // So far one block was mapped by pieces. Now split the block into 512, too.
        // SAFETY: the block is ours.
        unsafe { sim.split(large) }.unwrap();
        let pins = space.get_user_pages_fast(start, true, &mut frames, none).unwrap();
        assert_eq!((sim.info(large).unwrap().pins(), sim.info(frame(511)).unwrap().pins()), (0, 1));
        drop(pins);
        space.unmap_own(range, |_| ()).unwrap().flush();
        // One large entry maps many blocks: each block gets its own pin.
        space.map_own(range, large, Attrs::USER_RW).unwrap();
        let pins = space.get_user_pages_fast(virt(0x20_5000), true, &mut frames, none).unwrap();
        assert_eq!(pins.frames(), [frame(5), frame(6), frame(7), frame(8)]);
        assert!((5..9).all(|i| sim.info(frame(i)).unwrap().pins() == 1));
        let kept = pins.keep();
        // SAFETY: the pins were kept above.
        unsafe { crate::unpin(&sim, &frames[..kept]) };
        assert!((0..512).all(|i| sim.info(frame(i)).unwrap().pins() == 0));
        space.unmap_own(range, |_| ()).unwrap().flush();
        (0..512).for_each(|i| release(&sim, frame(i)));
    });
    end(&sim, &paging, space).unwrap();
}

#[test]
fn ranges_that_are_not_a_programs() {
    let (sim, paging, space) = machine(1, 64);
    sim.on_cpu(0, || {
        let mut frames = [Frame::default(); 4];
        let mut get = |at: u64| {
            let none = |_: VirtAddr, _| false;
            let found = space.get_user_pages_fast(virt(at), false, &mut frames, none);
            found.map(|pins| pins.frames().len()).unwrap_err()
        };
        let half = 1u64 << 47;
        assert_eq!(get(u64::MAX - 0x2fff), GupError::Wraps);
        assert_eq!(get(half), GupError::NotCanonical(virt(half)));
        assert_eq!(get(half - 0x1000), GupError::NotCanonical(virt(half + 0x2fff)));
        assert_eq!(get(!(half - 1)), GupError::Kernel(virt(!(half - 1))));
        assert_eq!(get(half - 0x4000), GupError::Hole(virt(half - 0x4000)));
        let none = space.get_user_pages_fast(virt(0), true, &mut [], |_, _| false).unwrap();
        assert!(none.frames().is_empty());
        drop(none);

        // A device; a page without USER; a PROT_NONE page; a page that never stays.
        let device = Frame::new(7).unwrap();
        space.map_own(pages(0x1000, 1), device, Attrs::USER_RW).unwrap();
        assert_eq!(get(0x1000), GupError::NotMemory(virt(0x1000)));
        let mut two = [device; 2];
        let only = space.get_user_pages_fast_only(virt(0x1fff), true, &mut two);
        assert_eq!(only.map(drop).unwrap_err(), GupError::Hole(virt(0x1000)));
        let frame = block(&sim, 0);
        space.map_own(pages(0x2000, 1), frame, Attrs::USER_RW).unwrap();
        let guard = <Grace as grace::Reclaim>::pin();
        let spot = space.walk(&guard).find(virt(0x2000), 0).unwrap();
        // Cannot be mapped by a call, so clear the bit: bit 2 of an entry is USER.
        assert_eq!(spot.entry.fetch_and(!4) & 4, 4);
        drop(guard);
        assert_eq!(get(0x2000), GupError::Hole(virt(0x2000)));
        space.protect_own(pages(0x2000, 1), Flags::USER).unwrap().flush();
        assert_eq!(get(0x2fff), GupError::Hole(virt(0x2000)));
        let mut asked = 0;
        let lies = |_: VirtAddr, _| {
            asked += 1;
            true
        };
        let found = space.get_user_pages_fast(virt(0x5000), false, &mut frames, lies);
        assert_eq!(found.map(drop).unwrap_err(), GupError::Unsettled(virt(0x5000)));
        assert_eq!(asked, TRIES);
        assert_eq!(sim.info(frame).unwrap().pins(), 0);
        space.unmap_own(pages(0x1000, 2), |_| ()).unwrap().flush();
        release(&sim, frame);
    });
    end(&sim, &paging, space).unwrap();
}

/// The machine reports a page that is freed, not released, while it is pinned.
#[test]
fn freed_while_pinned() {
    let report = caught(1, |seed| {
        let (sim, _paging, space) = machine(1, 64);
        let program = || {
            let frame = block(&sim, 0);
            space.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
            let mut frames = [Frame::default()];
            let pins = space.get_user_pages_fast(virt(AT), true, &mut frames, |_, _| false);
            space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
            // SAFETY: none; the machine must report it.
            let _ = unsafe { sim.free(frame) };
            drop(pins);
        };
        seeded(&sim, seed, vec![Box::new(program) as Program]).map(drop)
    });
    assert!(matches!(report.violation, Violation::FreedWhilePinned { pins: 1, .. }), "{report}");
}
