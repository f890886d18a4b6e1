//! Numbered grace periods: whether every CPU has passed a quiescent state since some memory was
//! unlinked.
//!
//! This module is only the protocol. Its user defines the quiescent state: a moment outside all
//! read-side sections (`quiescent`, which is built on this module), or a TLB flush. In this text, a
//! CPU *holds* an entry that it has found and not yet dropped: a pointer in a section, or a
//! translation in its TLB.
//!
//! # The numbers
//! [`GracePeriods`] holds two numbers: `current`, the last period that has begun, and `done`, the
//! last that has ended. Each CPU has a [`CpuGracePeriods`], called `passed`: the value of `current`
//! at the beginning of its last report of a quiescent state. Period `p` can end when every CPU has
//! `passed >= p`. Memory that is unlinked (or unmapped) waits for its
//! [`target`](GracePeriods::target), the period after the current one. It may be reused when `done
//! >= target`.
//!
//! So a CPU writes only its own `passed`. The two shared numbers are written once a period,
//! independent of the number of CPUs and of waiting pieces (I8). A waiting CPU polls with
//! [`advance`](GracePeriods::advance), which costs one load for each CPU.
//!
//! To report a quiescent state, a CPU calls [`begin`](GracePeriods::begin), drops everything it
//! holds, and calls [`end`](GracePeriods::end). A CPU outside all sections holds nothing, and has
//! nothing to drop. A TLB must be flushed between the two: if it were flushed before `begin`, it
//! could refill before the load; if after `end`, the CPU could use a stale translation after its
//! report.
//!
//! # Correctness
//! Let `e` be unlinked on CPU A with target `t`, and reused by CPU F. Let CPU B hold `e` at some
//! time.
//!
//! F has acquired `done >= t`. The CPU that released it had acquired B's `passed >= t`. B stored
//! that at the end of a report that had loaded `current >= t` at its beginning. So B found `e`
//! either before it dropped its entries in this report, or after the report began.
//!
//! *Before the drop*: all of B's accesses through `e` happen before the end of the report, and so
//! before the reuse.
//!
//! *After the beginning*: B does not find `e`. A unlinks, executes a fence, and loads `current` (`t
//! - 1`). B loads `current` (at least `t`), executes a fence, and looks. A's load comes before B's
//! in the order of `current`. Both fences are sequentially consistent, so A's fence comes before
//! B's, and B sees that `e` is unlinked.
//!
//! # Idle CPUs
//! A CPU that is idle, or has not started, holds nothing and is not waited for: its `passed` is
//! larger than every period. Let CPU H run `advance`, and read that value after its fence, which
//! follows its load of `current`. When B becomes active it stores another value, executes a fence,
//! and only then looks. As above, A's fence comes before H's, and H's before B's, so B sees that
//! `e` is unlinked.
//!
//! But a TLB keeps its entries while B is idle, and the hardware may add more. So B flushes when it
//! becomes active, between `begin` and `end`. Or it checks, after `begin`, whether a period later
//! than the one of its last flush [has begun](GracePeriods::has_begun). If `e` was reused while B
//! was idle, H had loaded `current >= t` before its fence, which comes before B's, so B sees that
//! the period has begun. The value that `begin` itself loaded, and `done`, would be too old:
//! `begin` loads before its fence, and H may write `done` after B has looked.
//!
//! # Expedited grace periods
//! A CPU that cannot wait begins its period at once, whether or not the one before has ended
//! ([`expedite_start`](GracePeriods::expedite_start)). It makes every CPU pass a quiescent state,
//! by an IPI that each CPU answers, and then ends the period
//! ([`expedite_end`](GracePeriods::expedite_end)). So `current` may be several periods ahead of
//! `done`. The end of a period ends all earlier ones.
//!
//! *The period must begin before the IPIs are sent.* Otherwise: B answers, and looks up an entry
//! again. A unmaps that entry, loads the old `current`, and gets as its target the very period that
//! the sender then ends. With `expedite_start` first, a CPU whose target is that period or an
//! earlier one loaded `current` before the period began. Its fence comes before the fence of
//! `expedite_start`, its unlinking before the IPIs, and so no CPU finds the entry after its answer.
//! A CPU that loads `current` later gets a later target.
//!
//! A CPU that [has passed](CpuGracePeriods::has_passed) the period after `expedite_start`, because
//! it reported a quiescent state or is idle, needs no IPI.
//!
//! # Safety
//! This module touches no waiting memory, so nothing in it is unsafe. Its callers claim that a
//! report dropped everything the CPU held, that an idle CPU holds nothing, that `advance` was given
//! all CPUs, and that all CPUs have answered. The unsafe code that reuses memory is responsible for
//! these claims.

