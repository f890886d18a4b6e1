//! Numbered grace periods under loom, as TLBs use them. A page is unmapped and reused while another
//! CPU translates: with a CPU that ticks, a CPU that was idle, and a broadcast during an unmap.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-grace --test period_loom`
#![cfg(loom)]

use grace::period::{CpuGracePeriods, GracePeriods};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

/// A page, the entry that maps it, and two CPUs. The second CPU has a TLB. The first uses no
/// translation, and is idle.
struct Machine {
    periods: GracePeriods,
    passed: [CpuGracePeriods; 2],
    entry: AtomicUsize,
    page: UnsafeCell<u32>,
    /// An IPI that asks the second CPU to flush, and its answer.
    message: AtomicUsize,
    answer: AtomicUsize,
}

impl Machine {
    fn new() -> Arc<Machine> {
        Arc::new(Machine {
            periods: GracePeriods::new(),
            passed: [CpuGracePeriods::new(), CpuGracePeriods::new()],
            entry: AtomicUsize::new(1),
            page: UnsafeCell::new(7),
            message: AtomicUsize::new(0),
            answer: AtomicUsize::new(0),
        })
    }

    fn unmap(&self) -> u64 {
        // Relaxed: only the periods may have to order it.
        self.entry.store(0, Ordering::Relaxed);
        self.periods.target()
    }

    fn advance(&self, wanted: u64) -> bool {
        self.periods.advance(wanted, &self.passed)
    }

    fn reuse(&self) {
        // SAFETY: loom checks that no other access is concurrent or unordered.
        self.page.with_mut(|page| unsafe { *page = 0 });
    }

    /// Reuses the page if the period ends while the other CPU runs. Returns whether it did.
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

impl Cpu {
    fn start(machine: &Arc<Machine>) -> Cpu {
        let mut cpu = Cpu { machine: machine.clone(), cached: false, flushed: 0 };
        cpu.passed().idle_exit();
        cpu.tick();
        cpu
    }

    fn passed(&self) -> &CpuGracePeriods {
        &self.machine.passed[1]
    }

    /// The hardware fills the TLB. It may do so at any time.
    fn fill(&mut self) {
        // Relaxed: as in `unmap`.
        self.cached = self.cached || self.machine.entry.load(Ordering::Relaxed) == 1;
    }

    /// Accesses the page, if the TLB or the page table maps it.
    fn touch(&mut self) {
        self.fill();
        if self.cached {
            // SAFETY: loom checks that no write is concurrent.
            self.machine.page.with(|page| assert_eq!(unsafe { *page }, 7));
        }
    }

    fn tick(&mut self) {
        let begun = self.machine.periods.begin();
        self.touch();
        self.cached = false;
        self.flushed = begun.period();
        self.touch();
        self.machine.periods.end(self.passed(), begun);
    }

    /// Becomes idle, and active again. It flushes if it `always` does, or if a period has begun
    /// meanwhile.
    fn idle(&mut self, always: bool) {
        let machine = self.machine.clone();
        self.passed().idle_enter();
        self.fill();
        if !always {
            let cached = &mut self.cached;
            return machine.periods.rejoin(&machine.passed[1], self.flushed, || *cached = false);
        }
        self.passed().idle_exit();
        let begun = machine.periods.begin();
        self.cached = false;
        machine.periods.end(self.passed(), begun);
    }

    /// Answers the IPI, if one was sent.
    fn answer(&mut self) {
        // Acquire: pairs with the Release of the sender, as an interrupt does.
        if self.machine.message.load(Ordering::Acquire) == 1 {
            self.cached = false;
            // Release: accesses through the old translation come before.
            self.machine.answer.store(1, Ordering::Release);
        }
    }
}

/// Runs the model in all interleavings, or in those with a limited number of preemptions.
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
        // Relaxed: a counter.
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        run();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    println!("{name:?}: {runs} interleavings, {:?}", began.elapsed());
}

/// In the end the page is reused, because the CPU ticks.
fn finish(mut cpu: Cpu, target: u64, reused: bool) {
    let machine = cpu.machine.clone();
    if !reused {
        let ended = (0..3).any(|_| {
            cpu.tick();
            machine.advance(target)
        });
        assert!(ended);
        machine.reuse();
    }
    cpu.touch();
    assert!(!cpu.cached && machine.periods.done() >= target);
}

/// One CPU unmaps while the other ticks. With `asks`, the ticking CPU also waits for a period of
/// its own, and so may begin the period of the first.
fn ticks(asks: bool) {
    model(("ticks", asks), None, move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            if asks {
                cpu.machine.advance(cpu.machine.periods.target());
            }
            cpu.tick();
            cpu.tick();
            cpu.touch();
            cpu
        });
        let target = machine.unmap();
        let reused = machine.try_reuse(target);
        finish(thread.join().unwrap(), target, reused);
    });
}

/// One CPU unmaps, and waits for the period or expedites it. The other is idle meanwhile.
fn idles(always: bool, expedites: bool) {
    model(("idles", always, expedites), None, move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            cpu.idle(always);
            cpu.touch();
            cpu
        });
        let target = machine.unmap();
        let reused = if expedites {
            machine.periods.expedite_start(target);
            let passed = machine.passed[1].has_passed(target);
            if passed {
                machine.periods.expedite_end(target);
                machine.reuse();
            }
            passed
        } else {
            machine.try_reuse(target)
        };
        finish(thread.join().unwrap(), target, reused);
    });
}

/// One CPU unmaps while a third broadcasts. The second CPU answers, and may tick before.
fn broadcasts(ticks: bool) {
    // With a tick there are millions of interleavings. All of them pass, in minutes.
    model(("broadcasts", ticks), ticks.then_some(4), move || {
        let machine = Machine::new();
        let mut cpu = Cpu::start(&machine);
        let thread = thread::spawn(move || {
            cpu.touch();
            cpu.answer();
            if ticks {
                cpu.tick();
            }
            cpu.touch();
            cpu.answer();
            cpu.touch();
            cpu
        });
        let other = machine.clone();
        let broadcaster = thread::spawn(move || {
            let target = other.periods.target();
            other.periods.expedite_start(target);
            let passed = ticks && other.passed[1].has_passed(target);
            if !passed {
                // Release: pairs with the Acquire in `Cpu::answer`.
                other.message.store(1, Ordering::Release);
            }
            // Acquire: pairs with the Release in `Cpu::answer`.
            if passed || other.answer.load(Ordering::Acquire) == 1 {
                other.periods.expedite_end(target);
                return target;
            }
            0
        });
        let target = machine.unmap();
        let reused = machine.try_reuse(target);
        assert!(broadcaster.join().unwrap() <= machine.periods.done(), "`done` never goes back");
        finish(thread.join().unwrap(), target, reused);
    });
}

/// One thread ends the period. Another sees the end and reuses the page.
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
                // A translation from before the unmap.
                cpu.cached = true;
                cpu.touch();
                cpu.tick();
                cpu.touch();
            }),
        ];
        // Loom does not reorder a load of this thread with later stores of others, so the others
        // run first.
        thread::yield_now();
        if machine.periods.done() >= target {
            machine.reuse();
        }
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_cpu_that_ticks() {
    [false, true].into_iter().for_each(ticks);
}

#[test]
fn a_cpu_that_was_idle() {
    for expedites in [false, true] {
        [false, true].into_iter().for_each(|always| idles(always, expedites));
    }
}

#[test]
fn a_broadcast_beside_an_unmap() {
    [false, true].into_iter().for_each(broadcasts);
}
