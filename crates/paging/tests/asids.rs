//! ASIDs of AArch64, of 8 and of 16 bits, with more spaces than ASIDs, and flushes that hardware
//! broadcasts.

mod common;

use common::*;
use machine::*;
use paging::*;
use sim::{Config, Grace, Sim};
use std::sync::Arc;

type Tables = PageTables<Sim, Aarch64, Grace>;

const AT: u64 = 0x5000;

fn machine(cpus: usize, frames: u64, tags: u32) -> (Sim, Arc<Paging<Sim, Aarch64>>) {
    machine_of(Config { cpus, frames, broadcast: true, tags, ..Config::default() })
}

fn assigned(paging: &std::sync::Arc<Paging<Sim, Aarch64>>) -> Tables {
    Tables::user(paging, Tag::Assigned, None).unwrap()
}

fn activate(tables: &Tables) {
    tables.activate_own();
}

/// Two CPUs go through all spaces. Each finds its own page under an ASID that others had before.
#[test]
fn of_eight_bits() {
    let (sim, paging) = machine(2, 8192, 1 << 8);
    let spaces = sim.on_cpu(0, || {
        let space = |number: u64| {
            let (tables, frame) = (assigned(&paging), numbered_page(&sim, number));
            tables.map_own(pages(AT, 1), frame, Attrs::USER_RW).unwrap();
            tables
        };
        (0..600).map(space).collect::<Vec<_>>()
    });
    for round in 0..2 {
        for cpu in 0..2 {
            sim.on_cpu(cpu, || {
                for (number, tables) in (0..).zip(&spaces) {
                    activate(tables);
                    assert_eq!(sim.load_own(virt(AT)), Ok(number), "round {round}");
                    assert!(tables.space().is_some_and(|asid| (1..256).contains(&asid.0)));
                }
            });
        }
    }
    assert!(paging.tag_generations() >= 4 * 600 / 256, "{}", paging.tag_generations());
    assert_eq!((sim.stats().ipis_sent, sim.stats().broadcasts), (0, 0), "ASIDs change hands");
    // A flush of a space that is active on another CPU: one broadcast, and no interrupt.
    sim.on_cpu(0, || {
        for tables in &spaces {
            tables.enter();
            let mut gone = None;
            let pending = tables.unmap_own(pages(AT, 1), |page| gone = Some(page.frame)).unwrap();
            assert!(!pending.interrupts_others());
            pending.flush();
            release(&sim, gone.unwrap());
        }
    });
    assert_eq!(sim.stats().ipis_sent, 0);
    sim.on_cpu(0, || drop(spaces));
}

/// As many spaces one after the other as there are ASIDs, and some more.
#[test]
fn of_sixteen_bits() {
    let (sim, paging) = machine(1, 64, 1 << 16);
    let base = sim.on_cpu(0, || {
        let base = assigned(&paging);
        let mut largest = 0;
        let mut lent = [block(&sim, 0), block(&sim, 0)];
        for number in 0..(1u64 << 16) + 16 {
            let tables = assigned(&paging);
            let used = !(8..1 << 16).contains(&number);
            if used {
                tables.map_own(pages(AT, 1), lent[0], Attrs::USER_RW).unwrap();
            }
            activate(&tables);
            largest = largest.max(tables.space().unwrap().0);
            if used {
                sim.store_own(virt(AT), number).unwrap();
                assert_eq!(sim.load_own(virt(AT)), Ok(number));
                tables.unmap_own(pages(AT, 1), |_| ()).unwrap().flush();
                lent.swap(0, 1);
            }
            activate(&base);
        }
        assert_eq!(largest, u16::MAX);
        lent.into_iter().for_each(|frame| release(&sim, frame));
        Leaked::new(base)
    });
    sim.on_cpu(0, || drop(Leaked::into_inner(base)));
    assert_eq!(sim.stats().ipis_sent, 0);
}

/// A grace period of TLBs that is brought to its end reaches all CPUs and interrupts none.
#[test]
fn grace_periods_interrupt_no_cpu() {
    let (sim, _) = machine(3, 64, 1 << 8);
    let grace = TlbGrace::try_new(sim.clone()).unwrap();
    let (grace_, sim_) = (&grace, &sim);
    let asked = &std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    let expedite = Box::new(move || {
        grace_.idle_exit();
        while grace_.taking_part() < 3 {
            sim_.relax();
        }
        let target = grace_.target();
        grace_.expedite(target);
        assert!(grace_.is_over(target));
        asked.store(true, order);
    }) as sim::Program;
    let other = || {
        Box::new(move || {
            grace_.idle_exit();
            while !asked.load(order) {
                sim_.relax();
            }
        }) as sim::Program
    };
    sim::seeded(&sim, 1, vec![expedite, other(), other()]).unwrap();
    let stats = grace.stats();
    assert_eq!((stats.broadcasts, stats.interrupted), (1, 0));
    assert_eq!((sim.stats().broadcasts, sim.stats().ipis_sent), (1, 0));
}
