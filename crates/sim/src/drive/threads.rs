//! The parallel driver: a host thread for each CPU.

use super::failure::{Cause, Ended, Failure, outcome};
use crate::sim::Sim;
use machine::Program;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs each program on its own host thread, the first as CPU 0 and so on, and waits for all. CPUs
/// without a program are idle.
///
/// ```
/// use machine::Cpus;
/// use sim::{Config, Program, Sim, threads};
///
/// let sim = Sim::new(Config { cpus: 3, ..Config::default() })?;
/// let programs = (0..3).map(|cpu| {
///     let sim = &sim;
///     Box::new(move || assert_eq!(sim.current().index(), cpu)) as Program
/// });
/// threads(&sim, programs.collect())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The first violation, or a program's panic; the other CPUs stop at their next step.
pub fn threads(sim: &Sim, programs: Vec<Program<'_>>) -> Result<(), Failure> {
    if programs.len() > sim.config().cpus {
        return Err(Failure { seed: None, cause: Cause::TooManyPrograms });
    }
    let ends = std::thread::scope(|scope| {
        let running: Vec<_> = programs
            .into_iter()
            .enumerate()
            .map(|(cpu, program)| scope.spawn(move || run(sim, cpu, program)))
            .collect();
        running.into_iter().map(|thread| thread.join().and_then(|end| end)).enumerate().collect()
    });
    outcome(sim.found(), None, ends)
}

fn run(sim: &Sim, cpu: usize, program: Program<'_>) -> Ended {
    let end = catch_unwind(AssertUnwindSafe(|| sim.run_as(cpu, true, program)));
    if end.is_err() {
        sim.halt();
    }
    end
}
