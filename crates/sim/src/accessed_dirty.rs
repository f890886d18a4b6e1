//! Accessed and dirty bits ("marks") that software loses.
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
use crate::report::Violation;
use crate::sim::{Sim, locked};
use machine::{EntryOp, Frame};
use std::collections::BTreeMap;

/// By entry: the bits that hardware has changed, and the CPUs that have read the entry since.
#[derive(Default)]
pub(crate) struct Marks(BTreeMap<(Frame, usize), Mark>);

struct Mark {
    bits: u64,
    /// The entry as hardware left it.
    value: u64,
    seen: u64,
}

impl Sim {
    fn watches_marks(&self) -> bool {
        self.0.config.checks.marks && !current_cpu::get().turn.is_null()
    }

    /// Remembers the bits that a page walker has set in the entry of a page.
    pub(crate) fn marked(&self, table: Frame, index: usize, before: u64, after: u64) {
        if !self.format().is_user(after) || !self.watches_marks() {
            return;
        }
        let marks = &mut locked(&self.0.marks).0;
        let mark = marks.entry((table, index)).or_insert(Mark { bits: 0, value: 0, seen: 0 });
        mark.bits |= after ^ before;
        mark.value = after;
        mark.seen = 0;
    }

    /// Called before code reads or changes an entry.
    pub(crate) fn check_marks(&self, cpu: &Cpu, table: Frame, index: usize, op: EntryOp) {
        if !self.watches_marks() {
            return;
        }
        let place = (table, index);
        let lost = {
            let marks = &mut locked(&self.0.marks).0;
            let Some(mark) = marks.get_mut(&place) else { return };
            let word = self.0.arena.load(table, index).unwrap_or(0);
            let here = 1 << cpu.id.index();
            match op {
                EntryOp::CompareExchange(old, _) if old == word => drop(marks.remove(&place)),
                EntryOp::Load | EntryOp::CompareExchange(..) | EntryOp::And(_) | EntryOp::Or(_) => {
                    mark.seen |= here
                }
                EntryOp::Swap(_) => drop(marks.remove(&place)),
                EntryOp::Store(_) => {}
            }
            match (op, marks.get(&place)) {
                (EntryOp::Store(new), Some(mark)) => {
                    let lost = mark.bits & !(word ^ mark.value) & (word ^ new);
                    let unseen = mark.seen & here == 0 && self.format().is_present(word);
                    marks.remove(&place);
                    if unseen { lost } else { 0 }
                }
                _ => 0,
            }
        };
        if lost != 0 {
            let found = Violation::LostMark { table, index, bits: lost };
            self.violation(found, self.history_of_place(table, index));
        }
    }
}
