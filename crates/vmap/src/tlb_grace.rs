//! TLB grace periods: when no CPU can hold a translation from before.
//!
//! Addresses are vast, so one that was unmapped need not be flushed: it is enough not to use it
//! again until every CPU has flushed for whatever reason. Each CPU *announces* a flush of all that
//! it has cached; when all have done so since an address was unmapped, its grace period is over.
//! The numbers are those of `grace::period`: `target` numbers the period that what was unmapped so
//! far must wait for, `done` is the last that has ended.
//!
//! # Who announces
//! - [`tick`](TlbGrace::tick), from each CPU's timer interrupt: if somebody waits, it flushes this
//!   CPU, and nobody sends an interrupt.
//! - [`flush`](TlbGrace::flush) where a CPU flushes everything for its own need, and
//!   [`quiescent_state`](TlbGrace::quiescent_state) around a flush that it does in its own way: a
//!   context switch, for instance.
//! - [`idle_enter`](TlbGrace::idle_enter) before a CPU halts: it flushes, and then nobody waits for
//!   it until it is [`idle_exit`](TlbGrace::idle_exit). To leave is unsafe: a CPU that is away and
//!   uses an area may use a stale translation. To come back is safe.
//! - [`expedite`](TlbGrace::expedite) makes all CPUs that have not yet, at once, by one broadcast.
//!
//! # Why it is right
//! Let an entry be cleared, then its period be numbered `t` on CPU A, and the address be handed out
//! when `t` is done. Let CPU B have a translation cached. B announced at least `t`: it loaded
//! `current >= t`, then flushed, then stored that. The load comes after A's, which saw `t - 1`, so
//! A's fence comes before B's, and the walks of B after its fence see the entry cleared. The flush
//! came after the fence: it dropped what had been cached before, and what is cached later is right.
//! An announcement must begin before its flush, and end after it: the other way round, a
//! translation could be cached in between.
//!
//! *A CPU that is away* has flushed, and uses no address of an area until it is back: then it takes
//! part again, and flushes if a period has begun meanwhile. It may have cached something in
//! between, as hardware may at any time.
//!
//! *A broadcast* for a period that has begun, and that some CPU has passed, asks the others. For
//! another it begins the period before it asks: who unmaps later, and may be missed by the flush on
//! some CPU, gets a later number.
//!
//! Cost: an unmapping takes a number, one fence and a load of a line that is written once a period.
//! A tick is two loads when nobody waits. Looking whether a period has ended is a load for each
//! CPU, and has no place on a fast path: it is done at ticks, and once for some dozens of
//! operations (I8).

use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::period::{CpuGracePeriods, GracePeriods};
use machine::{Access, CpuId, CpuSet, Flush, Machine, PerCpu, lock};
use spin::mutex::SpinMutex;

/// What a CPU says of itself.
struct Slot {
    passed: CpuGracePeriods,
    /// The period that was current when it went away.
    left: AtomicU64,
    /// The last period that something unmapped here waits for.
    wanted: AtomicU64,
    announced: AtomicU64,
    broadcasts: AtomicU64,
    asked: AtomicU64,
}

impl Slot {
    fn new() -> Slot {
        let zero = || AtomicU64::new(0);
        let (left, wanted, announced, broadcasts, asked) = (zero(), zero(), zero(), zero(), zero());
        Slot { passed: CpuGracePeriods::new(), left, wanted, announced, broadcasts, asked }
    }
}

/// What has been counted, on all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TlbGraceStats {
    /// Flushes that were announced: at ticks, by own need, by going away and coming back.
    pub announced: u64,
    /// Broadcasts.
    pub broadcasts: u64,
    /// CPUs that broadcasts were sent to, other than the one that sent it.
    pub asked: u64,
}

/// The TLB grace periods of a machine: one for all its spaces of areas, behind an [`Arc`].
///
/// ```
/// use sim::{Config, Sim};
/// use vmap::TlbGrace;
///
/// let sim = Sim::new(Config { cpus: 2, ..Config::default() }).unwrap();
/// let flushes = TlbGrace::try_new(sim.clone()).unwrap();
/// sim.on_cpu(0, || {
///     flushes.idle_exit(); // a CPU that starts
///     let target = flushes.target();
///     assert!(!flushes.is_over(target));
///     flushes.advance(target); // the period begins
///     flushes.tick(); // this CPU flushes; the other has not started, and takes no part
///     assert!(flushes.advance(target));
///     // SAFETY: there are no areas that this CPU could use.
///     unsafe { flushes.idle_enter() };
/// });
/// assert_eq!(sim.counts().ipis_sent, 0);
/// ```
pub struct TlbGrace<M: Machine> {
    machine: M,
    count: GracePeriods,
    slots: PerCpu<Slot>,
    expediting: SpinMutex<()>,
}

