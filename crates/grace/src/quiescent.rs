//! The engine for kernels: quiescent states of CPUs.
//!
//! A section belongs to a CPU and costs two plain stores to that CPU's own memory. Each CPU
//! regularly reports a *quiescent state*, from its timer interrupt or its idle loop: it is in no
//! section. When all CPUs have done so, no CPU holds a pointer from before.
//!
//! # Grace periods
//! [`period`](crate::period) numbers the grace periods. A CPU passes one when it reports a
//! quiescent state. A full batch of retired pieces gets a *target*, the period after the current
//! one, and is due when that period has ended. A CPU with batches checks in its report whether the
//! period has ended (one load for each CPU, off every fast path), and begins the next one.
//!
//! A report is never made within a section, so each section comes before it or after it. The module
//! [`period`](crate::period) proves that a section finds no piece that has been freed. Nothing here
//! expedites, so `current` is at most one ahead of `done`.
//!
//! *An idle CPU* has not started, or has called [`idle_enter`](Quiescent::idle_enter). A section
//! makes it active, so an interrupt in the idle loop may read. It was in no section, so it holds
//! nothing that it would have to drop.
//!
//! *Interrupts.* A section in an interrupt begins and ends within the interrupted code, so the
//! plain counter of sections ends as it began. Lists of retired pieces are changed under
//! [`Domain::exclusive`].
//!
//! # The host's part
//! The host implements [`Domain`], and calls:
//!
//! - [`start`](Quiescent::start) on each CPU, before that CPU retires anything;
//! - [`quiescent_state`](Quiescent::quiescent_state) from each CPU's timer;
//! - [`idle_enter`](Quiescent::idle_enter) before it halts an idle CPU;
//! - [`reclaim`](Quiescent::reclaim) where frees may run: in the idle loop, in a thread, or before
//!   it allocates.

mod chain;

use crate::batch::{Batches, RetiredPiece};
use crate::period::{CpuGracePeriods, GracePeriods};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, UnsafeCell, compiler_fence, constant};
use crate::{Concurrent, Reclaim};
use chain::Chain;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
// Not from `sync`: it orders nothing, so loom need not model it.
use core::sync::atomic::AtomicBool;

/// The number of pieces of a batch.
pub const BATCH: usize = crate::batch::BATCH;

/// The part of the engine's state that all CPUs share; see [`Domain`].
#[derive(Debug)]
pub struct Shared {
    periods: GracePeriods,
    lost: AtomicU64,
    /// The batches that idle CPUs have left.
    orphans: Chain,
}

/// The part of the engine's state that belongs to one CPU, on cache lines of its own; see
/// [`Domain`].
///
/// # Misuse
/// A dropped slot leaks the pieces that wait in it. Neither this nor [`Shared`] has a use outside
/// of [`Domain::with`], which is the host's.
#[repr(align(128))]
pub struct CpuSlot {
    passed: CpuGracePeriods,
    /// The number of open sections on this CPU. Only this CPU uses it.
    depth: AtomicUsize,
    /// Whether [`Quiescent::reclaim`] is running frees on this CPU.
    reclaiming: AtomicBool,
    batches: UnsafeCell<Batches>,
}

// SAFETY: only the slot's own CPU touches `batches`, under `Domain::exclusive`. Their pieces may be
// freed on any CPU.
unsafe impl Sync for CpuSlot {}
// SAFETY: as above.
unsafe impl Send for CpuSlot {}

impl Shared {
    constant! {
        /// Before the first grace period.
        pub fn new() -> Self {
            Shared { periods: GracePeriods::new(), lost: AtomicU64::new(0), orphans: Chain::new() }
        }
    }

    /// The number of pieces that were retired when there was no memory to record them. They are
    /// never freed. It is 0 unless the heap was exhausted while a CPU retired [`BATCH`] more pieces
    /// without a grace period ending, or while a CPU retired that had no block: it got none when it
    /// started ([`Quiescent::start`]), or it left all it had when it became idle.
    pub fn lost(&self) -> u64 {
        // Relaxed: a statistic.
        self.lost.load(Ordering::Relaxed)
    }
}

impl CpuSlot {
    constant! {
        /// For a CPU that has not started. It counts as idle.
        pub fn new() -> Self {
            CpuSlot {
                passed: CpuGracePeriods::new(),
                depth: AtomicUsize::new(0),
                reclaiming: AtomicBool::new(false),
                batches: UnsafeCell::new(Batches::new()),
            }
        }
    }
}

