//! The deterministic drivers: all CPUs on one host thread, in an order drawn from a seed, or with
//! one CPU stopped at a step.
//!
//! Each program is a coroutine. In [`seeded`], the running one draws a number at each step: mostly
//! it continues, sometimes another takes over. The rate is drawn for each seed, since some errors
//! need many switches and some need few. In [`stopped`], CPU 0 lets the others run once, at the
//! step passed. In both, a CPU that waits always lets another run. The seed decides everything
//! else: the evictions from caches, speculative caching. So the same seed takes the same steps, and
//! [`Run::fingerprint`] shows it.

use super::failure::{Cause, Ended, Failure, Halt, outcome};
use crate::current_cpu::{self, Restore};
use crate::lock::locked;
use crate::sim::Sim;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use machine::Program;
use oorandom::{Rand32, Rand64};
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

/// More steps than any test takes: beyond this, the CPUs wait for each other.
const STEPS: u64 = 5_000_000;
const STACK: usize = 256 * 1024;

type Resume = Yielder<(), ()>;

/// The result of a run without a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The number of steps of all CPUs together.
    pub steps: u64,
    /// The number of switches between CPUs.
    pub turns: u64,
    /// A digest of the order of the CPUs: the same for the same seed.
    pub fingerprint: u64,
}

/// The steps at which a CPU that does not wait lets another one run.
enum Switches {
    /// Those at which the drawn number is below this.
    Drawn { below: u32 },
    /// One step of CPU 0: when the number of those before it is 0.
    Once { before: Cell<u64>, done: Cell<bool> },
}

/// The state of the scheduler.
pub(crate) struct Turn {
    random: RefCell<Rand32>,
    switches: Switches,
    running: RefCell<Vec<usize>>,
    next: Cell<usize>,
    yielders: RefCell<Vec<*const Resume>>,
    run: Cell<Run>,
    stuck: Cell<bool>,
    limit: u64,
}

impl Turn {
    /// A step of `cpu`. With `must` the CPU waits, so another runs if there is one.
    pub(crate) fn point(&self, cpu: usize, must: bool) {
        let mut run = self.run.get();
        run.steps += 1;
        if run.steps > self.limit {
            self.stuck.set(true);
            self.run.set(run);
            resume_unwind(Box::new(Halt));
        }
        self.run.set(run);
        let switches = match &self.switches {
            Switches::Drawn { below } => self.random.borrow_mut().rand_u32() < *below,
            Switches::Once { .. } if cpu != 0 => false,
            Switches::Once { before, done } => match before.get().checked_sub(1) {
                Some(left) => {
                    before.set(left);
                    false
                }
                None => !done.replace(true),
            },
        };
        if (!must && !switches) || self.running.borrow().len() < 2 {
            return;
        }
        let next = self.another(cpu);
        run.turns += 1;
        // A step of FNV, over the next CPU and the time.
        run.fingerprint =
            (run.fingerprint ^ (run.steps << 8 | next as u64)).wrapping_mul(0x0100_0000_01b3);
        self.run.set(run);
        self.next.set(next);
        let yielder = self.yielders.borrow()[cpu];
        // SAFETY: this CPU's coroutine set it at its beginning. It lives on that coroutine's stack,
        // which is the running one.
        unsafe { &*yielder }.suspend(());
    }

    fn another(&self, cpu: usize) -> usize {
        let running = self.running.borrow();
        let others = running.iter().filter(|other| **other != cpu);
        let pick = self.random.borrow_mut().rand_range(0..running.len() as u32 - 1);
        others.copied().nth(pick as usize).unwrap_or(cpu)
    }

    /// The CPU that runs when another has ended, and the first one.
    fn next(&self) -> usize {
        let running = self.running.borrow();
        match &self.switches {
            Switches::Drawn { .. } => {
                running[self.random.borrow_mut().rand_range(0..running.len() as u32) as usize]
            }
            // CPU 0 begins, and stands still until the others have ended.
            Switches::Once { done, .. } if !done.get() => running[0],
            Switches::Once { .. } => running[running.len() - 1],
        }
    }
}

