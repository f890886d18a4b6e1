//! Numbered grace periods: when has every CPU passed a point, since something was unlinked?
//!
//! This is the protocol alone. What a CPU has to do to pass is its user's: to be in no read-side
//! section (`quiescent`, which stands on this), or to have flushed its TLB. In what follows a CPU
//! *knows* what it has found and not dropped: pointers that it holds in a section, or translations
//! in its TLB.
//!
//! # The numbers
//! Periods are numbered. [`GracePeriods`] holds `current`, the last that has begun, and `done`, the
//! last that has ended. Each CPU's [`CpuGracePeriods`] is the value of `current` that it saw when
//! it last *announced*. Period `p` has ended when each CPU's is at least `p`. What is unlinked, or
//! unmapped, waits for a [`target`](GracePeriods::target): the period after the one that is current
//! then. It may be reused when `done` has reached that.
//!
//! So a CPU writes only its own `CpuGracePeriods`. The two numbers are written once a period,
//! however many CPUs and pieces there are (I8). Who waits looks, now and then, whether the period
//! has ended: [`advance`](GracePeriods::advance), one load for each CPU.
//!
//! An announcement is [`begin`](GracePeriods::begin), then what drops all that this CPU knows, then
//! [`end`](GracePeriods::end). A CPU that knows nothing as it is (it is in no section) has nothing
//! to do in between. A TLB is flushed there: not before `begin`, since it would fill again before
//! the load; not after `end`, since it would be used after it.
//!
//! # Why it is right
//! Let `e` be unlinked on CPU A with target `t`, and reused by CPU F. Let CPU B know `e`.
//!
//! F acquires `done >= t`, which was released by who acquired B's `passed >= t`. B stored that at
//! the end of an announcement that had loaded `current >= t` at its beginning. So B either found
//! `e` before it dropped what it knew, or after it began.
//!
//! *Before it dropped it*: all that B did by it happens before the end of the announcement, and so
//! before the reuse.
//!
//! *After it began*: B does not find `e`. A: unlink, fence, load `current` (`t - 1`). B: load
//! `current` (`t` or more), fence, look. A's load comes before B's in the order of `current`, so
//! A's fence comes before B's, and B sees that `e` is unlinked. Both fences are sequentially
//! consistent.
//!
//! # CPUs that are away
//! A CPU that is idle, or not started, uses nothing and takes no part: its `passed` says so. H, who
//! advances, read that after a fence that followed its load of `current`. When B comes back it
//! stores another value, fences, and only then looks. As above, A's fence comes before H's, and
//! that before B's: B sees that `e` is unlinked.
//!
//! But a TLB keeps what it knew, and the hardware may fill it, while B is away. So B flushes when
//! it comes back, within the announcement: or it asks after `begin` whether a period [has
//! begun](GracePeriods::has_begun) after the last that it flushed in. If `e` was reused meanwhile,
//! H had loaded `current >= t` before its fence, which comes before B's, so B sees that it has.
//! What `begin` itself loaded, or `done`, would be too old: `begin` loads before its fence, and H
//! writes `done` after B may have looked.
//!
//! # In a hurry
//! Who cannot wait begins its period at once, whether the one before has ended or not
//! ([`expedite_start`](GracePeriods::expedite_start)), makes every CPU pass (a broadcast, answered
//! by all), and says so ([`expedite_end`](GracePeriods::expedite_end)). So `current` may be several
//! ahead of `done`; a period that ends, ends all before it.
//!
//! *The period is begun before the broadcast.* Else: B has answered the broadcast, A unmaps what B
//! has looked up again since, loads the old `current`, and gets as its target the very period that
//! the broadcaster then declares ended. With `expedite_start` first, who gets a target up to the
//! has_tened period loaded `current` before it was begun: its fence comes before that of
//! `expedite_start`, its unlinking before the broadcast, and no CPU finds it after it answered. Who
//! loads later gets a later target.
//!
//! A CPU that [has passed](CpuGracePeriods::has_passed) the period after `expedite_start`, because
//! it announced or is away, needs no message.
//!
//! # Whose word it is
//! Nothing here touches what waits, so nothing is unsafe. All here are words of its users: that an
//! announcement dropped everything, that who is away uses nothing, that all CPUs were named to
//! `advance`, that all have answered. The unsafe code that reuses memory answers for them.

#[cfg(not(loom))]
use crate::sync::Fence;
use crate::sync::{AtomicU64, Ordering, constant, fence};
use core::marker::PhantomData;

#[cfg(loom)]
#[doc(hidden)]
pub use crate::sync::{Fence, without};

/// What a CPU that takes no part has passed.
const AWAY: u64 = u64::MAX;

