//! Pins during changes of pages of all sizes, under the deterministic driver. Between the load of
//! an entry and the pin, the entry may change: to other frames, fewer rights, other blocks.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Checks, Config, Failure, Grace, Program, Sim, Stale, seeded};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const AT: u64 = 0x4000_0000;

fn machine() -> (Sim, Shared, Leaked<Space>) {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let config = Config { cpus: 2, frames: 1024 + 64, tick: Some(23), checks, ..Config::default() };
    let (sim, shared) = machine_of::<X86_64L4>(config);
    let space = leaked_user(&sim, &shared);
    (sim, shared, space)
}

const OURS: u64 = 1;
const FROZEN: u64 = 2;

fn tag_all(sim: &Sim, first: Frame, order: u8, value: u64) {
    // The first few are enough: no more are pinned.
    for number in 0..(1u64 << order).min(4) {
        word_of(sim, first.checked_add(number).unwrap()).store(value, Relaxed);
    }
}

/// Pins for writing. A pinned frame is the mapped one, and writable.
fn pin_some(sim: &Sim, space: &Space, count: usize, call: PinCall) {
    let mut into = [Frame::default(); 3];
    for _ in 0..6 {
        let Some(pins) = call.pin(space, virt(AT), &mut into[..count]) else { continue };
        for frame in pins.frames() {
            for _ in 0..2 {
                assert_eq!(word_of(sim, *frame).load(Relaxed), OURS);
                sim.step(SharedAccess::Other);
            }
        }
    }
}

