//! TLBs: which translations to flush, and how to flush them on this and other CPUs.

use crate::{CpuSet, Cpus, Frame, PageSize, VirtRange};

/// An address-space tag of the TLB (PCID on x86-64, ASID elsewhere).
///
/// A hypervisor has a second machine for its guests' tables: the second stage has tags of its own
/// (VMID on AArch64 and RISC-V, the ASID of a guest on AMD-V, one number for each EPT pointer on
/// VT-x), and its own flushes. The virtual addresses of that machine are the guest's physical ones.
/// [`Flush::whole_space`] is for hardware that flushes no ranges there. As long as the hardware
/// caches combined translations of both stages, a flush drops those, too.
///
/// Tags are less than [`Tlb::tags`]. Tag 0 is the kernel's. Each space of a program has one of the
/// others to itself. A machine without tags has one tag, 0, which all spaces share: it keeps no
/// translation when another space becomes active ([`Tlb::activate`]). A tag that is too large is
/// the caller's error: hardware takes it for another tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Asid(pub u16);

/// The translations to flush.
///
/// ```
/// use machine::{Asid, Flush, PageSize, VirtAddr, VirtRange};
/// // A page of a program's space was unmapped. Its page-table page stays.
/// let range = VirtRange::new(VirtAddr::new(0x7000), 0x1000).unwrap();
/// let space = Some(Asid(3));
/// let wanted = Flush::Range { space, range, stride: PageSize::Size4K, tables: false };
/// assert_ne!(wanted, Flush::Space(Asid(3)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// The translations of addresses in `range`.
    Range {
        /// The address space. `None` means every space, global translations included: for the
        /// kernel's half.
        space: Option<Asid>,
        /// The addresses. A page that lies partly in the range is flushed.
        range: VirtRange,
        /// The smallest page size that is mapped there. A flush proceeds in steps of it, so a
        /// larger stride is less work. Too large a stride is an error that leaves stale
        /// translations.
        stride: PageSize,
        /// Whether page-table pages were unlinked or replaced, so that cached upper-level entries
        /// that lead to the range must be flushed, too. With `false`, a machine may keep these.
        tables: bool,
    },
    /// All translations of one address space, upper-level entries included. Global translations
    /// stay.
    Space(Asid),
    /// Everything: all address spaces, global translations, and upper-level entries.
    All,
}

impl Flush {
    /// The flush of everything that this one covers and hardware can drop that knows no ranges:
    /// INVEPT with a single context or all, or the flush of an ASID of AMD-V.
    ///
    /// ```
    /// use machine::{Asid, Flush, PageSize, VirtAddr, VirtRange};
    /// let range = VirtRange::new(VirtAddr::new(0x7000), 0x1000).unwrap();
    /// let stride = PageSize::Size4K;
    /// let wanted = |space| Flush::Range { space, range, stride, tables: false };
    /// assert_eq!(wanted(Some(Asid(3))).whole_space(), Flush::Space(Asid(3)));
    /// assert_eq!(wanted(None).whole_space(), Flush::All);
    /// ```
    #[must_use]
    pub const fn whole_space(self) -> Flush {
        match self {
            Flush::Range { space: Some(space), .. } => Flush::Space(space),
            Flush::Range { space: None, .. } => Flush::All,
            whole => whole,
        }
    }
}

/// The TLBs of this CPU and of others.
///
/// # The promise of a flush
/// When a flush returns, on each CPU that it names: no later access uses a translation or an
/// upper-level entry that `what` covers and that was cached before the call; and no page walk that
/// began before the call is still in progress. All later walks see the stores to entries that the
/// caller made before the call: also where an entry was absent before (see
/// [`published`](Tlb::published)).
///
/// A flush is always allowed: it costs time, not correctness. Hardware may drop more translations
/// than requested, at any time.
///
/// # Calling context
/// The caller must hold no lock that an interrupt handler takes. Unless the hardware broadcasts
/// flushes ([`interrupts`](Tlb::interrupts)), `flush_on` sends an IPI to each other CPU named, and
/// waits until all have answered. While it waits, it performs the requests of
/// other CPUs. It may be called with interrupts disabled, but then this CPU's section no longer
/// delays the flushes of others (see [`Irqs`](crate::Irqs)). It does not allocate.
///
/// # Safety
/// Page tables free memory, and page-table pages, after a flush. So unsafe code relies on all of
/// this:
/// - [`flush`](Tlb::flush) and [`flush_on`](Tlb::flush_on) keep the promise above when they return.
///   They skip a CPU only if it is not online. Such a CPU has empty TLBs when it starts.
/// - [`published`](Tlb::published) keeps its promise when it returns. (Code that is told of a page
///   uses it at once, and the kernel's half has no handler for the fault.)
/// - [`tags`](Tlb::tags) is constant and at least 1. The hardware distinguishes all tags below it.
/// - After [`activate`](Tlb::activate), the CPU translates by `root`, caches translations under the
///   given tag, and has dropped the translations that are not to be kept. [`active`](Tlb::active)
///   names the last table that was activated on this CPU.
/// - The methods do not call into structures built on the machine, as [`Step`](crate::Step)
///   requires.
pub unsafe trait Tlb: Cpus {
    /// Flushes translations on this CPU.
    fn flush(&self, what: Flush);

