//! The description of an experiment: its name, its help, and the machines that it runs on.

use crate::error::Error;
use crate::lab::Lab;
use alloc::vec::Vec;
use core::fmt;
use grace::Concurrent;
use machine::Machine;
use report::Report;

/// A measurement in a lab.
pub type Measure<M, G, R> = fn(&Lab<'_, M, G, R>) -> Result<Report, Error>;

/// Measures the work of an operation with that of the CPUs that wait, in a lab whose clock counts
/// the instructions of all CPUs. The text says how the emulator switches between CPUs.
pub type MeasureWork<M, G, R> = fn(&Lab<'_, M, G, R>, &str) -> Result<Report, Error>;

/// An experiment.
pub struct Experiment<M: Machine, G: Concurrent, R> {
    /// Its name on a command line, and in its rows.
    pub name: &'static str,
    /// One line for a command's help.
    pub help: &'static str,
    /// Its parts, in their order. The experiment's report merges theirs.
    pub parts: Vec<Part<M, G, R>>,
    /// Measures the work of an operation, if the experiment can.
    pub work: Option<MeasureWork<M, G, R>>,
}

/// A part of an experiment, measured in one lab.
pub struct Part<M: Machine, G: Concurrent, R> {
    /// The machine that it needs.
    pub needs: Needs,
    /// Runs it.
    pub run: Measure<M, G, R>,
}

/// The machine that a part needs.
#[derive(Clone, Copy, Debug)]
pub enum Needs {
    /// Memory and CPUs. Nothing is accessed through a mapping, so the machine need not translate.
    Memory(Sizes),
    /// CPUs that translate addresses by the page tables.
    Translations(Sizes),
    /// The emulator in which its peers were measured.
    Emulator,
}

/// The sizes of the machines that a part is measured on, one after the other, given the largest
/// number of CPUs in [`Lab::cpus`].
pub type Sizes = fn(usize) -> Vec<Size>;

/// The size of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Its CPUs.
    pub cpus: usize,
    /// Its frames of memory.
    pub frames: usize,
}

impl<M: Machine, G: Concurrent, R> Experiment<M, G, R> {
    /// Measures all parts in this lab, whatever they need.
    ///
    /// # Errors
    /// The machine has too little memory.
    pub fn run(&self, lab: &Lab<'_, M, G, R>) -> Result<Report, Error> {
        let mut report = Report::default();
        for part in &self.parts {
            report.merge((part.run)(lab)?);
        }
        Ok(report)
    }

    /// Whether it needs an emulator, so that a hosted program cannot run it.
    pub fn needs_emulator(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.needs, Needs::Emulator))
    }
}

impl<M: Machine, G: Concurrent, R> fmt::Debug for Experiment<M, G, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Experiment").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<M: Machine, G: Concurrent, R> fmt::Debug for Part<M, G, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("needs", &self.needs).finish_non_exhaustive()
    }
}
