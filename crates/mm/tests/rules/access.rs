//! Copies from and to a program's memory, and pins, also during forks.

use std::{
    mem::ManuallyDrop,
    sync::{Arc, OnceLock, atomic::Ordering::SeqCst},
};

use crate::common::*;
use machine::{Asid, Frame, FrameSource, NodePolicy, Step, Translated, VirtAddr, VirtRange};
use mm::*;
use paging::{Attrs, PageTables};
use sim::{Config, Failure, Grace, Sim, seeded};

const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 2000 };
const AT: usize = 0x3fff_f000;

fn unmapped(at: usize) -> FaultError {
    FaultError::Unmapped(VirtAddr::new(at as u64))
}

#[test]
fn bytes_are_copied_across_pages_and_up_to_a_fault() {
    with_space(256, |_, _, space| {
        space.mmap(AT, 20 * PAGE, 3, FIXED).unwrap();
        let bytes: Vec<u8> =
            (0..15 * PAGE + 100).map(|byte| byte as u8 ^ (byte >> 8) as u8).collect();
        let start = AT + 77;
        space.write(start, &bytes).unwrap();
        let mut found = vec![0; bytes.len()];
        space.read(start, &mut found).unwrap();
        assert!(found == bytes);
        found.fill(0);
        // SAFETY: the space is active here.
        unsafe { space.copy_from_user(start, &mut found) }.unwrap();
        assert!(found == bytes);
        // The last two pages are a hole and a page that must not be written.
        space.munmap(AT + 19 * PAGE, PAGE).unwrap();
        space.mprotect(AT + 18 * PAGE, PAGE, 1, None).unwrap();
        let near_end = AT + 18 * PAGE - 10;
        let denied = FaultError::Denied(VirtAddr::new((AT + 18 * PAGE) as u64), Access::Write);
        let stopped = CopyError { copied: 10, error: denied };
        assert_eq!(space.write(near_end, &bytes[..50]), Err(stopped));
        // SAFETY: as above.
        assert_eq!(unsafe { space.copy_to_user(near_end, &bytes[..50]) }, Err(stopped));
        let hole = CopyError { copied: PAGE + 10, error: unmapped(AT + 19 * PAGE) };
        let mut into = vec![0; 2 * PAGE];
        assert_eq!(space.read(near_end, &mut into), Err(hole));
        // SAFETY: as above.
        assert_eq!(unsafe { space.copy_from_user(near_end, &mut into) }, Err(hole));
        assert_eq!(into[..10], bytes[..10]);
    });
}

/// Memory of the kernel is mapped in every space, and the kernel may access it. A program's call
/// must not make it do so.
#[test]
fn no_address_reaches_the_kernel() {
    const SECRET: usize = 0xffff_8000_0000_0000;
    let sim = Sim::new(Config { cpus: 1, frames: 256, ..Config::default() }).unwrap();
    let shared = paging(&sim);
    sim.on_cpu(0, || {
        let kernel = Arc::new(PageTables::kernel(&shared).unwrap());
        let page = VirtRange::new(VirtAddr::new(SECRET as u64), PAGE as u64).unwrap();
        let frame = sim.alloc(0, NodePolicy::Local).unwrap();
        // SAFETY: the frame and the addresses are the test's, to the end.
        unsafe { kernel.map(page, frame, Attrs::KERNEL_RW) }.unwrap();
        let layout = Layout { mmap_base: BASE, ..Layout::default() };
        let profile = Profile::LINUX_6_18;
        let space = Space::try_new(&shared, Asid(1), Some(kernel), profile, layout).unwrap();
        activate(&space);
        // SAFETY: the kernel's own memory.
        unsafe { sim.store(page.start(), 0x5ec2e7) }.unwrap();
        let mut into = [0; 64];
        for at in [0, 0x8000_0000_0000, SECRET, SECRET - 32, usize::MAX - 10, 0x7fff_ffff_fff0] {
            let read = space.read(at, &mut into).unwrap_err();
            let written = space.write(at, &[1; 64]).unwrap_err();
            // SAFETY: the space is active here.
            let from = unsafe { space.copy_from_user(at, &mut into) }.unwrap_err();
            // SAFETY: as above.
            let to = unsafe { space.copy_to_user(at, &[1; 64]) }.unwrap_err();
            for error in [read, written, from, to] {
                assert!(matches!(error.error, FaultError::Unmapped(_)), "{error}");
                assert_eq!(error.copied, 0);
            }
            let mut frames = [Frame::default(); 2];
            assert!(space.pin_pages(at, Access::Read, &mut frames).is_err());
        }
        assert_eq!(into, [0; 64]);
        // SAFETY: as above.
        assert_eq!(unsafe { sim.load(page.start()) }, Ok(0x5ec2e7));
        // The kernel's tables stay active.
        std::mem::forget(space);
    });
}