    /// Flushes translations on each CPU of `cpus`, which may include this one. CPUs that do not
    /// exist or are not online are ignored: a CPU has empty TLBs when it starts.
    ///
    /// Costs one IPI for each other CPU named. An empty set costs nothing.
    fn flush_on(&self, cpus: &CpuSet, what: Flush);

    /// Entries that were absent are valid now, at any level of the tables, on the way to addresses
    /// in `range`. Called once by each call that stores such entries, after the last store and
    /// before the call returns; also while an entry is made again that was broken first.
    ///
    /// The default does nothing, which is right for x86-64 alone: its CPUs cache no absent entries,
    /// and walks see stores in order. Every other machine implements it:
    /// - AArch64: DSB ISHST, then ISB. The hardware caches no absent entries there, but its walks
    ///   need not see the stores before the barrier.
    /// - RISC-V without Svvptc: SFENCE.VMA without an address, since an address covers only entries
    ///   of pages, and here a table may be new.
    /// - Any machine that caches absent entries: it drops them.
    ///
    /// # The promise
    /// `space` is as in [`Flush::Range`].
    /// - With a space, no later access of this CPU in the range faults because of an entry that was
    ///   absent before the call. Another CPU may fault. Its page-fault handler finds the page, and
    ///   calls this method there.
    /// - With `None`, the same is true of each CPU, for accesses that are ordered after the call:
    ///   the kernel tolerates no fault in its half. A machine need not interrupt other CPUs for
    ///   that. It may tell them to drop their absent entries when a fault comes, and make the
    ///   access again. So does AArch64 without FEAT_ETS2: another CPU may have read an entry ahead.
    ///
    /// # Calling context
    /// As for [`flush`](Tlb::flush), but the caller may hold a lock that an interrupt handler
    /// takes. So an implementation does not wait for other CPUs that may wait for this one.
    #[inline(always)]
    fn published(&self, space: Option<Asid>, range: VirtRange) {
        let _ = (space, range);
    }

    /// Whether [`flush_on`](Tlb::flush_on) interrupts the CPUs that it names, or runs code there.
    /// Constant. With `false` the hardware broadcasts the flush (TLBI and DSB on AArch64): it costs
    /// about as much for all CPUs as for one, and needs nothing of the others. The promise is the
    /// same. So callers put off or narrow flushes only where this is `true`.
    ///
    /// No code relies on the interrupt for anything but the flush: tables are freed after a grace
    /// period of readers, never because a CPU has answered.
    #[inline(always)]
    fn interrupts(&self) -> bool {
        true
    }

    /// The number of tags, at least 1.
    fn tags(&self) -> u32;

    /// Makes `root` the active page table of this CPU, for the space `asid`.
    ///
    /// With `keep`, entries cached under the tag stay, though a machine may drop them. Without
    /// `keep`, everything that is cached under the tag is dropped: translations that are not
    /// global, upper-level entries, and absent entries. Entries cached under other tags stay, so
    /// that their spaces may keep them when they are active again. A machine with a single tag has
    /// no others.
    ///
    /// # Safety
    /// `root` is a top-level table of the machine's format, and stays one until another is active.
    /// It maps everything that the running kernel needs, at the same addresses. The tag is less
    /// than [`tags`](Tlb::tags). With `keep`, the translations cached under the tag belong to
    /// `root`. So on a machine with a single tag, never pass `keep`.
    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool);

    /// The active page table of this CPU, and its tag. Before the first
    /// [`activate`](Tlb::activate): `None`, or the loader's table, where hardware names it.
    fn active(&self) -> Option<(Frame, Asid)>;
}
