//! Cross-CPU calls: a CPU makes other CPUs perform a request, by IPI, and waits until they have
//! (Linux: `smp_call_function_many`).
//!
//! A kernel builds [`Tlb::flush_on`](crate::Tlb::flush_on) on this, and supplies only the IPI. This
//! module has the parts that are easy to get wrong: two CPUs that call each other at once, and a
//! CPU that is called while it spins for a lock with interrupts disabled.
//!
//! # How it works
//! Each CPU has a slot for one request of its own, and a set of bits, one for each CPU that calls
//! it. A caller writes its request and the number of CPUs that must answer. Then it sets its bit on
//! each of these CPUs, and sends an IPI to those whose bits were all clear; any other CPU has an
//! IPI on its way. A CPU that takes the IPI clears all its bits at once, performs each request, and
//! decrements each caller's counter.
//!
//! # Correctness
//! *No request is missed.* A bit is set before its IPI is sent, and a CPU that clears its bits
//! takes it then or earlier. If another caller's bit was set already, that caller sends an IPI
//! afterwards. A CPU that takes that caller's bit after ours was set takes both.
//!
//! *A request stays valid until all CPUs have performed it.* The caller has interrupts disabled
//! until the counter is 0, so no other code on its CPU makes a call. Setting a bit releases the
//! request, and taking it acquires it. Decrementing the counter releases the performed work, and
//! reading 0 acquires it.
//!
//! *There is no deadlock.* A CPU that waits for answers performs the requests of others meanwhile.
//! So does a CPU that waits for a lock, by [`Step::relax`], which calls [`poll`](CrossCall::poll).
//! All other CPUs take the IPI. So each of several CPUs that call each other in a circle makes
//! progress.
//!
//! *A nested call is refused.* A CPU has one slot, which is in use until the call returns. So a
//! call from a closure of another call on the same CPU, or from an interrupt that cannot be
//! disabled, panics before it changes anything.
//!
//! *A CPU may go offline* while it is called. Its caller then withdraws the request, unless that
//! CPU has taken it: then it performs it first. A CPU that comes online polls once, since an IPI
//! that was sent before may be lost (see [`Cpus`]).
//!
//! *A closure may panic.* The caller then withdraws the requests that no CPU has taken, and waits
//! for those that were taken, before its slot is free again. If the panic prevented its IPI,
//! another caller may rely on that IPI: a counter of failed calls makes each waiting caller send an
//! IPI again, to the CPUs that have not taken its request. A CPU that panics while it performs
//! requests sets the bits of the remaining ones again. It performs them at its next poll, and their
//! callers wait until then.
//!
//! Loom checks this code (`loom_tests.rs`). Mutants with a weaker ordering, with bits taken in two
//! steps, or with a waiting CPU that does not poll are all caught.

use crate::mutant::{self, Mutant};
use crate::sync::{self, AtomicU64, AtomicUsize, Ordering, UnsafeCell};
use crate::{CpuId, CpuSet, Cpus, Irqs, MAX_CPUS, PerCpu, Step};
use alloc::collections::TryReserveError;
use core::cell::Cell;
use core::fmt;

/// Models have few CPUs.
const WORDS: usize = if cfg!(loom) { 1 } else { MAX_CPUS / 64 };

/// Calls between the CPUs of a machine. A call returns when all CPUs that it names have performed
/// its request.
///
/// Owns a handle of its machine, so that the current CPU is always that of the same machine.
///
/// ```
/// use machine::CrossCall;
/// # use machine::{CpuId, CpuSet, Cpus, Irqs, Step};
/// # struct One;
/// # unsafe impl Cpus for One {
/// #     fn count(&self) -> usize { 1 }
/// #     fn current(&self) -> CpuId { CpuId::default() }
/// #     fn online(&self) -> CpuSet { CpuSet::first(1) }
/// # }
/// # unsafe impl Irqs for One {
/// #     fn irq_enter(&self) {}
/// #     unsafe fn irq_leave(&self) {}
/// #     fn irqs_enabled(&self) -> bool { false }
/// # }
/// # unsafe impl Step for One {}
/// # let machine = One;
/// let calls = CrossCall::<u64, _>::try_new(machine).unwrap();
/// let mut sum = 0;
/// calls.call(&CpuSet::first(1), 5, |others| assert!(others.is_empty()), |what| sum += what);
/// assert_eq!(sum, 5);
/// ```
pub struct CrossCall<T, M> {
    machine: M,
    slots: PerCpu<RequestSlot<T>>,
    /// The number of calls that ended by a panic. Their IPIs may not have been sent.
    failed: AtomicUsize,
}

struct RequestSlot<T> {
    /// Whether this CPU is in `call`. Only this CPU uses it, with interrupts disabled.
    busy: Cell<bool>,
    /// This CPU's request.
    what: UnsafeCell<Option<T>>,
    /// The number of CPUs that have not performed it yet.
    waiting: AtomicUsize,
    /// The CPUs whose requests this CPU must perform.
    callers: [AtomicU64; WORDS],
}

