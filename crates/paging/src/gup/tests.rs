//! Races of pins with unmaps and frees, under the deterministic driver.

mod pages;

use crate::common::*;
use crate::{Attrs, Flags, GupError, Pins};
use alloc::sync::Arc;
use machine::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, Violation, explore, seeded};
use std::boxed::Box;
use std::{vec, vec::Vec};

const AT: u64 = 0x3fff_e000;

fn machine(cpus: usize, frames: u64) -> (Sim, Shared, Leaked<Space>) {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let config = Config { cpus, frames, tick: Some(23), checks, ..Config::default() };
    let (sim, paging) = machine_of(config);
    let space = leaked_user(&sim, &paging);
    (sim, paging, space)
}

const RELAXED: core::sync::atomic::Ordering = core::sync::atomic::Ordering::Relaxed;

/// CPU 0 maps frames that hold the tag 1, and unmaps them. If it allocates such a frame again, it
/// sets the tag 2; or the frame becomes a table. CPUs 1 and 2 pin while tables come and go, and
/// check the tags of the pinned frames.
fn beside_unmaps(seed: u64) -> Result<(), Failure> {
    let (sim, paging, space) = machine(3, 96);
    let owner = || {
        for round in 0..4 {
            let frame = block(&sim, 0);
            word_of(&sim, frame).store(1, RELAXED);
            let range = pages(AT + (round << 12), 1);
            space.map_own(range, frame, Attrs::USER_RW).unwrap();
            (0..30).for_each(|_| sim.step(SharedAccess::Other));
            space.unmap_own(range, |_| ()).unwrap().flush();
            release(&sim, frame);
            let other = sim.alloc(0, NodePolicy::Local).unwrap();
            if other == frame {
                // It was the last reference, so there is no pin.
                word_of(&sim, other).store(2, RELAXED);
            }
            (0..100).for_each(|_| sim.step(SharedAccess::Other));
            release(&sim, other);
            Grace::reclaim(usize::MAX);
        }
    };
    let pinner = || {
        let mut frames = [Frame::default(); 3];
        for round in 0..8 {
            let start = virt(AT + ((round % 4) << 12));
            match space.get_user_pages_fast(start, true, &mut frames, |_, _| false) {
                Ok(pins) => {
                    for frame in pins.frames() {
                        assert_eq!(word_of(&sim, *frame).load(RELAXED), 1, "another owner's frame");
                        sim.step(SharedAccess::Other);
                        assert_eq!(
                            word_of(&sim, *frame).load(RELAXED),
                            1,
                            "the frame changed hands"
                        );
                        assert!(sim.info(*frame).unwrap().pins() != 0);
                    }
                }
                Err(error) => assert_eq!(error, GupError::Hole(start)),
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner), Box::new(pinner)])?;
    end(&sim, &paging, space)
}

/// As [`beside_unmaps`], with as many mapped pages as one call pins. Each page in turn is unmapped,
/// and its frame has another owner for a while. With `mapped`, by `pin_mapped`.
fn many_beside_unmaps(seed: u64, mapped: bool) -> Result<(), Failure> {
    const PAGES: u64 = 10;
    let (sim, paging, space) = machine(2, 96);
    let map = |page: u64| {
        let frame = block(&sim, 0);
        word_of(&sim, frame).store(1, RELAXED);
        space.map_own(pages(AT + (page << 12), 1), frame, Attrs::USER_RW).unwrap();
        frame
    };
    let mut frames: Vec<_> = sim.on_cpu(0, || (0..PAGES).map(map).collect());
    let owner = || {
        for page in [3, 9, 0, 7] {
            let frame = frames[page];
            space.unmap_own(pages(AT + ((page as u64) << 12), 1), |_| ()).unwrap().flush();
            release(&sim, frame);
            let other = sim.alloc(0, NodePolicy::Local).unwrap();
            if other == frame {
                // It was the last reference, so there is no pin.
                word_of(&sim, other).store(2, RELAXED);
            }
            (0..60).for_each(|_| sim.step(SharedAccess::Other));
            release(&sim, other);
            frames[page] = map(page as u64);
        }
    };
    let pinner = || {
        let mut into = [Frame::default(); PAGES as usize];
        for _ in 0..6 {
            let pins = match mapped {
                true => Ok(space.pin_mapped(virt(AT), true, &mut into)),
                false => space.get_user_pages_fast(virt(AT), true, &mut into, |_, _| false),
            };
            for frame in pins.iter().flat_map(Pins::frames) {
                assert_eq!(word_of(&sim, *frame).load(RELAXED), 1, "another owner's frame");
                sim.step(SharedAccess::Other);
                assert_eq!(word_of(&sim, *frame).load(RELAXED), 1, "the frame changed hands");
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        space.unmap_own(pages(AT, PAGES), |_| ()).unwrap().flush();
        frames.iter().for_each(|frame| release(&sim, *frame));
    });
    end(&sim, &paging, space)
}

#[test]
fn the_pinned_frame_was_mapped() {
    right(300, beside_unmaps);
    for mapped in [false, true] {
        right(1000, |seed| many_beside_unmaps(seed, mapped));
    }
}

/// CPU 1 pins the second frame of a block, whose pins are counted at its first frame. Meanwhile CPU
/// 0 frees the block, and its first frame becomes a block of its own. No pin may stay there.
fn pieces_beside_frees(seed: u64) -> Result<(), Failure> {
    let (sim, paging, space) = machine(2, 96);
    let owner = || {
        for _ in 0..6 {
            let pair = block(&sim, 1);
            let second = pair.checked_add(1).unwrap();
            space.map_own(pages(AT, 1), second, Attrs::USER_RW).unwrap();
            (0..12).for_each(|_| sim.step(SharedAccess::Other));
            space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
            release(&sim, pair);
            let others: Vec<_> =
                (0..60).map_while(|_| sim.alloc(0, NodePolicy::Local).ok()).collect();
            (0..12).for_each(|_| sim.step(SharedAccess::Other));
            others.into_iter().for_each(|other| release(&sim, other));
            Grace::reclaim(usize::MAX);
        }
    };
    let pinner = || {
        let mut frames = [Frame::default()];
        for _ in 0..24 {
            // A pin that is given back at a wrong frame is reported there, or as a leak at the end.
            drop(space.get_user_pages_fast_only(virt(AT), true, &mut frames));
        }
    };
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner)])?;
    end(&sim, &paging, space)
}

