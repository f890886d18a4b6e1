//! The holder of a page: the one CPU whose TLB may have its translation.
//!
//! A thread that maps, touches and unmaps a page is often the only one that has used it. A TLB
//! shootdown to the other CPUs of its space is then for nothing. The page-table entry knows it:
//! hardware sets the accessed bit before it caches a translation. But the CPU that took the page
//! fault caches it, too. So the fault loads the translation into the TLB of its CPU by software
//! ([`Tlb::preload`](machine::Tlb::preload)), which leaves the bit clear, and bits of the entry name
//! that CPU.
//!
//! # Why it is correct
//! *While the entry names a holder and its accessed bit is clear, no other CPU has a translation of
//! the page.*
//! - The fault finds the entry absent, with the table's lock held. The flush for what was mapped
//!   there before is done (the contract of [`with_entry`](crate::PageTables::with_entry)). So no
//!   CPU has a translation.
//! - It stores the entry with the holder, and with the bit clear, in one store. There is no moment
//!   at which another CPU could load it without a trace.
//! - Another CPU sets the bit before it caches the translation, by an atomic operation on the entry
//!   that it has read. The removal is a swap, which returns the old entry. Either the swap comes
//!   first, and the CPU finds the entry absent. Or the bit is in the value that the swap returns,
//!   and all CPUs that use the space are flushed. The promise is that of
//!   [`Tlb::preloads`](machine::Tlb::preloads).
//! - The holder is a CPU, not a thread, so a thread that moves to another CPU changes nothing. A
//!   holder that evicts the translation and loads it again sets the bit. A holder that has left the
//!   space has flushed it, and is no target of flushes. One that is idle (`idle`) loses its mark.
//! - No change clears the bit and leaves the holder. [`Format::decode`] reports a held page as
//!   accessed, and [`Format::page`] names no holder. So each change that makes an entry of the
//!   attributes of another one (protection, ageing, marks, copies for a fork, pieces) forgets the
//!   holder and keeps the page accessed. A relocation moves the whole entry: at the new address no
//!   CPU has a translation, which the entry does not deny.
//! - A table that a fork shares is used by several spaces. The bit tells of the CPUs of all. A
//!   change in a shared table flushes all users.
//! - Cached upper-level entries are another matter: a flush that unlinks tables goes to all users.
//!
//! # Which machines
//! On x86-64, hardware alone loads TLBs. The first access would set the bit for the CPU of the
//! fault, too. If the fault touched the page and cleared the bit afterwards, another CPU might load
//! the entry in between, and leave no trace. A second hierarchy of tables for each CPU, from which
//! it loads the translation under the same tag (Amit, USENIX ATC 2017), leaves cached upper-level
//! entries of that hierarchy under the tag, to be flushed. So there `preloads` is false, entries
//! have no holder, and a flush goes to all users. Machines with TLBs that software loads can name
//! holders, and the machine in software does.
//!
//! # Cost
//! A fault: a call of the machine, and no locked instruction; nothing if the machine has no
//! `preloads`. An unmapping: a few instructions a page.

use crate::format::Format;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{CpuId, CpuSet, Entry, Machine, VirtAddr};

/// The field of an entry without a holder whose translations no CPU has. Zero says nothing.
const NONE: u64 = 1;
/// The field of an entry that CPU 0 holds.
const FIRST: u64 = 2;
/// The values of the field, at most.
const FIELDS: u64 = 16;

/// The field for a holder. CPUs with large numbers have none.
fn field_of<F: Format>(holder: CpuId) -> u64 {
    let field = FIRST + holder.index() as u64;
    let most = F::HOLDER.unbounded_shr(F::HOLDER.trailing_zeros()).min(FIELDS - 1);
    if field <= most { field } else { 0 }
}

/// The CPUs that may have translations of changed pages: a bit for each value of the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Targets(u16);

impl Targets {
    /// All CPUs that use the tables.
    pub(crate) const ALL: Targets = Targets(1);