/// The periods of one kind: the last that has begun, and the last that has ended.
///
/// ```
/// use grace::period::{GracePeriods, CpuGracePeriods};
/// static FLUSHES: GracePeriods = GracePeriods::new();
/// static CPUS: [CpuGracePeriods; 2] = [const { CpuGracePeriods::new() }; 2];
/// fn flush() {}
/// fn tick(cpu: usize) {
///     let begun = FLUSHES.begin();
///     flush();
///     FLUSHES.end(&CPUS[cpu], begun);
/// }
///
/// CPUS[0].idle_exit();
/// tick(0);
/// // Something is unmapped.
/// let target = FLUSHES.target();
/// assert!(!FLUSHES.advance(target, CPUS.iter()), "it has begun");
/// assert!(FLUSHES.is_asked(&CPUS[0]));
/// tick(0);
/// assert!(FLUSHES.advance(target, CPUS.iter()), "the other is away");
/// ```
#[derive(Debug)]
pub struct GracePeriods {
    current: AtomicU64,
    done: AtomicU64,
}

/// What one CPU has passed. On a cache line of that CPU's own, its announcements disturb nobody.
#[derive(Debug)]
pub struct CpuGracePeriods(AtomicU64);

/// An announcement that has begun on this CPU, and is for one [`GracePeriods`]. Dropped, it
/// announces nothing.
#[derive(Debug)]
#[must_use = "nothing is announced until `GracePeriods::end`"]
pub struct Begun(u64, PhantomData<*mut ()>);

impl Begun {
    /// The period that was current: who drops all it knows before it ends this has done so for that
    /// period.
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

    /// The period whose end what this CPU has unlinked so far must wait for. One fence and one
    /// load.
    #[inline]
    pub fn target(&self) -> u64 {
        // SeqCst fence: the unlinking comes before the load; pairs with the fences of `begin` and
        // `expedite_start`.
        fence(Fence::Target);
        // Relaxed: the fence orders it.
        self.current.load(Ordering::Relaxed) + 1
    }

    /// The last period that has ended: what waits for that or an earlier one may be reused. One
    /// load.
    #[inline]
    pub fn done(&self) -> u64 {
        // Acquire: pairs with the Release of `advance` and `expedite_end`, and so with the end of
        // every announcement.
        self.done.load(Ordering::Acquire)
    }

    /// Whether a period has begun that the CPU of `passed` has not passed, as far as is known here:
    /// for a tick that announces only if somebody waits. Two loads. Never so of a CPU that is away.
    #[inline]
    pub fn is_asked(&self, passed: &CpuGracePeriods) -> bool {
        // Relaxed: a hint. If it is old, the next tick sees it.
        self.current.load(Ordering::Relaxed) > passed.0.load(Ordering::Relaxed)
    }

    /// Whether `period` has begun. One load.
    ///
    /// After a [`begin`](GracePeriods::begin) that followed [`CpuGracePeriods::idle_exit`], on the
    /// same CPU: if not, that period has not ended while the CPU was away.
    #[inline]
    pub fn has_begun(&self, period: u64) -> bool {
        // Relaxed: the fence of `begin` orders it; that pairs with the fences of `advance` and
        // `expedite_start`.
        self.current.load(Ordering::Relaxed) >= period
    }

    /// Begins an announcement of this CPU. All that it knows, it drops between this and
    /// [`end`](GracePeriods::end). One load and one fence.
    ///
    /// The CPU takes part when it begins, and until it ends: it has [come
    /// back](CpuGracePeriods::idle_exit), and no interrupt sends it away. One that announces for
    /// itself in between does no harm.
    #[inline]
    pub fn begin(&self) -> Begun {
        // Relaxed: the fence orders it.
        let current = self.current.load(Ordering::Relaxed);
        // SeqCst fence: what this CPU looks at from now on comes after the load, and after the
        // store of `idle_exit`; pairs with the fences of `target`, `advance` and `expedite_start`.
        fence(Fence::Begin);
        Begun(current, PhantomData)
    }

    /// Ends an announcement: this CPU, whose `passed` is, has passed what was current when it
    /// began. One store.
    #[inline]
    pub fn end(&self, passed: &CpuGracePeriods, begun: Begun) {
        // Release: all that was done by what has been dropped came before; pairs with the Acquire
        // in `advance` and `has_passed`.
        passed.0.store(begun.0, Ordering::Release);
    }

    /// A CPU that was away takes part again, and `flush`es if it must: if a period has begun after
    /// `left`, the last that it flushed in. From [`CpuGracePeriods::idle_exit`] to
    /// [`end`](GracePeriods::end) in one, in the order that is right for a TLB; the CPU uses
    /// nothing before it returns.
    #[inline]
    pub fn rejoin(&self, passed: &CpuGracePeriods, left: u64, flush: impl FnOnce()) {
        passed.idle_exit();
        let begun = self.begin();
        // After `begin`, so that a period is seen that has ended while this CPU was away.
        if self.has_begun(left + 1) {
            flush();
        }
        self.end(passed, begun);
    }