use crate::sync::{AtomicU64, Ordering, constant, fence};
use core::marker::PhantomData;

/// `passed` of a CPU that is idle.
const IDLE: u64 = u64::MAX;

/// The periods of one kind: the last that has begun, and the last that has ended.
///
/// ```
/// use grace::period::{GracePeriods, CpuGracePeriods};
/// static PERIODS: GracePeriods = GracePeriods::new();
/// static CPUS: [CpuGracePeriods; 2] = [const { CpuGracePeriods::new() }; 2];
/// fn flush() {}
/// fn tick(cpu: usize) {
///     let begun = PERIODS.begin();
///     flush();
///     PERIODS.end(&CPUS[cpu], begun);
/// }
///
/// CPUS[0].idle_exit();
/// tick(0);
/// // A page is unmapped here.
/// let target = PERIODS.target();
/// assert!(!PERIODS.advance(target, CPUS.iter()), "it has begun, and not ended");
/// assert!(PERIODS.needs_quiescent_state(&CPUS[0]));
/// tick(0);
/// assert!(PERIODS.advance(target, CPUS.iter()), "the other is idle");
/// ```
///
/// # Misuse
/// They are numbers of their owner: no code here accesses memory by them. `end`, `rejoin`,
/// `idle_enter`, `idle_exit`, `advance` and the two `expedite` calls are claims about CPUs. Unsafe
/// code that relies on such numbers keeps them private.
#[derive(Debug)]
pub struct GracePeriods {
    current: AtomicU64,
    done: AtomicU64,
}

/// The last period that one CPU has passed. Keep it on a cache line of that CPU, so that its
/// reports bounce no other CPU's line.
#[derive(Debug)]
pub struct CpuGracePeriods(AtomicU64);

/// A report of a quiescent state that has begun on this CPU, for one [`GracePeriods`]. Dropping it
/// reports nothing.
#[derive(Debug)]
#[must_use = "no quiescent state is reported until `GracePeriods::end`"]
pub struct Begun(u64, PhantomData<*mut ()>);

impl Begun {
    /// The current period at the beginning of the report. A CPU that drops everything it holds
    /// before the end of the report has done so for this period.
    pub fn period(&self) -> u64 {
        self.0
    }
}

impl GracePeriods {
    constant! {
        /// Before the first period.
        pub fn new() -> Self {
            GracePeriods { current: AtomicU64::new(0), done: AtomicU64::new(0) }
        }
    }

    /// The period that must end before memory that this CPU has unlinked so far may be reused. One
    /// fence and one load.
    #[inline]
    pub fn target(&self) -> u64 {
        // SeqCst fence: the unlinking comes before the load. Pairs with the fences of `begin` and
        // `expedite_start`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it.
        self.current.load(Ordering::Relaxed) + 1
    }

    /// The last period that has ended. Memory whose target is this period or an earlier one may be
    /// reused. One load.
    #[inline]
    pub fn done(&self) -> u64 {
        // Acquire: pairs with the Release of `advance` and `expedite_end`, and so with the end of
        // every report.
        self.done.load(Ordering::Acquire)
    }

