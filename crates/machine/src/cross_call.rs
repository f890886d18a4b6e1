//! What CPUs ask of each other, and wait for: a shootdown, by interrupts that are acknowledged.
//!
//! A kernel builds [`Tlb::flush_on`](crate::Tlb::flush_on) on it. It brings the interrupt; here is
//! the rest, which is easy to get wrong: two CPUs that ask each other at once, and one that is
//! asked while it waits for a lock with interrupts off.
//!
//! # How it works
//! Each CPU has a place for one request of its own, and a set of bits, one for each CPU that asks
//! something of it. Who asks writes the request, then the number of those who are to answer, sets
//! its bit with each of them, and interrupts those whose bits were all clear before: any other has
//! an interrupt on its way. Who is interrupted takes all its bits at once, carries out each
//! request, and counts down.
//!
//! # Why it is right
//! *Nobody is overlooked.* A bit is set before its interrupt is sent; who takes the bits takes it,
//! then or earlier. If a bit was set already, the one who set it sends an interrupt after that, and
//! whoever takes his bit later than ours was set takes both.
//!
//! *A request stays until it has been carried out by all.* Its CPU has interrupts off until the
//! count is 0, so nothing on that CPU asks meanwhile. Setting a bit releases the request, and
//! taking it acquires; counting down releases what was done, and seeing 0 acquires.
//!
//! *Nobody waits for ever.* Who waits for answers answers. So does who waits for a lock, by
//! [`Step::relax`], which calls [`poll`](CrossCall::poll); and all others take the interrupt.
//! So of CPUs that ask each other in a circle each goes on.
//!
//! *A call within a call is refused.* A CPU has one place for a request, and it is in use until the
//! call returns. So a call from a closure of another call of the same CPU, or from an interrupt
//! that cannot be held off, panics before it changes anything.
//!
//! *A closure may panic.* Requests that no CPU has taken yet are withdrawn, and those that were
//! taken are waited for, before the place is free again. A CPU that panics while it answers puts
//! back the bits of the requests that it has not carried out: they are carried out when it next
//! answers, and the callers wait until then.
//!
//! Loom runs these lines (`loom_tests.rs`); and with an order left out, with bits taken in two
//! steps, with one who waits and does not answer: each is caught.

use crate::mutant::{self, Mutant};
use crate::sync::{self, AtomicU64, AtomicUsize, Ordering, UnsafeCell};
use crate::{CpuId, CpuSet, Cpus, Irqs, MAX_CPUS, PerCpu, Step};
use alloc::collections::TryReserveError;
use core::cell::Cell;
use core::fmt;

/// Models have few CPUs.
const WORDS: usize = if cfg!(loom) { 1 } else { MAX_CPUS / 64 };

/// Requests between the CPUs of a machine, of which each is carried out by all that it names before
/// it returns.
///
/// It owns a handle of its machine, so that it is always asked of the same machine which CPU this
/// is.
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
    slots: PerCpu<Slot<T>>,
    /// The number of calls that ended by a panic. Their IPIs may not have been sent.
    failed: AtomicUsize,
}

struct Slot<T> {
    /// Whether this CPU is in `call`. Only this CPU uses it, with interrupts off.
    busy: Cell<bool>,
    /// What this CPU asks.
    what: UnsafeCell<Option<T>>,
    /// How many have yet to do it.
    waiting: AtomicUsize,
    /// Who asks something of this CPU.
    asked: [AtomicU64; WORDS],
}

// SAFETY: a request is written by its CPU while nobody has a bit for it, and read by those who
// have; `busy` is its CPU's alone. No two threads are the same CPU: see `Cpus`, and the module's
// text.
unsafe impl<T: Send + Sync, M: Sync> Sync for CrossCall<T, M> {}

impl<T: Copy, M: Cpus + Irqs + Step> CrossCall<T, M> {
    /// For the CPUs of `machine`. Allocates once.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_new(machine: M) -> Result<Self, TryReserveError> {
        let slot = |_| Slot {
            busy: Cell::new(false),
            what: UnsafeCell::new(None),
            waiting: AtomicUsize::new(0),
            asked: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        let slots = PerCpu::try_new(machine.count(), slot)?;
        Ok(CrossCall { slots, machine, failed: AtomicUsize::new(0) })
    }

