//! TLB grace periods: when one has ended, no CPU holds a translation that was cached before it.
//!
//! Address space is plentiful, so an unmapped address, of the kernel or of a program, need not be
//! flushed. It only must not be reused until every CPU has flushed its TLB for its own reasons. A
//! CPU passes a *quiescent state* when it has flushed all its cached translations, and reports it.
//! When all CPUs have passed one since an address was unmapped, the grace period of the address has
//! ended. `grace::period` numbers the periods: `target` is the period that addresses unmapped so
//! far must wait for, and `done` is the last period that has ended.
//!
//! # Where a CPU reports quiescent states
//! - [`tick`](TlbGrace::tick), from each CPU's timer interrupt: flushes this CPU if a period is
//!   pending. It sends no IPI.
//! - [`flush`](TlbGrace::flush), where a CPU flushes everything for its own reasons;
//!   [`quiescent_state`](TlbGrace::quiescent_state), around a flush that the host does in its own
//!   way, for example in a context switch.
//! - [`idle_enter`](TlbGrace::idle_enter), before a CPU halts: it flushes, and no period waits for
//!   this CPU until [`idle_exit`](TlbGrace::idle_exit). Entering is unsafe: an idle CPU that uses
//!   an area may use a stale translation. Leaving is safe.
//! - [`expedite`](TlbGrace::expedite): makes all remaining CPUs flush at once, by one broadcast.
//!
//! # Why it is correct
//! Let CPU A clear a PTE, then number its period `t`, and let the address be reused when `t` is
//! done. Let CPU B have the translation cached. B has reported at least `t`: it loaded `current >=
//! t`, then flushed, then stored that value.
//!
//! - B's load comes after A's load, which saw `t - 1`. So A's fence comes before B's fence, and
//!   walks of B after its fence see the PTE cleared.
//! - B's flush came after its fence. It dropped all translations cached before the fence, and those
//!   cached later are valid.
//!
//! So a report must begin before its flush and end after it. In the opposite order, B could cache a
//! translation between the flush and the report.
//!
//! *An idle CPU* has flushed, and uses no address of an area until it leaves idle. Then it takes
//! part again, and flushes if a period has begun meanwhile. Its hardware may have cached
//! translations in between, as it may at any time.
//!
//! *A broadcast* for a period that has begun, and that some CPU has passed, interrupts only the
//! other CPUs. For any other period, it begins the period before it sends the IPIs. An address that
//! is unmapped later, and that the flush of some CPU may miss, then gets a later number.
//!
//! # Cost
//! An unmapping takes a number: one fence, and one load of a line that is written once per period.
//! A tick is two loads if no period is pending. A test whether a period has ended loads a line per
//! CPU, so it is not on a fast path: it runs at ticks, and once per some dozens of operations (I8).

use crate::fallible_alloc::try_arc;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::period::{CpuGracePeriods, GracePeriods};
use machine::{CpuId, CpuSet, Flush, Machine, PerCpu, SharedAccess, lock};
use spin::mutex::SpinMutex;

/// Per-CPU state.
struct CpuQuiescence {
    passed: CpuGracePeriods,
    /// The current period at the moment when the CPU entered idle.
    left: AtomicU64,
    /// The last period that an address unmapped on this CPU waits for.
    wanted: AtomicU64,
    quiescent_states: AtomicU64,
    broadcasts: AtomicU64,
    interrupted: AtomicU64,
}

impl CpuQuiescence {
    fn new() -> CpuQuiescence {
        let zero = || AtomicU64::new(0);
        CpuQuiescence {
            passed: CpuGracePeriods::new(),
            left: zero(),
            wanted: zero(),
            quiescent_states: zero(),
            broadcasts: zero(),
            interrupted: zero(),
        }
    }
}

/// Statistics, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TlbGraceStats {
    /// Flushes by which a CPU passed a quiescent state: at ticks, for its own reasons, and when it
    /// entered or left idle.
    pub quiescent_states: u64,
    /// Broadcast flushes.
    pub broadcasts: u64,
    /// CPUs that broadcasts interrupted, not counting the sender.
    pub interrupted: u64,
}

