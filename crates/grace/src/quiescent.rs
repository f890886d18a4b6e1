//! The engine for kernels: quiescent states of CPUs.
//!
//! A section is held by a CPU, and costs two plain accesses to that CPU's own memory. Nobody who reads executes a fence
//! or an atomic instruction. The price is paid elsewhere: each CPU *announces* now and then, from its timer interrupt
//! or its idle loop, that it is in no section. When all have done so, whatever any of them could have seen before is
//! forgotten.
//!
//! # Grace periods
//! Grace periods are numbered. `current` is the last one that has begun, `done` the last that has ended, at most one
//! behind. A CPU's `passed` is the value of `current` that it saw at its last announcement. Period `p` has ended when
//! every CPU's `passed` is at least `p`. A batch of retired pieces is closed with a *target*: the period after the one
//! that was current then. It is due when `done` has reached its target.
//!
//! So per CPU nothing is shared but its own `passed`; `current` and `done` are written once a grace period, however
//! many CPUs and pieces there are (I8). Whoever has a batch looks, at its announcement, whether the period has ended
//! (one load for each CPU, off every fast path) and begins the next.
//!
//! # Why the promise holds
//! Let `p` be unlinked, then retired on CPU A in a batch with target `t`, and freed by CPU F. Let a section be on CPU B.
//!
//! F acquires `done >= t`, which was released by who acquired B's `passed >= t`. B stored that at an announcement that
//! saw `current >= t`, and an announcement is never within a section. So the section came before it or after it:
//!
//! *Before it*: all that was done in the section happens before B's store, and so before the free.
//!
//! *After it*: the section does not find `p`. A: unlink, fence, load `current` (`t - 1`). B: load `current` (`t` or
//! more), fence, look. A's load comes before B's in the order of `current`, so A's fence comes before B's, and B sees
//! the unlink. Both fences are sequentially consistent, and neither is on a reader's path.
//!
//! *A CPU that is away* (idle, or not started) takes no part: its `passed` says so. F's helper read that after a
//! fence that followed its load of `current`; B, when it comes back, stores another value, fences, and only then looks.
//! As above, A's fence comes before the helper's, and that before B's: B sees the unlink. A section on a CPU that is
//! away brings it back by itself, so an interrupt in the idle loop may read.
//!
//! *Interrupts.* A section in an interrupt opens and closes within that of what it interrupted, so the plain count comes out
//! right. Lists of retired pieces are changed under [`Domain::exclusive`].
//!
//! # What the host does
//! It implements [`Domain`], calls [`start`](Quiescent::start) on each CPU before that retires anything,
//! [`announce`](Quiescent::announce) from each CPU's timer and
//! [`away`](Quiescent::away) before it halts an idle CPU, and calls [`reclaim`](Quiescent::reclaim) where frees may
//! run: in the idle loop, in a thread, or before it allocates.

mod batch;
mod sync;

use crate::{Concurrent, Reclaim};
use batch::{Batches, Chain, Item};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, compiler_fence, fence};

pub use batch::BATCH;
#[cfg(not(loom))]
use sync::Fence;
#[cfg(loom)]
#[doc(hidden)]
pub use sync::{Fence, without};

/// What a CPU that takes no part has passed.
const AWAY: u64 = u64::MAX;

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
    current: AtomicU64,
    done: AtomicU64,
    lost: AtomicU64,
    /// What CPUs that are away have left.
    orphans: Chain,
}

/// The part of the engine's state that belongs to one CPU, on cache lines of its own; see [`Domain`].
#[repr(align(128))]
pub struct Slot {
    passed: AtomicU64,
    /// Sections that are open on this CPU. Only it uses this.
    depth: AtomicU32,
    batches: UnsafeCell<Batches>,
}

// SAFETY: `batches` is touched by its own CPU only, under `Domain::exclusive`; what is in it may be freed anywhere.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

