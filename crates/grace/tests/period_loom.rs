//! Numbered periods under loom, as TLBs use them: a page is unmapped and reused while a CPU
//! translates, by ticks, by a CPU that was away, and by a broadcast beside another who unmaps. And
//! the same with one thing done wrong or left out.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-grace --test period_loom`
#![cfg(loom)]

mod mutants;

use grace::period::{CpuGracePeriods, Fence, GracePeriods, without};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use mutants::caught;
// Not loom's, which cannot be dropped when a model has failed.
use std::sync::Arc;

/// One page, the entry that leads to it, and two CPUs: the second has a TLB. The first uses
/// nothing, and is away.
struct Machine {
    flushes: GracePeriods,
    passed: [CpuGracePeriods; 2],
    entry: AtomicUsize,
    page: UnsafeCell<u32>,
    /// A message to the second CPU that it shall flush, and its answer.
    message: AtomicUsize,
    answer: AtomicUsize,
}

impl Machine {
    fn new() -> Arc<Machine> {
        Arc::new(Machine {
            flushes: GracePeriods::new(),
            passed: [CpuGracePeriods::new(), CpuGracePeriods::new()],
            entry: AtomicUsize::new(1),
            page: UnsafeCell::new(7),
            message: AtomicUsize::new(0),
            answer: AtomicUsize::new(0),
        })
    }

    fn unmap(&self) -> u64 {
        // Relaxed: the periods alone have to order it.
        self.entry.store(0, Ordering::Relaxed);
        self.flushes.target()
    }

    fn advance(&self, wanted: u64) -> bool {
        self.flushes.advance(wanted, &self.passed)
    }

    fn reuse(&self) {
        // SAFETY: loom checks that nobody uses it beside this, or before it without order.
        self.page.with_mut(|page| unsafe { *page = 0 });
    }

    /// Reuses the page if the period ends while the other CPU runs. Returns whether it has.
    fn try_reuse(&self, target: u64) -> bool {
        let ended = (0..2).any(|_| self.advance(target));
        if ended {
            self.reuse();
        }
        ended
    }
}

/// The second CPU.
struct Cpu {
    machine: Arc<Machine>,
    /// Whether its TLB holds the translation.
    cached: bool,
    /// The period of its last flush.
    flushed: u64,
}

/// In which order a tick does what it does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tick {
    Right,
    EndsBeforeFlush,
    BeginsAfterFlush,
}

/// When a CPU flushes that comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Back {
    Always,
    IfBegunMeanwhile,
    Never,
    IfBegunBeforeFence,
    IfDone,
}

impl Cpu {
    fn start(machine: &Arc<Machine>) -> Cpu {
        let mut cpu = Cpu { machine: machine.clone(), cached: false, flushed: 0 };
        cpu.passed().idle_exit();
        cpu.tick(Tick::Right);
        cpu
    }

    fn passed(&self) -> &CpuGracePeriods {
        &self.machine.passed[1]
    }

    /// What the hardware may do at any time.
    fn fill(&mut self) {
        // Relaxed: as in `unmap`.
        self.cached = self.cached || self.machine.entry.load(Ordering::Relaxed) == 1;
    }

    /// Uses the page, if the TLB or the table leads to it.
    fn touch(&mut self) {
        self.fill();
        if self.cached {
            // SAFETY: loom checks that nobody writes beside it.
            self.machine.page.with(|page| assert_eq!(unsafe { *page }, 7));
        }
    }

    fn tick(&mut self, tick: Tick) {
        let machine = self.machine.clone();
        if tick == Tick::BeginsAfterFlush {
            self.cached = false;
            self.touch();
        }
        let begun = machine.flushes.begin();
        let period = begun.period();
        match tick {
            Tick::Right => {
                self.touch();
                self.cached = false;
                self.flushed = period;
                self.touch();
                machine.flushes.end(self.passed(), begun);
            }
            Tick::EndsBeforeFlush => {
                machine.flushes.end(self.passed(), begun);
                self.touch();
                self.cached = false;
            }
            Tick::BeginsAfterFlush => machine.flushes.end(self.passed(), begun),
        }
    }

    /// Is idle, and comes back.
    fn idle(&mut self, back: Back) {
        let machine = self.machine.clone();
        self.passed().idle_enter();
        self.fill();
        if back == Back::IfBegunMeanwhile {
            let cached = &mut self.cached;
            return machine.flushes.rejoin(&machine.passed[1], self.flushed, || *cached = false);
        }
        self.passed().idle_exit();
        let begun = machine.flushes.begin();
        let flush = match back {
            Back::Always => true,
            Back::IfBegunMeanwhile | Back::Never => false,
            Back::IfBegunBeforeFence => begun.period() > self.flushed,
            Back::IfDone => machine.flushes.done() > self.flushed,
        };
        if flush {
            self.cached = false;
        }
        machine.flushes.end(self.passed(), begun);
    }

    /// Does what a message says, if one has come.
    fn answer(&mut self) {
        // Acquire: pairs with the Release of whoever sends it, as an interrupt does.
        if self.machine.message.load(Ordering::Acquire) == 1 {
            self.cached = false;
            // Release: what was done by the old translation came before.
            self.machine.answer.store(1, Ordering::Release);
        }
    }
}

