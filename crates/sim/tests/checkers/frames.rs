//! Frames, pins, leaks, and pages on quicklists.

use super::*;

#[test]
fn frames_are_freed_when_nothing_leads_to_them() {
    for order in [0, 9] {
        let found = alone_with(Config { frames: 1024, ..config() }, |sim| {
            let space = Space::new(sim);
            let block = sim.alloc(order, NodePolicy::Local).unwrap();
            let large = if order == 9 { LARGE } else { 0 };
            space.set(AT, order / 9, block.start().get() | RW | large);
            free(sim, block);
        });
        let Some(Violation::FreedWhileMapped { index: at, .. }) = found else {
            panic!("{order}: {found:?}")
        };
        assert_eq!(at, index(AT, order / 9));
    }
    let released = alone(|sim| {
        let space = Space::new(sim);
        let frame = page(sim);
        space.map(AT, frame);
        // SAFETY: none. The machine must report it.
        let _ = unsafe { sim.release(frame) };
    });
    assert!(matches!(released, Violation::FreedWhileMapped { .. }));
}

/// The machine remembers a few entries for each frame. This one has more, of which one is left.
#[test]
fn a_frame_with_many_entries_is_not_freed_while_one_leads_to_it() {
    let freed_with = |left: Option<u64>| {
        alone_with(Config { frames: 1024, ..config() }, |sim| {
            let (space, frame) = (Space::new(sim), page(sim));
            let places = || (0..100).map(|page| AT + (page << 12));
            places().for_each(|at| space.map(at, frame));
            places().filter(|at| left != Some(*at)).for_each(|at| space.set(at, 0, 0));
            free(sim, frame);
        })
    };
    for left in [AT, AT + (70 << 12), AT + (99 << 12)] {
        let found = freed_with(Some(left));
        assert!(matches!(found, Some(Violation::FreedWhileMapped { .. })), "{left:x}: {found:?}");
    }
    assert_eq!(freed_with(None), None);
}

#[test]
fn a_frame_within_a_large_page_is_not_freed() {
    let found = alone_with(Config { frames: 2048, ..config() }, |sim| {
        let space = Space::new(sim);
        let block = sim.alloc(9, NodePolicy::Local).unwrap();
        space.set(AT, 1, block.start().get() | RW | LARGE);
        // SAFETY: the block is ours, and has no contents.
        unsafe { sim.split(block) }.unwrap();
        free(sim, block.checked_add(77).unwrap());
    });
    assert!(matches!(found, Some(Violation::FreedWhileMapped { .. })), "{found:?}");
}

#[test]
fn pinned_frames_are_not_freed() {
    let pinned = alone(|sim| {
        let frame = page(sim);
        assert!(sim.info(frame).unwrap().try_pin(3));
        free(sim, frame);
    });
    assert!(matches!(pinned, Violation::FreedWhilePinned { pins: 3, .. }));
    let mapped = alone(|sim| {
        let space = Space::new(sim);
        let frame = page(sim);
        space.map(AT, frame);
        assert!(sim.info(frame).unwrap().try_pin(1));
        // SAFETY: the pin remains after the release; the machine must report the rest.
        unsafe {
            assert_eq!(sim.release(frame), Ok(false));
            let _ = sim.unpin(frame, 1);
        }
    });
    assert!(matches!(mapped, Violation::FreedWhileMapped { .. }));
}

#[test]
fn free_frames_are_not_used() {
    let free_frame = alone(|sim| {
        let space = Space::new(sim);
        space.activate(0);
        space.set(AT, 0, 0);
        let frame = page(sim);
        free(sim, frame);
        space.map(AT, frame);
        space.touch(AT);
    });
    assert!(matches!(free_frame, Violation::FreeFrame { address, .. } if address == virt(AT)));
}

#[derive(Clone, Copy, PartialEq)]
enum Pin {
    Right,
    /// Interrupts stay enabled between the load of the entry and the pin, and the entry is not read
    /// again.
    InterruptsOn,
}