thread_local! {
    /// Stacks of earlier runs.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Runs the programs on one host thread, the first as CPU 0 and so on, and switches between them at
/// steps, in an order drawn from the seed.
///
/// A program that loops until another has done something must call
/// [`Step::relax`](machine::Step::relax) in the loop. It must not wait by other means: a host lock
/// that is held at a step would deadlock. All programs share the host thread's thread-locals, so a
/// guard, which belongs to a CPU, must not be stored there.
///
/// ```
/// use machine::{SharedAccess, Step};
/// use sim::{Config, Program, Sim, seeded};
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
///
/// // Two CPUs add one, in two steps. Some seeds lose one of the additions, the same seeds each
/// // time.
/// let lost = |seed| {
///     let sim = Sim::new(Config::default()).unwrap();
///     let count = AtomicU32::new(0);
///     let add = || {
///         sim.step(SharedAccess::Other);
///         let old = count.load(Relaxed);
///         sim.step(SharedAccess::Other);
///         count.store(old + 1, Relaxed);
///     };
///     seeded(&sim, seed, vec![Box::new(add) as Program, Box::new(add)]).unwrap();
///     count.load(Relaxed) == 1
/// };
/// let lossy: Vec<u64> = (0..200).filter(|seed| lost(*seed)).collect();
/// assert!(!lossy.is_empty() && lossy.len() < 200);
/// assert!(lossy.iter().all(|seed| lost(*seed)));
/// ```
///
/// # Errors
/// The first violation, a program's panic, or [`Cause::Stuck`] if the CPUs do not finish.
pub fn seeded(sim: &Sim, seed: u64, programs: Vec<Program<'_>>) -> Result<Run, Failure> {
    run(sim, seed, programs, |random| Switches::Drawn {
        below: u32::MAX >> [1, 2, 3, 4, 6, 8][random.rand_range(0..6) as usize],
    })
    .map(|(run, _)| run)
}

/// Stops the first program, that of CPU 0, after so many of its steps. The others run to their ends
/// one after the other, and then CPU 0 goes on. A CPU that waits lets another run, also CPU 0
/// before its time. Returns `None` if the first program has no more steps than that: then it ran
/// alone, and the others after it.
///
/// With each number of steps in turn it shows each place at which a call can be when others begin
/// and end. A switch at random rarely lies between two steps that are next to each other.
///
/// ```
/// use machine::{SharedAccess, Step};
/// use sim::{Config, Program, Sim, stopped};
/// use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
///
/// // As in the example of `seeded`: an addition is lost if one comes between the other's steps.
/// let count_with = |steps| {
///     let sim = Sim::new(Config::default()).unwrap();
///     let count = AtomicU32::new(0);
///     let add = || {
///         sim.step(SharedAccess::Other);
///         let old = count.load(Relaxed);
///         sim.step(SharedAccess::Other);
///         count.store(old + 1, Relaxed);
///     };
///     let run = stopped(&sim, 1, steps, vec![Box::new(add) as Program, Box::new(add)]).unwrap();
///     (run.is_some(), count.load(Relaxed))
/// };
/// assert_eq!([0, 1, 2].map(count_with), [(true, 2), (true, 1), (false, 2)]);
/// ```
///
/// # Errors
/// As [`seeded`].
pub fn stopped(
    sim: &Sim,
    seed: u64,
    steps: u64,
    programs: Vec<Program<'_>>,
) -> Result<Option<Run>, Failure> {
    let once = |_: &mut Rand64| Switches::Once { before: Cell::new(steps), done: Cell::new(false) };
    let (run, switches) = run(sim, seed, programs, once)?;
    Ok(matches!(&switches, Switches::Once { done, .. } if done.get()).then_some(run))
}

fn run(
    sim: &Sim,
    seed: u64,
    programs: Vec<Program<'_>>,
    switches: impl FnOnce(&mut Rand64) -> Switches,
) -> Result<(Run, Switches), Failure> {
    let fail = |cause| Failure { seed: Some(seed), cause };
    if programs.len() > sim.config().cpus {
        return Err(fail(Cause::TooManyPrograms));
    }
    let mut random = Rand64::new(u128::from(seed));
    for (cpu, known) in sim.0.cpus.iter().enumerate() {
        locked(&known.state).random = Rand32::new(random.rand_u64() ^ cpu as u64);
    }
    let turn = Turn {
        switches: switches(&mut random),
        random: RefCell::new(Rand32::new(random.rand_u64())),
        running: RefCell::new((0..programs.len()).collect()),
        next: Cell::new(0),
        yielders: RefCell::new(vec![ptr::null(); programs.len()]),
        run: Cell::new(Run { steps: 0, turns: 0, fingerprint: 0xcbf2_9ce4_8422_2325 }),
        stuck: Cell::new(false),
        limit: STEPS,
    };
    let stacks = stacks(programs.len()).map_err(|error| fail(Cause::NoStack(error)))?;
    let ends = drive(sim, &turn, programs, stacks);
    outcome(sim.found(), Some(seed), ends)?;
    if turn.stuck.get() {
        return Err(fail(Cause::Stuck(turn.limit)));
    }
    Ok((turn.run.get(), turn.switches))
}

fn drive(
    sim: &Sim,
    turn: &Turn,
    programs: Vec<Program<'_>>,
    stacks: Vec<DefaultStack>,
) -> Vec<(usize, Ended)> {
    let mut ends = Vec::new();
    let mut coroutines: Vec<_> = programs
        .into_iter()
        .zip(stacks)
        .enumerate()
        .map(|(cpu, (program, stack))| {
            sim.attach(cpu);
            let body = move |yielder: &Resume, ()| {
                turn.yielders.borrow_mut()[cpu] = yielder;
                // If the machine has halted before this CPU began, there is nothing to do.
                if sim.is_halted() {
                    Err(Box::new(Halt) as _)
                } else {
                    catch_unwind(AssertUnwindSafe(|| {
                        sim.start();
                        program();
                        sim.assert_no_section(cpu);
                    }))
                }
            };
            // SAFETY: it borrows from this function's callers, and all coroutines end below, before
            // it returns. The stack is given back after that.
            unsafe { Coroutine::<(), (), Ended, _>::with_stack_unchecked(stack, body) }
        })
        .collect();
    let _restore = Restore(current_cpu::get());
    if !coroutines.is_empty() {
        turn.next.set(turn.next());
    }
    while !turn.running.borrow().is_empty() {
        let cpu = turn.next.get();
        current_cpu::set(sim.as_cpu(cpu, turn, true));
        let CoroutineResult::Return(end) = coroutines[cpu].resume(()) else { continue };
        if end.is_err() {
            // The others stop at their next step.
            sim.halt();
        }
        sim.detach(cpu);
        ends.push((cpu, end));
        turn.running.borrow_mut().retain(|running| *running != cpu);
        if !turn.running.borrow().is_empty() {
            turn.next.set(turn.next());
        }
    }
    STACKS
        .with_borrow_mut(|stacks| stacks.extend(coroutines.into_iter().map(Coroutine::into_stack)));
    ends
}

fn stacks(count: usize) -> io::Result<Vec<DefaultStack>> {
    let kept = || STACKS.with_borrow_mut(Vec::pop);
    (0..count).map(|_| kept().map_or_else(|| DefaultStack::new(STACK), Ok)).collect()
}