/// Runs it in all orders, or in those with up to so many preemptions.
fn model(
    name: impl std::fmt::Debug,
    preemptions: Option<usize>,
    run: impl Fn() + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let runs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = runs.clone();
    let began = std::time::Instant::now();
    builder.check(move || {
        // Relaxed: a count.
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        run();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    println!("{name:?}: {runs} interleavings, {:?}", began.elapsed());
}

/// In the end the page is reused: the CPU ticks on.
fn finish(mut cpu: Cpu, target: u64, reused: bool) {
    let machine = cpu.machine.clone();
    if !reused {
        let ended = (0..3).any(|_| {
            cpu.tick(Tick::Right);
            machine.advance(target)
        });
        assert!(ended);
        machine.reuse();
    }
    cpu.touch();
    assert!(!cpu.cached && machine.flushes.done() >= target);
}

/// Somebody unmaps, a CPU ticks. It `asks` for a period of its own, too, and so may begin the
/// other's.
fn ticks(tick: Tick, asks: bool) {
    model((tick, asks), None, move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            if asks {
                cpu.machine.advance(cpu.machine.flushes.target());
            }
            cpu.tick(tick);
            cpu.tick(tick);
            cpu.touch();
            cpu
        });
        let target = machine.unmap();
        let reused = machine.try_reuse(target);
        finish(thread.join().unwrap(), target, reused);
    });
}

/// Somebody unmaps, and waits for the period or expedites it; a CPU is idle meanwhile.
fn idles(back: Back, expedites: bool) {
    model((back, expedites), None, move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            cpu.idle(back);
            cpu.touch();
            cpu
        });
        let target = machine.unmap();
        let reused = if expedites {
            machine.flushes.expedite_start(target);
            let passed = machine.passed[1].has_passed(target);
            if passed {
                machine.flushes.expedite_end(target);
                machine.reuse();
            }
            passed
        } else {
            machine.try_reuse(target)
        };
        finish(thread.join().unwrap(), target, reused);
    });
}

/// What a broadcaster does first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expedite {
    BeforeBroadcast,
    AfterBroadcast,
    Never,
}

/// A CPU answers a broadcast, and may tick before, beside one who unmaps.
fn broadcasts(expedite: Expedite, ticks: bool) {
    // With a tick, all orders are millions: they pass, in minutes.
    model((expedite, ticks), ticks.then_some(4), move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            cpu.answer();
            if ticks {
                cpu.tick(Tick::Right);
            }
            cpu.touch();
            cpu.answer();
            cpu.touch();
            cpu
        });
        let other = machine.clone();
        let broadcaster = thread::spawn(move || {
            let target = other.flushes.target();
            if expedite == Expedite::BeforeBroadcast {
                other.flushes.expedite_start(target);
            }
            let passed = ticks && other.passed[1].has_passed(target);
            if !passed {
                // Release: pairs with the Acquire in `Cpu::answer`.
                other.message.store(1, Ordering::Release);
            }
            // Acquire: pairs with the Release in `Cpu::answer`.
            if passed || other.answer.load(Ordering::Acquire) == 1 {
                if expedite == Expedite::AfterBroadcast {
                    other.flushes.expedite_start(target);
                }
                other.flushes.expedite_end(target);
                return target;
            }
            0
        });
        let target = machine.unmap();
        let reused = machine.try_reuse(target);
        assert!(broadcaster.join().unwrap() <= machine.flushes.done(), "it never goes back");
        finish(thread.join().unwrap(), target, reused);
    });
}

/// One ends the period, another sees that it has ended, and reuses the page.
#[test]
fn an_end_that_another_has_seen() {
    model("another ends it", None, || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let target = machine.unmap();
        assert!(!machine.advance(target));
        let others = [
            {
                let machine = machine.clone();
                thread::spawn(move || {
                    machine.advance(target);
                })
            },
            thread::spawn(move || {
                // From before the unmapping.
                cpu.cached = true;
                cpu.touch();
                cpu.tick(Tick::Right);
                cpu.touch();
            }),
        ];
        // Loom does not go back behind a load by the thread itself: so the others come first here.
        thread::yield_now();
        if machine.flushes.done() >= target {
            machine.reuse();
        }
        others.map(|other| other.join().unwrap());
    });
}

#[test]
fn a_cpu_that_ticks() {
    ticks(Tick::Right, false);
    ticks(Tick::Right, true);
}

#[test]
fn a_cpu_that_was_away() {
    for expedites in [false, true] {
        idles(Back::Always, expedites);
        idles(Back::IfBegunMeanwhile, expedites);
    }
}

#[test]
fn a_broadcast_beside_who_unmaps() {
    [false, true].into_iter().for_each(|ticks| broadcasts(Expedite::BeforeBroadcast, ticks));
}

#[test]
fn wrong_orders_are_caught() {
    caught(|| ticks(Tick::EndsBeforeFlush, false));
    caught(|| ticks(Tick::BeginsAfterFlush, false));
    for expedites in [false, true] {
        caught(|| idles(Back::Never, expedites));
        caught(|| idles(Back::IfBegunBeforeFence, expedites));
        caught(|| idles(Back::IfDone, expedites));
    }
    caught(|| broadcasts(Expedite::AfterBroadcast, false));
    caught(|| broadcasts(Expedite::Never, false));
}

#[test]
fn fences_left_out_are_caught() {
    caught(|| without(Fence::Begin, || ticks(Tick::Right, false)));
    caught(|| without(Fence::Begin, || idles(Back::IfBegunMeanwhile, true)));
    caught(|| without(Fence::Target, || ticks(Tick::Right, true)));
    caught(|| without(Fence::Advance, || idles(Back::IfBegunMeanwhile, false)));
    caught(|| without(Fence::Expedite, || idles(Back::IfBegunMeanwhile, true)));
    caught(|| without(Fence::Expedite, || broadcasts(Expedite::BeforeBroadcast, false)));
}