macro_rules! constant {
    ($(#[$doc:meta])* $vis:vis fn $name:ident() -> Self $body:block) => {
        $(#[$doc])*
        #[cfg(not(loom))]
        #[expect(clippy::new_without_default, reason = "made once, for a static")]
        $vis const fn $name() -> Self $body
        $(#[$doc])*
        #[cfg(loom)]
        #[expect(clippy::new_without_default, reason = "as above")]
        $vis fn $name() -> Self $body
    };
}

impl Shared {
    constant! {
        /// Before the first grace period.
        pub fn new() -> Self {
            Shared {
                current: AtomicU64::new(0),
                done: AtomicU64::new(0),
                lost: AtomicU64::new(0),
                orphans: Chain::new(),
            }
        }
    }

    /// Pieces that were retired when there was no memory to remember them: they are never freed. 0 unless the heap was
    /// exhausted while [`BATCH`] pieces more of one CPU waited for a grace period; or while a CPU retired that had none when it
    /// started ([`Quiescent::start`]), or that left all it had to the others when it went away.
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
                passed: AtomicU64::new(AWAY),
                depth: AtomicU32::new(0),
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
        // Relaxed: for people to look at.
        f.debug_struct("Slot")
            .field("passed", &self.passed.load(Ordering::Relaxed))
            .finish_non_exhaustive()
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

/// What a host tells the engine about its CPUs. One type is one domain: guards of another do not protect.
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
/// assert!(!Grace::announce(), "in a section");
/// drop(guard);
/// assert!(Grace::start(), "what is retired is remembered");
/// assert!(Grace::announce());
/// # }
/// ```
///
/// # Safety
/// - [`cpu`](Domain::cpu) is the CPU that the caller runs on, less than the number of slots. Whoever holds a guard is
///   not moved to another CPU, and while it is preempted nobody else announces for its CPU.
/// - [`with`](Domain::with) passes the same state on all CPUs that can reach the same pieces, and always the same on the same
///   CPU. A kernel has one state. A host with many machines of one type passes each machine's own on its CPUs, and says that a
///   structure which retires through this domain belongs to one of them: guards on another do not protect it.
/// - A guard stays on the CPU that took it: where a thread can become a CPU, or another one, or none, no section is open.
/// - While the value of [`exclusive`](Domain::exclusive) lives, nothing else runs on this CPU: no interrupt that uses
///   the engine, no other thread.
pub unsafe trait Domain: 'static {
    /// Interrupts off, until it is dropped.
    type Exclusive;
    /// The number of this CPU.
    fn cpu() -> usize;
    /// Keeps everything else off this CPU.
    fn exclusive() -> Self::Exclusive;
    /// Passes the state to `f`.
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T;
    /// Called when a section of this CPU has ended that was not within another: for machines that watch. It does
    /// nothing otherwise, and costs nothing.
    #[inline(always)]
    fn left() {}
}

/// Reclamation by quiescent states of the CPUs of `D`; see the [module](self).
///
/// Cost of a guard: two loads and two stores to a line of this CPU's own and a branch; no fence, no atomic instruction.
/// Cost of retiring: an exclusive section and two words written to a batch; an allocation for each [`BATCH`] pieces,
/// none where batches are freed as fast as they fill. Retiring frees nothing and never waits: it may be called in an
/// interrupt, if the heap may.
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
            // Relaxed: only this CPU uses it. An interrupt between the two leaves it as it found it.
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

// SAFETY: an item leaves its batch once, when it is freed, and batches belong to one list at a time.
unsafe impl<D: Domain> Reclaim for Quiescent<D> {
    type Guard = QuiescentGuard<D>;

    #[inline]
    fn pin() -> QuiescentGuard<D> {
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU writes either. An interrupt between the accesses leaves the count as it found it.
            slot.depth.store(slot.depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            // The count first: from here on an interrupt cannot send this CPU away.
            compiler_fence();
            if slot.passed.load(Ordering::Relaxed) == AWAY {
                come_back(periods, slot);
            }
            // What is done in the section stays after its beginning, for interrupts of this CPU too.
            compiler_fence();
        });
        QuiescentGuard(PhantomData)
    }

    unsafe fn retire(_: &QuiescentGuard<D>, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let target = || target(periods);
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
    /// Makes this CPU ready to retire: gets memory for [`BATCH`] pieces, which are remembered then whether the heap has any left
    /// or not. Returns whether there is memory for it.
    ///
    /// For a CPU's start. Allocates once, unless it has been called before; where it was not, the first piece allocates.
    pub fn start() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            periods.slots[D::cpu()].batches.with_mut(|batches| unsafe { (*batches).prepare() })
        })
    }

    /// Says that this CPU is in no section, unless it is. Returns whether it was not.
    ///
    /// For the timer interrupt and the idle loop. One fence and some accesses to this CPU's own lines; with something
    /// retired here, or left by a CPU that went away, one load for each CPU as well. Never waits, allocates or frees.
    pub fn announce() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            pass(periods, slot);
            let wanted = slot.batches.with_mut(|batches| {
                // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
                let batches = unsafe { &mut *batches };
                batches.adopt(&periods.shared.orphans);
                batches.close(|| target(periods))
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

    /// Says that this CPU is in no section and will be in none, unless it is in one: it is idle or stops. What it has
    /// retired is left to the others. Returns whether it was in none.
    ///
    /// The next guard on this CPU, in an interrupt too, ends it.
    pub fn away() -> bool {
        let _exclusive = D::exclusive();
        D::with(|periods| {
            let slot = &periods.slots[D::cpu()];
            // Relaxed: only this CPU uses it.
            if slot.depth.load(Ordering::Relaxed) != 0 {
                return false;
            }
            // SAFETY: this CPU's own, and `exclusive` keeps all else off it.
            let left =
                slot.batches.with_mut(|batches| unsafe { (*batches).leave(|| target(periods)) });
            periods.shared.orphans.push(left);
            // Release: sections that were come before; pairs with the Acquire in `advance`.
            slot.passed.store(AWAY, Ordering::Release);
            true
        })
    }

    /// Frees up to `limit` pieces whose grace period is over, and returns how many.
    ///
    /// For a context in which the frees may run; the caller holds no lock that one of them takes. They may retire more.
    /// It does not wait: call it now and then.
    pub fn reclaim(limit: usize) -> usize {
        let mut freed = 0;
        while freed < limit {
            let due = {
                let _exclusive = D::exclusive();
                D::with(|periods| {
                    let slot = &periods.slots[D::cpu()];
                    // Acquire: pairs with the Release of `advance`, and so with the end of every section.
                    let done = periods.shared.done.load(Ordering::Acquire);
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
            let wanted =
                slot.batches.with_mut(|batches| unsafe { (*batches).close(|| target(periods)) });
            if let Some(wanted) = wanted {
                advance(periods, wanted);
            }
        });
    }

    /// Whether this CPU has retired something, or adopted it from one that went away, that is not freed yet.
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

/// The period that what has been unlinked so far must wait for.
fn target(periods: Periods<'_>) -> u64 {
    // SeqCst fence: the unlinking comes before the load; pairs with the fence of `pass`.
    fence(Fence::Target);
    // Relaxed: the fence orders it.
    periods.shared.current.load(Ordering::Relaxed) + 1
}

/// This CPU is in no section.
fn pass(periods: Periods<'_>, slot: &Slot) {
    // Relaxed: the fence orders it.
    let current = periods.shared.current.load(Ordering::Relaxed);
    // SeqCst fence: what this CPU looks at from now on comes after the load; pairs with the fence of `target`, and that
    // of `advance`.
    fence(Fence::Pass);
    // Release: sections that were come before; pairs with the Acquire in `advance`.
    slot.passed.store(current, Ordering::Release);
}

/// This CPU takes part again. The section that it comes back for has looked at nothing yet.
#[cold]
fn come_back(periods: Periods<'_>, slot: &Slot) {
    // Relaxed: the fence of `pass`, which follows, orders it; that pairs with the fence of `advance`. 0 holds up every
    // period until the announcement.
    slot.passed.store(0, Ordering::Relaxed);
    pass(periods, slot);
}

/// Ends the current period if every CPU has passed it, and begins the next if `wanted` needs one.
fn advance(periods: Periods<'_>, wanted: u64) {
    let shared = periods.shared;
    // Relaxed: the fence orders it.
    let current = shared.current.load(Ordering::Relaxed);
    // SeqCst fence: the load comes before those of `passed`; pairs with the fence that follows `come_back`'s store.
    fence(Fence::Advance);
    // Acquire: as in `reclaim`.
    if shared.done.load(Ordering::Acquire) < current {
        // Acquire: pairs with the Release of `pass` and `away`: sections that have ended come before what is freed.
        if periods.slots.iter().any(|slot| slot.passed.load(Ordering::Acquire) < current) {
            return;
        }
        // AcqRel: passes on what was acquired; pairs with the Acquire of `reclaim`.
        shared.done.fetch_max(current, Ordering::AcqRel);
    }
    if wanted > current {
        // AcqRel: in one order with the loads of `current`; it fails if another CPU has begun the period.
        let _ = shared.current.compare_exchange(
            current,
            current + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
