//! The engine for kernels: quiescent states of CPUs.
//!
//! A section is held by a CPU, and costs two plain accesses to that CPU's own memory. Nobody who
//! reads executes a fence or an atomic instruction. The price is paid elsewhere: each CPU
//! *announces* now and then, from its timer interrupt or its idle loop, that it is in no section.
//! When all have done so, whatever any of them could have seen before is forgotten.
//!
//! # Grace periods
//! They are numbered, by [`period`](crate::period): a CPU passes one when it announces that it is
//! in no section. A batch of retired pieces is closed with a *target*, the period after the one
//! that was current then, and is due when that has ended. Whoever has a batch looks, at its
//! announcement, whether it has (one load for each CPU, off every fast path) and begins the next.
//!
//! An announcement is never within a section, so a section came before it or after it; why it found
//! nothing that was freed is told there. Nobody hastens, so `current` is at most one ahead of
//! `done`.
//!
//! *A CPU that is away* is idle, or has not started. A section on it brings it back by itself, so
//! an interrupt in the idle loop may read. There is nothing that it would have to drop, since it
//! was in no section.
//!
//! *Interrupts.* A section in an interrupt opens and closes within that of what it interrupted, so
//! the plain count comes out right. Lists of retired pieces are changed under
//! [`Domain::exclusive`].
//!
//! # What the host does
//! It implements [`Domain`], calls [`start`](Quiescent::start) on each CPU before that retires
//! anything, [`quiescent_state`](Quiescent::quiescent_state) from each CPU's timer and
//! [`idle_enter`](Quiescent::idle_enter) before it halts an idle CPU, and calls
//! [`reclaim`](Quiescent::reclaim) where frees may run: in the idle loop, in a thread, or before it
//! allocates.

mod chain;

use crate::batch::{Batches, Item};
use crate::period::{CpuGracePeriods, GracePeriods};
use crate::sync::{AtomicU64, AtomicUsize, Ordering, UnsafeCell, compiler_fence, constant};
use crate::{Concurrent, Reclaim};
use chain::Chain;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
// Not the shim's: it orders nothing.
use core::sync::atomic::AtomicBool;

/// As many pieces as wait together.
pub const BATCH: usize = crate::batch::BATCH;

/// The part of the engine's state that all CPUs share; see [`Domain`].
///
/// ```
/// use grace::quiescent::{Shared, Slot};
/// static SHARED: Shared = Shared::new();
/// static SLOTS: [Slot; 4] = [const { Slot::new() }; 4];
/// assert_eq!(SHARED.lost() + SLOTS.len() as u64, 4);
/// ```
#[derive(Debug)]
pub struct Shared {
    periods: GracePeriods,
    lost: AtomicU64,
    /// What CPUs that are away have left.
    orphans: Chain,
}

/// The part of the engine's state that belongs to one CPU, on cache lines of its own; see
/// [`Domain`].
#[repr(align(128))]
pub struct Slot {
    passed: CpuGracePeriods,
    /// Sections that are open on this CPU. Only it uses this.
    depth: AtomicUsize,
    /// Whether [`Quiescent::reclaim`] runs frees that it took from here.
    reclaiming: AtomicBool,
    batches: UnsafeCell<Batches>,
}

// SAFETY: `batches` is touched by its own CPU only, under `Domain::exclusive`; what is in it may be
// freed anywhere.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

impl Shared {
    constant! {
        /// Before the first grace period.
        pub fn new() -> Self {
            Shared { periods: GracePeriods::new(), lost: AtomicU64::new(0), orphans: Chain::new() }
        }
    }

    /// Pieces that were retired when there was no memory to remember them: they are never freed. 0
    /// unless the heap was exhausted while [`BATCH`] pieces more of one CPU waited for a grace
    /// period; or while a CPU retired that had none when it started ([`Quiescent::start`]), or that
    /// left all it had to the others when it went away.
    pub fn lost(&self) -> u64 {
        // Relaxed: a statistic.
        self.lost.load(Ordering::Relaxed)
    }
}

impl Slot {
    constant! {
        /// Of a CPU that has not started: it is away.
        pub fn new() -> Self {
            Slot {
                passed: CpuGracePeriods::new(),
                depth: AtomicUsize::new(0),
                reclaiming: AtomicBool::new(false),
                batches: UnsafeCell::new(Batches::new()),
            }
        }
    }
}

impl Slot {
    /// Whether a section is open on the slot's CPU, as that CPU itself sees it; others see it late.
    #[inline]
    pub fn is_in_section(&self) -> bool {
        // Relaxed: only its own CPU writes it.
        self.depth.load(Ordering::Relaxed) != 0
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("passed", &self.passed).finish_non_exhaustive()
    }
}

/// The state of an engine: what is shared, and a slot for each CPU.
#[derive(Clone, Copy, Debug)]
pub struct Periods<'a> {
    shared: &'a Shared,
    slots: &'a [Slot],
}