impl CpuSlot {
    /// Whether a section is open on the slot's CPU. Exact on that CPU itself; other CPUs may see an
    /// old value.
    #[inline]
    pub fn is_in_section(&self) -> bool {
        // Relaxed: only its own CPU writes it.
        self.depth.load(Ordering::Relaxed) != 0
    }
}

impl fmt::Debug for CpuSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuSlot").field("passed", &self.passed).finish_non_exhaustive()
    }
}

/// The state of an engine: the shared part, and a slot for each CPU.
#[derive(Clone, Copy, Debug)]
pub struct Periods<'a> {
    shared: &'a Shared,
    slots: &'a [CpuSlot],
}

impl<'a> Periods<'a> {
    /// Combines the parts. Each part belongs to one state only.
    pub fn new(shared: &'a Shared, slots: &'a [CpuSlot]) -> Self {
        Periods { shared, slots }
    }
}

/// The host's CPUs, as the engine sees them. One type is one domain: guards of another domain do
/// not protect.
///
/// ```
/// use grace::quiescent::{Domain, Periods, Quiescent, Shared, CpuSlot};
///
/// /// A kernel with one CPU and no interrupts.
/// struct Kernel;
/// static SHARED: Shared = Shared::new();
/// static SLOTS: [CpuSlot; 1] = [CpuSlot::new()];
///
/// // SAFETY: there is one CPU, and nothing interrupts it.
/// unsafe impl Domain for Kernel {
///     type Exclusive = ();
///     fn cpu() -> usize { 0 }
///     fn exclusive() {}
///     fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T { f(Periods::new(&SHARED, &SLOTS)) }
/// }
/// type Grace = Quiescent<Kernel>;
/// # fn main() {
/// let guard = <Grace as grace::Reclaim>::pin();
/// assert!(!Grace::quiescent_state(), "in a section");
/// drop(guard);
/// assert!(Grace::start(), "the CPU has a block for retired pieces");
/// assert!(Grace::quiescent_state());
/// # }
/// ```
///
/// # Safety
/// - [`cpu`](Domain::cpu) returns the CPU that the caller runs on, less than the number of slots.
///   While a guard exists, its holder is not moved to another CPU; and while the holder is
///   preempted, no other code reports a quiescent state for that CPU.
/// - [`with`](Domain::with) passes the same state on all CPUs that can reach the same pieces, and
///   always the same state on the same CPU. A kernel has one state. A host with several machines of
///   one type passes each machine's own state on its CPUs, and must keep each structure that
///   retires through this domain to one machine: guards on another machine do not protect it.
/// - A guard stays on the CPU that took it. At a point where a thread begins or ceases to act as a
///   CPU, or changes to another one, no section is open.
/// - If not [`PREEMPTED`](Domain::PREEMPTED): only an interrupt takes a guard on this CPU while the
///   holder of another one has been interrupted. If CPUs are threads, all that one thread has done
///   as a CPU happens before the next one acts as it.
/// - While the value of [`exclusive`](Domain::exclusive) exists, nothing else runs on this CPU: no
///   interrupt that uses the engine, and no other thread.
pub unsafe trait Domain: 'static {
    /// Whether other code than an interrupt may run on this CPU, and take guards, before the holder
    /// of a guard goes on. False lets a structure find out that one CPU alone uses it
    /// ([`sole`](crate::sole)).
    const PREEMPTED: bool = true;
    /// Keeps interrupts disabled until it is dropped.
    type Exclusive;
    /// The number of this CPU.
    fn cpu() -> usize;
    /// Excludes all other code from this CPU.
    fn exclusive() -> Self::Exclusive;
    /// Passes the state to `f`.
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T;
    /// Called when the outermost section of this CPU has ended: a hook for simulated machines. Does
    /// nothing by default, and then costs nothing.
    #[inline(always)]
    fn left() {}
}

/// Reclamation by quiescent states of the CPUs of `D`; see the [module](self).
///
/// - A guard costs two loads and two stores on this CPU's own cache line, and a branch: no fence,
///   and no atomic instruction.
/// - Retiring costs an exclusive section and two words written to a batch. It allocates once for
///   each [`BATCH`] pieces, or never, if batches are freed as fast as they fill.
///
/// Retiring frees nothing and never waits. It may be called in an interrupt if the heap may be used
/// there.
///
/// # Misuse
/// The count of open sections is checked: guards without end panic when it is full, so no section
/// ends by overflow. Pieces that a CPU leaves when it becomes idle wait for older guards.
pub struct Quiescent<D>(PhantomData<D>);

