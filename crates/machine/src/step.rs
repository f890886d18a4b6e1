//! Where another CPU may come between.

use crate::Frame;

/// What is done to an entry of a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryOp {
    /// It is read.
    Load,
    /// This value is stored.
    Store(u64),
    /// This value takes its place, whatever it holds.
    Swap(u64),
    /// The second value takes the place of the first, if it holds that.
    CompareExchange(u64, u64),
    /// Bits outside of this mask are cleared.
    And(u64),
    /// Bits of this mask are set.
    Or(u64),
}

/// An access that other CPUs, or the page walkers of the hardware, can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To entry `index` of a page table.
    Entry {
        /// The table.
        table: Frame,
        /// The entry's number in it.
        index: usize,
        /// What is done.
        op: EntryOp,
    },
    /// To anything else that is shared: a lock, a list, a count.
    Shared,
}

/// What a machine does before each access to shared memory, and in each turn of a loop that waits.
///
/// On hardware the defaults do: `step` is nothing, `relax` a pause. A machine in software switches
/// CPUs here, takes interrupts, and sees what is about to happen.
///
/// # Safety
/// Both methods are called in the middle of changes: with locks held, with interrupts off, between
/// a look at a per-CPU list and its change. Unsafe code relies on all of this:
/// - neither calls into a structure built on this machine ([`CpuLocal`](crate::CpuLocal),
///   [`Frames`](crate::Frames), page tables, quicklists), except by an interrupt handler that runs
///   while interrupts are on;
/// - neither moves the caller to another CPU, or runs anything else on this one, while interrupts
///   are off; the exception are the flushes that [`relax`](Step::relax) carries out.
pub unsafe trait Step {
    /// Called before an access. [`Entry`](crate::Entry) does it for entries of page tables; code
    /// that shares other memory between CPUs without a lock calls it there with [`Access::Shared`].
    ///
    /// It may take an interrupt if these are on, as any instruction may. On hardware it costs
    /// nothing.
    #[inline(always)]
    fn step(&self, access: Access) {
        let _ = access;
    }

    /// Called in each turn of a loop that waits for another CPU.
    ///
    /// It carries out flushes that other CPUs have asked of this one, **also while interrupts are
    /// off**, where the host's interrupts would otherwise be what they wait for: so a CPU that
    /// spins for a lock never holds up one that flushes with the lock held. It does nothing else
    /// that an interrupt does while interrupts are off.
    #[inline(always)]
    fn relax(&self) {
        core::hint::spin_loop();
    }
}
