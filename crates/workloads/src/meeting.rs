//! CPUs that measure at once: they begin together, and it is known whether each had a processor all
//! the while.
//!
//! A host may have fewer processors than CPUs. Then what the CPUs do to each other shows only in
//! the rounds in which all of them ran throughout; of the others, processor time still says what
//! each had to do.

use crate::lab::Lab;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use grace::Concurrent;
use machine::{Machine, Program};

/// The part of a round in which a CPU must have had a processor, to say something of CPUs at once.
const TOGETHER: f64 = 0.9;

/// Where CPUs wait for each other.
pub(crate) struct Meeting<'m, M> {
    machine: &'m M,
    expected: usize,
    arrived: AtomicUsize,
    measuring: AtomicUsize,
}

impl<'m, M: Machine> Meeting<'m, M> {
    /// Of so many CPUs.
    pub(crate) fn new(machine: &'m M, expected: usize, measuring: usize) -> Self {
        let measuring = AtomicUsize::new(measuring);
        Meeting { machine, expected, arrived: AtomicUsize::new(0), measuring }
    }

    /// Waits until all have come so often as this one; all of them must run.
    pub(crate) fn wait(&self) {
        // AcqRel: what each did before comes before what all do after.
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.expected + 1) * self.expected;
        // Acquire: pairs with that.
        while self.arrived.load(Ordering::Acquire) < all {
            self.machine.relax();
        }
    }

    /// Whether nobody measures any more: for those that run beside.
    pub(crate) fn is_over(&self) -> bool {
        // Relaxed: only the number counts.
        self.measuring.load(Ordering::Relaxed) == 0
    }
}

/// When a CPU was at it, and how long it had a processor: of each, the processor's time and that by
/// the clock.
#[derive(Clone, Copy, Default)]
struct Stay {
    began: (u64, u64),
    ended: (u64, u64),
}

/// Begins and ends what a CPU measures.
pub(crate) struct Watch<'m, M> {
    meeting: &'m Meeting<'m, M>,
    time: fn() -> u64,
    clock: fn() -> u64,
    began: Cell<Option<(u64, u64)>>,
    ended: Cell<Option<(u64, u64)>>,
}

impl<M: Machine> Watch<'_, M> {
    fn now(&self) -> (u64, u64) {
        ((self.time)(), (self.clock)())
    }

    /// Waits until all are ready; then it begins. Once.
    pub(crate) fn start(&self) {
        if self.began.get().is_none() {
            self.meeting.wait();
            self.began.set(Some(self.now()));
        }
    }

    /// It has ended; else it ends with the program.
    pub(crate) fn stop(&self) {
        if self.ended.get().is_none() {
            self.ended.set(Some(self.now()));
        }
    }
}

/// What some CPUs have measured at once.
pub(crate) struct Taken {
    /// The mean of what they answered.
    pub(crate) time: f64,
    /// Whether each CPU had a processor to itself, all the time that the others ran.
    pub(crate) together: bool,
    /// Nanoseconds by the clock, from the first beginning to the last end.
    pub(crate) wall: u64,
}

/// What runs beside those that measure: it starts the watch when it is ready, and stops when the
/// meeting is over.
pub(crate) type Beside<'a, M, E> =
    Box<dyn FnOnce(&Meeting<'_, M>, &Watch<'_, M>) -> Result<(), E> + Send + 'a>;

/// Has the first `cpus` CPUs measure, and as many more as there are in `beside` run meanwhile.
/// `measure` is called with the CPU's number and a watch, which it starts when it is ready.
pub(crate) fn at_once<M: Machine, G: Concurrent, R, E: Send>(
    lab: &Lab<'_, M, G, R>,
    cpus: usize,
    measure: impl Fn(usize, &Watch<'_, M>) -> Result<f64, E> + Sync,
    beside: Vec<Beside<'_, M, E>>,
) -> Result<Taken, E> {
    let threads = cpus + beside.len();
    let meeting = Meeting::new(lab.host.machine, threads, cpus);
    let mut measured: Vec<_> = (0..cpus).map(|_| (Ok(0.0), Stay::default())).collect();
    let mut ran: Vec<_> = beside.iter().map(|_| (Ok(()), Stay::default())).collect();
    let (meeting_of_all, measure) = (&meeting, &measure);
    let mut programs: Vec<Program<'_>> = Vec::with_capacity(threads);
    for (cpu, result) in measured.iter_mut().enumerate() {
        programs.push(Box::new(move || {
            *result = stay(lab, meeting_of_all, |watch| measure(cpu, watch));
            // Relaxed: only the number counts.
            meeting_of_all.measuring.fetch_sub(1, Ordering::Relaxed);
        }));
    }
    for (program, result) in beside.into_iter().zip(&mut ran) {
        programs.push(Box::new(move || {
            *result = stay(lab, meeting_of_all, |watch| program(meeting_of_all, watch));
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
    Ok(Taken { time, together, wall })
}

/// Runs a program, and looks when it was at what it measures.
fn stay<M: Machine, G: Concurrent, R, T>(
    lab: &Lab<'_, M, G, R>,
    meeting: &Meeting<'_, M>,
    program: impl FnOnce(&Watch<'_, M>) -> T,
) -> (T, Stay) {
    let (began, ended) = (Cell::new(None), Cell::new(None));
    let watch = Watch { meeting, time: lab.time, clock: lab.clock, began, ended };
    let result = program(&watch);
    // One that failed before it was ready is waited for all the same.
    watch.start();
    watch.stop();
    let [began, ended] = [watch.began, watch.ended].map(|time| time.get().unwrap_or_default());
    (result, Stay { began, ended })
}
