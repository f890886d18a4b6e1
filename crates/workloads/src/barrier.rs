//! CPUs that measure at once: they begin together, and each records whether it had a processor
//! throughout.
//!
//! A host may have fewer processors than the machine has CPUs. Effects of CPUs on each other show
//! only in rounds in which all CPUs had a processor throughout. In the other rounds, processor time
//! still tells the work of each CPU.

use crate::lab::Lab;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use grace::Concurrent;
use machine::{Machine, Program};

/// The share of a round in which each CPU must have had a processor, for the round to count as
/// simultaneous.
const TOGETHER: f64 = 0.9;

/// A barrier for CPUs, and the count of those that still measure.
pub(crate) struct Barrier<'m, M> {
    machine: &'m M,
    expected: usize,
    arrived: AtomicUsize,
    measuring: AtomicUsize,
}

impl<'m, M: Machine> Barrier<'m, M> {
    /// For so many CPUs.
    pub(crate) fn new(machine: &'m M, expected: usize, measuring: usize) -> Self {
        let measuring = AtomicUsize::new(measuring);
        Barrier { machine, expected, arrived: AtomicUsize::new(0), measuring }
    }

    /// Waits until all CPUs have arrived as often as this one. All of them must be running.
    pub(crate) fn wait(&self) {
        // AcqRel: all that CPUs did before the barrier happens before all that they do after it.
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.expected + 1) * self.expected;
        // Acquire: pairs with the AcqRel above.
        while self.arrived.load(Ordering::Acquire) < all {
            self.machine.relax();
        }
    }

    /// Whether no CPU measures any more: the end of programs in the background.
    pub(crate) fn is_over(&self) -> bool {
        // Relaxed: only the number counts.
        self.measuring.load(Ordering::Relaxed) == 0
    }
}

/// When a CPU began and ended: each as its processor time and the wall clock.
#[derive(Clone, Copy, Default)]
struct Stay {
    began: (u64, u64),
    ended: (u64, u64),
}

/// Marks the beginning and the end of a CPU's measurement.
pub(crate) struct Watch<'m, M> {
    barrier: &'m Barrier<'m, M>,
    time: fn() -> u64,
    clock: fn() -> u64,
    began: Cell<Option<(u64, u64)>>,
    ended: Cell<Option<(u64, u64)>>,
}

impl<M: Machine> Watch<'_, M> {
    fn now(&self) -> (u64, u64) {
        ((self.time)(), (self.clock)())
    }

    /// Waits for all CPUs, then begins. Later calls do nothing.
    pub(crate) fn start(&self) {
        if self.began.get().is_none() {
            self.barrier.wait();
            self.began.set(Some(self.now()));
        }
    }

    /// Ends the measurement. Without a call, it ends with the program.
    pub(crate) fn stop(&self) {
        if self.ended.get().is_none() {
            self.ended.set(Some(self.now()));
        }
    }
}

/// The result of CPUs that have measured at once.
pub(crate) struct Measured {
    /// The mean of the values that they returned.
    pub(crate) time: f64,
    /// Whether each CPU had a processor to itself while the others ran.
    pub(crate) together: bool,
    /// Nanoseconds by the wall clock, from the first beginning to the last end.
    pub(crate) wall: u64,
}

/// A program that runs while CPUs measure. It starts its watch when it is ready, and ends
/// when the barrier is over.
pub(crate) type Background<'a, M, E> =
    Box<dyn FnOnce(&Barrier<'_, M>, &Watch<'_, M>) -> Result<(), E> + Send + 'a>;

/// Runs `measure` on the first `cpus` CPUs, and each program of `background` on one more CPU.
/// `measure` gets the CPU's number and a watch, and starts the watch when it is ready.
pub(crate) fn at_once<M: Machine, G: Concurrent, R, E: Send>(
    lab: &Lab<'_, M, G, R>,
    cpus: usize,
    measure: impl Fn(usize, &Watch<'_, M>) -> Result<f64, E> + Sync,
    background: Vec<Background<'_, M, E>>,
) -> Result<Measured, E> {
    let threads = cpus + background.len();
    let barrier = Barrier::new(lab.host.machine, threads, cpus);
    let mut measured: Vec<_> = (0..cpus).map(|_| (Ok(0.0), Stay::default())).collect();
    let mut ran: Vec<_> = background.iter().map(|_| (Ok(()), Stay::default())).collect();
    let (barrier_of_all, measure) = (&barrier, &measure);
    let mut programs: Vec<Program<'_>> = Vec::with_capacity(threads);
    for (cpu, result) in measured.iter_mut().enumerate() {
        programs.push(Box::new(move || {
            *result = stay(lab, barrier_of_all, |watch| measure(cpu, watch));
            // Relaxed: only the number counts.
            barrier_of_all.measuring.fetch_sub(1, Ordering::Relaxed);
        }));
    }
    for (program, result) in background.into_iter().zip(&mut ran) {
        programs.push(Box::new(move || {
            *result = stay(lab, barrier_of_all, |watch| program(barrier_of_all, watch));
        }));
    }
    (lab.host.run)(programs);
    let stays: Vec<Stay> =
        measured.iter().map(|(_, stay)| *stay).chain(ran.iter().map(|(_, stay)| *stay)).collect();
    let mut time = 0.0;
    for (result, _) in measured {
        time += result? / cpus as f64;
    }
    ran.into_iter().try_for_each(|(result, _)| result)?;
    let began = stays.iter().map(|stay| stay.began.1).min().unwrap_or_default();
    let ended = stays.iter().map(|stay| stay.ended.1).max().unwrap_or_default();
    let wall = ended.saturating_sub(began);
    let busy = |stay: &Stay| stay.ended.0.saturating_sub(stay.began.0) as f64;
    let together = stays.iter().all(|stay| busy(stay) >= TOGETHER * wall as f64);
    Ok(Measured { time, together, wall })
}

/// Runs a program, and records when it measured.
fn stay<M: Machine, G: Concurrent, R, T>(
    lab: &Lab<'_, M, G, R>,
    barrier: &Barrier<'_, M>,
    program: impl FnOnce(&Watch<'_, M>) -> T,
) -> (T, Stay) {
    let (began, ended) = (Cell::new(None), Cell::new(None));
    let watch = Watch { barrier, time: lab.time, clock: lab.clock, began, ended };
    let result = program(&watch);
    // The other CPUs wait for this one even if it failed before it was ready.
    watch.start();
    watch.stop();
    let [began, ended] = [watch.began, watch.ended].map(|time| time.get().unwrap_or_default());
    (result, Stay { began, ended })
}
