//! The drivers run the same programs and report failures; a seed determines a run.

mod common;

use common::*;
use machine::*;
use sim::*;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

/// The program of a CPU: allocates, maps, uses, unmaps, flushes and frees, at its own addresses.
fn work(sim: &Sim, space: &Space, rounds: u64) {
    space.activate(0);
    let cpu = sim.current().index() as u64;
    let at = 0x10_0000_0000 * (cpu + 1);
    for round in 0..rounds {
        let frame = page(sim);
        space.map(at + round % 3 * 4096, frame);
        space.store(at + round % 3 * 4096, round).unwrap();
        assert_eq!(space.load(at + round % 3 * 4096), Ok(round));
        space.unmap(at + round % 3 * 4096);
        space.flush(at, 3 * 4096, false);
        free(sim, frame);
    }
}

fn machine_with_space(config: Config) -> (Sim, Space) {
    let sim = Sim::new(config).unwrap();
    let space = sim.on_cpu(0, || {
        let space = Space::new(&sim);
        // The tables that the CPUs share exist from the beginning.
        (1..=config.cpus as u64).for_each(|cpu| space.set(0x10_0000_0000 * cpu, 0, 0));
        space
    });
    (sim, space)
}

fn finish(sim: &Sim, space: &Space) {
    sim.on_cpu(0, || space.destroy_all());
    sim.check_leaks().unwrap();
}

fn programs<'a>(cpus: usize, sim: &'a Sim, space: &'a Space, rounds: u64) -> Vec<Program<'a>> {
    (0..cpus).map(|_| Box::new(move || work(sim, space, rounds)) as Program).collect()
}