/// The guard of [`Quiescent`]. It stays on the CPU that took it.
#[must_use = "the section ends when it is dropped"]
pub struct QuiescentGuard<D: Domain>(PhantomData<(D, *mut ())>);

impl<D: Domain> Drop for QuiescentGuard<D> {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed has lost its atomics.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Keeps the accesses of the section before its end, also for interrupts of this CPU.
            compiler_fence();
            // Relaxed: only this CPU uses it. An interrupt between the two leaves the value
            // unchanged.
            let left = slot.depth.load(Ordering::Relaxed) - 1;
            slot.depth.store(left, Ordering::Relaxed);
            if left == 0 {
                D::left();
            }
        });
    }
}

impl<D: Domain> fmt::Debug for QuiescentGuard<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuiescentGuard")
    }
}

// SAFETY: an item leaves its batch once, when it is freed, and batches belong to one list at a
// time.
unsafe impl<D: Domain> Reclaim for Quiescent<D> {
    type Guard = QuiescentGuard<D>;

    const PLACES: bool = !D::PREEMPTED;

    #[inline]
    fn pin() -> QuiescentGuard<D> {
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU writes it. An interrupt between the accesses leaves the value
            // unchanged.
            let depth = slot.depth.load(Ordering::Relaxed);
            // Only forgotten guards reach the limit, on a machine with 32-bit words. An overflow
            // would end the sections of earlier guards.
            let Some(depth) = depth.checked_add(1) else { too_many() };
            slot.depth.store(depth, Ordering::Relaxed);
            // Open the section first: from here on an interrupt cannot make this CPU idle.
            compiler_fence();
            // An idle CPU becomes active here, with the fence of a report. Later guards find it
            // active and need no fence.
            if slot.passed.is_idle_here() {
                idle_exit(periods, slot);
            }
            // Keeps the accesses of the section after its beginning, also for interrupts of this
            // CPU.
            compiler_fence();
        });
        QuiescentGuard(PhantomData)
    }

    unsafe fn retire(_: &QuiescentGuard<D>, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        let (_exclusive, piece) = (D::exclusive(), RetiredPiece { ptr, free });
        D::with(|periods| {
            let target = || periods.shared.periods.target();
            let batches = &periods.slots[D::cpu()].batches;
            // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
            if !batches.with_mut(|batches| unsafe { (*batches).push(piece, target) }) {
                // Relaxed: a statistic.
                periods.shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Closes this CPU's batch, so that its grace period can begin, and frees pieces that are due.
    fn flush(_: &QuiescentGuard<D>) {
        Self::close();
        Self::reclaim(usize::MAX);
    }

    #[inline(always)]
    fn place(_: &QuiescentGuard<D>) -> usize {
        D::cpu()
    }

    fn period(_: &QuiescentGuard<D>) -> u64 {
        D::with(|periods| periods.shared.periods.target())
    }

    fn is_over(period: u64) -> bool {
        D::with(|periods| periods.shared.periods.done() >= period)
    }
}

// SAFETY: see the module's head.
unsafe impl<D: Domain> Concurrent for Quiescent<D> {}

impl<D: Domain> Quiescent<D> {
    /// Prepares this CPU to retire: allocates a block for [`BATCH`] pieces, so that the CPU can
    /// record them even if the heap is exhausted. Returns whether it has a block.
    ///
    /// Call it when a CPU starts. It allocates once, and not again if called again. Without this
    /// call, the first piece allocates.
    pub fn start() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
            periods.slots[D::cpu()].batches.with_mut(|batches| unsafe { (*batches).prepare() })
        })
    }

    /// Reports a quiescent state, unless this CPU is in a section. Returns whether it reported one.
    ///
    /// Call it from the timer interrupt and the idle loop. Costs one fence and some accesses to
    /// this CPU's own cache lines. If this CPU has retired pieces, or an idle CPU has left some, it
    /// also costs one load for each CPU. Never waits, allocates or frees.
    pub fn quiescent_state() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // An idle CPU becomes active here, with the fence of a report. Later guards find it
            // active and need no fence.
            let was_idle = slot.passed.is_idle_here();
            let take_part = if was_idle { idle_exit } else { pass };
            take_part(periods, slot);
            let wanted = slot.batches.with_mut(|batches| {
                // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
                let batches = unsafe { &mut *batches };
                batches.adopt(&periods.shared.orphans);
                batches.close(|| periods.shared.periods.target())
            });
            if let Some(wanted) = wanted {
                advance(periods, wanted);
                // `advance` may have begun a period. This CPU is in no section, so it passes it at
                // once.
                pass(periods, slot);
                advance(periods, wanted);
            }
            true
        })
    }

    /// Makes this CPU idle, unless it is in a section: it stops, or has nothing to run. Its retired
    /// pieces are left to other CPUs. Returns whether it is idle now.
    ///
    /// The next guard on this CPU, also in an interrupt, makes it active again.
    pub fn idle_enter() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
            let left = slot.batches.with_mut(|batches| unsafe {
                (*batches).leave(|| periods.shared.periods.target())
            });
            periods.shared.orphans.push(left);
            slot.passed.idle_enter();
            true
        })
    }

    /// Frees up to `limit` pieces whose grace period is over, and returns their number.
    ///
    /// Call it regularly, in a context in which the frees may run. The caller must hold no lock
    /// that a free takes. The frees may retire more pieces. It does not wait. If it is called from
    /// a free that it runs itself on the same CPU, it returns 0, so that frees do not nest.
    pub fn reclaim(limit: usize) -> usize {
        let Some(_reclaiming) = Reclaiming::<D>::begin() else { return 0 };
        let mut freed = 0;
        while freed < limit {
            let due = {
                let _exclusive = D::exclusive();
                D::with(|periods| {
                    let slot = &periods.slots[D::cpu()];
                    let done = periods.shared.periods.done();
                    slot.batches.with_mut(|batches| {
                        // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off
                        // the CPU.
                        let batches = unsafe { &mut *batches };
                        batches.adopt(&periods.shared.orphans);
                        batches.pop_due(done)
                    })
                })
            };
            let Some(RetiredPiece { ptr, free }) = due else { break };
            // SAFETY: promised at `retire`. Its grace period is over, and it has left its batch.
            unsafe { free(ptr) };
            freed += 1;
        }
        freed
    }

    /// Closes this CPU's batch, full or not, so that its grace period can begin.
    fn close() {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
            let wanted = slot.batches.with_mut(|batches| unsafe {
                (*batches).close(|| periods.shared.periods.target())
            });
            if let Some(wanted) = wanted {
                advance(periods, wanted);
            }
        });
    }

    /// Whether pieces wait that this CPU has retired, or that idle CPUs have left.
    pub fn is_pending() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            // SAFETY: this CPU's own batches, and `exclusive` keeps all other code off the CPU.
            let own = periods.slots[D::cpu()]
                .batches
                .with_mut(|batches| unsafe { !(*batches).is_empty() });
            own || !periods.shared.orphans.is_empty()
        })
    }
}