    /// Ends the periods that every CPU has passed, and begins `wanted` if it has not begun and the
    /// one before has ended. Returns whether `wanted` has ended.
    ///
    /// `wanted` is a [`target`](GracePeriods::target) of these periods, and `all` are the
    /// `CpuGracePeriods` of all CPUs. One fence and, while a period runs, a load for each CPU, up
    /// to the first that has passed nothing new. Never waits: call it again, later.
    pub fn advance<'a>(
        &self,
        wanted: u64,
        all: impl IntoIterator<Item = &'a CpuGracePeriods>,
    ) -> bool {
        // Relaxed: the fence orders it.
        let current = self.current.load(Ordering::Relaxed);
        // SeqCst fence: the load comes before those of `passed`; pairs with the fence that follows
        // `idle_exit`'s store.
        fence(Fence::Advance);
        let mut done = self.done();
        if done < current {
            // What all have passed ends: with `expedite_start`, that may be less than `current` and
            // yet more than `done`.
            let mut ended = current;
            for passed in all {
                // Acquire: pairs with the Release of `end` and `idle_enter`: what a CPU did before
                // comes before the reuse.
                ended = ended.min(passed.0.load(Ordering::Acquire));
                if ended <= done {
                    return done >= wanted;
                }
            }
            // AcqRel: passes on what was acquired, and acquires what another has; pairs with the
            // Acquire of `done`. The largest stays: a broadcast may have completed a later period
            // meanwhile.
            done = self.done.fetch_max(ended, Ordering::AcqRel).max(ended);
        }
        if wanted > current && done >= current {
            // AcqRel: in one order with the loads of `current`; it fails if another CPU has begun
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

    /// Begins `wanted`, whatever is current: who unlinks from now on, not seen by what the caller
    /// does next (a broadcast), gets a later target. One atomic instruction and one fence. `wanted`
    /// is a [`target`](GracePeriods::target) of these periods.
    pub fn expedite_start(&self, wanted: u64) {
        // AcqRel: as in `advance`. The largest stays: another may be further.
        self.current.fetch_max(wanted, Ordering::AcqRel);
        // SeqCst fence: the period has begun before the caller asks who is away, or sends a
        // message; pairs with the fence of `target`, and with the fence that follows `idle_exit`'s
        // store.
        fence(Fence::Expedite);
    }

    /// Ends `wanted` and all periods before. One atomic instruction.
    ///
    /// It is the caller's word that since its [`expedite_start`](GracePeriods::expedite_start) of
    /// `wanted` every CPU has dropped all it knows, and that this happened before the call: it has
    /// answered a message that was sent since, or was found to [have
    /// passed](CpuGracePeriods::has_passed) `wanted`, which who is away has.
    pub fn expedite_end(&self, wanted: u64) {
        // AcqRel: passes on what the answers brought; pairs with the Acquire of `done`. The largest
        // stays, as in `advance`.
        self.done.fetch_max(wanted, Ordering::AcqRel);
    }
}

impl CpuGracePeriods {
    constant! {
        /// Of a CPU that is away.
        pub fn new() -> Self {
            CpuGracePeriods(AtomicU64::new(AWAY))
        }
    }

    /// This CPU will use nothing until it [comes back](CpuGracePeriods::idle_exit): nobody waits
    /// for it. One store.
    #[inline]
    pub fn idle_enter(&self) {
        // Release: all that it used came before; pairs with the Acquire in `advance` and
        // `has_passed`.
        self.0.store(AWAY, Ordering::Release);
    }

    /// This CPU takes part again. It announces at once ([`GracePeriods::begin`], a flush,
    /// [`GracePeriods::end`]) and uses nothing before it has: until then it holds up every period.
    /// One store.
    #[inline]
    pub fn idle_exit(&self) {
        // Relaxed: the fence of `begin`, which follows, orders it; that pairs with the fences of
        // `advance` and `expedite_start`.
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the CPU is away. One load.
    #[inline]
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release of `idle_enter`: what the CPU did before comes before
        // what the caller does.
        self.0.load(Ordering::Acquire) == AWAY
    }

    /// As [`is_idle`](CpuGracePeriods::is_idle), for the CPU itself.
    #[cfg(feature = "quiescent")]
    #[inline]
    pub(crate) fn is_idle_here(&self) -> bool {
        // Relaxed: only this CPU writes it.
        self.0.load(Ordering::Relaxed) == AWAY
    }

    /// Whether the CPU has passed `period`, or is away. One load.
    #[inline]
    pub fn has_passed(&self, period: u64) -> bool {
        // Acquire: pairs with the Release of `end` and `idle_enter`: what the CPU did before comes
        // before what the caller does.
        self.0.load(Ordering::Acquire) >= period
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
