//! Grace periods: who may still be looking, and when memory may be reused.
//!
//! A structure that is read without locks has one problem: a writer unlinks a piece, and some
//! reader may already hold a pointer to it. The answer here is always the same. A reader holds a
//! *guard* while it looks. The writer first makes the piece unreachable, then *retires* it; the
//! piece is freed when every guard that was alive at that moment is gone. The time between is the
//! grace period. Guards taken later do not count: they can no longer find the piece.
//!
//! [`Reclaim`] is that contract as a trait, so that a structure is written once and the host
//! chooses the engine:
//!
//! - [`Single`]: no concurrent readers exist; retiring frees at once. For structures with one
//!   owner.
//! - `Epoch` (feature `std`): crossbeam-epoch's default collector, for programs that run on an
//!   operating system.
//! - `quiescent::Quiescent` (feature `quiescent`): quiescent states of CPUs, for kernels, and for
//!   machines in software.
//!
//! [`period`] is what that one counts grace periods by; for TLBs too, where a CPU passes by a
//! flush.
//!
//! [`Concurrent`] marks the engines whose guards really protect: code that lets readers run beside
//! a writer asks for it, so `Single` cannot be used there by mistake.
//!
//! # What a guard promises
//!
//! Let `p` be retired under an engine that is [`Concurrent`], after the caller has made it
//! unreachable for new readers.
//!
//! 1. `free(p)` does not begin while a guard that was alive when `retire(p)` was called still
//!    lives.
//! 2. All that was done under such a guard happens before `free(p)`, so `free` may write.
//! 3. `free(p)` is called at most once, by any thread, possibly after the structure it came from is
//!    gone. It is called in the end if guards keep being taken and dropped, and the thread that
//!    retired goes on to retire, or flushes, or ends; an engine may leave what is pending at the
//!    end of the program.
//!
//! A guard says nothing of memory that is not retired through the same engine: an engine is a type
//! and has one domain, so a guard of the wrong domain does not compile.
//!
//! # The reader's side (invariant I2)
//!
//! Taking a guard does not wait. Its cost is the engine's; for `Epoch` one thread-local store and
//! one fence (about 7 ns), about 1 ns when nested. `Epoch` may also allocate a thread's record on
//! the thread's first guard, and may run deferred frees of others when a guard is taken, some
//! hundred at most: a hosted program can bear both. Code that runs in interrupts needs an engine
//! that does neither: `Quiescent`, whose guards cost two plain stores.
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
pub mod period;
#[cfg(feature = "quiescent")]
pub mod quiescent;
mod single;
mod sync;

#[cfg(feature = "std")]
pub use epoch::{Epoch, EpochGuard};
pub use single::{Single, SingleGuard};

use core::ptr::NonNull;

/// A way to decide when memory that was made unreachable may be freed.
///
/// An engine is a type, not a value: it has one domain, and its guards protect whatever is retired
/// through it. See the [crate documentation](crate) for the promise in full.
///
/// # Safety
///
/// `retire` calls `free(ptr)` at most once, and never before `retire` was called.
pub unsafe trait Reclaim: 'static {
    /// What a reader holds while it looks.
    type Guard;

    /// Whether [`pin`](Reclaim::pin) may run frees that are due. Then no single `free` should do
    /// much: one that frees a large structure retires its parts instead, to be freed one by one.
    const FREES_IN_PIN: bool = false;

    /// Begins a read-side section, which ends when the guard is dropped. Sections nest. Never
    /// waits.
    fn pin() -> Self::Guard;

    /// Hands over `ptr`, to be freed by `free(ptr)` after a grace period.
    ///
    /// Nothing is boxed for it; an engine may allocate once for a batch. The calling thread may run
    /// frees that have come due, so it must hold no lock that such a `free` takes. A `free` should
    /// not panic: it does so in whatever its thread was about, and what has come due with it may
    /// then never be freed.
    ///
    /// # Safety
    ///
    /// - Nobody who takes a guard from now on can reach `ptr`, and it is retired only once.
    /// - `free(ptr)` may be called on any thread, at any later time.
    /// - For an engine that is not [`Concurrent`]: nobody at all looks at `ptr` any more.
    unsafe fn retire(guard: &Self::Guard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>));

    /// Asks for what this thread has retired to be freed soon: much hangs on it. May run frees that
    /// have come due, as [`retire`](Reclaim::retire) may. An engine that keeps nothing back has
    /// nothing to do.
    fn flush(_: &Self::Guard) {}
}

/// An engine whose guards protect readers that run beside a writer.
///
/// # Safety
///
/// The three points of the [crate documentation](crate#what-a-guard-promises) hold.
pub unsafe trait Concurrent: Reclaim {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