impl<M: Machine> TlbGrace<M> {
    /// For a machine none of whose CPUs uses areas yet: all are away. Allocates from the heap.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_new(machine: M) -> Result<Arc<Self>, TryReserveError> {
        let slots = PerCpu::try_new(machine.count(), |_| Slot::new())?;
        let count = GracePeriods::new();
        Ok(Arc::new(TlbGrace { machine, count, slots, expediting: SpinMutex::new(()) }))
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Calls `f` with this CPU's slot, interrupts off.
    fn with<T>(&self, f: impl FnOnce(&Slot) -> T) -> Option<T> {
        let _section = self.machine.irqs_off();
        Some(f(self.slots.get(self.machine.current())?))
    }

    /// The period that what this CPU, or anybody it has heard of, has unmapped so far must wait
    /// for. Any context.
    #[inline]
    pub fn target(&self) -> u64 {
        self.machine.step(Access::Shared);
        let target = self.count.target();
        // Relaxed: only this CPU writes it; it is a hint to its own tick.
        self.with(|slot| {
            // Others read the line.
            if slot.wanted.load(Ordering::Relaxed) != target {
                slot.wanted.store(target, Ordering::Relaxed);
            }
        });
        target
    }

    /// Whether the period is over: no CPU holds a translation of what was unmapped before it was
    /// numbered. A load.
    #[inline]
    pub fn is_over(&self, target: u64) -> bool {
        self.count.done() >= target
    }

