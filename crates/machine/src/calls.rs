//! What CPUs ask of each other, and wait for: a shootdown, by interrupts that are acknowledged.
//!
//! A kernel builds [`Tlb::flush_on`](crate::Tlb::flush_on) on it. It brings the interrupt; here is the rest, which is easy to get
//! wrong: two CPUs that ask each other at once, and one that is asked while it waits for a lock with interrupts off.
//!
//! # How it works
//! Each CPU has a place for one request of its own, and a set of bits, one for each CPU that asks something of it. Who asks writes
//! the request, then the number of those who are to answer, sets its bit with each of them, and interrupts those whose bits
//! were all clear before: any other has an interrupt on its way. Who is interrupted takes all its bits at once, carries out each
//! request, and counts down.
//!
//! # Why it is right
//! *Nobody is overlooked.* A bit is set before its interrupt is sent; who takes the bits takes it, then or earlier. If a bit was set
//! already, the one who set it sends an interrupt after that, and whoever takes his bit later than ours was set takes both.
//!
//! *A request stays until it has been carried out by all.* Its CPU has interrupts off until the count is 0, so nothing on that CPU asks
//! meanwhile. Setting a bit releases the request, and taking it acquires; counting down releases what was done, and seeing 0 acquires.
//!
//! *Nobody waits for ever.* Who waits for answers answers. So does who waits for a lock, by
//! [`Step::relax`], which calls [`answer`](Calls::answer); and all others take the interrupt.
//! So of CPUs that ask each other in a circle each goes on.
//!
//! Loom runs these lines (`loom_tests.rs`); and with an order left out, with bits taken in two steps, with one who waits and does not
//! answer: each is caught.

use crate::mutant::{self, Mutant};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, UnsafeCell};
use crate::{CpuId, CpuSet, Cpus, Irqs, MAX_CPUS, PerCpu, Step};
use alloc::collections::TryReserveError;
use core::fmt;

/// Models have few CPUs.
const WORDS: usize = if cfg!(loom) { 1 } else { MAX_CPUS / 64 };

/// Requests between CPUs, of which each is carried out by all that it names before it returns.
///
/// ```
/// use machine::Calls;
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
/// # impl Step for One {}
/// # let machine = One;
/// let calls = Calls::<u64>::try_new(machine.count()).unwrap();
/// let mut sum = 0;
/// calls.ask(&machine, &CpuSet::first(1), 5, |others| assert!(others.is_empty()), |what| sum += what);
/// assert_eq!(sum, 5);
/// ```
pub struct Calls<T>(PerCpu<Slot<T>>);

struct Slot<T> {
    /// What this CPU asks.
    what: UnsafeCell<Option<T>>,
    /// How many have yet to do it.
    waiting: AtomicUsize,
    /// Who asks something of this CPU.
    asked: [AtomicU64; WORDS],
}

// SAFETY: a request is written by its CPU while nobody has a bit for it, and read by those who have; see the module's text.
unsafe impl<T: Send + Sync> Sync for Calls<T> {}

impl<T: Copy> Calls<T> {
    /// For so many CPUs. Allocates once.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_new(cpus: usize) -> Result<Self, TryReserveError> {
        let slot = |_| Slot {
            what: UnsafeCell::new(None),
            waiting: AtomicUsize::new(0),
            asked: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        PerCpu::try_new(cpus, slot).map(Calls)
    }

    /// Has all of `cpus` do `what`, and waits until they have; those that do not run must not be among them. `interrupt` is told
    /// whom to interrupt, and has them call [`answer`](Calls::answer); `act` does it on this CPU, and what others ask of it meanwhile.
    ///
    /// Interrupts are off all the while. Not in an interrupt that may come within `act`, and with no lock held that who
    /// answers waits for without answering. It waits by
    /// [`Step::relax`]: where that answers, too, it must do the same as `act`. Cost: a locked instruction and an interrupt for each CPU.
    pub fn ask(
        &self,
        machine: &(impl Cpus + Irqs + Step),
        cpus: &CpuSet,
        what: T,
        interrupt: impl FnOnce(&CpuSet),
        mut act: impl FnMut(T),
    ) {
        let _section = machine.irqs_off();
        let here = machine.current();
        let mut others = *cpus;
        others.remove(here);
        if let Some(mine) = self.0.get(here).filter(|_| !others.is_empty()) {
            // SAFETY: nobody has a bit of this CPU: all that it asked before has been answered.
            mine.what.with_mut(|place| unsafe { *place = Some(what) });
            // Relaxed: the bits that are set below release it.
            mine.waiting.store(others.len(), Ordering::Relaxed);
            let mut sleeping = CpuSet::EMPTY;
            for (cpu, slot) in others.iter().filter_map(|cpu| Some((cpu, self.0.get(cpu)?))) {
                let (word, bit) = (here.index() / 64, 1 << (here.index() % 64));
                // Release: the request; pairs with the Acquire of `answer`.
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
        let Some(mine) = self.0.get(here) else { return };
        // Acquire: what others have done; pairs with the Release of `answer`.
        let order = mutant::order(Ordering::Acquire, Mutant::SeeRelaxed);
        while mine.waiting.load(order) != 0 {
            if !mutant::is(Mutant::WaitsDeaf) {
                self.answer(here, &mut act);
            }
            machine.relax();
        }
    }

    /// Does by `act` what other CPUs ask of this one, `here`. For the interrupt's handler, and for
    /// [`Step::relax`]. A load for every 64 CPUs there can be, if nothing is asked. Any context.
    #[inline]
    pub fn answer(&self, here: CpuId, mut act: impl FnMut(T)) {
        let Some(mine) = self.0.get(here) else { return };
        for (word, asked) in mine.asked.iter().enumerate() {
            // Relaxed: a look; what is taken is taken below.
            if asked.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = take(asked);
            while bits != 0 {
                let cpu = CpuId::new(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
                let Some(slot) = cpu.and_then(|cpu| self.0.get(cpu)) else { continue };
                // SAFETY: it is there until this CPU has counted down.
                if let Some(what) = slot.what.with(|place| unsafe { *place }) {
                    act(what);
                }
                // Release: it has been done; pairs with the Acquire of `ask`.
                let order = mutant::order(Ordering::Release, Mutant::CountRelaxed);
                slot.waiting.fetch_sub(1, order);
            }
        }
    }
}

/// Takes all bits.
#[inline(always)]
fn take(asked: &AtomicU64) -> u64 {
    // Acquire: the requests; pairs with the Release of `ask`.
    let order = mutant::order(Ordering::Acquire, Mutant::TakeRelaxed);
    if mutant::is(Mutant::TakenInTwo) {
        let bits = asked.load(order);
        asked.store(0, Ordering::Relaxed);
        return bits;
    }
    asked.swap(0, order)
}

impl<T> fmt::Debug for Calls<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}