#[test]
fn both_drivers_run_the_same_programs() {
    for cpus in [1, 2, 5] {
        let config =
            Config { cpus, frames: 1024, speculation: 50, nodes: cpus.min(2), ..Config::default() };
        let (sim, space) = machine_with_space(config);
        threads(&sim, programs(cpus, &sim, &space, 50))
            .unwrap_or_else(|failure| panic!("{failure}"));
        finish(&sim, &space);
        let passed = explore(100, |seed| {
            let (sim, space) = machine_with_space(config);
            seeded(&sim, seed, programs(cpus, &sim, &space, 5))?;
            finish(&sim, &space);
            Ok(())
        });
        passed.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn sixty_four_cpus() {
    let (sim, space) = machine_with_space(Config { cpus: 64, frames: 4096, ..Config::default() });
    let program = || work(&sim, &space, 1);
    seeded(&sim, 1, (0..64).map(|_| Box::new(program) as Program).collect()).unwrap();
    let stats = sim.stats();
    // At most 63 CPUs are asked: those that have started when a flush is requested.
    assert!(stats.ipis_sent > 64 && stats.ipis_sent <= 64 * 63, "{stats:?}");
    finish(&sim, &space);
}

#[test]
fn a_seed_is_a_run() {
    let run = |seed| {
        let config = Config {
            cpus: 3,
            frames: 512,
            speculation: 100,
            tick: Some(13),
            tlb_entries: 2,
            ..Config::default()
        };
        let (sim, space) = machine_with_space(config);
        let program = || work(&sim, &space, 5);
        let run = seeded(&sim, seed, vec![Box::new(program), Box::new(program), Box::new(program)])
            .unwrap();
        (run.steps, run.turns, run.fingerprint, format!("{:?}", sim.stats()))
    };
    let runs: Vec<_> = (0..20).map(run).collect();
    assert_eq!(runs, (0..20).map(run).collect::<Vec<_>>());
    let different: BTreeSet<_> = runs.iter().map(|run| run.2).collect();
    assert_eq!(different.len(), 20, "another seed, another run");
}

#[test]
fn every_order_of_a_few_steps_comes_up() {
    let orders = Mutex::new(BTreeSet::new());
    explore(2000, |seed| {
        let sim = machine(2);
        let order = Mutex::new(String::new());
        let program = || {
            for _ in 0..3 {
                sim.step(SharedAccess::Other);
                order.lock().unwrap().push_str(&sim.current().to_string());
            }
        };
        seeded(&sim, seed, vec![Box::new(program), Box::new(program)])?;
        orders.lock().unwrap().insert(order.into_inner().unwrap());
        Ok(())
    })
    .unwrap();
    // 6 over 3.
    assert_eq!(orders.into_inner().unwrap().len(), 20);
}

#[test]
fn a_cpu_stops_once_and_the_others_run_whole() {
    for steps in 0..5 {
        let sim = machine(3);
        let order = Mutex::new(String::new());
        let program = || {
            for _ in 0..3 {
                sim.step(SharedAccess::Other);
                order.lock().unwrap().push_str(&sim.current().index().to_string());
            }
        };
        let programs = [&program; 3].map(|program| Box::new(program) as Program);
        let run = stopped(&sim, 0, steps as u64, programs.into()).unwrap();
        let order = order.into_inner().unwrap();
        assert_eq!(run.map(|run| run.turns), (steps < 3).then_some(1), "{order}");
        let before = steps.min(3);
        let (first, others) = order.split_at(before);
        let (others, rest) = others.split_at(6);
        assert_eq!((first, rest), (&"000"[..before], &"000"[before..]), "{order}");
        assert!(["111222", "222111"].contains(&others), "{order}");
    }
}

/// A CPU that waits for the one that stands still lets it run, and it stops no more.
#[test]
fn a_cpu_that_stops_runs_when_another_waits() {
    let sim = machine(2);
    let done = AtomicBool::new(false);
    let first = || {
        (0..3).for_each(|_| sim.step(SharedAccess::Other));
        done.store(true, SeqCst);
    };
    let waits = || {
        while !done.load(SeqCst) {
            sim.relax();
        }
    };
    let run = stopped(&sim, 0, 0, vec![Box::new(first), Box::new(waits)]).unwrap();
    assert_eq!(run.map(|run| run.turns), Some(2));
}

#[test]
fn panics_are_told_from_violations() {
    let fail = |run: &dyn Fn(&Sim, Vec<Program>) -> Option<Failure>| {
        let sim = machine(2);
        let bad: Program = Box::new(|| panic!("on purpose"));
        let waits: Program = Box::new(|| {
            loop {
                sim.relax();
            }
        });
        let failure = run(&sim, vec![waits, bad]).unwrap();
        let Cause::Panic(cpu, message) = &failure.cause else { panic!("{failure}") };
        assert_eq!((cpu.index(), message.as_str()), (1, "on purpose"));
    };
    fail(&|sim, programs| threads(sim, programs).err());
    fail(&|sim, programs| seeded(sim, 5, programs).err());
}

#[test]
fn a_violation_stops_all_cpus() {
    let sim = machine(2);
    let waits = || loop {
        sim.relax();
    };
    let leaves = || {
        let frame = page(&sim);
        assert!(sim.info(frame).unwrap().try_pin(1));
        free(&sim, frame);
    };
    let failure = threads(&sim, vec![Box::new(waits), Box::new(leaves)]).unwrap_err();
    assert!(
        matches!(failure.report().unwrap().violation, Violation::FreedWhilePinned { .. }),
        "{failure}"
    );
    // It stays halted.
    let again = seeded(&sim, 0, vec![Box::new(|| sim.step(SharedAccess::Other))]).unwrap_err();
    assert!(again.report().is_some());
}

/// Also on a machine whose steps only look for mail.
#[test]
fn a_machine_without_checks_stops_too() {
    let sim = Sim::new(Config::fast(2, 64)).unwrap();
    let works: Program = Box::new(|| {
        loop {
            sim.step(SharedAccess::Other);
        }
    });
    let bad: Program = Box::new(|| {
        (0..1000).for_each(|_| sim.step(SharedAccess::Other));
        sim.interrupt(0, || ());
        sim.flush_on(&CpuSet::first(2), Flush::All);
        panic!("on purpose")
    });
    let failure = threads(&sim, vec![works, bad]).unwrap_err();
    assert!(matches!(failure.cause, Cause::Panic(..)), "{failure}");
}

#[test]
fn endless_waiting_is_noticed() {
    let sim = machine(2);
    let waits = || loop {
        sim.relax();
    };
    let failure = seeded(&sim, 0, vec![Box::new(waits), Box::new(waits)]).unwrap_err();
    assert!(matches!(failure.cause, Cause::Stuck(_)), "{failure}");
}

#[test]
fn no_more_programs_than_cpus() {
    let idle = || Box::new(|| ()) as Program;
    let many = || vec![idle(), idle(), idle()];
    assert!(matches!(threads(&machine(2), many()).unwrap_err().cause, Cause::TooManyPrograms));
    assert!(matches!(seeded(&machine(2), 0, many()).unwrap_err().cause, Cause::TooManyPrograms));
}

#[test]
fn explore_names_the_seed() {
    let tried = AtomicU64::new(0);
    let failure = explore(1000, |seed| {
        tried.fetch_add(1, SeqCst);
        assert!(seed < 400, "seed {seed} is too large");
        Ok(())
    })
    .unwrap_err();
    assert_eq!(failure.seed, Some(400));
    assert!(failure.to_string().contains("seed 400 is too large"), "{failure}");
    assert!(tried.into_inner() < 1000);
}

/// A violation before or after the driver's run has its report and its seed, like one within it.
#[test]
fn violations_outside_of_a_driver_are_reported() {
    let failure = explore(3, |seed| {
        let sim = machine(1);
        seeded(&sim, seed, vec![Box::new(|| ()) as Program])?;
        sim.on_cpu(0, || {
            let frame = page(&sim);
            assert!(sim.info(frame).unwrap().try_pin(1));
            free(&sim, frame);
        });
        Ok(())
    });
    let failure = failure.unwrap_err();
    let report = failure.report().unwrap_or_else(|| panic!("{failure}"));
    assert!(matches!(report.violation, Violation::FreedWhilePinned { .. }), "{report}");
    assert!(failure.seed.is_some());
}

#[test]
fn interrupts_land_between_steps() {
    // A CPU increments in two steps. A handler on the same CPU never comes between them with
    // interrupts disabled, but does with them enabled.
    let lost = |off: bool| {
        let lost = AtomicU32::new(0);
        explore(300, |seed| {
            let sim = machine(2);
            let count = std::sync::Arc::new(AtomicU32::new(0));
            let in_handler = count.clone();
            let target = || {
                let section = off.then(|| sim.irqs_off());
                sim.step(SharedAccess::Other);
                let old = count.load(SeqCst);
                sim.step(SharedAccess::Other);
                count.store(old + 1, SeqCst);
                drop(section);
                while count.load(SeqCst) < 2 && sim.stats().ipis_taken == 0 {
                    sim.relax();
                }
            };
            let sender = || {
                sim.interrupt(0, move || {
                    in_handler.fetch_add(1, SeqCst);
                })
            };
            seeded(&sim, seed, vec![Box::new(target), Box::new(sender)])?;
            lost.fetch_add(u32::from(count.load(SeqCst) == 1), SeqCst);
            Ok(())
        })
        .unwrap();
        lost.into_inner()
    };
    assert_eq!(lost(true), 0);
    assert!(lost(false) > 0);
}