    /// The last period that is over.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.count.done()
    }

    /// For each CPU's timer interrupt: if somebody waits for a period that this CPU has not passed,
    /// flushes and announces it; if something that was unmapped here waits, looks whether its
    /// period is over. Two loads and a branch when nobody waits.
    pub fn tick(&self) {
        let wanted = self.with(|slot| {
            self.quiescent_if_asked(slot);
            // Relaxed: this CPU's own.
            slot.wanted.load(Ordering::Relaxed)
        });
        if let Some(wanted) = wanted.filter(|wanted| *wanted != 0 && !self.is_over(*wanted)) {
            self.advance(wanted);
            self.with(|slot| self.quiescent_if_asked(slot));
        }
    }

    /// Nobody asks a CPU that is away.
    fn quiescent_if_asked(&self, slot: &Slot) {
        if self.count.is_asked(&slot.passed) {
            self.quiescent_here(slot);
        }
    }

    /// Flushes everything on this CPU, and announces it.
    pub fn flush(&self) {
        self.with(|slot| self.quiescent_here(slot));
    }

    fn quiescent_here(&self, slot: &Slot) {
        self.quiescent_by(slot, || self.machine.flush(Flush::All));
    }

    fn quiescent_by(&self, slot: &Slot, flush: impl FnOnce()) {
        let begun = self.count.begin();
        flush();
        self.machine.step(Access::Shared);
        if !slot.passed.is_idle() {
            self.count.end(&slot.passed, begun);
        }
        bump(&slot.announced);
    }

    /// Announces a flush that the host does in its own way, in `flush`: for all that this CPU has
    /// cached of the kernel's half, global translations and upper-level entries included.
    /// Interrupts are off.
    ///
    /// # Safety
    /// `flush` does so.
    pub unsafe fn quiescent_state(&self, flush: impl FnOnce()) {
        self.with(|slot| self.quiescent_by(slot, flush));
    }

    /// Takes this CPU out of the grace periods before it halts, stops, or runs something that uses
    /// no area. Flushes its TLB; from then on no period waits for it and no broadcast interrupts
    /// it. Nothing if it is out already.
    ///
    /// Before it, [`Vmap::idle`](crate::Vmap::idle) gives up the blocks of this CPU. One flush; no
    /// memory.
    ///
    /// # Safety
    /// Until [`idle_exit`](TlbGrace::idle_exit) is called on this CPU, this CPU uses no address of
    /// an area of a space that shares these periods, but for areas that were live when it left and
    /// stay live until it is back (a device's registers, for instance):
    /// - the calling code does not, and neither does code that it has interrupted: in an interrupt
    ///   handler, this holds only if the interrupted code is known to use none, such as an idle
    ///   loop;
    /// - no call of [`Vmap`](crate::Vmap) is under way on this CPU;
    /// - an interrupt handler that uses an address of another area calls `idle_exit` first. The CPU
    ///   then takes part again, also after the handler has returned.
    ///
    /// A CPU that is away keeps translations and may fill its TLB speculatively. Addresses are
    /// reused without asking it, so a use there would go to memory of others (I4, I5).
    ///
    /// ```compile_fail,E0133
    /// # fn idle_loop(flushes: &vmap::TlbGrace<sim::Sim>) {
    /// flushes.idle_enter();
    /// # }
    /// ```
    pub unsafe fn idle_enter(&self) {
        self.with(|slot| {
            if slot.passed.is_idle() {
                return;
            }
            let begun = self.count.begin();
            // Relaxed: this CPU's own.
            slot.left.store(begun.period(), Ordering::Relaxed);
            self.machine.flush(Flush::All);
            bump(&slot.announced);
            slot.passed.idle_enter();
        });
    }

    /// This CPU takes part in the grace periods again, or for the first time. Flushes if a period
    /// has begun since it left. Call it before the CPU uses an address of an area, in an interrupt
    /// handler too. A load if it takes part already.
    ///
    /// It is safe, and may be called too often: a CPU that takes part is waited for, which costs
    /// others time. Calls that map areas do it themselves, but a CPU may use an area that another
    /// CPU has mapped.
    pub fn idle_exit(&self) {
        self.with(|slot| {
            if !slot.passed.is_idle() {
                return;
            }
            // Relaxed: this CPU's own.
            let left = slot.left.load(Ordering::Relaxed);
            self.count.rejoin(&slot.passed, left, || {
                self.machine.flush(Flush::All);
                bump(&slot.announced);
            });
        });
    }

    /// Whether this CPU is away.
    pub fn is_idle(&self) -> bool {
        self.with(|slot| slot.passed.is_idle()) == Some(true)
    }

    /// Begins the period `wanted` as soon as can be, and ends it if all CPUs have passed it.
    /// Returns whether it is over. A load for each CPU; never waits, sends no interrupt.
    pub fn advance(&self, wanted: u64) -> bool {
        self.machine.step(Access::Shared);
        self.count.advance(wanted, self.slots.iter().map(|slot| &slot.passed))
    }

    /// How many CPUs are not away; this one at least.
    pub(crate) fn taking_part(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.passed.is_idle()).count().max(1)
    }

    /// CPUs that have not passed a period, and would have to be interrupted for it to end at once.
    pub fn behind(&self, period: u64) -> CpuSet {
        let slots = self.slots.iter().enumerate();
        let behind = slots.filter(|(_, slot)| !slot.passed.has_passed(period));
        behind.filter_map(|(cpu, _)| CpuId::new(cpu)).collect()
    }

    /// Ends the period at once: one broadcast, to the CPUs that have not passed it. If that is all
    /// of them, as where it has not begun, the newest begins and ends with it: all that anybody has
    /// unmapped by now. Nothing if it is over.
    ///
    /// Context as for [`machine::Tlb::flush_on`]: not with a lock held that an interrupt handler
    /// takes, or that a CPU with interrupts off waits for without [`machine::Step::relax`].
    pub fn expedite(&self, period: u64) {
        if self.is_over(period) {
            return;
        }
        let _one = lock(&self.machine, &self.expediting);
        // Another broadcast may have done it; or everybody has announced by now.
        if self.is_over(period) || self.advance(period) {
            return;
        }
        let begun = self.count.has_begun(period);
        // The fence in it: the look at the period comes before those at who is away; pairs with the
        // fence of `GracePeriods::begin` in `idle_exit`.
        let newest = self.count.target();
        let behind = self.behind(period);
        // All others are behind: the same messages do for the newest.
        if begun && self.others(&behind) < self.others(&self.behind(newest)) {
            self.ask(period, behind);
        } else {
            self.begin_now(newest, |flushes| flushes.behind(newest));
        }
    }

    /// Flushes on all CPUs that run, also those that are away, and ends all periods with it.
    pub(crate) fn broadcast(&self) {
        let _one = lock(&self.machine, &self.expediting);
        self.begin_now(self.count.target(), |flushes| flushes.machine.online());
    }

    fn begin_now(&self, period: u64, whom: impl FnOnce(&Self) -> CpuSet) {
        self.count.expedite_start(period);
        self.ask(period, whom(self));
    }

    /// Has these CPUs flush: then all have that are not away, since the period began.
    fn ask(&self, period: u64, cpus: CpuSet) {
        self.machine.flush_on(&cpus, Flush::All);
        self.machine.step(Access::Shared);
        self.count.expedite_end(period);
        self.with(|slot| {
            bump(&slot.broadcasts);
            // Relaxed: as `bump`.
            let asked = slot.asked.load(Ordering::Relaxed) + self.others(&cpus) as u64;
            slot.asked.store(asked, Ordering::Relaxed);
        });
    }

    /// How many of them are other CPUs.
    fn others(&self, cpus: &CpuSet) -> usize {
        cpus.len() - usize::from(cpus.contains(self.machine.current()))
    }

    /// What has been counted.
    pub fn stats(&self) -> TlbGraceStats {
        // Relaxed: statistics.
        self.slots.iter().fold(TlbGraceStats::default(), |sum, slot| TlbGraceStats {
            announced: sum.announced + slot.announced.load(Ordering::Relaxed),
            broadcasts: sum.broadcasts + slot.broadcasts.load(Ordering::Relaxed),
            asked: sum.asked + slot.asked.load(Ordering::Relaxed),
        })
    }
}

/// Relaxed, both: a statistic that one CPU writes, with interrupts off.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl<M: Machine> fmt::Debug for TlbGrace<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlbGrace").field("done", &self.done()).finish_non_exhaustive()
    }
}
