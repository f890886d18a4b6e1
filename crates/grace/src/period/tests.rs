use super::*;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::vec::Vec;

fn cpus<const N: usize>(periods: &GracePeriods) -> [CpuGracePeriods; N] {
    let all = [const { CpuGracePeriods::new() }; N];
    all.iter().for_each(CpuGracePeriods::idle_exit);
    all_quiescent(periods, &all);
    all
}

fn quiescent_state(periods: &GracePeriods, passed: &CpuGracePeriods) {
    let begun = periods.begin();
    periods.end(passed, begun);
}

fn all_quiescent(periods: &GracePeriods, all: &[CpuGracePeriods]) {
    all.iter().for_each(|passed| quiescent_state(periods, passed));
}

#[test]
fn a_period_ends_when_all_have_passed_it() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 3] = cpus(&periods);
    let target = periods.target();
    assert!(!all.iter().any(|passed| periods.needs_quiescent_state(passed)), "it has not begun");
    assert!(!periods.has_begun(target) && !periods.advance(target, &all));
    assert!(
        periods.has_begun(target) && all.iter().all(|passed| periods.needs_quiescent_state(passed))
    );
    assert_eq!(periods.target(), target + 1, "later memory waits for a later period");
    for passed in &all {
        assert!(!periods.advance(target, &all) && !passed.has_passed(target));
        quiescent_state(&periods, passed);
        assert!(!periods.needs_quiescent_state(passed) && passed.has_passed(target));
    }
    assert_eq!(periods.done() + 1, target, "only `advance` ends a period");
    assert!(periods.advance(target, &all));
    assert_eq!(periods.done(), target);
    assert!(!periods.has_begun(target + 1), "no later period was requested");
}

/// Memory that was unlinked while a period was running must wait for the next one.
#[test]
fn a_period_that_has_begun_is_not_enough() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    periods.advance(periods.target(), &all);
    let target = periods.target();
    all_quiescent(&periods, &all);
    assert!(!periods.advance(target, &all), "the first has ended, and this one has begun");
    assert_eq!((periods.done(), periods.has_begun(target)), (target - 1, true));
    all_quiescent(&periods, &all);
    assert!(periods.advance(target, &all));
}

#[test]
fn a_report_passes_the_period_at_its_beginning() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 1] = cpus(&periods);
    let target = periods.target();
    let begun = periods.begin();
    periods.advance(target, &all);
    assert!(begun.period() < target);
    periods.end(&all[0], begun);
    assert!(!periods.advance(target, &all));
    drop(periods.begin());
    assert!(!periods.advance(target, &all), "it has not ended");
    quiescent_state(&periods, &all[0]);
    assert!(periods.advance(target, &all));
}

#[test]
fn an_idle_cpu_is_not_waited_for() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    all[1].idle_enter();
    let target = periods.target();
    periods.advance(target, &all);
    assert!(
        all[1].is_idle() && all[1].has_passed(target) && !periods.needs_quiescent_state(&all[1])
    );
    quiescent_state(&periods, &all[0]);
    assert!(periods.advance(target, &all));
    // Active again, it delays every period until it has reported.
    all[1].idle_exit();
    let target = periods.target();
    periods.advance(target, &all);
    quiescent_state(&periods, &all[0]);
    assert!(!periods.advance(target, &all) && !all[1].has_passed(1));
    quiescent_state(&periods, &all[1]);
    assert!(periods.advance(target, &all));
}

#[test]
fn expedited_periods_end_those_before() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    let first = periods.target();
    periods.expedite_start(first);
    let second = periods.target();
    periods.expedite_start(second);
    periods.expedite_start(first);
    assert_eq!(periods.target(), second + 1, "`current` never goes back");
    assert_eq!(periods.done() + 2, second);
    periods.expedite_end(second);
    periods.expedite_end(first);
    assert_eq!(periods.done(), second, "`done` never goes back");
    assert!(!periods.advance(second + 1, &all), "it begins the next");
    all_quiescent(&periods, &all);
    assert!(periods.advance(second + 1, &all));
}

/// A later, expedited period is still open. The earlier period that all CPUs have passed ends
/// anyway.
#[test]
fn a_expedited_period_holds_up_no_earlier_one() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    let first = periods.target();
    periods.advance(first, &all);
    all_quiescent(&periods, &all);
    let second = periods.target();
    periods.expedite_start(second);
    assert!(!periods.advance(second, &all) && periods.done() == first);
    quiescent_state(&periods, &all[0]);
    assert!(!periods.advance(second, &all) && periods.done() == first);
    quiescent_state(&periods, &all[1]);
    assert!(periods.advance(second, &all) && !periods.has_begun(second + 1));
}

