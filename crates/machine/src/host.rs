//! Runs programs on the CPUs of a machine, for tests and experiments that run on any machine.

use crate::Cpus;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// A program of one CPU.
pub type Program<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Quiescent states of one [`Host::quiesce`]. A grace period takes three.
const QUIESCENT_STATES: usize = 16;

/// A machine, and the means to run programs on its CPUs.
pub struct Host<'a, M> {
    /// The machine. Nothing but the programs uses it.
    pub machine: &'a M,
    /// Runs programs at once, the first on CPU 0 and so on, and waits for all of them. A host that
    /// has halted drops or forgets programs that have not run.
    pub run: &'a (dyn Fn(Vec<Program<'_>>) + Sync),
    /// Passes a quiescent state on this CPU, which is in no read-side section, and frees memory
    /// whose grace period has ended.
    pub quiet: fn(),
}

impl<M> Host<'_, M> {
    /// Runs `program` on CPU 0. `None` if the host did not run it to its end.
    pub fn on_first<T: Send>(&self, program: impl FnOnce() -> T + Send) -> Option<T> {
        let mut result = None;
        (self.run)(Vec::from([Box::new(|| result = Some(program())) as Program<'_>]));
        result
    }

    /// Runs `program` on the first `cpus` CPUs at once, with the CPU's number. Returns their
    /// results in the order of the CPUs: `None` where the host did not run it to its end.
    pub fn on_each<T: Send>(
        &self,
        cpus: usize,
        program: impl Fn(usize) -> T + Sync,
    ) -> Vec<Option<T>> {
        let mut results: Vec<Option<T>> = (0..cpus).map(|_| None).collect();
        let program = &program;
        let programs = results.iter_mut().enumerate();
        let programs = programs
            .map(|(cpu, result)| Box::new(move || *result = Some(program(cpu))) as Program<'_>);
        (self.run)(programs.collect());
        results
    }

    /// Passes enough quiescent states on this CPU for a grace period to end, if the other CPUs do
    /// so, too.
    pub fn quiesce(&self) {
        (0..QUIESCENT_STATES).for_each(|_| (self.quiet)());
    }
}

impl<M: Cpus> Host<'_, M> {
    /// Runs `program` on every CPU of the machine at once.
    pub fn everywhere(&self, program: impl Fn() + Sync) {
        self.on_each(self.machine.count(), |_| program());
    }
}

impl<M> Clone for Host<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Host<'_, M> {}

impl<M: fmt::Debug> fmt::Debug for Host<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("machine", self.machine).finish_non_exhaustive()
    }
}