impl<'a> Periods<'a> {
    /// The state that consists of these. Each is part of one state only.
    pub fn new(shared: &'a Shared, slots: &'a [Slot]) -> Self {
        Periods { shared, slots }
    }
}

/// What a host tells the engine about its CPUs. One type is one domain: guards of another do not
/// protect.
///
/// ```
/// use grace::quiescent::{Domain, Periods, Quiescent, Shared, Slot};
///
/// /// A kernel with one CPU and no interrupts.
/// struct Kernel;
/// static SHARED: Shared = Shared::new();
/// static SLOTS: [Slot; 1] = [Slot::new()];
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
/// assert!(Grace::start(), "what is retired is remembered");
/// assert!(Grace::quiescent_state());
/// # }
/// ```
///
/// # Safety
/// - [`cpu`](Domain::cpu) is the CPU that the caller runs on, less than the number of slots.
///   Whoever holds a guard is not moved to another CPU, and while it is preempted nobody else
///   announces for its CPU.
/// - [`with`](Domain::with) passes the same state on all CPUs that can reach the same pieces, and
///   always the same on the same CPU. A kernel has one state. A host with many machines of one type
///   passes each machine's own on its CPUs, and says that a structure which retires through this
///   domain belongs to one of them: guards on another do not protect it.
/// - A guard stays on the CPU that took it: where a thread can become a CPU, or another one, or
///   none, no section is open.
/// - While the value of [`exclusive`](Domain::exclusive) lives, nothing else runs on this CPU: no
///   interrupt that uses the engine, no other thread.
pub unsafe trait Domain: 'static {
    /// Interrupts off, until it is dropped.
    type Exclusive;
    /// The number of this CPU.
    fn cpu() -> usize;
    /// Keeps everything else off this CPU.
    fn exclusive() -> Self::Exclusive;
    /// Passes the state to `f`.
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T;
    /// Called when a section of this CPU has ended that was not within another: for machines that
    /// watch. It does nothing otherwise, and costs nothing.
    #[inline(always)]
    fn left() {}
}

/// Reclamation by quiescent states of the CPUs of `D`; see the [module](self).
///
/// Cost of a guard: two loads and two stores to a line of this CPU's own and a branch; no fence, no
/// atomic instruction. Cost of retiring: an exclusive section and two words written to a batch; an
/// allocation for each [`BATCH`] pieces, none where batches are freed as fast as they fill.
/// Retiring frees nothing and never waits: it may be called in an interrupt, if the heap may.
pub struct Quiescent<D>(PhantomData<D>);

/// The guard of [`Quiescent`]. It stays on the CPU that took it.
#[must_use = "the section ends when it is dropped"]
pub struct QuiescentGuard<D: Domain>(PhantomData<(D, *mut ())>);