    /// The CPUs that may have a translation by an entry that was removed atomically.
    #[inline]
    pub(crate) fn of<F: Format>(entry: u64) -> Targets {
        if F::HOLDER == 0 || F::is_marked(entry) {
            return Targets::ALL;
        }
        Targets(1 << ((entry & F::HOLDER) >> F::HOLDER.trailing_zeros() & (FIELDS - 1)))
    }

    pub(crate) fn join(&mut self, other: Targets) {
        self.0 |= other.0;
    }

    /// These CPUs; `None` if any may have them.
    pub(crate) fn cpus(self) -> Option<CpuSet> {
        if self.0 & Targets::ALL.0 != 0 {
            return None;
        }
        let held = (FIRST..FIELDS).filter(|field| self.0 >> field & 1 != 0);
        Some(held.filter_map(|field| CpuId::new((field - FIRST) as usize)).collect())
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Stores the entry of a page where there was none, with the lock of its table held. If the
    /// machine can, this CPU becomes its holder.
    #[inline(always)]
    pub(crate) fn fill_here(&self, at: VirtAddr, entry: &Entry<'_, M>, value: u64) {
        let machine = self.machine();
        let is_user = self.space().is_some();
        if !machine.preloads() || F::HOLDER == 0 || !is_user || F::is_marked(value) {
            return entry.store(value);
        }
        // The code stays on this CPU.
        let _section = machine.irqs_off();
        let is_active = machine.active().is_some_and(|(root, _)| root == self.root());
        let field = if is_active { field_of::<F>(machine.current()) } else { NONE };
        entry.store(value | field << F::HOLDER.trailing_zeros());
        if field >= FIRST {
            // SAFETY: the lock is held, and the entry names this CPU: flushes go to it.
            unsafe { machine.preload(at) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Attrs, Decoded, Flags, Sv39, X86_64L4};
    use alloc::{vec, vec::Vec};
    use machine::{Frame, PageSize};

    fn entry(flags: Flags, field: u64) -> u64 {
        let attrs = Attrs::new(Attrs::USER_RW.flags | flags);
        let page = X86_64L4::page(PageSize::Size4K, Frame::new(7).unwrap(), attrs).unwrap();
        page | field << X86_64L4::HOLDER.trailing_zeros()
    }

    fn cpus(targets: Targets) -> Option<Vec<usize>> {
        Some(targets.cpus()?.iter().map(CpuId::index).collect())
    }

    #[test]
    fn a_clear_accessed_bit_leaves_the_holder_alone() {
        let of = |flags, field| cpus(Targets::of::<X86_64L4>(entry(flags, field)));
        assert_eq!(of(Flags::empty(), FIRST + 3), Some(vec![3]));
        assert_eq!(of(Flags::empty(), NONE), Some(vec![]));
        assert_eq!(of(Flags::empty(), 0), None);
        assert_eq!(of(Flags::ACCESSED, FIRST + 3), None);
        assert_eq!(of(Flags::ACCESSED, NONE), None);
        let mut both = Targets::of::<X86_64L4>(entry(Flags::empty(), FIRST));
        both.join(Targets::of::<X86_64L4>(entry(Flags::empty(), 15)));
        assert_eq!(cpus(both), Some(vec![0, 13]));
        both.join(Targets::ALL);
        assert_eq!(cpus(both), None);
        assert_eq!(cpus(Targets::of::<Sv39>(1)), None);
    }

    #[test]
    fn cpus_beyond_the_field_are_not_named() {
        let field = |cpu| field_of::<X86_64L4>(CpuId::new(cpu).unwrap());
        assert_eq!([field(0), field(13), field(14), field(60)], [2, 15, 0, 0]);
        assert_eq!(field_of::<Sv39>(CpuId::new(0).unwrap()), 0);
    }

    #[test]
    fn a_held_page_is_decoded_as_accessed() {
        for (field, accessed) in [(0, false), (NONE, false), (FIRST, true), (15, true)] {
            let Decoded::Page(_, attrs) = X86_64L4::decode(entry(Flags::empty(), field), 0) else {
                panic!("a page");
            };
            assert_eq!(attrs.flags.contains(Flags::ACCESSED), accessed, "field {field}");
            assert_eq!(attrs.soft, 0);
        }
    }
}
