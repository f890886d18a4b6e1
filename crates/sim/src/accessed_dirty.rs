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

use crate::cpu::Cpu;
use crate::current_cpu;
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use machine::{EntryOp, Frame};
use std::collections::BTreeMap;

/// By entry: the bits that hardware has changed, and the CPUs that have read the entry since.
#[derive(Default)]
pub(crate) struct SetByHardware(BTreeMap<(Frame, usize), SetBits>);

struct SetBits {
    bits: u64,
    /// The entry as hardware left it.
    value: u64,
    seen: u64,
}

impl Sim {
    fn watches_accessed_dirty(&self) -> bool {
        self.0.config.checks.accessed_dirty && !current_cpu::get().turn.is_null()
    }

    /// Remembers the bits that a page walker has set in the entry of a page.
    pub(crate) fn note_accessed_dirty(&self, table: Frame, index: usize, before: u64, after: u64) {
        if !self.format().is_user(after) || !self.watches_accessed_dirty() {
            return;
        }
        let entries = &mut locked(&self.0.accessed_dirty).0;
        let set = entries.entry((table, index)).or_insert(SetBits { bits: 0, value: 0, seen: 0 });
        set.bits |= after ^ before;
        set.value = after;
        set.seen = 0;
    }

    /// Called before code reads or changes an entry.
    pub(crate) fn check_accessed_dirty(&self, cpu: &Cpu, table: Frame, index: usize, op: EntryOp) {
        if !self.watches_accessed_dirty() {
            return;
        }
        let place = (table, index);
        let lost = {
            let entries = &mut locked(&self.0.accessed_dirty).0;
            let Some(set) = entries.get_mut(&place) else { return };
            let word = self.0.arena.load(table, index).unwrap_or(0);
            let here = 1 << cpu.id.index();
            match op {
                EntryOp::CompareExchange(old, _) if old == word => drop(entries.remove(&place)),
                EntryOp::Load | EntryOp::CompareExchange(..) | EntryOp::And(_) | EntryOp::Or(_) => {
                    set.seen |= here
                }
                EntryOp::Swap(_) => drop(entries.remove(&place)),
                EntryOp::Store(_) => {}
            }
            match (op, entries.get(&place)) {
                (EntryOp::Store(new), Some(set)) => {
                    let lost = set.bits & !(word ^ set.value) & (word ^ new);
                    let unseen = set.seen & here == 0 && self.format().is_present(word);
                    entries.remove(&place);
                    if unseen { lost } else { 0 }
                }
                _ => 0,
            }
        };
        if lost != 0 {
            let found = Violation::LostAccessedDirty { table, index, bits: lost };
            self.violation(found, self.history_of_place(table, index));
        }
    }
}