// SAFETY: a CPU writes its request while no other CPU has a bit for it, and only CPUs with such a
// bit read it. `busy` belongs to its CPU. No two threads are the same CPU: see `Cpus`, and the
// module's head.
unsafe impl<T: Send + Sync, M: Sync> Sync for CrossCall<T, M> {}

impl<T: Copy, M: Cpus + Irqs + Step> CrossCall<T, M> {
    /// Creates the slots for the CPUs of `machine`. Allocates once.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn try_new(machine: M) -> Result<Self, TryReserveError> {
        let slot = |_| RequestSlot {
            busy: Cell::new(false),
            what: UnsafeCell::new(None),
            waiting: AtomicUsize::new(0),
            callers: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        let slots = PerCpu::try_new(machine.count(), slot)?;
        Ok(CrossCall { slots, machine, failed: AtomicUsize::new(0) })
    }

    /// Makes all of `cpus` perform `what`, and waits until they have. CPUs that do not exist or are
    /// not [online](Cpus::online) are ignored, also those that go offline meanwhile. `interrupt`
    /// gets the set of CPUs to which it must send an IPI, whose handler calls
    /// [`poll`](CrossCall::poll). `act` performs
    /// the request on this CPU, and the requests of other CPUs that arrive meanwhile.
    ///
    /// Interrupts are disabled until it returns. The caller must hold no lock for which another CPU
    /// waits without polling. Waits by [`Step::relax`]: if that polls, too, it must perform
    /// requests as `act` does. Costs a locked instruction and an IPI for each CPU, and one load of
    /// a line that is written only after a panic.
    ///
    /// `interrupt` is called once, and again if a call of another CPU panics meanwhile: that call
    /// may not have sent the IPI on which this one relies.
    ///
    /// # Panics
    /// If it is called from within itself: by one of its closures, or by an interrupt that cannot
    /// be disabled. Nothing has changed then.
    ///
    /// # Misuse
    /// A closure that does not return, or returns without sending the IPI, makes other CPUs wait.
    /// If it panics, requests that were not taken are withdrawn, and the others are waited for;
    /// callers that rely on an IPI which the panic prevented send it themselves.
    pub fn call(
        &self,
        cpus: &CpuSet,
        what: T,
        mut interrupt: impl FnMut(&CpuSet),
        mut act: impl FnMut(T),
    ) {
        let _section = self.machine.irqs_off();
        let here = self.machine.current();
        let Some(mine) = self.slots.get(here) else { return };
        assert!(
            !mine.busy.replace(true),
            "CrossCall::call on {here} was called from within itself: call it neither from its \
             closures nor from an interrupt that cannot be disabled"
        );
        let mut others = cpus.intersection(&CpuSet::first(self.slots.iter().count()));
        others.remove(here);
        if !others.is_empty() {
            others = others.intersection(&self.machine.online());
        }
        // Acquire: pairs with the Release in `CallInProgress::drop`. The bits of each failed call
        // that is counted here were cleared before this call sets its own.
        let mut failed = self.failed.load(Ordering::Acquire);
        let in_progress = CallInProgress { calls: self, here, mine, others, done: false };
        if !others.is_empty() {
            // SAFETY: no CPU has a bit of this CPU, since all its earlier requests have been
            // performed.
            mine.what.with_mut(|place| unsafe { *place = Some(what) });
            // Relaxed: setting the bits below releases it.
            mine.waiting.store(others.len(), Ordering::Relaxed);
            let mut sleeping = CpuSet::EMPTY;
            for (cpu, slot) in others.iter().filter_map(|cpu| Some((cpu, self.slots.get(cpu)?))) {
                let (word, bit) = place(here);
                // Release: publishes the request. Pairs with the Acquire of `poll`.
                let order = mutant::order(Ordering::Release, Mutant::SetRelaxed);
                if slot.callers[word].fetch_or(bit, order) == 0 {
                    sleeping.insert(cpu);
                }
            }
            interrupt(&sleeping);
        }
        if cpus.contains(here) {
            act(what);
        }
        // Acquire: the work that other CPUs performed. Pairs with the Release of `poll`.
        let order = mutant::order(Ordering::Acquire, Mutant::SeeRelaxed);
        while mine.waiting.load(order) != 0 {
            if !mutant::is(Mutant::WaitsDeaf) {
                self.poll(&mut act);
            }
            if !mutant::is(Mutant::AwaitsOffline) {
                self.withdraw(here, mine, &others.difference(&self.machine.online()));
            }
            // Acquire: as above.
            let now = self.failed.load(Ordering::Acquire);
            if now != failed {
                failed = now;
                interrupt(&self.pending(here, &others));
            }
            self.machine.relax();
        }
        in_progress.end();
    }