/// The one call on a CPU that runs frees. Dropping it ends the call, also when a free panics.
struct Reclaiming<D: Domain>(usize, PhantomData<D>);

impl<D: Domain> Reclaiming<D> {
    fn begin() -> Option<Self> {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let cpu = D::cpu();
            // Relaxed: it orders nothing, and only the CPU itself sets it.
            let before = periods.slots[cpu].reclaiming.swap(true, Ordering::Relaxed);
            // Created only if no other call runs, since dropping it clears the flag.
            (!before).then(|| Reclaiming(cpu, PhantomData))
        })
    }
}

impl<D: Domain> Drop for Reclaiming<D> {
    fn drop(&mut self) {
        // By number, since a free may have been moved to another CPU. Relaxed: as above.
        D::with(|periods| periods.slots[self.0].reclaiming.store(false, Ordering::Relaxed));
    }
}

#[cold]
fn too_many() -> ! {
    panic!("too many guards were forgotten on this CPU: drop guards instead of leaking them")
}

/// Reports a quiescent state of this CPU.
fn pass(periods: Periods<'_>, slot: &CpuSlot) {
    let numbers = &periods.shared.periods;
    let begun = numbers.begin();
    numbers.end(&slot.passed, begun);
}

/// Makes this CPU active. The section that causes it has not looked at anything yet.
#[cold]
fn idle_exit(periods: Periods<'_>, slot: &CpuSlot) {
    slot.passed.idle_exit();
    pass(periods, slot);
}

/// Ends the current period if every CPU has passed it, and begins the next if `wanted` needs it.
fn advance(periods: Periods<'_>, wanted: u64) {
    periods.shared.periods.advance(wanted, periods.slots.iter().map(|slot| &slot.passed));
}

#[cfg(all(test, not(loom)))]
mod tests;
