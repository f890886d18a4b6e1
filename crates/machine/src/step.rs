//! The points at which other CPUs may interfere.

use crate::{Checker, Frame};

/// An operation on a page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryOp {
    /// Reads it.
    Load,
    /// Stores this value.
    Store(u64),
    /// Stores this value and returns the old one.
    Swap(u64),
    /// Stores the second value if the entry has the first.
    CompareExchange(u64, u64),
    /// Clears the bits outside this mask.
    And(u64),
    /// Sets the bits of this mask.
    Or(u64),
}

/// An access that other CPUs, or the hardware's page walkers, can observe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedAccess {
    /// To entry `index` of a page table.
    Entry {
        /// The table.
        table: Frame,
        /// The entry's number in the table.
        index: usize,
        /// The operation.
        op: EntryOp,
    },
    /// To other shared memory: a lock, a list, a counter.
    Other,
}

/// Hooks before each access to shared memory, and in each iteration of a waiting loop.
///
/// On hardware the defaults suffice: `step` does nothing, and `relax` is a pause instruction. A
/// simulated machine switches CPUs here, takes interrupts, and checks the access.
///
/// # Safety
/// The methods, and those of the checker, are called in the middle of changes: with locks held,
/// with interrupts disabled, between reading a per-CPU list and changing it. Unsafe code relies on
/// all of this:
/// - none calls into a structure that is built on this machine ([`CpuLocal`](crate::CpuLocal),
///   [`Frames`](crate::Frames), page tables, quicklists), except by an interrupt handler that runs
///   while interrupts are enabled;
/// - none migrates the caller, or runs other code on this CPU, while interrupts are disabled.
///   The only exception are the flushes that [`relax`](Step::relax) performs.
pub unsafe trait Step {
    /// Called before an access. [`Entry`](crate::Entry) calls it for page-table entries. Code that
    /// shares other memory between CPUs without a lock calls it with [`SharedAccess::Other`].
    ///
    /// It may take an interrupt if interrupts are enabled, as any instruction may. On hardware it
    /// costs nothing.
    #[inline(always)]
    fn step(&self, access: SharedAccess) {
        let _ = access;
    }

    /// Called in each iteration of a loop that waits for another CPU.
    ///
    /// It performs the flushes that other CPUs request from this one, **also while interrupts are
    /// disabled**, if the host would otherwise perform them by interrupt. So a CPU that spins for a
    /// lock never delays a CPU that flushes while it holds the lock. While interrupts are disabled,
    /// it does nothing else that an interrupt would do.
    #[inline(always)]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// The checker that is told more than a machine needs to know. A host has none, and leaves this
    /// as it is; `sim` is one.
    #[inline(always)]
    fn checker(&self) -> Option<&dyn Checker> {
        None
    }
}
