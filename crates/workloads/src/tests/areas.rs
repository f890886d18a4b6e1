//! Experiments with kernel areas, on a machine with translations.

use super::{find, lab, range};
use crate::experiment::Measure;
use crate::vmallocinfo::vmallocinfo;
use crate::vmap::{cost::cost, flushes::flushes, times, work::work};
use crate::{Error, Host, KernelHalf, Lab, Tick};
use machine::{FrameSource, PageSize};
use paging::{PageTables, Paging, X86_64L4};
use report::Report;
use sim::{Checks, Config, Grace, Sim, threads};
use std::sync::{Arc, Mutex};
use std::{format, vec::Vec};

type Experiment = Measure<Sim, Grace, parking_lot::RawRwLock>;

/// Runs an experiment on a machine with a timer and all checks, and checks that nothing is left.
fn run(cpus: usize, frames: u64, experiment: Experiment) -> Result<Report, Error> {
    let config = Config { tick: Some(5000), checks: Checks::ALL, ..Config::fast(cpus, frames) };
    let sim = Sim::new(config).unwrap();
    let ticking: Arc<Mutex<Option<Tick>>> = Arc::default();
    let handler = Arc::clone(&ticking);
    sim.on_tick(move |_| {
        let tick = handler.lock().unwrap().clone();
        tick.iter().for_each(|tick| tick());
    })
    .unwrap();
    let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let tables = sim.on_cpu(0, || Arc::new(PageTables::kernel(&paging).unwrap()));
    let host = Host {
        machine: &sim,
        run: &|programs| threads(&sim, programs).unwrap_or_else(|failure| panic!("{failure}")),
        quiet: || {
            Grace::quiescent_state();
            Grace::reclaim(usize::MAX);
        },
    };
    let kernel = KernelHalf {
        tables: &tables,
        range: range(),
        // SAFETY: nothing else needs to be mapped, and no other tables have the tag.
        enter: &|| unsafe { tables.activate() },
        ticks: Some(&|tick| *ticking.lock().unwrap() = tick),
    };
    let (interrupts, flushes) = (&|| sim.stats().ipis_sent, &|| sim.stats().flushes);
    let result = experiment(&Lab { interrupts, flushes, ..lab(host, kernel) });
    assert!(ticking.lock().unwrap().is_none(), "nothing ticks for an experiment that is over");
    sim.on_cpu(0, || drop(tables));
    for cpu in 0..cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle());
            paging.quick().drain();
        });
    }
    assert_eq!(sim.on_cpu(0, || sim.free_frames()), frames as usize);
    result
}

fn value(report: &Report, target: &str) -> f64 {
    let found = report.targets.iter().find(|found| found.target == target);
    found.unwrap_or_else(|| panic!("no target '{target}': {:?}", report.targets)).value
}

#[test]
fn maps_are_measured_and_leave_nothing() {
    let report = run(2, 12_000, times).unwrap();
    for way in ["one lock, a flush each", "nodes and pools", "lazy"] {
        // Two numbers of CPUs of each size.
        let rows = find(&report, "map, touch, unmap", way, "time");
        assert_eq!(rows.len(), 10, "{way}");
        assert!(rows.iter().all(|row| row.value > 0.0));
        assert_eq!(find(&report, "allocate, touch, free another's", way, "time").len(), 2);
    }
    let published = find(&report, "map, touch, unmap", "lazy, published", "time");
    assert_eq!(published.iter().map(|row| row.value).collect::<Vec<_>>(), [2900.0, 3000.0]);
    assert!(value(&report, "times the old way's operations a second, 2 CPUs") > 0.0);
}

#[test]
fn interrupts_are_counted() {
    for cpus in [1, 3] {
        let report = run(cpus, 2048, flushes).unwrap();
        let of = |case, way, metric| find(&report, case, way, metric)[0].value;
        for case in ["no CPU ticks", "CPUs tick"] {
            // One flush on each CPU at each unmap.
            let old = "one lock, a flush each";
            assert_eq!(of(case, old, "interrupts an unmap"), (cpus - 1) as f64, "{case}");
            assert_eq!(of(case, old, "flushes an unmap"), cpus as f64, "{case}");
        }
        assert!(of("no CPU ticks", "lazy", "interrupts an unmap") < 0.1);
        // Too few to fill its lists.
        assert_eq!(of("no CPU ticks", "nodes and pools", "interrupts an unmap"), 0.0);
        assert_eq!(
            value(&report, &format!("interrupts of 10,000 unmaps, {cpus} CPUs that tick")),
            0.0
        );
    }
}

#[test]
fn operations_are_counted() {
    let report = run(1, 2048, cost).unwrap();
    for way in ["one lock, a flush each", "nodes and pools", "lazy"] {
        for case in ["map and unmap", "vmap and vunmap", "allocate and free"] {
            // The least effort counts one size of two.
            assert_eq!(find(&report, case, way, "locked instructions").len(), 1);
        }
    }
}

#[test]
fn work_is_of_each_number_of_cpus() {
    let report = run(2, 2048, |lab| work(lab, "no turns")).unwrap();
    let work = |way| {
        let rows = find(&report, "map, touch, unmap, no turns", way, "instructions of all CPUs");
        assert_eq!(rows.iter().map(|row| row.cpus).collect::<Vec<_>>(), [1, 2], "{way}");
        rows.iter().map(|row| row.value).collect::<Vec<_>>()
    };
    let (old, new) = (work("one lock, a flush each"), work("lazy"));
    let less = value(&report, "times less work than the old way, 2 CPUs, no turns");
    assert_eq!(less, old[1] / new[1]);
    assert_eq!(value(&report, "work on 2 CPUs, of that on 1, no turns"), new[1] / new[0]);
}

#[test]
fn readers_are_measured_and_leave_nothing() {
    let report = run(3, 4096, vmallocinfo).unwrap();
    for way in ["readers take the lock", "readers without a lock"] {
        for (others, case) in [(0, "that do not read"), (2, "that do not read"), (2, "readers")] {
            let case = format!("with {others} {case}");
            let rows = find(&report, &case, way, "time of a writer");
            assert!(rows.len() == 1 && rows[0].size == 100 && rows[0].cpus == others + 1, "{case}");
        }
    }
    assert!(value(&report, "per cent lost by a writer to 2 readers").is_finite());
    assert!(value(&report, "time of get_vmalloc_info of 1000 areas, of that of 100") > 0.0);
}

#[test]
fn too_little_memory_is_an_error() {
    for experiment in [times as Experiment, flushes, cost, vmallocinfo] {
        run(2, 5, experiment).unwrap_err();
    }
}
