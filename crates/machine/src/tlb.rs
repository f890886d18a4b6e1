//! Translations that CPUs keep, and how to make them drop them.

use crate::{CpuSet, Cpus, Frame, PageSize, VirtRange};

/// A tag that tells the translations of address spaces apart (PCID on x86-64, ASID elsewhere).
///
/// Tags are below [`Tlb::tags`]. The tag 0 is the kernel's; a space of a program has one of the
/// others, to itself. A machine without tags has one, 0, which all spaces share: there nothing is
/// kept when another becomes active ([`Tlb::activate`]). A tag beyond those is an error of whoever
/// passes it: hardware takes it for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Asid(pub u16);

/// What is to be dropped.
///
/// ```
/// use machine::{Asid, Flush, PageSize, VirtAddr, VirtRange};
/// // One page of a program's space was unmapped; its table stays.
/// let range = VirtRange::new(VirtAddr::new(0x7000), 0x1000).unwrap();
/// let wanted = Flush::Range { space: Some(Asid(3)), range, stride: PageSize::Size4K, tables: false };
/// assert_ne!(wanted, Flush::Space(Asid(3)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// Translations of addresses in `range`.
    Range {
        /// In this address space; or, if `None`, in every one, global ones included: the kernel's
        /// part.
        space: Option<Asid>,
        /// The addresses. A page that lies partly in it counts as in it.
        range: VirtRange,
        /// The smallest page that is mapped there. A flush goes from page to page by it, so a
        /// larger one is less work; too large a one is an error that leaves stale translations.
        stride: PageSize,
        /// Whether tables were taken out or replaced, so that cached upper-level entries that lead
        /// to the range must go too. With `false` a machine may keep these.
        tables: bool,
    },
    /// All of one address space, upper-level entries included; global translations stay.
    Space(Asid),
    /// Everything: all address spaces, global translations, upper-level entries.
    All,
}

/// The caches of translations: of this CPU, and of others.
///
/// # What a flush promises
/// When it returns, on each CPU that it names no access that begins later uses a translation, or an
/// upper-level entry, that `what` covers and that was cached before the call; and no page walk that
/// began before is still under way there. Stores to entries that the caller made before are seen by
/// all later walks.
///
/// A flush is always allowed: it costs time, not correctness. Hardware may drop more than is asked,
/// at any time.
///
/// # Calling context
/// Never with a lock held that an interrupt handler takes. `flush_on` sends an interrupt to each
/// other CPU named and waits until all have answered; while it waits it answers to others. It may
/// be called with interrupts off, but then this CPU's own section no longer holds back the flushes
/// of others (see [`Irqs`](crate::Irqs)). It does not allocate.
///
/// # Safety
/// Page tables free memory, and page-table pages, after a flush. So unsafe code relies on all of
/// this:
/// - [`flush`](Tlb::flush) and [`flush_on`](Tlb::flush_on) keep the promise above when they return.
///   A CPU is skipped only if it does not run, and it starts with empty caches.
/// - [`tags`](Tlb::tags) is constant and at least 1. The hardware tells all tags below it apart.
/// - After [`activate`](Tlb::activate) the CPU translates by `root`, caches translations under the
///   tag given, and has dropped those that are not to be kept. [`active`](Tlb::active) names the
///   last table activated on this CPU.
/// - The methods do not call into structures built on the machine, as [`Step`](crate::Step) says.
pub unsafe trait Tlb: Cpus {
    /// Drops translations on this CPU.
    fn flush(&self, what: Flush);

    /// Drops translations on each CPU of `cpus`, this one included if it is in the set. CPUs that
    /// do not exist or do not run are passed over: a CPU that starts does so with empty caches.
    ///
    /// Cost: one interrupt for each CPU named other than this one. An empty set costs nothing.
    fn flush_on(&self, cpus: &CpuSet, what: Flush);

    /// How many tags there are; at least 1.
    fn tags(&self) -> u32;

    /// Makes `root` the table that this CPU translates by, for the space `asid`.
    ///
    /// With `keep`, translations cached under the tag stay, unless the machine drops them all the
    /// same; without, those that are not global are dropped.
    ///
    /// # Safety
    /// `root` is a top-level table of the machine's format and stays one until another is active;
    /// it maps what the kernel needs in order to go on, at the same addresses. The tag is below
    /// [`tags`](Tlb::tags). With `keep`, what is cached under the tag belongs to `root`: so where
    /// there is one tag for all, nobody keeps anything.
    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool);

    /// The table that this CPU translates by, and its tag; `None` before the first
    /// [`activate`](Tlb::activate).
    fn active(&self) -> Option<(Frame, Asid)>;

    /// Called by whoever hands out addresses that were mapped before, at the moment he does: no CPU
    /// may hold a translation of them any more (I4). On hardware it is nothing; a machine in
    /// software looks into all its TLBs.
    ///
    /// `space` is as in [`Flush::Range`].
    #[inline(always)]
    fn check_reuse(&self, space: Option<Asid>, range: VirtRange) {
        let _ = (space, range);
    }
}
