//! The end of a run: why it failed.

use super::again::Again;
use crate::report::Report;
use machine::CpuId;
use std::any::Any;
use std::fmt;

/// The reason why a run failed.
#[derive(Debug)]
pub struct Failure {
    /// The seed that replays it, if the deterministic driver ran.
    pub seed: Option<u64>,
    /// The cause.
    pub cause: Cause,
}

/// The cause of a failure.
#[derive(Debug)]
pub enum Cause {
    /// A checker found a violation.
    Violation(Box<Report>),
    /// A program panicked: the CPU, and the message.
    Panic(CpuId, String),
    /// The CPUs took this many steps and did not finish: they wait for each other, or the limit is
    /// too low.
    Stuck(u64),
    /// There are more programs than CPUs.
    TooManyPrograms,
    /// The host has no memory for the programs' stacks.
    NoStack(std::io::Error),
}

impl Failure {
    /// The report, if a checker found something.
    pub fn report(&self) -> Option<&Report> {
        match &self.cause {
            Cause::Violation(report) => Some(report),
            _ => None,
        }
    }
}

impl From<Box<Report>> for Failure {
    fn from(report: Box<Report>) -> Failure {
        Failure { seed: None, cause: Cause::Violation(report) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            writeln!(f, "with seed {seed} ({}):", Again(seed))?;
        }
        match &self.cause {
            Cause::Violation(report) => write!(f, "{report}"),
            Cause::Panic(cpu, message) => write!(f, "the program of {cpu} panicked: {message}"),
            Cause::Stuck(steps) => {
                write!(f, "the CPUs did not finish within {steps} steps: they wait for each other")
            }
            Cause::NoStack(error) => write!(f, "no memory for the programs' stacks: {error}"),
            Cause::TooManyPrograms => {
                f.write_str("there are more programs than CPUs: raise Config::cpus")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// The panic by which CPUs of a halted machine unwind.
pub(crate) struct Halt;

/// The end of a program.
pub(crate) type Ended = Result<(), Box<dyn Any + Send>>;

/// The overall result: the violation that was found, if any, or the programs' ends.
pub(crate) fn outcome(
    found: Option<Report>,
    seed: Option<u64>,
    ends: Vec<(usize, Ended)>,
) -> Result<(), Failure> {
    if let Some(report) = found {
        return Err(Failure { seed, cause: Cause::Violation(Box::new(report)) });
    }
    for (cpu, end) in ends {
        let Err(panic) = end else { continue };
        if panic.is::<Halt>() {
            continue;
        }
        let cpu = CpuId::new(cpu).unwrap_or_default();
        return Err(Failure { seed, cause: Cause::Panic(cpu, message(&*panic)) });
    }
    Ok(())
}

/// The message of a panic.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or("(no message)".into())
}