/// CPU 1 pins the frame of an entry, without a lock, while CPU 0 unmaps it, frees it and reuses
/// frames.
fn pin(seed: u64, mutant: Pin) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let (space, _) = sim.on_cpu(0, || mapped(&sim));
    let owner = || {
        let frame = space.unmap(AT);
        space.flush(AT, 4096, false);
        // SAFETY: it is unmapped, and the tests have no pointer to it.
        unsafe { sim.release(frame) }.unwrap();
        let other = page(&sim);
        sim.step(SharedAccess::Other);
        free(&sim, other);
    };
    let user = || {
        let pinned = {
            let _section = (mutant == Pin::Right).then(|| sim.irqs_off());
            let entry = space.slot(AT, 0).load();
            let frame = Frame::containing(PhysAddr::new(entry & 0xf_ffff_ffff_f000));
            sim.step(SharedAccess::Other);
            (entry & PRESENT != 0 && sim.info(frame).unwrap().try_pin(1)).then_some(frame)
        };
        if let Some(frame) = pinned {
            sim.step(SharedAccess::Other);
            // SAFETY: pinned above.
            unsafe { sim.unpin(frame, 1) }.unwrap();
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    finish(&sim, &space)
}

#[test]
fn pins_without_a_lock() {
    right(|seed| pin(seed, Pin::Right));
    let report = caught(|seed| pin(seed, Pin::InterruptsOn));
    assert!(matches!(report.violation, Violation::FreedWhilePinned { .. }), "{report}");
}

#[test]
fn leaks_are_named() {
    let sim = machine(2);
    let frame = sim.on_cpu(1, || {
        let frame = sim.alloc(2, NodePolicy::Local).unwrap();
        set_owner(&sim, frame, Owner::Kernel);
        frame
    });
    let report = sim.check_leaks().unwrap_err();
    let Violation::Leak(leaked) = &report.violation else { panic!("{report}") };
    assert_eq!(
        (leaked.len(), leaked[0].frame, leaked[0].order, leaked[0].owner),
        (1, frame, 2, Owner::Kernel)
    );
    assert!(report.to_string().contains("allocated by cpu1 at"), "{report}");
    sim.on_cpu(0, || free(&sim, frame));
    sim.check_leaks().unwrap();
}

// --- quicklists ---------------------------------------------------------------------------------

/// Sends a page through a quicklist; `dirt` selects when and where a word is changed.
fn quick(dirt: Option<(bool, usize)>, becomes: Owner) -> Option<Violation> {
    alone_if(|sim| {
        sim.constructed(3, |index| if index >= 256 { index as u64 } else { 0 });
        let frame = page(sim);
        let words = sim.frame_ptr(frame).unwrap().cast::<u64>();
        // SAFETY: within the frame, which only this test uses.
        let put = |index: usize, value| unsafe { words.add(index).write(value) };
        (0..512).for_each(|index| put(index, if index >= 256 { index as u64 } else { 0 }));
        if let Some((true, index)) = dirt {
            put(index, 1);
        }
        set_owner(sim, frame, Owner::Quick(3));
        if let Some((false, index)) = dirt {
            put(index, 1);
        }
        set_owner(sim, frame, becomes);
    })
}

#[test]
fn pages_on_quicklists_stay_as_constructed() {
    assert_eq!(quick(None, Owner::Table(3)), None);
    for (entering, index) in [(true, 0), (true, 511), (false, 101), (false, 256)] {
        let becomes = if index % 2 == 0 { Owner::Table(3) } else { Owner::Kernel };
        let Some(Violation::NotConstructed {
            list: 3,
            entering: when,
            index: at,
            found: 1,
            expected,
            ..
        }) = quick(Some((entering, index)), becomes)
        else {
            panic!("not noticed")
        };
        assert_eq!(
            (when, at, expected),
            (entering, index, if index >= 256 { index as u64 } else { 0 })
        );
    }
}
