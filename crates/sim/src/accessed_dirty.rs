//! Accessed and dirty bits that software loses.
//!
//! A page walker may set these bits in a page's entry at any moment. Software that overwrites the
//! entry with a plain store loses a bit that was set after it last read the entry. So the machine
//! remembers each bit that its walkers set, and the CPUs that have read the entry since. It reports
//! a store of a value without the bit by a CPU that has not. A swap and a compare-and-exchange lose
//! nothing: they return the old value, or fail.
//!
//! Only entries of user pages (`USER`) are checked: a kernel that ignores these bits of its own
//! pages may overwrite them. The check works only under the deterministic driver, where an access
//! comes right after its step.

use crate::lock::locked;
use crate::tables::Tables;
use machine::{CpuId, EntryOp, Frame};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// By entry: the bits that hardware has changed, and the CPUs that have read the entry since.
#[derive(Default)]
pub(crate) struct SetByHardware(Mutex<BTreeMap<(Frame, usize), SetBits>>);

struct SetBits {
    bits: u64,
    /// The entry as hardware left it.
    value: u64,
    seen: u64,
}

impl SetByHardware {
    /// Remembers the bits that a page walker has set in the entry of a page.
    pub(crate) fn note(&self, place: (Frame, usize), before: u64, after: u64) {
        let entries = &mut *locked(&self.0);
        let set = entries.entry(place).or_insert(SetBits { bits: 0, value: 0, seen: 0 });
        set.bits |= after ^ before;
        set.value = after;
        set.seen = 0;
    }

    /// Called before code on a CPU reads or changes an entry. Returns the bits that it loses.
    pub(crate) fn lost(
        &self,
        tables: Tables<'_>,
        cpu: CpuId,
        place: (Frame, usize),
        op: EntryOp,
    ) -> u64 {
        let entries = &mut *locked(&self.0);
        let Some(set) = entries.get_mut(&place) else { return 0 };
        let word = tables.arena.load(place.0, place.1).unwrap_or(0);
        let here = 1 << cpu.index();
        match op {
            EntryOp::CompareExchange(old, _) if old == word => drop(entries.remove(&place)),
            EntryOp::Load | EntryOp::CompareExchange(..) | EntryOp::And(_) | EntryOp::Or(_) => {
                set.seen |= here
            }
            EntryOp::Swap(_) => drop(entries.remove(&place)),
            EntryOp::Store(new) => {
                let lost = set.bits & !(word ^ set.value) & (word ^ new);
                let unseen = set.seen & here == 0 && tables.format.is_present(word);
                entries.remove(&place);
                return if unseen { lost } else { 0 };
            }
        }
        0
    }
}
