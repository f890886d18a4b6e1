//! Runs each experiment to its end. No test depends on a time.

mod areas;

use crate::gup::gup;
use crate::quicklist::quicklist;
use crate::reclaim::reclaim;
use crate::{Host, KernelHalf, Lab, OpCost, Scale};
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use report::{Report, Row, Target};
use sim::{Bare, BareGrace};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use std::{format, vec::Vec};

fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

pub(crate) fn with_lab<T>(
    bare: &Bare,
    test: impl FnOnce(&Lab<'_, Bare, BareGrace, parking_lot::RawRwLock>) -> T,
) -> T {
    with_lab_as(true, bare, test)
}

/// In a lab that says whether its CPUs run at the same time.
fn with_lab_as<T>(
    at_once: bool,
    bare: &Bare,
    test: impl FnOnce(&Lab<'_, Bare, BareGrace, parking_lot::RawRwLock>) -> T,
) -> T {
    let paging = Paging::<_, X86_64L4>::try_new(bare.clone(), PageSize::Size1G).unwrap();
    let tables = bare.on_cpu(0, || Arc::new(PageTables::kernel(&paging).unwrap()));
    let host = Host {
        machine: bare,
        run: &|programs| bare.threads(programs),
        quiet: || {
            BareGrace::quiescent_state();
            BareGrace::reclaim(usize::MAX);
        },
    };
    let kernel = KernelHalf { tables: &tables, range: range(), enter: &|| (), ticks: None };
    let (interrupts, flushes) = (&|| bare.ipis(), &|| bare.flushes());
    let result = test(&Lab { interrupts, flushes, at_once, ..lab(host, kernel) });
    bare.on_cpu(0, || {
        drop(tables);
        bare.settle();
        paging.quick().drain();
    });
    result
}

/// A lab that measures little, and counts no interrupts.
fn lab<'a, M: Machine, G: Concurrent>(
    host: Host<'a, M>,
    kernel: KernelHalf<'a, M, G>,
) -> Lab<'a, M, G, parking_lot::RawRwLock> {
    Lab {
        host,
        kernel,
        time: now,
        clock: now,
        interrupts: &|| 0,
        flushes: &|| 0,
        disturbed: Default::default,
        measure_cost: Some(&made_up_cost),
        progress: &|_| (),
        scale: Scale::LEAST,
        cpus: &[1, 2],
        at_once: true,
        types: PhantomData,
    }
}

/// The kernel's addresses for experiments.
fn range() -> VirtRange {
    VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 37).unwrap()
}

/// Counts that are made up, each different.
fn made_up_cost(prepare: &mut dyn FnMut(), operation: &mut dyn FnMut()) -> Option<OpCost> {
    prepare();
    operation();
    Some(OpCost { instructions: 1.0, atomics: 2.0, lines: 3.0, written: 4.0 })
}

/// The rows of a case, an implementation and a metric.
pub(crate) fn find<'a>(
    report: &'a Report,
    case: &str,
    implementation: &str,
    metric: &str,
) -> Vec<&'a Row> {
    let fits = |row: &&Row| {
        (row.case.as_str(), row.implementation.as_str(), row.metric.as_str())
            == (case, implementation, metric)
    };
    report.rows.iter().filter(fits).collect()
}

#[test]
fn quicklists_are_measured_and_leave_nothing() {
    let bare = Bare::new(2, 1024).unwrap();
    let report = with_lab(&bare, quicklist).unwrap();
    for kind in ["pte", "pmd", "pud", "pgd"] {
        for metric in ["mean", "longest", "mean of giving back", "lines"] {
            for way in ["frame source, cleared", "quicklist"] {
                let rows = find(&report, kind, way, metric);
                // Three sizes are timed; one operation is counted.
                let expected = if metric == "lines" { 1 } else { 3 };
                // On a busy host some may be refused, with a note.
                let refused = report.notes.iter().filter(|note| note.case == kind).count();
                assert!(
                    rows.len() <= expected && rows.len() + refused >= expected,
                    "{kind}, {way}"
                );
                assert!(rows.iter().all(|row| row.value > 0.0), "{kind}, {way}: {metric}");
            }
        }
        assert!(
            report
                .targets
                .iter()
                .any(|target| target.target == format!("cache lines touched: {kind}"))
        );
    }
    // The times that can be met, and the lines of each kind.
    assert_eq!(report.targets.len(), 7 + 8);
    assert_eq!(find(&report, "pgd", "quicklist, published", "mean")[0].value, 8.0);
    assert_eq!(bare.on_cpu(0, || machine::FrameSource::free_frames(&bare)), 1024);
}

#[test]
fn pins_are_measured_and_leave_nothing() {
    let bare = Bare::new(3, 4096).unwrap();
    let report = with_lab(&bare, gup).unwrap();
    for case in ["alone", "with a writer"] {
        for way in ["address-space lock", "fast", "the pins alone"] {
            // Three sizes on one CPU and on two.
            let rows = find(&report, case, way, "time");
            assert_eq!(rows.len(), 6, "{case}, {way}");
            assert!(rows.iter().all(|row| row.value > 0.0), "{case}, {way}");
        }
    }
    let slow = report.targets.iter().find(|target| target.target == "fast_gup_slow").unwrap();
    assert_eq!(slow.value, 0.0);
    assert_eq!(find(&report, "one call", "fast", "locked instructions").len(), 2);
    for cpu in 0..3 {
        bare.on_cpu(cpu, || bare.settle());
    }
    assert_eq!(bare.on_cpu(0, || machine::FrameSource::free_frames(&bare)), 4096);
}

#[test]
fn reclaim_is_measured_and_leaves_nothing() {
    let bare = Bare::new(1, 4096).unwrap();
    let report = with_lab(&bare, reclaim).unwrap();
    for case in ["zipf", "hot and cold", "zipf and scans"] {
        let metric = "read back for 1000 accesses";
        for policy in ["FIFO", "LRU", "ours"] {
            assert!(find(&report, case, policy, metric)[0].value > 0.0, "{case}: {policy}");
        }
        assert!(find(&report, case, "ours", "time of a page")[0].value > 0.0, "{case}");
    }
    bare.on_cpu(0, || bare.settle());
    assert_eq!(bare.on_cpu(0, || machine::FrameSource::free_frames(&bare)), 4096);
}

/// CPUs that run in turns have no target for the speed that each keeps.
#[test]
fn cpus_in_turns_are_not_compared() {
    let kept = |at_once| {
        let report = with_lab_as(at_once, &Bare::new(2, 4096).unwrap(), gup).unwrap();
        let kept = |target: &&Target| target.target.starts_with("kept on 2 CPUs");
        (report.targets.iter().filter(kept).count(), report.targets.len())
    };
    let ((with, all), (without, others)) = (kept(true), kept(false));
    assert_eq!((with, without, all - others), (3, 0, 3));
}

#[test]
fn too_little_memory_is_an_error() {
    let bare = Bare::new(3, 100).unwrap();
    assert!(with_lab(&bare, quicklist).is_err());
    assert!(with_lab(&bare, gup).is_err());
}