/// A page of this order becomes read-only, and then does not change unless it is pinned, as before
/// a fork.
fn frozen(seed: u64, order: u8, call: PinCall) -> Result<(), Failure> {
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
            (0..20).for_each(|_| sim.step(SharedAccess::Other));
            space.protect_own(range, Flags::READ | Flags::USER).unwrap().flush();
            if sim.info(first).unwrap().pins() == 0 {
                tag_all(&sim, first, order, FROZEN);
                (0..40).for_each(|_| sim.step(SharedAccess::Other));
                tag_all(&sim, first, order, OURS);
            }
            space.protect_own(range, Flags::READ | Flags::WRITE | Flags::USER).unwrap().flush();
        }
    };
    let pinner = || pin_some(&sim, &space, 3.min(1 << order), call);
    seeded(&sim, seed, vec![Box::new(owner) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        space.unmap_own(range, |_| ()).unwrap().flush();
        release(&sim, first);
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn pages_that_may_not_be_written_are_not_pinned_for_it() {
    for call in PinCall::ALL {
        right(if call == PinCall::Fast { 1000 } else { 200 }, |seed| frozen(seed, 0, call));
        right(if call == PinCall::Fast { 1000 } else { 200 }, |seed| frozen(seed, 9, call));
    }
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
        sim.interrupt(1, move || (0..1500).for_each(|_| theirs.step(SharedAccess::Other)));
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
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn the_locked_path_knows_no_holes_where_there_are_none() {
    right(500, split);
}

/// The calls that pin.
#[derive(Clone, Copy, PartialEq, Debug)]
enum PinCall {
    Fast,
    FastOnly,
    Locked,
    Mapped,
}

impl PinCall {
    const ALL: [PinCall; 4] = [PinCall::Fast, PinCall::FastOnly, PinCall::Locked, PinCall::Mapped];

    /// Pins from `start` on, for writing; `None` if nothing could be pinned.
    fn pin<'a>(
        self,
        space: &'a Space,
        start: VirtAddr,
        into: &'a mut [Frame],
    ) -> Option<Pins<'a, Sim>> {
        match self {
            PinCall::Fast => space.get_user_pages_fast(start, true, into, |_, _| false).ok(),
            PinCall::FastOnly => space.get_user_pages_fast_only(start, true, into).ok(),
            PinCall::Locked => space.get_user_pages(start, true, into, |_, _| false).ok(),
            PinCall::Mapped => Some(space.pin_mapped(start, true, into)),
        }
    }
}

/// The word of a frame that is piece `piece` of page `page`.
const fn place(page: u64, piece: u64) -> u64 {
    (page + 10) << 32 | piece
}

/// Two neighbouring pages of this order are unmapped and mapped again, each with the other's
/// frames, while another CPU pins pieces of them: an entry that leads to a page of the same size
/// again leads to other frames than the pinned ones. Each pinned frame must have been mapped at its
/// address. A third page keeps the table alive: in an unlinked table no page would be mapped again.
///
/// Between the two mappings the frames are given back, or, with `keep`, kept until nothing pins
/// them. (The machine stamps each frame of a block that is allocated: for 1 GiB that takes long.)
fn neighbours_change_frames(
    seed: u64,
    (order, keep, rounds): (u8, bool, u64),
    call: PinCall,
) -> Result<(), Failure> {
    let checks = Checks { stale: Stale::Freed, ..Checks::ALL };
    let config = Config {
        cpus: 2,
        frames: (2 << order) + 128,
        tick: Some(23),
        checks,
        events: 64,
        ..Config::default()
    };
    let (sim, shared) = machine_of::<X86_64L4>(config);
    let space: Leaked<Space> = leaked_user(&sim, &shared);
    let len = 1 << order;
    let range = pages(AT, 2 * len);
    // The pieces that are pinned: the first, the second, and the last two.
    let pieces = || [0, 1.min(len - 1), (len - 1).saturating_sub(1), len - 1].into_iter();
    let page = |number: u64| pages(AT + number * (len << 12), len);
    let map = |frames: [Frame; 2]| {
        for (first, number) in frames.into_iter().zip(0..) {
            for piece in pieces() {
                let frame = first.checked_add(piece).unwrap();
                word_of(&sim, frame).store(place(number, piece), Relaxed);
            }
            space.map_own(page(number), first, Attrs::USER_RW).unwrap();
        }
        frames
    };
    // A block that is pinned still is given back as soon as it is not.
    let fresh = || loop {
        let Ok(frame) = sim.alloc(order, NodePolicy::Local) else {
            sim.relax();
            continue;
        };
        // SAFETY: it is ours.
        unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
        break frame;
    };
    let (third, mut frames) = sim.on_cpu(0, || {
        let frames = map([fresh(), fresh()]);
        let third = block(&sim, 0);
        space.map_own(pages(AT + ((2 * len) << 12), 1), third, Attrs::USER_RW).unwrap();
        (third, frames)
    });
    let changer = || {
        for _ in 0..rounds {
            space.unmap_own(range, |_| ()).unwrap().flush();
            let [one, two] = frames;
            frames = if keep {
                while [one, two].iter().any(|frame| sim.info(*frame).unwrap().pins() != 0) {
                    sim.relax();
                }
                map([two, one])
            } else {
                frames.iter().for_each(|frame| release(&sim, *frame));
                let new = [fresh(), fresh()];
                map(if new[0] == one { [new[1], new[0]] } else { new })
            };
        }
    };
    let pinner = || {
        let mut into = [Frame::default(); 2];
        for round in 0..3 * rounds {
            let (number, first) = (round % 2, pieces().nth(round as usize / 2 % 4).unwrap());
            // At the end of a page the other follows, or the third.
            let follows = [(number, first), (number, first + 1)];
            let follows = follows.map(|(number, piece)| (number + piece / len, piece % len));
            let start = virt(AT + ((number * len + first) << 12));
            let into = &mut into[..1 + round as usize % 3 / 2];
            let Some(pins) = call.pin(&space, start, into) else { continue };
            for (frame, (number, piece)) in pins.frames().iter().zip(follows) {
                let right = |why: &str| {
                    if number < 2 && pieces().any(|used| used == piece) {
                        let found = word_of(&sim, *frame).load(Relaxed);
                        assert_eq!(found, place(number, piece), "{why}");
                    }
                };
                right("a frame that was never mapped there");
                sim.step(SharedAccess::Other);
                right("the frame changed hands");
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || {
        let all = pages(AT, 2 * len + 1);
        space.unmap_own(all, |_| ()).unwrap().flush();
        frames.iter().chain([&third]).for_each(|frame| release(&sim, *frame));
    });
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_neighbours_frame_is_not_pinned() {
    for call in PinCall::ALL {
        right(200, |seed| neighbours_change_frames(seed, (0, false, 10), call));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_neighbours_large_page_is_not_pinned() {
    for call in PinCall::ALL {
        right(200, |seed| neighbours_change_frames(seed, (9, seed % 2 == 0, 10), call));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn a_neighbours_huge_page_is_not_pinned() {
    for call in PinCall::ALL {
        right(6, |seed| neighbours_change_frames(seed, (18, true, 60), call));
    }
}

/// A large page is mapped to one block, and then to two of half its length in the same frames, and
/// so on. Each pin is of the block that its frame is in.
fn blocks_change_length(seed: u64) -> Result<(), Failure> {
    let (sim, shared, space) = machine();
    let range = pages(AT, 512);
    // The rest of the memory, but for tables.
    let rest = sim.on_cpu(0, || block(&sim, 9));
    let changer = || {
        for round in 0..8 {
            let order = if round % 2 == 0 { 9 } else { 8 };
            let mut blocks = Vec::new();
            while let Ok(frame) = sim.alloc(order, NodePolicy::Local) {
                // SAFETY: it is ours.
                unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
                blocks.push(frame);
            }
            blocks.sort_unstable();
            let whole = blocks.len() == 1 << (9 - order) && blocks[0].is_aligned(PageSize::Size2M);
            if whole {
                space.map_own(range, blocks[0], Attrs::USER_RW).unwrap();
                (0..seed % 40).for_each(|_| sim.step(SharedAccess::Other));
                space.unmap_own(range, |_| ()).unwrap().flush();
            }
            blocks.into_iter().for_each(|frame| release(&sim, frame));
            Grace::reclaim(usize::MAX);
        }
    };
    let pinner = || {
        let mut into = [Frame::default(); 300];
        for _ in 0..24 {
            let pins = space.get_user_pages_fast_only(virt(AT), true, &mut into);
            assert!(pins.is_err() || pins.is_ok_and(|pins| pins.frames().len() == 300));
        }
    };
    seeded(&sim, seed, vec![Box::new(changer) as Program, Box::new(pinner)])?;
    sim.on_cpu(0, || release(&sim, rest));
    end(&sim, &shared, space)
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no coroutines")]
fn pins_are_of_the_block_as_it_is() {
    right(if cfg!(debug_assertions) { 100 } else { 2000 }, blocks_change_length);
}
