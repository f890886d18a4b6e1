//! Tables that a CPU may still walk.

use super::*;

#[derive(Clone, Copy, PartialEq)]
enum Prune {
    Right,
    /// The flush does not say that tables were unlinked.
    UpperLevelsStay,
    /// Other CPUs get no flush.
    NoFlush,
    /// The table is given up before it is unlinked.
    StillLinked,
    /// The reader leaves interrupts enabled.
    ReaderTakesInterrupts,
}

/// CPU 0 unlinks a table and reuses the frame. CPU 1 walks meanwhile, by its hardware and in
/// software.
fn prune(seed: u64, mutant: Prune) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let space = with_tables(&sim);
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
        set_owner(&sim, old, Owner::Kernel);
        // SAFETY: the frame must have no other user; the machine has checked that.
        unsafe { sim.frame_ptr(old).unwrap().write_bytes(0xff, 4096) };
        free(&sim, old);
    };
    let user = || {
        space.activate(0);
        for _ in 0..3 {
            assert_eq!(space.load(AT).unwrap_err().kind, FaultKind::NotPresent);
            // As in get_user_pages_fast.
            let _section = (mutant != Prune::ReaderTakesInterrupts).then(|| sim.irqs_off());
            if let Some(table) = space.table(AT, 0) {
                assert_eq!(space.entry(table, index(AT, 0)).load(), 0);
            }
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(user)])?;
    finish(&sim, &space)
}