    /// Has all of `cpus` do `what`, and waits until they have; those that do not run must not be
    /// among them, and those that do not exist are passed over. `interrupt` is told whom to
    /// interrupt, and has them call [`poll`](CrossCall::poll); `act` does it on this CPU, and what
    /// others ask of it meanwhile.
    ///
    /// Interrupts are off all the while. Not with a lock held that a CPU waits for without
    /// answering. It waits by [`Step::relax`]: where that answers, too, it must do the same as
    /// `act`. Cost: a locked instruction and an interrupt for each CPU.
    ///
    /// # Panics
    /// It is called from within itself, by one of its closures or by an interrupt that cannot be
    /// held off. Nothing has changed then.
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
            "CrossCall::call on {here} was called from within itself: its closures, and interrupts that cannot be held off, must not call it"
        );
        let mut others = cpus.intersection(&CpuSet::first(self.slots.iter().count()));
        others.remove(here);
        // Acquire: pairs with the Release in `Asking::drop`. A failure that this load sees is one
        // whose bits were cleared before this call sets its own.
        let mut failed = self.failed.load(Ordering::Acquire);
        let asking = Asking { calls: self, here, mine, others, done: false };
        if !others.is_empty() {
            // SAFETY: nobody has a bit of this CPU: all that it asked before has been answered.
            mine.what.with_mut(|place| unsafe { *place = Some(what) });
            // Relaxed: the bits that are set below release it.
            mine.waiting.store(others.len(), Ordering::Relaxed);
            let mut sleeping = CpuSet::EMPTY;
            for (cpu, slot) in others.iter().filter_map(|cpu| Some((cpu, self.slots.get(cpu)?))) {
                let (word, bit) = place(here);
                // Release: the request; pairs with the Acquire of `poll`.
                let order = mutant::order(Ordering::Release, Mutant::SetRelaxed);
                if slot.asked[word].fetch_or(bit, order) == 0 {
                    sleeping.insert(cpu);
                }
            }
            interrupt(&sleeping);
        }
        if cpus.contains(here) {
            act(what);
        }
        // Acquire: what others have done; pairs with the Release of `poll`.
        let order = mutant::order(Ordering::Acquire, Mutant::SeeRelaxed);
        while mine.waiting.load(order) != 0 {
            if !mutant::is(Mutant::WaitsDeaf) {
                self.poll(&mut act);
            }
            // Acquire: as above.
            let now = self.failed.load(Ordering::Acquire);
            if now != failed {
                failed = now;
                interrupt(&self.pending(here, &others));
            }
            self.machine.relax();
        }
        asking.end();
    }

    /// Does by `act` what other CPUs ask of this one. For the interrupt's handler, and for
    /// [`Step::relax`]. A section without interrupts, and a load for every 64 CPUs there can be, if
    /// nothing is asked. Any context.
    #[inline]
    pub fn poll(&self, mut act: impl FnMut(T)) {
        let _section = self.machine.irqs_off();
        let Some(mine) = self.slots.get(self.machine.current()) else { return };
        for (word, asked) in mine.asked.iter().enumerate() {
            // Relaxed: a look; what is taken is taken below.
            if asked.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut taken = Taken { asked, bits: take(asked) };
            while taken.bits != 0 {
                let cpu = CpuId::new(word * 64 + taken.bits.trailing_zeros() as usize);
                let slot = cpu.and_then(|cpu| self.slots.get(cpu));
                if let Some(slot) = slot {
                    // SAFETY: it is there until this CPU has counted down.
                    if let Some(what) = slot.what.with(|place| unsafe { *place }) {
                        act(what);
                    }
                }
                taken.bits &= taken.bits - 1;
                if let Some(slot) = slot {
                    // Release: it has been done; pairs with the Acquire of `call`.
                    let order = mutant::order(Ordering::Release, Mutant::CountRelaxed);
                    slot.waiting.fetch_sub(1, order);
                }
            }
        }
    }

    /// The CPUs of `others` that have not taken the request of `here`.
    fn pending(&self, here: CpuId, others: &CpuSet) -> CpuSet {
        let (word, bit) = place(here);
        let is_pending = |cpu: &CpuId| {
            // Relaxed: an IPI too many does no harm, and only this CPU sets the bit.
            self.slots
                .get(*cpu)
                .is_some_and(|slot| slot.asked[word].load(Ordering::Relaxed) & bit != 0)
        };
        others.iter().filter(is_pending).collect()
    }

    /// The machine whose CPUs these are.
    #[inline]
    pub fn machine(&self) -> &M {
        &self.machine
    }
}

/// The word of a CPU, and its bit in it.
fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}

/// Takes all bits.
#[inline(always)]
fn take(asked: &AtomicU64) -> u64 {
    // Acquire: the requests; pairs with the Release of `call`.
    let order = mutant::order(Ordering::Acquire, Mutant::TakeRelaxed);
    if mutant::is(Mutant::TakenInTwo) {
        let bits = asked.load(order);
        asked.store(0, Ordering::Relaxed);
        return bits;
    }
    asked.swap(0, order)
}

/// A call under way. It ends when this is dropped, also when a closure panics.
struct Asking<'c, T: Copy, M: Cpus + Irqs + Step> {
    calls: &'c CrossCall<T, M>,
    here: CpuId,
    mine: &'c Slot<T>,
    others: CpuSet,
    done: bool,
}

impl<T: Copy, M: Cpus + Irqs + Step> Asking<'_, T, M> {
    /// All have answered.
    fn end(mut self) {
        self.done = true;
    }
}

impl<T: Copy, M: Cpus + Irqs + Step> Drop for Asking<'_, T, M> {
    fn drop(&mut self) {
        if !self.done && !sync::model_is_over() {
            let (word, bit) = place(self.here);
            for slot in self.others.iter().filter_map(|cpu| self.calls.slots.get(cpu)) {
                // Relaxed, both: whoever finds the bit carries out the request, and nobody else
                // counts for it.
                if slot.asked[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                    self.mine.waiting.fetch_sub(1, Ordering::Relaxed);
                }
            }
            // Release: the bits are cleared; pairs with the Acquire in `call`.
            self.calls.failed.fetch_add(1, Ordering::Release);
            // Acquire: those who read the request are done with it; pairs with the Release of
            // `poll`.
            while self.mine.waiting.load(Ordering::Acquire) != 0 {
                self.calls.machine.relax();
            }
        }
        self.mine.busy.set(false);
    }
}

/// Requests that were taken. Those that are left when `act` panics are put back.
struct Taken<'s> {
    asked: &'s AtomicU64,
    bits: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.bits != 0 && !sync::model_is_over() {
            // Release: as those who set them; pairs with the Acquire of `take`.
            self.asked.fetch_or(self.bits, Ordering::Release);
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
