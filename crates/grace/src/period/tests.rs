use super::*;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::vec::Vec;

fn cpus<const N: usize>(count: &GracePeriods) -> [CpuGracePeriods; N] {
    let all = [const { CpuGracePeriods::new() }; N];
    all.iter().for_each(CpuGracePeriods::idle_exit);
    announce_all(count, &all);
    all
}

fn quiescent_state(count: &GracePeriods, passed: &CpuGracePeriods) {
    let begun = count.begin();
    count.end(passed, begun);
}

fn announce_all(count: &GracePeriods, all: &[CpuGracePeriods]) {
    all.iter().for_each(|passed| quiescent_state(count, passed));
}

#[test]
fn a_period_ends_when_all_have_passed_it() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 3] = cpus(&count);
    let target = count.target();
    assert!(!all.iter().any(|passed| count.is_asked(passed)), "it has not begun");
    assert!(!count.has_begun(target) && !count.advance(target, &all));
    assert!(count.has_begun(target) && all.iter().all(|passed| count.is_asked(passed)));
    assert_eq!(count.target(), target + 1, "what comes later waits longer");
    for passed in &all {
        assert!(!count.advance(target, &all) && !passed.has_passed(target));
        quiescent_state(&count, passed);
        assert!(!count.is_asked(passed) && passed.has_passed(target));
    }
    assert_eq!(count.done() + 1, target, "somebody has to look");
    assert!(count.advance(target, &all));
    assert_eq!(count.done(), target);
    assert!(!count.has_begun(target + 1), "nobody asked for another");
}

/// What was unlinked during a period that began before must wait for the next.
#[test]
fn a_period_that_has_begun_is_not_enough() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    count.advance(count.target(), &all);
    let target = count.target();
    announce_all(&count, &all);
    assert!(!count.advance(target, &all), "the first has ended, and this one has begun");
    assert_eq!((count.done(), count.has_begun(target)), (target - 1, true));
    announce_all(&count, &all);
    assert!(count.advance(target, &all));
}

#[test]
fn an_announcement_counts_from_its_beginning() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 1] = cpus(&count);
    let target = count.target();
    let begun = count.begin();
    count.advance(target, &all);
    assert!(begun.period() < target);
    count.end(&all[0], begun);
    assert!(!count.advance(target, &all));
    drop(count.begin());
    assert!(!count.advance(target, &all), "it has not ended");
    quiescent_state(&count, &all[0]);
    assert!(count.advance(target, &all));
}

#[test]
fn nobody_waits_for_who_is_away() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    all[1].idle_enter();
    let target = count.target();
    count.advance(target, &all);
    assert!(all[1].is_idle() && all[1].has_passed(target) && !count.is_asked(&all[1]));
    quiescent_state(&count, &all[0]);
    assert!(count.advance(target, &all));
    // Back, it holds up every period until it has announced.
    all[1].idle_exit();
    let target = count.target();
    count.advance(target, &all);
    quiescent_state(&count, &all[0]);
    assert!(!count.advance(target, &all) && !all[1].has_passed(1));
    quiescent_state(&count, &all[1]);
    assert!(count.advance(target, &all));
}

#[test]
fn hastened_periods_end_those_before() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    let first = count.target();
    count.expedite_start(first);
    let second = count.target();
    count.expedite_start(second);
    count.expedite_start(first);
    assert_eq!(count.target(), second + 1, "it never goes back");
    assert_eq!(count.done() + 2, second);
    count.expedite_end(second);
    count.expedite_end(first);
    assert_eq!(count.done(), second, "nor does this");
    assert!(!count.advance(second + 1, &all), "it begins the next");
    announce_all(&count, &all);
    assert!(count.advance(second + 1, &all));
}

/// The broadcast of a later period is not answered yet; what all have passed ends all the same.
#[test]
fn a_hastened_period_holds_up_no_earlier_one() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    let first = count.target();
    count.advance(first, &all);
    announce_all(&count, &all);
    let second = count.target();
    count.expedite_start(second);
    assert!(!count.advance(second, &all) && count.done() == first);
    quiescent_state(&count, &all[0]);
    assert!(!count.advance(second, &all) && count.done() == first);
    quiescent_state(&count, &all[1]);
    assert!(count.advance(second, &all) && !count.has_begun(second + 1));
}

/// A page that is mapped, unmapped, and reused when its period has ended; CPUs with a TLB of one
/// entry use it meanwhile.
#[test]
fn no_page_is_used_after_its_reuse() {
    const CPUS: usize = 3;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
    let count = GracePeriods::new();
    let all = [const { CpuGracePeriods::new() }; CPUS];
    // What an address leads to: a page's number and one, or 0. A page holds the round in which it
    // may be used.
    let entry = AtomicUsize::new(0);
    let pages = [const { AtomicUsize::new(usize::MAX) }; 2];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (cpu, passed) in all.iter().enumerate() {
            let (count, entry, pages, over) = (&count, &entry, &pages, &over);
            scope.spawn(move || {
                let mut tlb = None;
                let flush = |tlb: &mut Option<(usize, usize)>| {
                    let begun = count.begin();
                    *tlb = None;
                    count.end(passed, begun);
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
                    } else if count.is_asked(passed) || step % 7 == 0 {
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
                if count.advance(target, &all) {
                    waiting.remove(0);
                    free.push(page);
                } else {
                    thread::yield_now();
                }
            }
            let page = free.pop().unwrap();
            pages[page].store(round, Relaxed);
            // The page is ready.
            entry.store(round * 2 + page, Release);
            thread::yield_now();
            entry.store(0, Relaxed);
            waiting.push((page, count.target()));
        }
        over.store(true, Relaxed);
    });
    assert!(count.done() > 0);
}

#[test]
fn a_period_begins_when_the_one_before_has_ended() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    count.expedite_start(1);
    announce_all(&count, &all);
    count.expedite_start(2);
    let third = count.target();
    assert!(!count.advance(third, &all) && count.done() == 1);
    assert!(!count.has_begun(third), "the second has not ended");
    announce_all(&count, &all);
    assert!(!count.advance(third, &all) && count.has_begun(third));
    assert_eq!(count.done(), 2);
}

#[test]
fn an_older_period_that_is_hastened_sets_nothing_back() {
    let count = GracePeriods::new();
    let first = count.target();
    count.expedite_start(first);
    let second = count.target();
    count.expedite_start(second);
    count.expedite_start(first);
    assert!(count.has_begun(second));
    assert_eq!(count.target(), second + 1, "no target is given out twice");
}

#[test]
fn a_cpu_that_rejoins_flushes_if_a_period_has_begun_since() {
    let count = GracePeriods::new();
    let all: [CpuGracePeriods; 2] = cpus(&count);
    let [idle, other] = &all;
    let flushes = |left| {
        let flushed = core::cell::Cell::new(false);
        count.rejoin(idle, left, || flushed.set(true));
        assert!(!idle.is_idle());
        flushed.get()
    };
    let left = count.begin().period();
    idle.idle_enter();
    assert!(!flushes(left), "nothing has begun");
    idle.idle_enter();
    let target = count.target();
    assert!(!count.advance(target, &all));
    assert!(flushes(left), "one has begun, and has not ended");
    quiescent_state(&count, other);
    assert!(count.advance(target, &all), "who rejoins has passed it");
    idle.idle_enter();
    assert!(flushes(left), "one has ended");
}
