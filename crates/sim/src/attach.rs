//! How a host thread becomes a CPU, and ceases to be one.
//!
//! While it is one, whoever made it one keeps the machine. Guards, of the engine and without
//! interrupts, belong to the CPU that they were taken on: so no section is open where a thread
//! becomes a CPU, on the one that it was, nor where it ceases to be one.

use crate::drive::Turn;
use crate::grace::Grace;
use crate::here::{self, Here, Restore};
use crate::sim::{Sim, locked};
use std::sync::atomic::Ordering;

impl Sim {
    /// Runs `f` on this host thread as the CPU `cpu`, without a scheduler. A violation is a panic
    /// here.
    ///
    /// When a program ends its CPU is idle: no table is active there, but what it has cached stays.
    ///
    /// # Panics
    /// There is no such CPU, or something runs as it already. Or a section is open, with a guard of
    /// [`Grace`] or without interrupts, at the beginning on the CPU that the thread was, or at the
    /// end: guards stay on their CPU.
    ///
    /// # Aborts
    /// `f` panics, and leaves a section open that somebody else has the guard of, or nobody.
    pub fn on_cpu<R>(&self, cpu: usize, f: impl FnOnce() -> R) -> R {
        self.run_as(cpu, false, f)
    }

    /// Runs `f` as a CPU from attaching to detaching it.
    pub(crate) fn run_as<R>(&self, cpu: usize, driven: bool, f: impl FnOnce() -> R) -> R {
        self.attach(cpu);
        let _restore = Restore(here::set(self.as_cpu(cpu, std::ptr::null(), driven)));
        let _detach = Detach { sim: self, cpu, driven };
        self.start();
        // If a guard is in it, it is dropped here still, before `_detach`.
        let result = f();
        self.assert_no_section(cpu);
        result
    }

    /// Whether a section is open on a CPU, as that CPU itself sees it: of the engine, or without
    /// interrupts.
    fn in_section(&self, cpu: usize) -> bool {
        self.0.graces[cpu].is_in_section() || self.0.cpus[cpu].depth() != 0
    }

    /// At the beginning of what runs as a CPU, there.
    pub(crate) fn start(&self) {
        assert!(Grace::start(), "no memory for what this CPU retires");
    }

    /// At the end of what runs as a CPU.
    pub(crate) fn assert_no_section(&self, cpu: usize) {
        assert!(!self.in_section(cpu), "{}", here::ENDS);
    }

    /// What a host thread is that runs as a CPU; there must be such a CPU.
    pub(crate) fn as_cpu(&self, cpu: usize, turn: *const Turn, driven: bool) -> Here {
        let quick = turn.is_null() && !self.watches();
        Here { machine: &*self.0, cpu: &*self.0.cpus[cpu], turn, driven, quick }
    }

    pub(crate) fn attach(&self, cpu: usize) {
        let open = Sim::here().is_some_and(|sim| sim.in_section(sim.cpu().id.index()));
        assert!(!open, "{}", here::BEGINS);
        let known = self.0.cpus.get(cpu).unwrap_or_else(|| panic!("the machine has no cpu{cpu}"));
        let mut mail = locked(&known.mail);
        assert!(!mail.attached, "something runs as cpu{cpu} already");
        mail.attached = true;
        // SeqCst: a CPU is in the set before it can cache anything; pairs with `online`.
        self.0.online.fetch_or(1 << cpu, Ordering::SeqCst);
    }

    /// The host thread still is the CPU.
    pub(crate) fn detach(&self, cpu: usize) {
        Grace::idle_enter();
        let cpu = &self.0.cpus[cpu];
        let mut mail = locked(&cpu.mail);
        (mail.attached, mail.hurried) = (false, false);
        cpu.set_depth(0);
        let flushes = std::mem::take(&mut mail.flushes);
        drop(mail);
        // It translates nothing, but what it has cached stays.
        locked(&cpu.state).root = None;
        // An idle CPU answers at once.
        flushes.into_iter().for_each(|request| self.answer(cpu, &request));
    }
}

struct Detach<'a> {
    sim: &'a Sim,
    cpu: usize,
    driven: bool,
}

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        // A driver's programs are sent to it, so they have nowhere to leave a guard.
        if !self.driven && self.sim.in_section(self.cpu) {
            here::lost_guard();
        }
        self.sim.detach(self.cpu);
    }
}
