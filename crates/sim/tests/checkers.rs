//! Every checker against code that is right, which passes with all seeds, and against the same code with one thing left
//! out, which some seed finds: the mutants.

mod common;

use common::*;
use grace::Reclaim;
use machine::*;
use sim::{Checks, Config, Failure, Grace, Program, Report, Sim, Violation, explore, seeded};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

const AT: u64 = 0x40_0000_1000;
const SEEDS: u64 = 300;
/// It takes far fewer to catch a mutant.
const MANY: u64 = 2000;

fn config() -> Config {
    Config { frames: 64, speculation: 30, ..Config::default() }
}

/// All seeds pass.
fn right(run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(SEEDS, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Some seed fails, and fails in the same way each time.
fn caught(run: impl Fn(u64) -> Result<(), Failure> + Sync) -> Report {
    let failure = explore(MANY, &run).expect_err("the mutant was not caught");
    let seed = failure.seed.expect("explore knows the seed");
    let report = failure.report().unwrap_or_else(|| panic!("{failure}")).clone();
    for _ in 0..2 {
        let again = run(seed).expect_err("the seed did not show it again");
        assert_eq!(again.report(), Some(&report), "the seed showed something else");
    }
    let text = failure.to_string();
    assert!(text.contains(&format!("SAMARA_SEED={seed} ")), "{text}");
    report
}

fn wait(sim: &Sim, until: impl Fn() -> bool) {
    while !until() {
        sim.relax();
    }
}

// --- one page, mapped again and again -----------------------------------------------------------

#[derive(Clone, Copy, PartialEq)]
enum Remap {
    Right,
    /// Flushes this CPU only.
    NoRemoteFlush,
    /// Flushes the wrong page.
    WrongPage,
    /// Flushes before it clears the entry.
    FlushFirst,
}

/// CPU 0 maps a page, lets CPU 1 use it, waits until it has, unmaps it, and maps another at the same address.
fn remap(seed: u64, mutant: Remap, config: Config) -> Result<(), Failure> {
    let sim = Sim::new(config).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    // Odd while the page is mapped.
    let turn = AtomicU32::new(0);
    let owner = || {
        space.activate(0);
        for round in 0..3 {
            let frame = page(&sim);
            clear(&sim, frame);
            sim.hand_out(None, range(AT, 4096));
            space.map(AT, frame);
            space.store(AT, round).unwrap();
            turn.fetch_add(1, SeqCst);
            wait(&sim, || turn.load(SeqCst).is_multiple_of(2));
            let flush = || match mutant {
                Remap::Right | Remap::FlushFirst => space.flush(AT, 4096, false),
                Remap::WrongPage => space.flush(AT + 4096, 4096, false),
                Remap::NoRemoteFlush => sim.flush(Flush::All),
            };
            if mutant == Remap::FlushFirst {
                flush();
                // As a page that is in use may be: this CPU caches it again.
                space.load(AT).unwrap();
            }
            space.unmap(AT);
            if mutant != Remap::FlushFirst {
                flush();
            }
            free(&sim, frame);
        }
    };
    let user = || {
        space.activate(0);
        for round in 0..3 {
            wait(&sim, || turn.load(SeqCst) % 2 == 1);
            assert_eq!(space.load(AT), Ok(round));
            turn.fetch_add(1, SeqCst);
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    sim.on_cpu(0, || space.destroy_all());
    Ok(sim.check_leaks()?)
}

#[test]
fn pages_are_flushed_before_their_address_is_used_again() {
    right(|seed| remap(seed, Remap::Right, config()));
    let tiny = Config { tlb_entries: 1, upper_entries: 0, levels: 5, ..config() };
    right(|seed| remap(seed, Remap::Right, tiny));
}

#[test]
fn mutants_hand_out_what_is_still_translated() {
    for mutant in [Remap::NoRemoteFlush, Remap::WrongPage, Remap::FlushFirst] {
        let report = caught(|seed| remap(seed, mutant, config()));
        let Violation::HandedOut { range, page, .. } = report.violation else { panic!("{report}") };
        assert_eq!((range.start(), page), (virt(AT), virt(AT)), "{report}");
        let text = report.to_string();
        assert!(
            text.contains("was last freed by cpu0 at")
                && text.contains("was last changed by cpu0 at"),
            "{text}"
        );
    }
}

#[test]
fn mutants_use_stale_translations() {
    let checks = Checks { hand_out: false, ..Checks::ALL };
    for mutant in [Remap::NoRemoteFlush, Remap::WrongPage] {
        let report = caught(|seed| remap(seed, mutant, Config { checks, ..config() }));
        let Violation::StaleTranslation { address, used, freed, .. } = report.violation else {
            panic!("{report}")
        };
        assert_eq!((address, freed), (virt(AT), true), "{report}");
        assert!(
            report.to_string().contains(&format!("frame {used} was last freed by cpu0 at")),
            "{report}"
        );
    }
    let checks = Checks { freed_cached: true, ..checks };
    let report = caught(|seed| remap(seed, Remap::NoRemoteFlush, Config { checks, ..config() }));
    assert!(matches!(report.violation, Violation::FreedWhileCached { .. }), "{report}");
}

#[test]
fn a_stale_permission_is_noticed() {
    let sim = machine(1);
    let found = seeded(
        &sim,
        0,
        vec![Box::new(|| {
            let space = Space::new(&sim);
            space.activate(0);
            let frame = page(&sim);
            space.map(AT, frame);
            space.store(AT, 1).unwrap();
            space.set(AT, 0, frame.start().get() | PRESENT);
            // Reading is still allowed, writing only by the old translation.
            assert_eq!(space.load(AT), Ok(1));
            let _ = space.store(AT, 2);
            unreachable!("the machine goes on with a stale permission");
        })],
    );
    let failure = found.unwrap_err();
    let violation = &failure.report().unwrap_or_else(|| panic!("{failure}")).violation;
    assert!(matches!(
        violation,
        Violation::StaleTranslation { write: true, now: None, freed: false, .. }
    ));
}

/// CPU 0 takes the right to write from a page that CPU 1 has read, and perhaps written.
fn protect(seed: u64, flush: bool) -> Result<(), Failure> {
    let sim =
        Sim::new(Config { checks: Checks { stale: sim::Stale::Freed, ..Checks::ALL }, ..config() })
            .unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    let frame = sim.on_cpu(0, || page(&sim));
    sim.on_cpu(0, || space.map(AT, frame));
    let owner = || {
        space.activate(0);
        space.set(AT, 0, frame.start().get() | PRESENT);
        if flush {
            space.flush(AT, 4096, false);
        }
        sim.check_flushed(space.root, None, range(AT & !0xfff, 4096));
    };
    let user = || {
        space.activate(0);
        space.load(AT).unwrap();
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)]).map(drop)
}

#[test]
fn flushes_that_are_owed_are_looked_for() {
    right(|seed| protect(seed, true));
    let report = caught(|seed| protect(seed, false));
    let Violation::NotFlushed { page, now: None, by, .. } = report.violation else {
        panic!("{report}")
    };
    assert_eq!((page, by.index()), (virt(AT), 1));
}

// --- an announcement instead of an interrupt ----------------------------------------------------

/// CPU 1 flushes for its own reasons and announces it; CPU 0 hands the address out when it has seen that.
fn announce(seed: u64, before_the_flush: bool) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    let (unmapped, announced) = (AtomicBool::new(false), AtomicBool::new(false));
    let frame = sim.on_cpu(0, || {
        space.activate(0);
        let frame = page(&sim);
        space.map(AT, frame);
        frame
    });
    let owner = || {
        space.unmap(AT);
        sim.flush(Flush::All);
        unmapped.store(true, SeqCst);
        wait(&sim, || announced.load(SeqCst));
        sim.hand_out(None, range(AT, 4096));
        free(&sim, frame);
    };
    let other = || {
        space.activate(0);
        if !unmapped.load(SeqCst) {
            // It may go either way, and may be cached.
            space.touch(AT);
        }
        wait(&sim, || unmapped.load(SeqCst));
        let announce = || {
            sim.step(Access::Shared);
            announced.store(true, SeqCst);
            sim.step(Access::Shared);
        };
        if before_the_flush {
            announce();
        }
        sim.flush(Flush::All);
        if !before_the_flush {
            announce();
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(other)]).map(drop)
}

#[test]
fn a_flush_is_announced_after_it() {
    // The other CPU may touch the page while it is unmapped.
    right(|seed| announce(seed, false));
    let report = caught(|seed| announce(seed, true));
    assert!(matches!(report.violation, Violation::HandedOut { .. }), "{report}");
}

/// An address space's set of CPUs: CPU 1 begins to use the space while CPU 0 unmaps a page of it.
fn enter(seed: u64, too_late: bool) -> Result<(), Failure> {
    let sim = Sim::new(Config { speculation: 0, ..config() }).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    let cpus = AtomicCpuSet::new();
    let frame = sim.on_cpu(0, || {
        let frame = page(&sim);
        space.map(AT, frame);
        frame
    });
    let owner = || {
        space.unmap(AT);
        sim.step(Access::Shared);
        let what = Flush::Range {
            space: Some(Asid(1)),
            range: range(AT, 4096),
            stride: PageSize::Size4K,
            tables: false,
        };
        sim.flush_on(&cpus.load(), what);
        sim.hand_out(Some(Asid(1)), range(AT, 4096));
        free(&sim, frame);
    };
    let other = || {
        let enter = || {
            sim.step(Access::Shared);
            cpus.insert(sim.current());
        };
        if !too_late {
            enter();
        }
        space.activate(1);
        space.touch(AT);
        if too_late {
            enter();
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(other)]).map(drop)
}

#[test]
fn a_cpu_is_in_the_set_before_it_translates() {
    right(|seed| enter(seed, false));
    let report = caught(|seed| enter(seed, true));
    assert!(matches!(report.violation, Violation::HandedOut { .. }), "{report}");
}

// --- tables -------------------------------------------------------------------------------------

#[derive(Clone, Copy, PartialEq)]
enum Prune {
    Right,
    /// The flush says that no table went.
    UpperLevelsStay,
    /// Nobody is asked.
    NoFlush,
    /// The table is given up before it is unlinked.
    StillLinked,
    /// The reader leaves interrupts on.
    ReaderTakesInterrupts,
}

/// CPU 0 takes a table out and uses the frame for something else; CPU 1 walks meanwhile, by its hardware and in software.
fn prune(seed: u64, mutant: Prune) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    sim.on_cpu(0, || {
        let frame = page(&sim);
        space.map(AT, frame);
        space.unmap(AT);
        free(&sim, frame);
    });
    let owner = || {
        space.activate(0);
        let old = if mutant == Prune::StillLinked {
            space.table(AT, 0).unwrap()
        } else {
            space.unlink(AT, 0)
        };
        if mutant != Prune::NoFlush {
            space.flush(AT & !0x1f_ffff, 0x20_0000, mutant != Prune::UpperLevelsStay);
        }
        // SAFETY: nobody else uses the frame; that is what is tested.
        unsafe { sim.set_owner(old, Owner::Kernel) }.unwrap();
        // SAFETY: as above.
        unsafe { sim.frame_ptr(old).unwrap().write_bytes(0xff, 4096) };
        free(&sim, old);
    };
    let user = || {
        space.activate(0);
        for _ in 0..3 {
            assert_eq!(space.load(AT).unwrap_err().kind, FaultKind::NotPresent);
            // As get_user_pages_fast does it.
            let _section = (mutant != Prune::ReaderTakesInterrupts).then(|| sim.irqs_off());
            if let Some(table) = space.table(AT, 0) {
                assert_eq!(space.entry(table, index(AT, 0)).load(), 0);
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    sim.on_cpu(0, || space.destroy_all());
    Ok(sim.check_leaks()?)
}

#[test]
fn tables_outlive_those_who_walk_them() {
    right(|seed| prune(seed, Prune::Right));
}

#[test]
fn mutants_give_tables_up_too_early() {
    for mutant in [Prune::UpperLevelsStay, Prune::NoFlush] {
        let report = caught(|seed| prune(seed, mutant));
        let known = matches!(report.violation, Violation::TableInUse { by, .. } if by.index() == 1)
            || matches!(report.violation, Violation::NotATable { address: None, .. });
        assert!(known, "{report}");
        assert!(report.to_string().contains("(I3)"), "{report}");
    }
    let report = caught(|seed| prune(seed, Prune::StillLinked));
    assert!(
        matches!(
            report.violation,
            Violation::FreedWhileMapped { .. } | Violation::TableInUse { .. }
        ),
        "{report}"
    );
    let report = caught(|seed| prune(seed, Prune::ReaderTakesInterrupts));
    assert!(matches!(report.violation, Violation::NotATable { address: None, .. }), "{report}");
    assert!(report.to_string().contains("was last given up as a table by cpu0 at"), "{report}");
}

/// A table that readers with interrupts on may be in, given up after a grace period; or at once.
fn after_a_grace_period(seed: u64, at_once: bool) -> Result<(), Failure> {
    unsafe fn give_up(ptr: NonNull<()>) {
        let sim = Sim::here().unwrap();
        // SAFETY: leaked below, retired once.
        let frame = *unsafe { Box::from_raw(ptr.cast::<Frame>().as_ptr()) };
        free(&sim, frame);
    }
    let sim = Sim::new(Config { tick: Some(7), ..config() }).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    sim.on_cpu(0, || space.set(AT, 0, 0));
    let owner = || {
        let table = space.unlink(AT, 0);
        space.flush(AT & !0x1f_ffff, 0x20_0000, true);
        if at_once {
            free(&sim, table);
        } else {
            let table = NonNull::from(Box::leak(Box::new(table)));
            // SAFETY: it is unlinked, and no walker of the hardware has it cached.
            unsafe { Grace::retire(&Grace::pin(), table.cast(), give_up) };
        }
        for _ in 0..20 {
            sim.step(Access::Shared);
            Grace::reclaim(usize::MAX);
        }
    };
    let user = || {
        for _ in 0..3 {
            let _guard = Grace::pin();
            if let Some(table) = space.table(AT, 0) {
                assert_eq!(space.entry(table, index(AT, 0)).load(), 0);
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    sim.on_cpu(0, || {
        assert!(sim.settle());
        space.destroy_all();
    });
    Ok(sim.check_leaks()?)
}

#[test]
fn a_grace_period_cut_short() {
    right(|seed| after_a_grace_period(seed, false));
    let report = caught(|seed| after_a_grace_period(seed, true));
    assert!(matches!(report.violation, Violation::NotATable { address: None, .. }), "{report}");
}

/// Code that is within a table when that is given up, and is one again before the code looks once more: nothing is wrong by
/// then but the section.
#[test]
fn a_table_that_is_one_again() {
    let run = |walked, ends: bool| {
        let checks = Checks { walked, ..Checks::ALL };
        let sim = Sim::new(Config { checks, ..config() }).unwrap();
        let space = sim.on_cpu(0, || Space::new(&sim));
        sim.on_cpu(0, || space.set(AT, 0, 0));
        let turn = AtomicU32::new(0);
        let owner = || {
            wait(&sim, || turn.load(SeqCst) == 1);
            let table = space.unlink(AT, 0);
            // SAFETY: it was unlinked, and whether anybody walks it still is what is tested.
            unsafe { sim.set_owner(table, Owner::Quick(0)) }.unwrap();
            // SAFETY: as above; it is empty.
            unsafe { sim.set_owner(table, Owner::Table(0)) }.unwrap();
            space.slot(AT, 1).store(table.start().get() | RW);
            turn.store(2, SeqCst);
        };
        let user = || {
            let guard = Grace::pin();
            let slot = space.slot(AT, 0);
            assert_eq!(slot.load(), 0);
            let _guard = if ends {
                drop(guard);
                Grace::pin()
            } else {
                guard
            };
            turn.store(1, SeqCst);
            wait(&sim, || turn.load(SeqCst) == 2);
            assert_eq!(slot.load(), 0);
        };
        seeded(&sim, 1, vec![Box::new(owner), Box::new(user)])
    };
    run(false, false).unwrap();
    run(true, true).unwrap();
    let failure = run(true, false).unwrap_err();
    let violation = &failure.report().unwrap_or_else(|| panic!("{failure}")).violation;
    let Violation::TableInUse { by, how, .. } = violation else { panic!("{failure}") };
    assert_eq!((by.index(), *how), (1, "code has been led there, in a section that has not ended"));
}

/// What is left in the caches of upper-level entries when a flush should have dropped it.
#[test]
fn ways_that_are_not_flushed_are_looked_for() {
    let way = |tables| {
        alone_if(move |sim| {
            let space = Space::new(sim);
            space.activate(0);
            space.map(AT, page(sim));
            space.touch(AT);
            space.unmap(AT);
            let old = space.unlink(AT, 0);
            space.flush(AT, 4096, tables);
            sim.check_ways_flushed(space.root, None, range(AT + 0x1000, 4096));
            free(sim, old);
        })
    };
    assert_eq!(way(true), None);
    let Some(Violation::WayNotFlushed { start, level: 0, now: None, .. }) = way(false) else {
        panic!("not noticed")
    };
    assert_eq!(start, virt(AT & !0x1f_ffff));
}

/// A walk of the hardware under way when its table goes: seen at that moment, without any cached entry.
#[test]
fn a_walk_under_way_is_seen() {
    let config = Config { upper_entries: 0, speculation: 0, ..config() };
    let report = caught(|seed| {
        let sim = Sim::new(config).unwrap();
        let space = sim.on_cpu(0, || Space::new(&sim));
        sim.on_cpu(0, || space.set(AT, 0, 0));
        let owner = || free(&sim, space.unlink(AT, 0));
        let user = || {
            space.activate(0);
            space.touch(AT);
        };
        seeded(&sim, seed, vec![Box::new(owner), Box::new(user)]).map(drop)
    });
    let Violation::TableInUse { how, .. } = report.violation else { panic!("{report}") };
    assert_eq!(how, "a walk is under way in it");
}

#[test]
fn an_active_table_is_not_given_up() {
    let found = alone(|sim| {
        let space = Space::new(sim);
        space.activate(0);
        free(sim, space.root);
    });
    let Violation::TableInUse { how, becomes, .. } = found else { panic!("{found}") };
    assert_eq!((how, becomes), ("it is the active top-level table", Owner::Free));
}

#[test]
fn the_hardware_is_led_astray() {
    // An entry leads to a frame that was never made a table, or to a table of another level.
    for owner in [Owner::Raw, Owner::Table(1)] {
        let sim = machine(1);
        let run = seeded(
            &sim,
            0,
            vec![Box::new(|| {
                let space = Space::new(&sim);
                space.activate(0);
                let wrong = page(&sim);
                clear(&sim, wrong);
                // SAFETY: it is ours, and empty.
                unsafe { sim.set_owner(wrong, owner) }.unwrap();
                space.set(AT, 1, wrong.start().get() | RW);
                space.touch(AT);
            })],
        );
        let failure = run.unwrap_err();
        let Violation::NotATable { level, address, owner: found, .. } =
            failure.report().unwrap().violation
        else {
            panic!("{failure}")
        };
        assert_eq!((level, address, found), (Some(0), Some(virt(AT)), owner));
    }
}

// --- frames -------------------------------------------------------------------------------------

fn alone(program: impl FnOnce(&Sim) + Send) -> Violation {
    alone_if(program).expect("nothing was noticed")
}

fn alone_if(program: impl FnOnce(&Sim) + Send) -> Option<Violation> {
    let sim = machine(1);
    let run = seeded(&sim, 0, vec![Box::new(|| program(&sim)) as Program]);
    let failure = run.err()?;
    Some(failure.report().unwrap_or_else(|| panic!("{failure}")).violation.clone())
}

#[test]
fn frames_are_freed_when_nothing_leads_to_them() {
    for order in [0, 9] {
        let sim = Sim::new(Config { frames: 1024, ..config() }).unwrap();
        let run = seeded(
            &sim,
            0,
            vec![Box::new(|| {
                let space = Space::new(&sim);
                let block = sim.alloc(order, Place::Local).unwrap();
                let large = if order == 9 { LARGE } else { 0 };
                space.set(AT, order / 9, block.start().get() | RW | large);
                free(&sim, block);
            })],
        );
        let failure = run.unwrap_err();
        let violation = &failure.report().unwrap().violation;
        let Violation::FreedWhileMapped { index: found, .. } = violation else {
            panic!("{failure}")
        };
        assert_eq!(*found, index(AT, order / 9));
    }
    let released = alone(|sim| {
        let space = Space::new(sim);
        let frame = page(sim);
        space.map(AT, frame);
        // SAFETY: the machine stops it.
        let _ = unsafe { sim.release(frame) };
    });
    assert!(matches!(released, Violation::FreedWhileMapped { .. }));
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
        // SAFETY: the pin is left, and the machine stops what comes next.
        unsafe {
            assert_eq!(sim.release(frame), Ok(false));
            let _ = sim.unpin(frame, 1);
        }
    });
    assert!(matches!(mapped, Violation::FreedWhileMapped { .. }));
}

#[test]
fn nobody_uses_free_frames() {
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
    /// Interrupts stay on between the entry and the pin, and the entry is not read again.
    InterruptsOn,
}

/// CPU 1 pins what it finds in an entry, without a lock, while CPU 0 unmaps it, frees it and uses frames for other things.
fn pin(seed: u64, mutant: Pin) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let space = sim.on_cpu(0, || Space::new(&sim));
    let frame = sim.on_cpu(0, || page(&sim));
    sim.on_cpu(0, || space.map(AT, frame));
    let owner = || {
        let frame = space.unmap(AT);
        space.flush(AT, 4096, false);
        // SAFETY: it is unmapped, and the tests have no pointer to it.
        unsafe { sim.release(frame) }.unwrap();
        let other = page(&sim);
        sim.step(Access::Shared);
        free(&sim, other);
    };
    let user = || {
        let pinned = {
            let _section = (mutant == Pin::Right).then(|| sim.irqs_off());
            let entry = space.slot(AT, 0).load();
            let frame = Frame::containing(PhysAddr::new(entry & 0xf_ffff_ffff_f000));
            sim.step(Access::Shared);
            (entry & PRESENT != 0 && sim.info(frame).unwrap().try_pin(1)).then_some(frame)
        };
        if let Some(frame) = pinned {
            sim.step(Access::Shared);
            // SAFETY: pinned above.
            unsafe { sim.unpin(frame, 1) }.unwrap();
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    sim.on_cpu(0, || space.destroy_all());
    Ok(sim.check_leaks()?)
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
        let frame = sim.alloc(2, Place::Local).unwrap();
        // SAFETY: it is ours.
        unsafe { sim.set_owner(frame, Owner::Kernel) }.unwrap();
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

/// One turn of a page through a quicklist; `dirt` says where to leave a word.
fn quick(dirt: Option<(bool, usize)>, becomes: Owner) -> Option<Violation> {
    let sim = machine(1);
    sim.constructed(3, |index| if index >= 256 { index as u64 } else { 0 });
    let run = seeded(
        &sim,
        0,
        vec![Box::new(|| {
            let frame = page(&sim);
            let words = sim.frame_ptr(frame).unwrap().cast::<u64>();
            // SAFETY: within the frame, which only this test uses.
            let put = |index: usize, value| unsafe { words.add(index).write(value) };
            (0..512).for_each(|index| put(index, if index >= 256 { index as u64 } else { 0 }));
            if let Some((true, index)) = dirt {
                put(index, 1);
            }
            // SAFETY: it is ours; whether it is in its constructed state is what is tested.
            unsafe { sim.set_owner(frame, Owner::Quick(3)) }.unwrap();
            if let Some((false, index)) = dirt {
                put(index, 1);
            }
            // SAFETY: as above.
            unsafe { sim.set_owner(frame, becomes) }.unwrap();
        })],
    );
    run.err().map(|failure| failure.report().unwrap().violation.clone())
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
