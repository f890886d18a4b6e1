//! Pins beside changes of pages of all sizes, under the deterministic driver. Between the load of
//! an entry and the pin, the entry may change: to other frames, fewer rights, other blocks.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const AT: u64 = 0x4000_0000;

fn machine() -> (Sim, Shared, ManuallyDrop<Space>) {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let config = Config { cpus: 2, frames: 1024 + 64, tick: Some(23), checks, ..Config::default() };
    let sim = Sim::new(config).unwrap();
    let shared = paging(&sim);
    let space = sim.on_cpu(0, || Space::<Grace>::user(&shared, Asid(1), None).unwrap());
    (sim, shared, ManuallyDrop::new(space))
}

fn finish(sim: &Sim, shared: &Shared, space: ManuallyDrop<Space>) -> Result<(), Failure> {
    sim.on_cpu(0, || drop(ManuallyDrop::into_inner(space)));
    Ok(all_given_back(sim, shared)?)
}

/// A word in a frame that tells its owner.
fn tag(sim: &Sim, frame: Frame) -> &AtomicU64 {
    // SAFETY: the tests access this word atomically only.
    unsafe { sim.frame_ptr(frame).unwrap().cast().as_ref() }
}

const OURS: u64 = 1;
const THEIRS: u64 = 2;
const FROZEN: u64 = 3;

fn tag_all(sim: &Sim, first: Frame, order: u8, value: u64) {
    // The first few are enough: no more are pinned.
    for number in 0..(1u64 << order).min(4) {
        tag(sim, first.checked_add(number).unwrap()).store(value, Relaxed);
    }
}

/// Pins for writing. A pinned frame is the mapped one, and writable.
fn pin_some(sim: &Sim, space: &Space, count: usize) {
    let mut into = [Frame::default(); 3];
    for _ in 0..6 {
        let Ok(pins) = space.get_user_pages_fast(virt(AT), true, &mut into[..count], |_, _| false)
        else {
            continue;
        };
        for frame in pins.frames() {
            for _ in 0..2 {
                assert_eq!(tag(sim, *frame).load(Relaxed), OURS);
                sim.step(Access::Shared);
            }
        }
    }
}

/// A page of this order is unmapped, and its frames get another owner, repeatedly.
fn unmapped(seed: u64, order: u8) -> Result<(), Failure> {
    let (sim, shared, space) = machine();
    let range = pages(AT, 1 << order);
    let owner = || {
        for _ in 0..3 {
            let first = block(&sim, order);
            tag_all(&sim, first, order, OURS);
            space.map_own(range, first, Attrs::USER_RW).unwrap();
            (0..20).for_each(|_| sim.step(Access::Shared));
            space.unmap_own(range, |_| ()).unwrap().flush();
            release(&sim, first);
            let Ok(other) = sim.alloc(order, Place::Local) else { continue };
            if other == first {
                // It was the last reference, so there is no pin.
                tag_all(&sim, other, order, THEIRS);
            }
            (0..40).for_each(|_| sim.step(Access::Shared));
            release(&sim, other);
        }
    };
    let pinner = || pin_some(&sim, &space, 3);
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner)])?;
    finish(&sim, &shared, space)
}