impl<D: Domain> Drop for QuiescentGuard<D> {
    #[inline]
    fn drop(&mut self) {
        // A model that has failed is over: its atomics are gone.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // What was done in the section stays before its end, for interrupts of this CPU too.
            compiler_fence();
            // Relaxed: only this CPU uses it. An interrupt between the two leaves it as it found
            // it.
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

    #[inline]
    fn pin() -> QuiescentGuard<D> {
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU writes it. An interrupt between the accesses leaves the count
            // as it found it.
            let depth = slot.depth.load(Ordering::Relaxed);
            // Only forgotten guards come near, in a word of 32 bits: none must end the section of
            // those before.
            let Some(depth) = depth.checked_add(1) else { too_many() };
            slot.depth.store(depth, Ordering::Relaxed);
            // The count first: from here on an interrupt cannot send this CPU away.
            compiler_fence();
            // A CPU that is away takes part again, with the fence of coming back: a guard that
            // follows finds it taking part, and fences nothing.
            if slot.passed.is_idle_here() {
                idle_exit(periods, slot);
            }
            // What is done in the section stays after its beginning, for interrupts of this CPU
            // too.
            compiler_fence();
        });
        QuiescentGuard(PhantomData)
    }

    unsafe fn retire(_: &QuiescentGuard<D>, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let target = || periods.shared.periods.target();
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            let kept = periods.slots[D::cpu()]
                .batches
                .with_mut(|batches| unsafe { (*batches).push(Item { ptr, free }, target) });
            if !kept {
                // Relaxed: a statistic.
                periods.shared.lost.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Closes this CPU's batch, so that its grace period can begin, and frees what has come due.
    fn flush(_: &QuiescentGuard<D>) {
        Self::close();
        Self::reclaim(usize::MAX);
    }
}

// SAFETY: see the module's text.
unsafe impl<D: Domain> Concurrent for Quiescent<D> {}

impl<D: Domain> Quiescent<D> {
    /// Makes this CPU ready to retire: gets memory for [`BATCH`] pieces, which are remembered then
    /// whether the heap has any left or not. Returns whether there is memory for it.
    ///
    /// For a CPU's start. Allocates once, unless it has been called before; where it was not, the
    /// first piece allocates.
    pub fn start() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            periods.slots[D::cpu()].batches.with_mut(|batches| unsafe { (*batches).prepare() })
        })
    }

    /// Says that this CPU is in no section, unless it is. Returns whether it was not.
    ///
    /// For the timer interrupt and the idle loop. One fence and some accesses to this CPU's own
    /// lines; with something retired here, or left by a CPU that went away, one load for each CPU
    /// as well. Never waits, allocates or frees.
    pub fn quiescent_state() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // A CPU that is away takes part again, with the fence of coming back: a guard that
            // follows finds it taking part, and fences nothing.
            let was_away = slot.passed.is_idle_here();
            let take_part = if was_away { idle_exit } else { pass };
            take_part(periods, slot);
            let wanted = slot.batches.with_mut(|batches| {
                // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
                let batches = unsafe { &mut *batches };
                batches.adopt(&periods.shared.orphans);
                batches.close(|| periods.shared.periods.target())
            });
            if let Some(wanted) = wanted {
                advance(periods, wanted);
                // If that has begun a period, this CPU is in no section of it.
                pass(periods, slot);
                advance(periods, wanted);
            }
            true
        })
    }

    /// Says that this CPU is in no section and will be in none, unless it is in one: it is idle or
    /// stops. What it has retired is left to the others. Returns whether it was in none.
    ///
    /// The next guard on this CPU, in an interrupt too, ends it.
    pub fn idle_enter() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            let left = slot.batches.with_mut(|batches| unsafe {
                (*batches).leave(|| periods.shared.periods.target())
            });
            periods.shared.orphans.push(left);
            slot.passed.idle_enter();
            true
        })
    }

    /// Frees up to `limit` pieces whose grace period is over, and returns how many.
    ///
    /// For a context in which the frees may run; the caller holds no lock that one of them takes.
    /// They may retire more. It does not wait: call it now and then. While this CPU is in such a
    /// call, and so from a free, another returns 0: frees would be on one stack, as deep as they
    /// are many.
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
                        // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
                        let batches = unsafe { &mut *batches };
                        batches.adopt(&periods.shared.orphans);
                        batches.pop_due(done)
                    })
                })
            };
            let Some(Item { ptr, free }) = due else { break };
            // SAFETY: promised at `retire`; its grace period is over, and it has left its batch.
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
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            let wanted = slot.batches.with_mut(|batches| unsafe {
                (*batches).close(|| periods.shared.periods.target())
            });
            if let Some(wanted) = wanted {
                advance(periods, wanted);
            }
        });
    }

    /// Whether this CPU has retired something, or adopted it from one that went away, that is not
    /// freed yet.
    pub fn is_pending() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            let own = periods.slots[D::cpu()]
                .batches
                .with_mut(|batches| unsafe { !(*batches).is_empty() });
            own || !periods.shared.orphans.is_empty()
        })
    }
}

/// The one call on a CPU that runs frees; ended also by one that panics.
struct Reclaiming<D: Domain>(usize, PhantomData<D>);

impl<D: Domain> Reclaiming<D> {
    fn begin() -> Option<Self> {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let cpu = D::cpu();
            // Relaxed: it orders nothing, and only the CPU itself sets it.
            let before = periods.slots[cpu].reclaiming.swap(true, Ordering::Relaxed);
            // Made only then: it ends the call when it is dropped.
            (!before).then(|| Reclaiming(cpu, PhantomData))
        })
    }
}

impl<D: Domain> Drop for Reclaiming<D> {
    fn drop(&mut self) {
        // By number: a free may have been moved to another CPU.
        // Relaxed: as above.
        D::with(|periods| periods.slots[self.0].reclaiming.store(false, Ordering::Relaxed));
    }
}

#[cold]
fn too_many() -> ! {
    panic!("too many guards were forgotten on this CPU")
}

/// This CPU is in no section.
fn pass(periods: Periods<'_>, slot: &Slot) {
    let numbers = &periods.shared.periods;
    let begun = numbers.begin();
    numbers.end(&slot.passed, begun);
}

/// This CPU takes part again. The section that it comes back for has looked at nothing yet.
#[cold]
fn idle_exit(periods: Periods<'_>, slot: &Slot) {
    slot.passed.idle_exit();
    pass(periods, slot);
}

/// Ends the current period if every CPU has passed it, and begins the next if `wanted` needs one.
fn advance(periods: Periods<'_>, wanted: u64) {
    periods.shared.periods.advance(wanted, periods.slots.iter().map(|slot| &slot.passed));
}

#[cfg(all(test, not(loom)))]
mod tests;
