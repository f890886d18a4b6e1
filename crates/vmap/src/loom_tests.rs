//! Loom models of two protocols: the bits of a block, alone and with TLB grace periods; and the
//! states of an area.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p samara-vmap --lib loom`
//!
//! The models run the production code; only a block has one word of pages. They leave out zone
//! locks, which are those of the crate `spin`, and interrupts, which run on the CPU that they
//! interrupt.

use crate::area::{Area, AreaRecord, AreaState, Made, Ours};
use crate::block::{Bits, PAGES};
use grace::period::{CpuGracePeriods, GracePeriods};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;
use std::vec::Vec;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// The memory behind a run: it has one user at a time.
type Page = UnsafeCell<u32>;

fn write(page: &Page) {
    // SAFETY: loom checks that all accesses to it are ordered.
    page.with_mut(|page| unsafe { *page += 1 });
}

/// Two CPUs give back a run each, while the owner collects and reuses the runs that it finds.
#[test]
fn loom_a_run_has_one_user() {
    model(|| {
        let bits = Arc::new(Bits::new());
        let pages: Arc<[Page; 2]> = Arc::new([Page::new(0), Page::new(0)]);
        let firsts = [bits.take(0, 2).unwrap(), bits.take(0, 2).unwrap()];
        // Occupies all other pages.
        while bits.take(0, 1).is_some() {}
        let givers: Vec<_> = (0..2)
            .map(|run| {
                let (bits, pages) = (bits.clone(), pages.clone());
                thread::spawn(move || {
                    assert!(bits.is_run(firsts[run], 2), "the run is lost");
                    write(&pages[run]);
                    bits.give(firsts[run], 2);
                })
            })
            .collect();
        let mut taken = Vec::new();
        let mut look = || {
            bits.gather(|| 1);
            bits.settle(1);
            while let Some(first) = bits.take(0, 2) {
                assert!(!taken.contains(&first), "there are two owners");
                taken.push(first);
                write(&pages[usize::from(first == firsts[1])]);
            }
        };
        look();
        givers.into_iter().for_each(|giver| giver.join().unwrap());
        look();
        taken.sort_unstable();
        assert_eq!(taken, firsts, "a run is lost");
        assert_eq!(bits.count(), (PAGES, 0));
    });
}

/// The owner hands out a run of two pages that were a run each before, while a caller names the
/// second of them, which it has given back already: there is no such run, before or after.
#[test]
fn loom_a_run_that_is_gone_is_no_run() {
    model(|| {
        let bits = Arc::new(Bits::new());
        assert_eq!((bits.take(0, 1), bits.take(0, 1)), (Some(0), Some(1)));
        bits.give(0, 2);
        bits.gather(|| 1);
        bits.settle(1);
        let caller = {
            let bits = bits.clone();
            thread::spawn(move || {
                assert!(!bits.is_run(1, 1), "both have it");
                assert!(!bits.is_run(0, 1), "both have it");
            })
        };
        assert_eq!(bits.take(0, 2), Some(0));
        caller.join().unwrap();
        assert!(bits.is_run(0, 2), "it is lost");
    });
}

/// A run of one page, and a CPU with a TLB.
struct Cached {
    bits: Bits,
    periods: GracePeriods,
    passed: CpuGracePeriods,
    entry: AtomicUsize,
    page: Page,
}

impl Cached {
    /// Uses the page, if the TLB or the page table has a translation.
    fn touch(&self, cached: &mut bool) {
        // Relaxed, here and where it is cleared: the bits and the periods alone must order it.
        *cached = *cached || self.entry.load(Ordering::Relaxed) == 1;
        if *cached {
            // SAFETY: loom checks that no write runs concurrently.
            self.page.with(|page| assert_eq!(unsafe { *page }, 0));
        }
    }

    fn tick(&self, cached: &mut bool) {
        let begun = self.periods.begin();
        *cached = false;
        self.periods.end(&self.passed, begun);
    }

    /// The owner collects given-back pages and tests whether their period has ended. Returns
    /// whether it has reused the page.
    fn look(&self) -> bool {
        self.bits.gather(|| self.periods.target());
        let target = self.bits.target();
        if target == 0 {
            return false;
        }
        // Begins the period; ends it if the CPU has ticked.
        let _ = (0..2).any(|_| self.periods.advance(target, [&self.passed]));
        if self.bits.settle(self.periods.done()) == 0 {
            return false;
        }
        assert_eq!(self.bits.take(0, 1), Some(0));
        write(&self.page);
        true
    }
}