    /// Whether a period has begun that this CPU has not passed, as far as this CPU can see: for a
    /// tick that reports a quiescent state only if a CPU waits. Two loads. Always false for an idle
    /// CPU.
    #[inline]
    pub fn needs_quiescent_state(&self, passed: &CpuGracePeriods) -> bool {
        // Relaxed: a hint. If it is stale, the next tick sees the new value.
        self.current.load(Ordering::Relaxed) > passed.0.load(Ordering::Relaxed)
    }

    /// Whether `period` has begun. One load.
    ///
    /// If it returns false after a [`begin`](GracePeriods::begin) that followed
    /// [`CpuGracePeriods::idle_exit`] on the same CPU, then that period did not end while the CPU
    /// was idle.
    #[inline]
    pub fn has_begun(&self, period: u64) -> bool {
        // Relaxed: the fence of `begin` orders it. That fence pairs with those of `advance` and
        // `expedite_start`.
        self.current.load(Ordering::Relaxed) >= period
    }

    /// Begins a report of a quiescent state on this CPU. The CPU drops everything it holds between
    /// this call and [`end`](GracePeriods::end). One load and one fence.
    ///
    /// The CPU must be active from this call to the end: it has called
    /// [`idle_exit`](CpuGracePeriods::idle_exit), and no interrupt makes it idle. An interrupt may
    /// make a complete report of its own in between.
    #[inline]
    pub fn begin(&self) -> Begun {
        // Relaxed: the fence orders it.
        let current = self.current.load(Ordering::Relaxed);
        // SeqCst fence: this CPU's lookups from now on come after the load, and after the store of
        // `idle_exit`. Pairs with the fences of `target`, `advance` and `expedite_start`.
        fence(Ordering::SeqCst);
        Begun(current, PhantomData)
    }

    /// Ends a report: this CPU, the owner of `passed`, has passed the period that was current when
    /// the report began. One store.
    #[inline]
    pub fn end(&self, passed: &CpuGracePeriods, begun: Begun) {
        // Release: all accesses through the entries that were dropped come before. Pairs with the
        // Acquire in `advance` and `has_passed`.
        passed.0.store(begun.0, Ordering::Release);
    }

    /// Makes an idle CPU active, and calls `flush` if a period has begun after `left`, the period
    /// of its last flush. Does all steps from [`CpuGracePeriods::idle_exit`] to
    /// [`end`](GracePeriods::end), in the order that is correct for a TLB. The CPU must use no
    /// entry before this returns.
    #[inline]
    pub fn rejoin(&self, passed: &CpuGracePeriods, left: u64, flush: impl FnOnce()) {
        passed.idle_exit();
        let begun = self.begin();
        // After `begin`, so that this sees every period that has ended while the CPU was idle.
        if self.has_begun(left + 1) {
            flush();
        }
        self.end(passed, begun);
    }

