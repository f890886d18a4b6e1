//! Translations, and reused addresses.

use super::*;

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

/// CPU 0 maps a page, waits until CPU 1 has used it, unmaps it, and maps another at the same
/// address.
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
            sim.check_reuse(None, range(AT, 4096));
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
                // A page in use may be cached again: this CPU does so.
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
    finish(&sim, &space)
}

#[test]
fn pages_are_flushed_before_their_address_is_used_again() {
    right(|seed| remap(seed, Remap::Right, config()));
    let tiny = Config { tlb_entries: 1, upper_entries: 0, levels: 5, ..config() };
    right(|seed| remap(seed, Remap::Right, tiny));
}

#[test]
fn mutants_reuse_addresses_that_are_still_translated() {
    for mutant in [Remap::NoRemoteFlush, Remap::WrongPage, Remap::FlushFirst] {
        let report = caught(|seed| remap(seed, mutant, config()));
        let Violation::ReusedEarly { range, page, .. } = report.violation else {
            panic!("{report}")
        };
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
    let checks = Checks { check_reuse: false, ..Checks::ALL };
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
    let found = alone(|sim| {
        let (space, frame) = mapped(sim);
        space.activate(0);
        space.store(AT, 1).unwrap();
        space.set(AT, 0, frame.start().get() | PRESENT);
        // A read is still allowed; a write only by the old translation.
        assert_eq!(space.load(AT), Ok(1));
        let _ = space.store(AT, 2);
        unreachable!("the machine goes on with a stale permission");
    });
    assert!(matches!(
        found,
        Violation::StaleTranslation { write: true, now: None, freed: false, .. }
    ));
}

/// CPU 0 makes a page read-only that CPU 1 has read, and perhaps written.
fn protect(seed: u64, flush: bool) -> Result<(), Failure> {
    let sim =
        Sim::new(Config { checks: Checks { stale: sim::Stale::Freed, ..Checks::ALL }, ..config() })
            .unwrap();
    let (space, frame) = sim.on_cpu(0, || mapped(&sim));
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

// --- a quiescent state instead of an IPI ----------------------------------------------------

/// CPU 1 flushes on its own and then sets a flag. CPU 0 reuses the address after it has seen the
/// flag.
fn quiescent_state(seed: u64, before_the_flush: bool) -> Result<(), Failure> {
    let sim = Sim::new(config()).unwrap();
    let (space, frame) = sim.on_cpu(0, || mapped(&sim));
    let (unmapped, flushed) = (AtomicBool::new(false), AtomicBool::new(false));
    let owner = || {
        space.activate(0);
        space.unmap(AT);
        sim.flush(Flush::All);
        unmapped.store(true, SeqCst);
        wait(&sim, || flushed.load(SeqCst));
        sim.check_reuse(None, range(AT, 4096));
        free(&sim, frame);
    };
    let other = || {
        space.activate(0);
        if !unmapped.load(SeqCst) {
            // The access may fault or not, and may fill the cache.
            space.touch(AT);
        }
        wait(&sim, || unmapped.load(SeqCst));
        let quiescent_state = || {
            sim.step(SharedAccess::Other);
            flushed.store(true, SeqCst);
            sim.step(SharedAccess::Other);
        };
        if before_the_flush {
            quiescent_state();
        }
        sim.flush(Flush::All);
        if !before_the_flush {
            quiescent_state();
        }
    };
    seeded(&sim, seed, vec![Box::new(owner), Box::new(other)]).map(drop)
}

#[test]
fn a_quiescent_state_follows_its_flush() {
    // The other CPU may access the page while it is unmapped.
    right(|seed| quiescent_state(seed, false));
    let report = caught(|seed| quiescent_state(seed, true));
    assert!(matches!(report.violation, Violation::ReusedEarly { .. }), "{report}");
}

/// The set of CPUs of an address space: CPU 1 begins to use the space while CPU 0 unmaps a page of
/// it.
fn enter(seed: u64, too_late: bool) -> Result<(), Failure> {
    let sim = Sim::new(Config { speculation: 0, ..config() }).unwrap();
    let (space, frame) = sim.on_cpu(0, || mapped(&sim));
    let cpus = AtomicCpuSet::new();
    let owner = || {
        space.unmap(AT);
        sim.step(SharedAccess::Other);
        sim.flush_on(&cpus.load(), pages(Some(Asid(1)), range(AT, 4096), false));
        sim.check_reuse(Some(Asid(1)), range(AT, 4096));
        free(&sim, frame);
    };
    let other = || {
        let enter = || {
            sim.step(SharedAccess::Other);
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
    assert!(matches!(report.violation, Violation::ReusedEarly { .. }), "{report}");
}