/// One CPU unmaps a page and gives it back, another has it in its TLB and ticks, and the owner
/// reuses it.
#[test]
fn loom_a_run_waits_for_its_period() {
    model(|| {
        let cached = Arc::new(Cached {
            bits: Bits::new(),
            periods: GracePeriods::new(),
            passed: CpuGracePeriods::new(),
            entry: AtomicUsize::new(1),
            page: Page::new(0),
        });
        cached.bits.take(0, 1).unwrap();
        cached.passed.idle_exit();
        cached.tick(&mut false);
        let user = {
            let cached = cached.clone();
            thread::spawn(move || {
                let mut tlb = false;
                cached.touch(&mut tlb);
                // This CPU waits for a period of its own, and so may begin the other CPU's.
                let _ = cached.periods.advance(cached.periods.target(), [&cached.passed]);
                cached.tick(&mut tlb);
                cached.touch(&mut tlb);
                tlb
            })
        };
        let giver = {
            let cached = cached.clone();
            thread::spawn(move || {
                assert!(cached.bits.is_run(0, 1), "the run is lost");
                cached.entry.store(0, Ordering::Relaxed);
                cached.bits.give(0, 1);
            })
        };
        let reused = cached.look();
        giver.join().unwrap();
        let mut tlb = user.join().unwrap();
        let reused = reused
            || (0..3).any(|_| {
                cached.tick(&mut tlb);
                cached.look()
            });
        assert!(reused, "the page is lost");
        assert!(!tlb, "there are two owners");
    });
}

/// An area that is being mapped.
fn area() -> Arc<(Area, Page)> {
    let area = Arc::new((Area::new(None), Page::new(0)));
    ours(&area).prepare(AreaRecord::new(Made::Vmalloc, 1, 1, core::panic::Location::caller()));
    area
}

fn ours(area: &Arc<(Area, Page)>) -> Ours {
    // SAFETY: the models keep the record, and only the owner calls this.
    unsafe { Ours::of(&area.0) }
}

/// One thread maps an area; two see it live and unmap it at the same time.
#[test]
fn loom_one_unmaps_an_area() {
    model(|| {
        let area = area();
        let unmap = || {
            let area = area.clone();
            thread::spawn(move || {
                let won = area.0.claim(AreaState::Unmapping, |_| Ok(()), |_| ()).is_ok();
                if won {
                    write(&area.1);
                    ours(&area).wait(3);
                }
                won
            })
        };
        let unmappers = [unmap(), unmap()];
        write(&area.1);
        ours(&area).set(AreaState::Live);
        let won = unmappers.map(|unmapper| unmapper.join().unwrap());
        assert!(won != [true, true], "there are two owners");
        let waits = area.0.state() == AreaState::Waiting;
        assert_eq!(waits, won.contains(&true));
    });
}

/// A CPU that sees an area live sees its pages mapped.
#[test]
fn loom_a_live_area_is_seen_mapped() {
    model(|| {
        let area = area();
        let reader = {
            let area = area.clone();
            thread::spawn(move || {
                if area.0.state() == AreaState::Live {
                    // SAFETY: loom checks that it was written before.
                    area.1.with(|page| assert_eq!(unsafe { *page }, 1));
                }
            })
        };
        write(&area.1);
        ours(&area).set(AreaState::Live);
        reader.join().unwrap();
    });
}

/// A CPU that sees an area wait sees the period that it waits for.
#[test]
fn loom_a_waiting_area_is_seen_with_its_period() {
    model(|| {
        let area = area();
        let reader = {
            let area = area.clone();
            thread::spawn(move || {
                if area.0.state() == AreaState::Waiting {
                    assert_eq!(ours(&area).target(), 3);
                    // SAFETY: loom checks that it was written before.
                    area.1.with(|page| assert_eq!(unsafe { *page }, 1));
                }
            })
        };
        write(&area.1);
        ours(&area).wait(3);
        reader.join().unwrap();
    });
}

/// A record is reused while a reader looks at it: the reader sees one use.
#[test]
fn loom_a_record_is_seen_as_of_one_use() {
    model(|| {
        let area = area();
        ours(&area).set(AreaState::Live);
        let reader = {
            let area = area.clone();
            thread::spawn(move || {
                if let Some((what, state)) = area.0.look() {
                    let pages = if what.bytes == 1 { 1 } else { 7 };
                    assert_eq!((what.pages as u64, what.bytes), (pages, pages));
                    assert!(state != AreaState::Ready, "a Ready record was seen");
                }
            })
        };
        ours(&area).wait(3);
        ours(&area).set(AreaState::Ready);
        ours(&area).prepare(AreaRecord::new(Made::Vmap, 7, 7, core::panic::Location::caller()));
        ours(&area).set(AreaState::Live);
        reader.join().unwrap();
    });
}