/// The TLB grace periods of a machine: one instance for all that waits for them, in an [`Arc`]:
/// areas of the kernel (`vmap`), and unmapped memory of programs (`mm`).
///
/// ```
/// use paging::TlbGrace;
/// use sim::{Config, Sim};
///
/// let sim = Sim::new(Config { cpus: 2, ..Config::default() }).unwrap();
/// let tlb_grace = TlbGrace::try_new(sim.clone()).unwrap();
/// sim.on_cpu(0, || {
///     tlb_grace.idle_exit(); // a CPU that starts
///     let target = tlb_grace.target();
///     assert!(!tlb_grace.is_over(target));
///     tlb_grace.advance(target); // the period begins
///     tlb_grace.tick(); // this CPU tlb_grace; the other has not started, and takes no part
///     assert!(tlb_grace.advance(target));
///     // SAFETY: there are no areas that this CPU could use.
///     unsafe { tlb_grace.idle_enter() };
/// });
/// assert_eq!(sim.stats().ipis_sent, 0);
/// ```
///
/// # Misuse
/// A CPU that takes part is waited for, which is always correct. Any number is right for `advance`
/// and `expedite`: it only selects the period to wait for.
pub struct TlbGrace<M: Machine> {
    machine: M,
    count: GracePeriods,
    slots: PerCpu<CpuQuiescence>,
    expediting: SpinMutex<()>,
}