/// The holder of a pin and the program see each other's writes also after a fork, and the child
/// has a copy.
#[test]
fn a_pinned_page_stays_the_programs_own() {
    with_space(256, |sim, _, space| {
        space.mmap(AT, 3 * PAGE, 3, FIXED).unwrap();
        for page in 0..3 {
            store(sim, space, AT + page * PAGE, 1).unwrap();
        }
        let mut frames = [Frame::default(); 1];
        let pins = space.pin_pages(AT + PAGE, Access::Write, &mut frames).unwrap();
        let pinned = &pinned_words(sim, pins.frames()[0])[0];
        let child = space.fork(Asid(2)).unwrap();
        pinned.store(2, SeqCst);
        assert_eq!(load(sim, space, AT + PAGE), Ok(2));
        store(sim, space, AT + PAGE, 3).unwrap();
        assert_eq!(pinned.load(SeqCst), 3, "the program writes to another frame");
        activate(&child);
        let found = [0, 1, 2].map(|page| load(sim, &child, AT + page * PAGE));
        assert_eq!(found, [Ok(1); 3]);
        store(sim, &child, AT + PAGE, 9).unwrap();
        assert_eq!(pinned.load(SeqCst), 3);
        activate(space);
        leave(&child);
        drop(child);
        assert_eq!(load(sim, space, AT + PAGE), Ok(3));
        drop(pins);
    });
}

/// One CPU pins a page and writes through the pin, another one forks again and again. After each
/// write the program sees it.
fn pins_during_forks(seed: u64) -> Result<(), Failure> {
    let config = Config { tick: Some(23), ..racing(3, 160) };
    let race = Race::new(config, |space| _ = space.mmap(AT, 2 * PAGE, 3, FIXED).unwrap());
    let (sim, space) = (&race.sim, &*race.space);
    let children: [OnceLock<Space>; 3] = Default::default();
    let pinner = race.active(|| {
        for round in 1..=6 {
            let mut frames = [Frame::default(); 2];
            let pins = space.pin_pages(AT, Access::Write, &mut frames).unwrap();
            for (page, frame) in pins.frames().iter().enumerate() {
                let pinned = &pinned_words(sim, *frame)[0];
                sim.step(machine::SharedAccess::Other);
                pinned.store(round, SeqCst);
                let at = AT + page * PAGE;
                assert_eq!(load(sim, space, at), Ok(round), "the pin is of another frame");
                store(sim, space, at, round + 100).unwrap();
                sim.step(machine::SharedAccess::Other);
                assert_eq!(pinned.load(SeqCst), round + 100, "written elsewhere");
            }
            drop(pins);
            Grace::reclaim(usize::MAX);
        }
    });
    let writer = race.active(|| {
        for round in 0..8 {
            store(sim, space, AT + 8 + round % 2 * PAGE, round as u64).unwrap();
            Grace::reclaim(usize::MAX);
        }
    });
    let forker = race.active(|| {
        for (number, child) in children.iter().enumerate() {
            let new = space.fork(Asid(number as u16 + 2)).unwrap();
            activate(&new);
            let before = [0, PAGE].map(|page| load(sim, &new, AT + page).unwrap());
            sim.relax();
            let after = [0, PAGE].map(|page| load(sim, &new, AT + page).unwrap());
            assert_eq!(before, after, "the child's page has changed");
            activate(space);
            assert!(child.set(new).is_ok());
            Grace::reclaim(usize::MAX);
        }
    });
    let outcome = seeded(sim, seed, vec![pinner, writer, forker]);
    let children = ManuallyDrop::new(children);
    outcome?;
    race.end(ManuallyDrop::into_inner(children))
}

#[test]
fn pins_and_forks() {
    each_seed(SEEDS, pins_during_forks);
}