#[test]
fn pins_of_pieces_are_of_their_block() {
    right(if cfg!(debug_assertions) { 200 } else { 6000 }, pieces_beside_frees);
}

/// Pins in interrupts that hit the CPU while it holds the lock of the same table. With `fallback`,
/// by the call that falls back to locks.
fn in_interrupts(seed: u64, fallback: bool) -> Result<(), Failure> {
    let (sim, paging, space) = machine(2, 96);
    let space = Arc::new(space);
    let done = Arc::new(core::sync::atomic::AtomicBool::new(false));
    let mapper = || {
        let frame = block(&sim, 0);
        word_of(&sim, frame).store(1, RELAXED);
        for _ in 0..8 {
            space.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
            space.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
        }
        release(&sim, frame);
        done.store(true, RELAXED);
    };
    let sender = || {
        while !done.load(RELAXED) {
            let (sim, space) = (sim.clone(), space.clone());
            let machine = sim.clone();
            machine.interrupt(0, move || {
                let mut into = [Frame::default()];
                let pins = match fallback {
                    false => space.get_user_pages_fast_only(virt(AT), true, &mut into),
                    true => space.get_user_pages_fast(virt(AT), true, &mut into, |_, _| false),
                };
                match pins {
                    Ok(pins) => assert_eq!(word_of(&sim, pins.frames()[0]).load(RELAXED), 1),
                    Err(error) => assert_eq!(error, GupError::Hole(virt(AT))),
                }
            });
            (0..20).for_each(|_| machine.relax());
        }
    };
    let ran = seeded(&sim, seed, vec![Box::new(mapper) as Program, Box::new(sender)]);
    ran?;
    // An interrupt that is still pending holds a handle.
    sim.on_cpu(0, || sim.step(SharedAccess::Other));
    let space = Arc::into_inner(space);
    end(&sim, &paging, space.unwrap_or_else(|| panic!("an interrupt was not taken")))
}

#[test]
fn pins_in_interrupts_take_no_lock() {
    right(300, |seed| in_interrupts(seed, false));
    // With the fallback to locks the CPU deadlocks with itself.
    let failure = explore(300, |seed| in_interrupts(seed, true)).unwrap_err();
    assert!(matches!(failure.cause, sim::Cause::Stuck(_)), "{failure}");
}

/// `bring_in` faults pages in, under a lock of its own, while another CPU unmaps them.
fn brought_in(seed: u64) -> Result<(), Failure> {
    let (sim, paging, space) = machine(2, 96);
    let lock = spin::mutex::SpinMutex::new(Vec::<(VirtAddr, Frame)>::new());
    let fault = |at: VirtAddr, write: bool| {
        let mut mapped = machine::lock(&sim, &lock);
        let range = pages(at.get(), 1);
        let known = mapped.iter().any(|(page, _)| *page == at);
        if known && write {
            space.protect_own(range, Flags::RIGHTS - Flags::EXECUTE).unwrap().flush();
        } else if !known {
            let frame = block(&sim, 0);
            space
                .map_own(range, frame, if write { Attrs::USER_RW } else { Attrs::USER_RO })
                .unwrap();
            mapped.push((at, frame));
        }
        at.get() < AT + 0x4000
    };
    let pinner = || {
        let mut frames = [Frame::default(); 6];
        for write in [false, true] {
            let pins = space.get_user_pages_fast(virt(AT), write, &mut frames, fault).unwrap();
            assert_eq!(pins.frames().len(), 4, "up to the hole");
        }
    };
    let reclaimer = || {
        for _ in 0..3 {
            let mut mapped = machine::lock(&sim, &lock);
            let last = mapped.pop();
            if let Some((at, frame)) = last {
                space.unmap_own(pages(at.get(), 1), |_| ()).unwrap().flush();
                release(&sim, frame);
            }
            drop(mapped);
            Grace::reclaim(usize::MAX);
        }
    };
    seeded(&sim, seed, vec![Box::new(pinner) as Program, Box::new(reclaimer)])?;
    sim.on_cpu(0, || {
        let stats = paging.gup_stats();
        assert_eq!((stats.fast_gup, stats.fast_gup_slow), (0, 2));
        let mapped = lock.into_inner();
        for (at, frame) in mapped {
            space.unmap_own(pages(at.get(), 1), |_| ()).unwrap().flush();
            release(&sim, frame);
        }
    });
    end(&sim, &paging, space)
}

#[test]
fn the_locked_path_brings_pages_in() {
    right(500, brought_in);
}