/// A page of this order becomes read-only, and then does not change unless it is pinned, as before
/// a fork.
fn frozen(seed: u64, order: u8) -> Result<(), Failure> {
    let (sim, shared, space) = machine();
    let range = pages(AT, 1 << order);
    let first = sim.on_cpu(0, || {
        let first = block(&sim, order);
        tag_all(&sim, first, order, OURS);
        space.map_own(range, first, Attrs::USER_RW).unwrap();
        first
    });
    let owner = || {
        for _ in 0..3 {
            (0..20).for_each(|_| sim.step(Access::Shared));
            space.protect_own(range, Flags::READ | Flags::USER).unwrap().flush();
            if sim.info(first).unwrap().pins() == 0 {
                tag_all(&sim, first, order, FROZEN);
                (0..40).for_each(|_| sim.step(Access::Shared));
                tag_all(&sim, first, order, OURS);
            }
            space.protect_own(range, Flags::READ | Flags::WRITE | Flags::USER).unwrap().flush();
        }
    };
    let pinner = || pin_some(&sim, &space, 3.min(1 << order));
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        space.unmap_own(range, |_| ()).unwrap().flush();
        release(&sim, first);
    });
    finish(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn pages_that_are_unmapped_are_not_pinned() {
    right(1000, |seed| unmapped(seed, 0));
    right(1000, |seed| unmapped(seed, 9));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn pages_that_may_not_be_written_are_not_pinned_for_it() {
    right(1000, |seed| frozen(seed, 0));
    right(1000, |seed| frozen(seed, 9));
}

/// A page that is always mapped is no hole to the locked path, whatever happens to its entry
/// meanwhile.
fn split(seed: u64) -> Result<(), Failure> {
    let (sim, shared, space) = machine();
    let range = pages(AT, 512);
    let large = sim.on_cpu(0, || {
        let large = block(&sim, 9);
        space.map_own(range, large, Attrs::USER_RW).unwrap();
        large
    });
    let done = AtomicBool::new(false);
    let splitter = || {
        // Keeps the other CPU in an interrupt for as long as it takes to fill a table.
        let theirs = sim.clone();
        sim.interrupt(1, move || (0..1500).for_each(|_| theirs.step(Access::Shared)));
        space.split_own(virt(AT), PageSize::Size4K).unwrap().flush();
        done.store(true, Relaxed);
    };
    let pinner = || {
        let mut into = [Frame::default(); 2];
        while !done.load(Relaxed) {
            let pins = space.get_user_pages(virt(AT), true, &mut into, |_, _| false).unwrap();
            assert_eq!(pins.frames(), [large, large.checked_add(1).unwrap()]);
        }
    };
    seeded(&sim, seed, vec![Box::new(splitter) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        space.unmap_own(range, |_| ()).unwrap().flush();
        release(&sim, large);
    });
    finish(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn the_locked_path_knows_no_holes_where_there_are_none() {
    right(500, split);
}

/// Two neighbouring pages are unmapped and mapped again, each with the other's frame, while another
/// CPU pins them. An entry that leads to a page again may lead to another frame than the pinned
/// one. A third page keeps the table alive: in an unlinked table no page would be mapped again.
fn neighbours_change_frames(seed: u64) -> Result<(), Failure> {
    let (sim, shared, space) = machine();
    let range = pages(AT, 2);
    let fresh = |page: u64| {
        let frame = block(&sim, 0);
        tag(&sim, frame).store(page + 10, Relaxed);
        frame
    };
    let map = || {
        // The frame that was given back last is allocated first.
        let frames = [fresh(0), fresh(1)];
        space.map_frames_own(range.start(), &frames, Attrs::USER_RW).unwrap();
        frames
    };
    let (third, mut frames) = sim.on_cpu(0, || {
        let third = block(&sim, 0);
        space.map_own(pages(AT + 0x2000, 1), third, Attrs::USER_RW).unwrap();
        (third, map())
    });
    let changer = || {
        for _ in 0..10 {
            space.unmap_own(range, |_| ()).unwrap().flush();
            frames.iter().for_each(|frame| release(&sim, *frame));
            frames = map();
        }
    };
    let pinner = || {
        let mut into = [Frame::default(); 2];
        for round in 0..30 {
            let first = round % 2;
            let (start, into) = (virt(AT + (first << 12)), &mut into[first as usize..]);
            let Ok(pins) = space.get_user_pages_fast(start, true, into, |_, _| false) else {
                continue;
            };
            for (frame, page) in pins.frames().iter().zip(first..) {
                assert_eq!(tag(&sim, *frame).load(Relaxed), page + 10, "the neighbour's frame");
                sim.step(Access::Shared);
                assert_eq!(tag(&sim, *frame).load(Relaxed), page + 10, "the frame changed hands");
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        space.unmap_own(pages(AT, 3), |_| ()).unwrap().flush();
        frames.iter().chain([&third]).for_each(|frame| release(&sim, *frame));
    });
    finish(&sim, &shared, space)
}

#[test]
fn a_neighbours_frame_is_not_pinned() {
    right(500, neighbours_change_frames);
}