impl<M: Machine> TlbGrace<M> {
    /// Creates the grace periods of a machine. All CPUs are idle until they call
    /// [`idle_exit`](TlbGrace::idle_exit). Allocates from the heap.
    ///
    /// # Errors
    /// The heap has no memory.
    pub fn try_new(machine: M) -> Result<Arc<Self>, TryReserveError> {
        let slots = PerCpu::try_new(machine.count(), |_| CpuQuiescence::new())?;
        let count = GracePeriods::new();
        try_arc(TlbGrace { machine, count, slots, expediting: SpinMutex::new(()) })
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Calls `f` with this CPU's slot and interrupts disabled.
    fn with<T>(&self, f: impl FnOnce(&CpuQuiescence) -> T) -> Option<T> {
        let _section = self.machine.irqs_off();
        Some(f(self.slots.get(self.machine.current())?))
    }

    /// The grace period that must end before addresses unmapped so far may be reused: addresses
    /// unmapped on this CPU, or on others with which it has synchronized since. Any context.
    #[inline]
    pub fn target(&self) -> u64 {
        self.machine.step(SharedAccess::Other);
        let target = self.count.target();
        // Relaxed: only this CPU writes it, as a hint for its own tick.
        self.with(|slot| {
            // Avoids a store: other fields of this line are read by other CPUs.
            if slot.wanted.load(Ordering::Relaxed) != target {
                slot.wanted.store(target, Ordering::Relaxed);
            }
        });
        target
    }

    /// Whether the period has ended: no CPU holds a translation of a range that was unmapped before
    /// the period was numbered. Cost: a load.
    #[inline]
    pub fn is_over(&self, target: u64) -> bool {
        self.count.done() >= target
    }

    /// The last period that has ended. Cost: a load.
    #[inline]
    pub fn done(&self) -> u64 {
        self.count.done()
    }

    /// For each CPU's timer interrupt. If a period is pending that this CPU has not passed, flushes
    /// and reports the quiescent state. If addresses unmapped on this CPU wait, tests whether their
    /// period has ended. Cost: two loads and a branch if no period is pending.
    pub fn tick(&self) {
        let wanted = self.with(|slot| {
            self.quiescent_if_needed(slot);
            // Relaxed: only this CPU writes it.
            slot.wanted.load(Ordering::Relaxed)
        });
        if let Some(wanted) = wanted.filter(|wanted| *wanted != 0 && !self.is_over(*wanted)) {
            self.advance(wanted);
            self.with(|slot| self.quiescent_if_needed(slot));
        }
    }

    /// No period waits for an idle CPU.
    fn quiescent_if_needed(&self, slot: &CpuQuiescence) {
        if self.count.needs_quiescent_state(&slot.passed) {
            self.quiescent_here(slot);
        }
    }

    /// Flushes all translations of this CPU, and reports the quiescent state.
    pub fn flush(&self) {
        self.with(|slot| self.quiescent_here(slot));
    }

    fn quiescent_here(&self, slot: &CpuQuiescence) {
        self.quiescent_by(slot, || self.machine.flush(Flush::All));
    }

    fn quiescent_by(&self, slot: &CpuQuiescence, flush: impl FnOnce()) {
        let begun = self.count.begin();
        flush();
        self.machine.step(SharedAccess::Other);
        if !slot.passed.is_idle() {
            self.count.end(&slot.passed, begun);
        }
        bump(&slot.quiescent_states);
    }

    /// Reports a quiescent state around a flush that `flush` performs in the host's own way. It
    /// must drop all translations that this CPU has cached: of the kernel's half and of programs,
    /// under every tag, global ones and upper-level entries included, as [`Flush::All`] does.
    /// Interrupts are disabled.
    ///
    /// # Safety
    /// `flush` drops all of these.
    pub unsafe fn quiescent_state(&self, flush: impl FnOnce()) {
        self.with(|slot| self.quiescent_by(slot, flush));
    }

    /// Takes this CPU out of the grace periods before it halts, stops, or runs code that uses no
    /// area. Flushes its TLB. From then on no period waits for it and no broadcast interrupts it.
    /// Does nothing if the CPU is idle already.
    ///
    /// Call `Vmap::idle` before, which gives up the blocks of this CPU. Cost: one flush; no memory.
    ///
    /// # Safety
    /// Until [`idle_exit`](TlbGrace::idle_exit) is called on this CPU, this CPU uses no address of
    /// an area of a space that shares these periods, except areas that were live when it entered
    /// idle and stay live until it leaves (for example, a device's registers):
    /// - the calling code does not, and neither does code that it has interrupted: in an interrupt
    ///   handler, this holds only if the interrupted code is known to use none, such as an idle
    ///   loop;
    /// - no call of `Vmap` is in progress on this CPU;
    /// - no tables are active on it from which a program's memory is unmapped by these periods
    ///   (`mm::UnmapPolicy::Grace`): the host activates others before;
    /// - an interrupt handler that uses an address of another area calls `idle_exit` first. The CPU
    ///   then takes part again, also after the handler has returned.
    ///
    /// An idle CPU keeps translations and may fill its TLB speculatively. Addresses are reused, and
    /// tables of programs freed, without waiting for it, so an access there could reach memory of
    /// other code (I4, I5), and a walk a table that is none any more (I3).
    ///
    /// ```compile_fail,E0133
    /// # fn idle_loop(tlb_grace: &paging::TlbGrace<sim::Sim>) {
    /// tlb_grace.idle_enter();
    /// # }
    /// ```
    pub unsafe fn idle_enter(&self) {
        self.with(|slot| {
            if slot.passed.is_idle() {
                return;
            }
            let begun = self.count.begin();
            // Relaxed: only this CPU uses it.
            slot.left.store(begun.period(), Ordering::Relaxed);
            self.machine.flush(Flush::All);
            bump(&slot.quiescent_states);
            slot.passed.idle_enter();
        });
    }

    /// Lets this CPU take part in the grace periods, again or for the first time. Flushes if a
    /// period has begun since it entered idle. Call it before the CPU uses an address of an area,
    /// also in an interrupt handler, and before it activates tables from which a program's memory
    /// is unmapped by these periods. Cost: a load if the CPU already takes part.
    ///
    /// Calling it too often is harmless, except that periods wait for a CPU that takes part. Calls
    /// that map areas do it themselves, but a CPU may use an area that another CPU has mapped.
    pub fn idle_exit(&self) {
        self.with(|slot| {
            if !slot.passed.is_idle() {
                return;
            }
            // Relaxed: only this CPU uses it.
            let left = slot.left.load(Ordering::Relaxed);
            self.count.rejoin(&slot.passed, left, || {
                self.machine.flush(Flush::All);
                bump(&slot.quiescent_states);
            });
        });
    }

    /// Whether this CPU is idle: it takes no part in the grace periods.
    pub fn is_idle(&self) -> bool {
        self.with(|slot| slot.passed.is_idle()) == Some(true)
    }

    /// Begins the period `wanted` as soon as possible, and ends it if all CPUs have passed it.
    /// Returns whether it has ended. Cost: a load per CPU. Never waits, sends no IPI.
    pub fn advance(&self, wanted: u64) -> bool {
        self.machine.step(SharedAccess::Other);
        self.count.advance(wanted, self.slots.iter().map(|slot| &slot.passed))
    }

    /// The number of CPUs that are not idle, at least 1. A snapshot; a load per CPU.
    pub fn taking_part(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.passed.is_idle()).count().max(1)
    }