#[test]
fn tables_outlive_their_walks() {
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

/// A table that readers with enabled interrupts may read is given up after a grace period, or at
/// once.
fn after_a_grace_period(seed: u64, at_once: bool) -> Result<(), Failure> {
    unsafe fn give_up(ptr: NonNull<()>) {
        let sim = Sim::here().unwrap();
        // SAFETY: leaked below, retired once.
        let frame = *unsafe { Box::from_raw(ptr.cast::<Frame>().as_ptr()) };
        free(&sim, frame);
    }
    let sim = Sim::new(Config { tick: Some(7), ..config() }).unwrap();
    let space = with_tables(&sim);
    let owner = || {
        let table = space.unlink(AT, 0);
        space.flush(AT & !0x1f_ffff, 0x20_0000, true);
        if at_once {
            free(&sim, table);
        } else {
            let table = NonNull::from(Box::leak(Box::new(table)));
            // SAFETY: it is unlinked, and no hardware walker has it cached.
            unsafe { Grace::retire(&Grace::pin(), table.cast(), give_up) };
        }
        for _ in 0..20 {
            sim.step(SharedAccess::Other);
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
    assert!(sim.on_cpu(0, || sim.settle()));
    finish(&sim, &space)
}

#[test]
fn a_grace_period_cut_short() {
    right(|seed| after_a_grace_period(seed, false));
    let report = caught(|seed| after_a_grace_period(seed, true));
    assert!(matches!(report.violation, Violation::NotATable { address: None, .. }), "{report}");
}

/// Code reads a table that is given up, and is a table again before the code reads it once more:
/// only the section shows the error.
#[test]
fn a_table_that_is_one_again() {
    let run = |walked, ends: bool| {
        let checks = Checks { walked, ..Checks::ALL };
        let sim = Sim::new(Config { checks, ..config() }).unwrap();
        let space = with_tables(&sim);
        let turn = AtomicU32::new(0);
        let owner = || {
            wait(&sim, || turn.load(SeqCst) == 1);
            let table = space.unlink(AT, 0);
            set_owner(&sim, table, Owner::Quick(0));
            set_owner(&sim, table, Owner::Table(0));
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
    let found = found(run(true, false));
    let Some(Violation::TableInUse { by, how, .. }) = found else { panic!("{found:?}") };
    assert_eq!((by.index(), how), (1, "code has been led there, in a section that has not ended"));
}

/// A flush leaves entries in the caches of upper-level entries that it should have dropped.
#[test]
fn upper_entries_that_are_not_flushed_are_looked_for() {
    let found = |tables| {
        alone_if(move |sim| {
            let space = Space::new(sim);
            space.activate(0);
            space.map(AT, page(sim));
            space.touch(AT);
            space.unmap(AT);
            let old = space.unlink(AT, 0);
            space.flush(AT, 4096, tables);
            sim.check_upper_flushed(space.root, None, range(AT + 0x1000, 4096));
            free(sim, old);
        })
    };
    assert_eq!(found(true), None);
    let Some(Violation::UpperNotFlushed { start, level: 0, now: None, .. }) = found(false) else {
        panic!("not noticed")
    };
    assert_eq!(start, virt(AT & !0x1f_ffff));
}

/// A table is given up while a walk of the hardware is in it: detected at that moment, without any
/// cached entry.
#[test]
fn a_walk_under_way_is_seen() {
    let config = Config { upper_entries: 0, speculation: 0, ..config() };
    let report = caught(|seed| {
        let sim = Sim::new(config).unwrap();
        let space = with_tables(&sim);
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

fn give_up(sim: &Sim, table: Frame, becomes: Owner) {
    if becomes == Owner::Free {
        free(sim, table);
    } else {
        set_owner(sim, table, becomes);
    }
}

/// A table is given up while a CPU has a cached upper-level entry of it, and nothing else: no walk
/// is under way, the CPU is in no section, and other tables are active there. For each CPU, level
/// and new owner.
#[test]
fn a_cached_table_is_not_given_up() {
    let run = |cached_by: usize, level: u8, becomes: Owner| {
        let sim = Sim::new(Config { cpus: 3, speculation: 0, ..config() }).unwrap();
        let (space, other) = sim.on_cpu(0, || (Space::new(&sim), Space::new(&sim)));
        sim.on_cpu(0, || space.set(AT, level, 0));
        let (ready, done) = (AtomicU32::new(0), AtomicBool::new(false));
        let program = |cpu: usize| {
            let (sim, space, other, ready, done) = (&sim, &space, &other, &ready, &done);
            Box::new(move || {
                if cpu == cached_by {
                    space.activate(1);
                    space.touch(AT);
                }
                other.activate(2);
                ready.fetch_add(1, SeqCst);
                if cpu != 0 {
                    return wait(sim, || done.load(SeqCst));
                }
                wait(sim, || ready.load(SeqCst) == 3);
                let table = space.unlink(AT, level);
                give_up(sim, table, becomes);
                done.store(true, SeqCst);
            }) as Program
        };
        let found = found(seeded(&sim, 1, (0..3).map(program).collect()));
        let Some(Violation::TableInUse { by, how, becomes: owner, .. }) = found else {
            panic!("{found:?}")
        };
        assert_eq!((by.index(), owner), (cached_by, becomes));
        assert_eq!(how, "a cached upper-level entry leads there");
    };
    for cached_by in 0..3 {
        for level in 0..3 {
            for becomes in [Owner::Free, Owner::Quick(0), Owner::Kernel] {
                run(cached_by, level, becomes);
            }
        }
    }
}

/// A table that an entry still leads to, from another table that is not cached anywhere.
#[test]
fn a_linked_table_is_not_given_up() {
    for becomes in [Owner::Free, Owner::Quick(0)] {
        let found = alone(|sim| {
            let (space, other) = (Space::new(sim), Space::new(sim));
            space.set(AT, 0, 0);
            other.activate(0);
            let table = space.table(AT, 0).unwrap();
            give_up(sim, table, becomes);
        });
        assert!(matches!(found, Violation::FreedWhileMapped { .. }), "{found}");
    }
}

/// Code of this CPU that looked into a table and then gives it up, in an interrupt that landed in
/// the section, is not in the way; nor is it when the frame is a table again.
#[test]
fn a_section_does_not_hold_up_its_own_cpu() {
    let checks = Checks { walked: true, ..Checks::ALL };
    let sim = Sim::new(Config { checks, ..config() }).unwrap();
    let space = with_tables(&sim);
    sim.on_cpu(0, || {
        let _guard = Grace::pin();
        assert_eq!(space.slot(AT, 0).load(), 0);
        let table = space.unlink(AT, 0);
        set_owner(&sim, table, Owner::Quick(0));
        set_owner(&sim, table, Owner::Table(0));
        // The other CPU gives it up, and this one has not looked into it since.
        let owner = sim.clone();
        std::thread::scope(|scope| scope.spawn(|| owner.on_cpu(1, || free(&owner, table))).join())
            .unwrap();
    });
}

#[test]
fn a_table_that_is_active_elsewhere_is_not_given_up() {
    let sim = machine(2);
    let space = sim.on_cpu(0, || Space::new(&sim));
    let (active, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let owner = || {
        wait(&sim, || active.load(SeqCst));
        free(&sim, space.root);
        done.store(true, SeqCst);
    };
    let user = || {
        space.activate(0);
        active.store(true, SeqCst);
        wait(&sim, || done.load(SeqCst));
    };
    let programs = vec![Box::new(owner) as Program, Box::new(user)];
    let found = found(seeded(&sim, 0, programs));
    let Some(Violation::TableInUse { by, how, .. }) = found else { panic!("{found:?}") };
    assert_eq!((by.index(), how), (1, "it is the active top-level table"));
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
    // An entry leads to a frame that was never a table, or to a table of another level.
    for owner in [Owner::Raw, Owner::Table(1)] {
        let found = alone(|sim| {
            let space = Space::new(sim);
            space.activate(0);
            let wrong = page(sim);
            clear(sim, wrong);
            set_owner(sim, wrong, owner);
            space.set(AT, 1, wrong.start().get() | RW);
            space.touch(AT);
        });
        let Violation::NotATable { level, address, owner: is, .. } = found else {
            panic!("{found}")
        };
        assert_eq!((level, address, is), (Some(0), Some(virt(AT)), owner));
    }
}