    /// Performs by `act` the requests that other CPUs have made to this one. Call it from the IPI
    /// handler, and from [`Step::relax`]. Without requests it costs a section with interrupts
    /// disabled, and one load for every 64 possible CPUs. May be called in any context.
    ///
    /// # Misuse
    /// If `act` panics, the requests that are left are put back, for the next poll of this CPU.
    /// Until then their callers wait.
    #[inline]
    pub fn poll(&self, mut act: impl FnMut(T)) {
        let _section = self.machine.irqs_off();
        let Some(mine) = self.slots.get(self.machine.current()) else { return };
        for (word, callers) in mine.callers.iter().enumerate() {
            // Relaxed: a check only. The bits are taken below.
            if callers.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut taken = TakenRequests { callers, bits: take(callers) };
            while taken.bits != 0 {
                let cpu = CpuId::new(word * 64 + taken.bits.trailing_zeros() as usize);
                let slot = cpu.and_then(|cpu| self.slots.get(cpu));
                if let Some(slot) = slot {
                    // SAFETY: the request stays valid until this CPU has decremented the counter.
                    if let Some(what) = slot.what.with(|place| unsafe { *place }) {
                        act(what);
                    }
                }
                taken.bits &= taken.bits - 1;
                if let Some(slot) = slot {
                    // Release: the request has been performed. Pairs with the Acquire of `call`.
                    let order = mutant::order(Ordering::Release, Mutant::CountRelaxed);
                    slot.waiting.fetch_sub(1, order);
                }
            }
        }
    }

    /// Withdraws the request of `here` from CPUs that have not taken it.
    fn withdraw(&self, here: CpuId, mine: &RequestSlot<T>, cpus: &CpuSet) {
        let (word, bit) = place(here);
        for slot in cpus.iter().filter_map(|cpu| self.slots.get(cpu)) {
            // Relaxed, both: a CPU that finds the bit performs the request, and only that CPU
            // decrements the counter for it.
            if slot.callers[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                mine.waiting.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The CPUs of `others` that have not taken the request of `here`.
    fn pending(&self, here: CpuId, others: &CpuSet) -> CpuSet {
        let (word, bit) = place(here);
        let is_pending = |cpu: &CpuId| {
            // Relaxed: a superfluous IPI is harmless, and only this CPU sets the bit.
            self.slots
                .get(*cpu)
                .is_some_and(|slot| slot.callers[word].load(Ordering::Relaxed) & bit != 0)
        };
        others.iter().filter(is_pending).collect()
    }

    /// The machine whose CPUs these are.
    #[inline]
    pub fn machine(&self) -> &M {
        &self.machine
    }
}

/// A CPU's word, and its bit in the word.
fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}

/// Takes all bits.
#[inline(always)]
fn take(callers: &AtomicU64) -> u64 {
    // Acquire: the requests. Pairs with the Release of `call`.
    let order = mutant::order(Ordering::Acquire, Mutant::TakeRelaxed);
    if mutant::is(Mutant::TakenInTwo) {
        let bits = callers.load(order);
        callers.store(0, Ordering::Relaxed);
        return bits;
    }
    callers.swap(0, order)
}

/// A call in progress. Dropping it ends the call, also when a closure panics.
struct CallInProgress<'c, T: Copy, M: Cpus + Irqs + Step> {
    calls: &'c CrossCall<T, M>,
    here: CpuId,
    mine: &'c RequestSlot<T>,
    others: CpuSet,
    done: bool,
}

impl<T: Copy, M: Cpus + Irqs + Step> CallInProgress<'_, T, M> {
    /// All CPUs have answered.
    fn end(mut self) {
        self.done = true;
    }
}

impl<T: Copy, M: Cpus + Irqs + Step> Drop for CallInProgress<'_, T, M> {
    fn drop(&mut self) {
        if !self.done && !sync::model_is_over() {
            self.calls.withdraw(self.here, self.mine, &self.others);
            // Release: the bits are cleared. Pairs with the Acquire in `call`.
            self.calls.failed.fetch_add(1, Ordering::Release);
            // Acquire: the CPUs that read the request are done with it. Pairs with the Release of
            // `poll`.
            while self.mine.waiting.load(Ordering::Acquire) != 0 {
                self.calls.machine.relax();
            }
        }
        self.mine.busy.set(false);
    }
}

/// Requests that were taken. The remaining ones are put back if `act` panics.
struct TakenRequests<'s> {
    callers: &'s AtomicU64,
    bits: u64,
}

impl Drop for TakenRequests<'_> {
    fn drop(&mut self) {
        if self.bits != 0 && !sync::model_is_over() {
            // Release: as when they were set. Pairs with the Acquire of `take`.
            self.callers.fetch_or(self.bits, Ordering::Release);
        }
    }
}

impl<T, M> fmt::Debug for CrossCall<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrossCall").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
