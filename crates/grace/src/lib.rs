//! Grace periods: the engines that decide when unlinked memory may be freed.
//!
//! In a structure that is read without locks, a writer may unlink a piece of memory while a reader
//! still holds a pointer to it. Grace periods solve that. A reader holds a *guard* while it uses
//! the structure. A writer first makes the piece unreachable, then *retires* it. The piece is freed
//! when every guard that existed at that moment has been dropped. The time in between is the grace
//! period. Later guards do not matter: under them the piece can no longer be found.
//!
//! The trait [`Reclaim`] is that contract. A structure is written once against it, and the host
//! chooses the engine:
//!
//! - [`Single`]: there are no concurrent readers, and retiring frees at once. For structures with
//!   one owner.
//! - `Epoch` (feature `std`): crossbeam-epoch's default collector. For programs on an operating
//!   system.
//! - `quiescent::Quiescent` (feature `quiescent`): quiescent states of CPUs. For kernels, and for
//!   simulated machines.
//!
//! The module [`period`] numbers the grace periods of `Quiescent`. It also serves for TLBs, where a
//! TLB flush is the quiescent state.
//!
//! [`Concurrent`] marks the engines whose guards protect readers that run concurrently with a
//! writer. Code that allows such readers requires it, so `Single` cannot be used there by mistake.
//!
//! # The promise of a guard
//!
//! Let the engine be [`Concurrent`], and let `p` be retired after the caller has made it
//! unreachable for new readers.
//!
//! 1. `free(p)` does not begin while a guard that existed when `retire(p)` was called still exists.
//! 2. All accesses under such a guard happen before `free(p)`, so `free` may write to `p`.
//! 3. `free(p)` is called at most once, by any thread, possibly after the structure it came from is
//!    gone. It is called eventually if guards continue to be taken and dropped, and the retiring
//!    thread retires more, flushes, or ends. An engine may leave pending pieces unfreed when the
//!    program ends.
//!
//! A guard does not protect memory that is retired through another engine. An engine is a type and
//! has one domain, so a guard of the wrong engine does not compile.
//!
//! # The reader's side (I2)
//!
//! Taking a guard does not wait. The engine determines its cost. A guard of `Epoch` costs one
//! thread-local store and one fence (about 7 ns), or about 1 ns when nested. `Epoch` may also
//! allocate a record on a thread's first guard, and a new guard may run up to some hundred frees
//! that other threads deferred. A hosted program can tolerate both. Code that runs in interrupts
//! needs an engine that does neither: `Quiescent`, whose guards cost two plain stores.
//!
//! # Modules
//! A line uses only those below it.
//! ```text
//! epoch      quiescent      single      the engines
//!    \       /    |    \
//!     batch   period   sole             pieces that wait; numbered periods; one user at a time
//!                 \    /
//!                  sync                 atomics, of the host or of a model
//! ```
//! `epoch/thread_batches` says how memory returns to its thread.
#![no_std]
#![deny(missing_docs)]

#[cfg(any(feature = "std", feature = "quiescent"))]
extern crate alloc;
#[cfg(any(test, loom, feature = "std"))]
extern crate std;

#[cfg(any(feature = "std", feature = "quiescent"))]
mod batch;
#[cfg(feature = "std")]
mod epoch;
#[cfg(all(test, feature = "std"))]
#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;
pub mod period;
#[cfg(feature = "quiescent")]
pub mod quiescent;
mod single;
pub mod sole;
mod sync;

#[cfg(feature = "std")]
pub use epoch::{Epoch, EpochGuard};
pub use single::{Single, SingleGuard};

use core::ptr::NonNull;

/// Decides when memory that was made unreachable may be freed.
///
/// An engine is a type, not a value. It has one domain, and its guards protect all memory that is
/// retired through it. The [crate documentation](crate) has the full promise.
///
/// # Safety
///
/// - `retire` calls `free(ptr)` at most once, and never before `retire` was called.
/// - If [`PLACES`](Reclaim::PLACES): a guard has one [place](Reclaim::place) as long as it exists. A
///   guard of the same place is taken meanwhile only by the holder itself, or in an interrupt that
///   drops it before the holder goes on. All under one guard happens before all under a later guard
///   of the same place.
pub unsafe trait Reclaim: 'static {
    /// The guard: a reader holds it while it uses the structure.
    type Guard;

    /// Whether [`pin`](Reclaim::pin) may run frees that are due. If so, each `free` should be
    /// short: a `free` of a large structure retires the parts, which are then freed one by one.
    const FREES_IN_PIN: bool = false;

    /// Whether guards have places, so that [`sole`] can find out that a structure has one user.
    const PLACES: bool = false;

    /// Begins a read-side section, which ends when the guard is dropped. Sections nest. Never
    /// waits.
    ///
    /// # Misuse
    /// A guard that is forgotten or leaked holds grace periods up: retired memory leaks, and none
    /// is freed early.
    fn pin() -> Self::Guard;

    /// Retires `ptr`: the engine calls `free(ptr)` after a grace period.
    ///
    /// This boxes nothing. An engine may allocate once for each batch. The calling thread may run
    /// frees that are due, so the caller must not hold a lock that such a `free` takes. A `free`
    /// should not panic: it would panic in the unrelated work of the thread that runs it, and other
    /// pieces that are due at that moment may leak.
    ///
    /// # Safety
    ///
    /// - `ptr` cannot be reached under any guard taken from now on, and it is retired only once.
    /// - `free(ptr)` may be called on any thread, at any later time.
    /// - If the engine is not [`Concurrent`]: no code accesses `ptr` any more.
    unsafe fn retire(guard: &Self::Guard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>));

    /// Asks the engine to free the pieces that this thread has retired soon, for example because
    /// they hold much memory. May run frees that are due, as [`retire`](Reclaim::retire) may. Does
    /// nothing in an engine that defers no frees.
    fn flush(_: &Self::Guard) {}

    /// The place of a guard: a number of the CPU or thread that holds it, below `usize::MAX / 4`.
    /// Means nothing without [`PLACES`](Reclaim::PLACES).
    fn place(_: &Self::Guard) -> usize {
        0
    }

    /// The number of a grace period for what the caller has just made unreachable. Means nothing
    /// without [`PLACES`](Reclaim::PLACES).
    fn period(_: &Self::Guard) -> u64 {
        0
    }

    /// Whether a grace period from [`period`](Reclaim::period) has ended: every guard that existed
    /// at that call was dropped, and all accesses under it happen before this returns. Something
    /// else must make periods go on. Never true without [`PLACES`](Reclaim::PLACES).
    fn is_over(_period: u64) -> bool {
        false
    }
}

/// An engine whose guards protect readers that run concurrently with a writer.
///
/// # Safety
///
/// The three points of the [crate documentation](crate#the-promise-of-a-guard) hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no readers concurrent with a writer",
    label = "an engine for one owner",
    note = "name an engine with grace periods, such as `Epoch` in `MapleTree<E, Epoch>`, or be \
            the only owner: `get_mut` and `RangeMap` need no lock"
)]
pub unsafe trait Concurrent: Reclaim {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
