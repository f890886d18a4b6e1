//! All implementations do the same, and leave nothing.

use super::memory::{HEAP, Memory, PAGE, SharedMemory, VmaType};
use super::{FILE, SpaceContext, SpaceKind, waits, with_world};
use crate::error::Error;
use crate::mm::memory::populate;
use crate::tests::{find, with_lab};
use machine::{FrameSource, Memory as _, PageSize, VirtAddr};
use oorandom::Rand64;
use paging::{Flags, Paging};
use sim::{Bare, BareGrace};
use std::sync::Arc;
use std::vec::Vec;

/// Pages of the window, on both sides of the border of two tables.
const PAGES: usize = 12;
const WINDOW: usize = 0x4000_0000 - 6 * PAGE;

/// Accesses a byte as a program does: the processor walks the tables, and faults if the page is
/// absent or not writable.
fn touch(memory: &dyn Memory, at: usize) -> Result<(), Error> {
    match memory.walk(VirtAddr::new(at as u64)) {
        Some(page) if page.attrs.flags.contains(Flags::WRITE) => Ok(()),
        _ => memory.fault(at),
    }
}

/// Writes a byte as a program does.
fn store(bare: &Bare, space: &dyn Memory, at: usize, value: u8) -> Result<(), Error> {
    touch(space, at)?;
    let page = space.walk(VirtAddr::new(at as u64)).expect("it was touched");
    let to = bare.frame_ptr(page.frame).expect("it is a frame").as_ptr();
    // SAFETY: only this test's CPU uses the page.
    unsafe { to.add(at % PAGE).write(value) };
    Ok(())
}

/// The byte that a present page holds.
fn load(bare: &Bare, space: &dyn Memory, at: usize) -> Option<u8> {
    let page = space.walk(VirtAddr::new(at as u64))?;
    let from = bare.frame_ptr(page.frame)?.as_ptr();
    // SAFETY: as above.
    Some(unsafe { from.add(at % PAGE).read() })
}

/// Carries out the random program of a seed. Returns all that it sees.
fn run(bare: &Bare, way: SpaceKind, seed: u64) -> Vec<Option<u8>> {
    let paging = Paging::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let mut seen = Vec::new();
    bare.on_cpu(0, || {
        let context = SpaceContext::new(Arc::clone(&paging), FILE).unwrap();
        let parent: SharedMemory =
            way.make::<_, BareGrace, parking_lot::RawRwLock>(&context).unwrap();
        parent.enter();
        populate(&*parent).unwrap();
        let mut spaces = Vec::from([parent]);
        let mut random = Rand64::new(seed.into());
        let mut below = |limit: usize| random.rand_range(0..limit as u64) as usize;
        for step in 0..200 {
            let space = &*spaces[below(spaces.len())];
            let page = below(PAGES);
            let (at, len) = (WINDOW + page * PAGE, (1 + below(4).min(PAGES - 1 - page)) * PAGE);
            match below(12) {
                0 => drop(space.map(Some(at), len, VmaType::Anonymous).unwrap()),
                1 => drop(space.map(Some(at), len, VmaType::PrivateFile).unwrap()),
                2 => drop(space.map(Some(at), len, VmaType::SharedFile).unwrap()),
                3 => space.unmap(at, len).unwrap(),
                4 if spaces.len() < 3 => {
                    let child = space.fork().unwrap();
                    child.enter();
                    spaces.push(child);
                }
                5 => space.brk(HEAP + below(3) * PAGE).unwrap(),
                6 => seen.push(touch(space, HEAP + below(3) * PAGE).is_ok().then_some(0)),
                7 => {
                    let at = space.map(None, len, VmaType::Anonymous).unwrap();
                    seen.push(Some((at / PAGE) as u8));
                    space.fault(at).unwrap();
                    space.unmap(at, len).unwrap();
                }
                _ => {
                    let done = store(bare, space, at + step, step as u8);
                    seen.push(done.is_ok().then(|| load(bare, space, at)).flatten());
                }
            }
            BareGrace::quiescent_state();
            BareGrace::reclaim(usize::MAX);
        }
        for space in spaces.drain(..) {
            for page in 0..PAGES {
                let at = WINDOW + page * PAGE;
                let there = touch(&*space, at).is_ok();
                seen.extend((0..200).map(|byte| load(bare, &*space, at + byte).filter(|_| there)));
            }
            space.leave();
        }
        drop(context);
        bare.settle();
        paging.quick().drain();
    });
    seen
}

#[test]
fn all_do_the_same_and_leave_nothing() {
    let bare = Bare::new(1, 4096).unwrap();
    for seed in 0..40 {
        let ours = run(&bare, SpaceKind::Ours, seed);
        for way in [SpaceKind::Locked, SpaceKind::Counted] {
            let same = run(&bare, way, seed) == ours;
            assert!(same, "seed {seed}: {way:?} differs from ours");
            bare.on_cpu(0, || assert_eq!(bare.free_frames(), 4096, "{way:?} has kept frames"));
        }
    }
}

#[test]
fn interrupts_are_counted_with_grace_periods_and_without() {
    let bare = Bare::new(2, 16_384).unwrap();
    let report = with_lab(&bare, |lab| {
        with_world(lab, |context, report| waits::measure(lab, context, report))
    });
    let report = report.unwrap();
    for case in ["malloc1, waiting or not", "map, touch, unmap, waiting or not"] {
        let of = |way, metric| {
            let rows = find(&report, case, way, metric);
            assert_eq!(rows.len(), 1, "{case}, {way}: {metric}");
            rows[0].value
        };
        let others = of("one lock", "interrupts an operation");
        assert!(others > 0.5, "{case}: {others} with one lock");
        assert_eq!(of("ours, grace periods", "interrupts an operation"), 0.0, "{case}");
        assert!(of("ours, grace periods", "operations a second") > 0.0);
    }
    assert_eq!(report.targets.len(), 2);
    for cpu in 0..2 {
        bare.on_cpu(cpu, || bare.settle());
    }
    assert_eq!(bare.on_cpu(0, || bare.free_frames()), 16_384, "frames are kept");
}