/// A page is mapped, unmapped, and reused when its period has ended. Meanwhile CPUs use it, each
/// with a TLB of one entry.
#[test]
fn no_page_is_used_after_its_reuse() {
    const CPUS: usize = 3;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
    let periods = GracePeriods::new();
    let all = [const { CpuGracePeriods::new() }; CPUS];
    // The page-table entry: the round times two plus the page's number, or 0 if nothing is mapped.
    // A page holds the round in which it may be used.
    let entry = AtomicUsize::new(0);
    let pages = [const { AtomicUsize::new(usize::MAX) }; 2];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (cpu, passed) in all.iter().enumerate() {
            let (periods, entry, pages, over) = (&periods, &entry, &pages, &over);
            scope.spawn(move || {
                let mut tlb = None;
                let flush = |tlb: &mut Option<(usize, usize)>| {
                    let begun = periods.begin();
                    *tlb = None;
                    periods.end(passed, begun);
                };
                passed.idle_exit();
                flush(&mut tlb);
                for step in 0_usize.. {
                    if over.load(Relaxed) {
                        break;
                    }
                    let found = tlb.or_else(|| match entry.load(Acquire) {
                        0 => None,
                        found => Some((found % 2, found / 2)),
                    });
                    tlb = found;
                    if let Some((page, round)) = found {
                        let there = pages[page].load(Relaxed);
                        assert_eq!(there, round, "CPU {cpu} uses page {page} after its reuse");
                    }
                    if cpu == 0 && step % 50 == 49 {
                        passed.idle_enter();
                        thread::yield_now();
                        passed.idle_exit();
                        flush(&mut tlb);
                    } else if periods.needs_quiescent_state(passed) || step % 7 == 0 {
                        flush(&mut tlb);
                        thread::yield_now();
                    }
                }
                passed.idle_enter();
            });
        }
        let mut free = Vec::from([0, 1]);
        let mut waiting: Vec<(usize, u64)> = Vec::new();
        for round in 1..=ROUNDS {
            while free.is_empty() {
                let (page, target) = waiting[0];
                if periods.advance(target, &all) {
                    waiting.remove(0);
                    free.push(page);
                } else {
                    thread::yield_now();
                }
            }
            let page = free.pop().unwrap();
            pages[page].store(round, Relaxed);
            // Release: the page is ready.
            entry.store(round * 2 + page, Release);
            thread::yield_now();
            entry.store(0, Relaxed);
            waiting.push((page, periods.target()));
        }
        over.store(true, Relaxed);
    });
    assert!(periods.done() > 0);
}

#[test]
fn a_period_begins_when_the_one_before_has_ended() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    periods.expedite_start(1);
    all_quiescent(&periods, &all);
    periods.expedite_start(2);
    let third = periods.target();
    assert!(!periods.advance(third, &all) && periods.done() == 1);
    assert!(!periods.has_begun(third), "the second has not ended");
    all_quiescent(&periods, &all);
    assert!(!periods.advance(third, &all) && periods.has_begun(third));
    assert_eq!(periods.done(), 2);
}

#[test]
fn expediting_an_older_period_sets_nothing_back() {
    let periods = GracePeriods::new();
    let first = periods.target();
    periods.expedite_start(first);
    let second = periods.target();
    periods.expedite_start(second);
    periods.expedite_start(first);
    assert!(periods.has_begun(second));
    assert_eq!(periods.target(), second + 1, "no target is given out twice");
}

#[test]
fn a_cpu_that_rejoins_flushes_if_a_period_has_begun_since() {
    let periods = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&periods);
    let [idle, other] = &all;
    let flushes = |left| {
        let flushed = core::cell::Cell::new(false);
        periods.rejoin(idle, left, || flushed.set(true));
        assert!(!idle.is_idle());
        flushed.get()
    };
    let left = periods.begin().period();
    idle.idle_enter();
    assert!(!flushes(left), "no period has begun");
    idle.idle_enter();
    let target = periods.target();
    assert!(!periods.advance(target, &all));
    assert!(flushes(left), "one has begun, and has not ended");
    quiescent_state(&periods, other);
    assert!(periods.advance(target, &all), "the CPU that rejoined has passed it");
    idle.idle_enter();
    assert!(flushes(left), "one has ended");
}