    /// The CPUs that have not passed a period. Ending it at once would take an IPI to each.
    pub fn behind(&self, period: u64) -> CpuSet {
        self.machine.step(SharedAccess::Other);
        let slots = self.slots.iter().enumerate();
        let behind = slots.filter(|(_, slot)| !slot.passed.has_passed(period));
        behind.filter_map(|(cpu, _)| CpuId::new(cpu)).collect()
    }

    /// Ends the period by one broadcast to the CPUs that have not passed it. If these are all other
    /// CPUs, or the period has not begun, the newest period begins and ends with it: it covers all
    /// addresses unmapped by now. Does nothing if the period has ended.
    ///
    /// Context: as for [`machine::Tlb::flush_on`]. Do not hold a lock that an interrupt handler
    /// takes, or that a CPU with interrupts disabled spins on without [`machine::Step::relax`].
    pub fn expedite(&self, period: u64) {
        if self.is_over(period) {
            return;
        }
        let _one = lock(&self.machine, &self.expediting);
        // Another broadcast may have ended it, or all CPUs have reported by now.
        if self.is_over(period) || self.advance(period) {
            return;
        }
        let begun = self.count.has_begun(period);
        // Its fence orders the load of the period before the loads of which CPUs are idle; pairs
        // with the fence of `GracePeriods::begin` in `idle_exit`.
        let newest = self.count.target();
        let behind = self.behind(period);
        // If all others are behind, the same IPIs also end the newest period.
        if begun && self.others(&behind) < self.others(&self.behind(newest)) {
            self.expedite_on(period, behind);
        } else {
            self.begin_now(newest, |tlb_grace| tlb_grace.behind(newest));
        }
    }

    /// Flushes all running CPUs, idle ones included, and so ends all periods. Context: as for
    /// [`expedite`](TlbGrace::expedite). Cost: an IPI to each other CPU.
    pub fn broadcast(&self) {
        let _one = lock(&self.machine, &self.expediting);
        self.begin_now(self.count.target(), |tlb_grace| tlb_grace.machine.online());
    }

    fn begin_now(&self, period: u64, targets: impl FnOnce(&Self) -> CpuSet) {
        self.machine.step(SharedAccess::Other);
        self.count.expedite_start(period);
        self.expedite_on(period, targets(self));
    }

    /// Makes these CPUs flush. Then all CPUs that are not idle have flushed since the period began.
    fn expedite_on(&self, period: u64, cpus: CpuSet) {
        self.machine.flush_on(&cpus, Flush::All);
        self.machine.step(SharedAccess::Other);
        self.count.expedite_end(period);
        self.with(|slot| {
            bump(&slot.broadcasts);
            // Relaxed: as in `bump`.
            let others = self.interrupted_by(&cpus) as u64;
            let interrupted = slot.interrupted.load(Ordering::Relaxed) + others;
            slot.interrupted.store(interrupted, Ordering::Relaxed);
        });
    }

    /// The number of CPUs in the set other than this one.
    fn others(&self, cpus: &CpuSet) -> usize {
        cpus.len() - usize::from(cpus.contains(self.machine.current()))
    }

    /// The number of CPUs that a flush on these interrupts.
    fn interrupted_by(&self, cpus: &CpuSet) -> usize {
        if self.machine.interrupts() { self.others(cpus) } else { 0 }
    }

    /// Statistics since the start.
    pub fn stats(&self) -> TlbGraceStats {
        // Relaxed: statistics.
        self.slots.iter().fold(TlbGraceStats::default(), |sum, slot| TlbGraceStats {
            quiescent_states: sum.quiescent_states + slot.quiescent_states.load(Ordering::Relaxed),
            broadcasts: sum.broadcasts + slot.broadcasts.load(Ordering::Relaxed),
            interrupted: sum.interrupted + slot.interrupted.load(Ordering::Relaxed),
        })
    }
}

/// Relaxed, both: only one CPU writes this statistic, with interrupts disabled.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl<M: Machine> fmt::Debug for TlbGrace<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlbGrace").field("done", &self.done()).finish_non_exhaustive()
    }
}
