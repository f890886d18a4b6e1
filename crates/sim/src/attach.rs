//! Attaching a host thread as a CPU, and detaching it.
//!
//! The code that made it a CPU keeps the machine alive meanwhile. Guards, of the engine and of
//! disabled interrupts, belong to the CPU on which they were taken. So no section is open on a
//! thread's previous CPU when it becomes another, nor on its CPU when it ceases to be one.

use crate::current_cpu::{self, CurrentCpu, Restore};
use crate::drive::Turn;
use crate::grace::Grace;
use crate::lock::locked;
use crate::sim::Sim;
use std::sync::atomic::Ordering;

impl Sim {
    /// Runs `f` on this host thread as the CPU `cpu`, without a scheduler. A violation is a panic
    /// here.
    ///
    /// Afterwards the CPU is idle: no table is active there, but its cached entries stay.
    ///
    /// # Panics
    /// - There is no such CPU, or a program already runs as it.
    /// - A section is open, with a guard of [`Grace`] or with interrupts disabled: at the
    ///   beginning, on the CPU that the thread was before, or at the end. Guards stay on their CPU.
    ///
    /// # Aborts
    /// If `f` panics and leaves a section open, since its guard exists elsewhere or was forgotten.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        self.run_as(cpu, false, f)
    }

    /// Runs `f` as a CPU, and attaches and detaches the CPU.
    pub(crate) fn run_as<R>(&self, cpu: usize, driven: bool, f: impl FnOnce() -> R) -> R {
        self.attach(cpu);
        let _restore = Restore(current_cpu::set(self.as_cpu(cpu, std::ptr::null(), driven)));
        let _detach = Detach { sim: self, cpu, driven };
        self.start();
        // A guard in the result is still dropped here, before `_detach`.
        let result = f();
        self.assert_no_section(cpu);
        result
    }

    /// Whether a section is open on a CPU, as seen by that CPU itself: of the engine, or with
    /// interrupts disabled.
    fn in_section(&self, cpu: usize) -> bool {
        self.0.graces[cpu].is_in_section() || self.0.cpus[cpu].depth() != 0
    }

    /// Called on the CPU when a program starts.
    pub(crate) fn start(&self) {
        assert!(Grace::start(), "no memory to retire objects on this CPU");
    }

    /// Called at the end of a program.
    pub(crate) fn assert_no_section(&self, cpu: usize) {
        assert!(!self.in_section(cpu), "{}", current_cpu::ENDS);
    }

    /// The identity of a host thread that runs as a CPU, which must exist.
    pub(crate) fn as_cpu(&self, cpu: usize, turn: *const Turn, driven: bool) -> CurrentCpu {
        let quick = turn.is_null() && !self.watches();
        CurrentCpu { machine: &*self.0, cpu: &*self.0.cpus[cpu], turn, driven, quick }
    }

    pub(crate) fn attach(&self, cpu: usize) {
        let open = Sim::here().is_some_and(|sim| sim.in_section(sim.cpu().id.index()));
        assert!(!open, "{}", current_cpu::BEGINS);
        let known = self.0.cpus.get(cpu).unwrap_or_else(|| panic!("the machine has no cpu{cpu}"));
        let mut mail = locked(&known.mail);
        assert!(!mail.attached, "a program already runs as cpu{cpu}");
        mail.attached = true;
        // SeqCst: a CPU is in the set before it can cache anything; pairs with `online`.
        self.0.online.fetch_or(1 << cpu, Ordering::SeqCst);
    }

    /// Called while the host thread still is the CPU.
    pub(crate) fn detach(&self, cpu: usize) {
        Grace::idle_enter();
        let cpu = &self.0.cpus[cpu];
        let mut mail = locked(&cpu.mail);
        (mail.attached, mail.hurried) = (false, false);
        cpu.set_depth(0);
        let requests = std::mem::take(&mut mail.requests);
        drop(mail);
        // It translates nothing any more, but its cached entries stay.
        locked(&cpu.state).root = None;
        // An idle CPU's requests are performed at once.
        requests.into_iter().for_each(|request| self.perform(cpu, &request));
    }
}

struct Detach<'a> {
    sim: &'a Sim,
    cpu: usize,
    driven: bool,
}

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        // A driver's programs return nothing, so a guard cannot leave them.
        if !self.driven && self.sim.in_section(self.cpu) {
            current_cpu::lost_guard();
        }
        self.sim.detach(self.cpu);
    }
}