    /// Ends the periods that every CPU has passed. Begins `wanted` if it has not begun and the
    /// period before it has ended. Returns whether `wanted` has ended.
    ///
    /// `wanted` is a [`target`](GracePeriods::target) of these periods, and `all` yields the
    /// `CpuGracePeriods` of all CPUs. One fence, and while a period runs, one load for each CPU up
    /// to the first that has passed nothing new. Never waits: call it again later.
    pub fn advance<'a>(
        &self,
        wanted: u64,
        all: impl IntoIterator<Item = &'a CpuGracePeriods>,
    ) -> bool {
        // Relaxed: the fence orders it.
        let current = self.current.load(Ordering::Relaxed);
        // SeqCst fence: the load of `current` comes before the loads of `passed`. Pairs with the
        // fence that follows the store of `idle_exit`.
        fence(Ordering::SeqCst);
        let mut done = self.done();
        if done < current {
            // Ends the last period that all CPUs have passed. After an `expedite_start`, that may
            // be less than `current` and more than `done`.
            let mut ended = current;
            for passed in all {
                // Acquire: pairs with the Release of `end` and `idle_enter`. The accesses of that
                // CPU before its report come before the reuse.
                ended = ended.min(passed.0.load(Ordering::Acquire));
                if ended <= done {
                    return done >= wanted;
                }
            }
            // AcqRel: passes on what was acquired here, and acquires what another CPU has passed
            // on. Pairs with the Acquire of `done`. The maximum, since a broadcast may have ended a
            // later period meanwhile.
            done = self.done.fetch_max(ended, Ordering::AcqRel).max(ended);
        }
        if wanted > current && done >= current {
            // AcqRel: in one order with the loads of `current`. It fails if another CPU has begun
            // the period.
            let _ = self.current.compare_exchange(
                current,
                current + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
        done >= wanted
    }

    /// Begins `wanted` at once. A CPU that unlinks from now on, possibly too late for the caller's
    /// next step (a broadcast), gets a later target. One atomic instruction and one fence. `wanted`
    /// is a [`target`](GracePeriods::target) of these periods.
    pub fn expedite_start(&self, wanted: u64) {
        // AcqRel: as in `advance`. The maximum, since another CPU may have begun a later period.
        self.current.fetch_max(wanted, Ordering::AcqRel);
        // SeqCst fence: the period has begun before the caller checks for idle CPUs or sends IPIs.
        // Pairs with the fence of `target`, and with the fence that follows the store of
        // `idle_exit`.
        fence(Ordering::SeqCst);
    }

    /// Ends `wanted` and all earlier periods. One atomic instruction.
    ///
    /// The caller claims that since its [`expedite_start`](GracePeriods::expedite_start) of
    /// `wanted`, every CPU has dropped everything it held, and that this happened before the call.
    /// A CPU has done so if it answered an IPI that was sent since, or if the caller saw that it
    /// [has passed](CpuGracePeriods::has_passed) `wanted`, as an idle CPU has.
    pub fn expedite_end(&self, wanted: u64) {
        // AcqRel: passes on what the answers released. Pairs with the Acquire of `done`. The
        // maximum, as in `advance`.
        self.done.fetch_max(wanted, Ordering::AcqRel);
    }
}

impl CpuGracePeriods {
    constant! {
        /// For a CPU that is idle.
        pub fn new() -> Self {
            CpuGracePeriods(AtomicU64::new(IDLE))
        }
    }

    /// Makes this CPU idle: it holds nothing until [`idle_exit`](CpuGracePeriods::idle_exit), and
    /// no period waits for it. One store.
    #[inline]
    pub fn idle_enter(&self) {
        // Release: all its accesses come before. Pairs with the Acquire in `advance` and
        // `has_passed`.
        self.0.store(IDLE, Ordering::Release);
    }

    /// Makes this CPU active. It must report a quiescent state at once ([`GracePeriods::begin`], a
    /// flush, [`GracePeriods::end`]), and use no entry before. Until then it delays every period.
    /// One store.
    #[inline]
    pub fn idle_exit(&self) {
        // Relaxed: the fence of `begin`, which follows, orders it. That fence pairs with those of
        // `advance` and `expedite_start`.
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the CPU is idle. One load.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release of `idle_enter`. The CPU's earlier accesses come before
        // the caller's next ones.
        self.0.load(Ordering::Acquire) == IDLE
    }

    /// As [`is_idle`](CpuGracePeriods::is_idle), for the CPU itself.
    #[cfg(feature = "quiescent")]
    #[inline]
    pub(crate) fn is_idle_here(&self) -> bool {
        // Relaxed: only this CPU writes it.
        self.0.load(Ordering::Relaxed) == IDLE
    }

    /// Whether the CPU has passed `period`, or is idle. One load.
    #[inline]
    pub fn has_passed(&self, period: u64) -> bool {
        // Acquire: pairs with the Release of `end` and `idle_enter`. The CPU's earlier accesses
        // come before the caller's next ones.
        self.0.load(Ordering::Acquire) >= period
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
