//! Steps and interrupts: the points at which events reach a CPU.
//!
//! # A step
//! The code under test reports each access to shared memory ([`machine::Step`]). The machine's
//! own accesses are steps as well: those by translations, and each level of a page walk. At a step:
//! 1. The deterministic driver may let another CPU run.
//! 2. A CPU with interrupts enabled takes pending ones, but not within a page walk, which is part
//!    of one instruction.
//! 3. The coming access is checked and logged.
//!
//! Then the access is made. Under the deterministic driver nothing comes in between.

use crate::cpu::{Cpu, Handler};
use crate::current_cpu;
use crate::grace::Grace;
use crate::lock::locked;
use crate::sim::Sim;
use std::fmt;
use std::sync::atomic::Ordering;

impl Sim {
    /// A step on a [`quick`](current_cpu::CurrentCpu::quick) machine: one read of the thread's
    /// identity, a count, and a look at a flag and at the timer, all on cache lines of this CPU.
    /// Returns whether it was one.
    #[inline]
    pub(crate) fn quick_step(&self) -> bool {
        let here = current_cpu::get();
        if !here.quick || !std::ptr::eq(here.machine, &*self.0) {
            return false;
        }
        // SAFETY: as in `cpu_if_any`.
        let cpu = unsafe { &*here.cpu };
        let steps = cpu.stats.steps.add(1);
        // Relaxed: only this CPU uses it.
        let due = steps >= cpu.next_tick.load(Ordering::Relaxed);
        // Acquire: pairs with the Release of the CPU that left mail, or halted the machine.
        if cpu.flag.load(Ordering::Acquire) || due {
            self.stop_if_halted();
            self.poll(cpu);
        }
        true
    }

    /// A point, then pending interrupts. Other CPUs may also run between an interrupt and the next
    /// instruction.
    #[inline]
    pub(crate) fn instruction(&self, cpu: &Cpu) {
        self.point(cpu);
        if self.poll(cpu) {
            self.point(cpu);
        }
    }

    /// Takes pending interrupts, if interrupts are enabled. Returns whether there were any.
    #[inline]
    pub(crate) fn poll(&self, cpu: &Cpu) -> bool {
        if cpu.depth() != 0 {
            return false;
        }
        // Acquire: pairs with the Release of the CPU that left mail.
        let mail = cpu.flag.load(Ordering::Acquire) && !std::thread::panicking();
        if mail {
            self.perform_all(cpu);
            self.take_interrupts(cpu);
        }
        let tick = self.0.config.tick.is_some() && self.take_tick(cpu);
        mail || tick
    }

    /// Calls `handler` in each timer interrupt (see [`Config::tick`](crate::Config::tick)), with
    /// interrupts disabled. Before that, the interrupt passes a quiescent state of [`Grace`]. It
    /// can be set once.
    ///
    /// # Errors
    /// A handler is set already.
    pub fn on_tick(&self, handler: impl Fn(&Sim) + Send + Sync + 'static) -> Result<(), TickTaken> {
        self.0.tick.set(Box::new(handler)).map_err(|_| TickTaken)
    }

    #[cold]
    fn take_tick(&self, cpu: &Cpu) -> bool {
        let steps = cpu.stats.steps.add(0);
        // Relaxed: only this CPU uses it.
        if steps < cpu.next_tick.load(Ordering::Relaxed) || std::thread::panicking() {
            return false;
        }
        cpu.next_tick
            .store(steps.saturating_add(self.0.config.tick.unwrap_or(u64::MAX)), Ordering::Relaxed);
        self.tick(cpu);
        true
    }

    fn tick(&self, cpu: &Cpu) {
        cpu.stats.ticks.add(1);
        Grace::quiescent_state();
        if let Some(handler) = self.0.tick.get() {
            let _off = Off::new(cpu);
            handler(self);
        }
    }

    /// Makes a CPU take its timer interrupt at its next step with interrupts enabled. An idle CPU
    /// has nothing to do there.
    pub(crate) fn hurry_one(&self, sender: &Cpu, target: &Cpu) {
        let mut mail = locked(&target.mail);
        if mail.attached && !mail.hurried {
            mail.hurried = true;
            // Release: pairs with the Acquire of `poll`.
            target.flag.store(true, Ordering::Release);
            if sender.id != target.id {
                sender.stats.ipis_sent.add(1);
            }
        }
    }

    /// Sends an interrupt to a CPU: `handler` runs there, with interrupts disabled, at its next
    /// step with interrupts enabled; on an idle CPU, when a program runs there again.
    ///
    /// # Panics
    /// There is no such CPU.
    pub fn interrupt(&self, cpu: usize, handler: impl FnOnce() + Send + 'static) {
        let target = self.0.cpus.get(cpu).unwrap_or_else(|| panic!("the machine has no cpu{cpu}"));
        if let Some(sender) = self.cpu_if_any() {
            sender.stats.ipis_sent.add(1);
        }
        let mut mail = locked(&target.mail);
        mail.interrupts.push(Box::new(handler));
        // Release: pairs with the Acquire of `poll`.
        target.flag.store(true, Ordering::Release);
    }

    fn take_interrupts(&self, cpu: &Cpu) {
        loop {
            let mut mail = locked(&cpu.mail);
            if std::mem::take(&mut mail.hurried) {
                drop(mail);
                self.tick(cpu);
                continue;
            }
            let next: Option<Handler> =
                (!mail.interrupts.is_empty()).then(|| mail.interrupts.remove(0));
            let Some(handler) = next else {
                // Relaxed: under the mail's lock.
                cpu.flag.store(!mail.requests.is_empty() || self.is_halted(), Ordering::Relaxed);
                return;
            };
            drop(mail);
            cpu.stats.ipis_taken.add(1);
            let _off = Off::new(cpu);
            handler();
        }
    }
}

/// Interrupts disabled in a handler, which begins with no open section.
struct Off<'a>(&'a Cpu);

impl<'a> Off<'a> {
    fn new(cpu: &'a Cpu) -> Off<'a> {
        cpu.set_depth(cpu.depth() + 1);
        Off(cpu)
    }
}

impl Drop for Off<'_> {
    fn drop(&mut self) {
        self.0.set_depth(self.0.depth().saturating_sub(1));
    }
}

/// The timer interrupt already has a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TickTaken;

impl fmt::Display for TickTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the timer interrupt already has a handler")
    }
}

impl std::error::Error for TickTaken {}
