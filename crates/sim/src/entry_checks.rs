//! The checks of entries: before code reads or changes one, and when a walk has used one.

use crate::config::Checks;
use crate::cpu::Cpu;
use crate::current_cpu;
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use machine::{EntryOp, Frame, Owner, VirtAddr};

impl Sim {
    /// Called before code on this CPU reads or changes an entry.
    pub(crate) fn check_entry(&self, cpu: &Cpu, table: Frame, index: usize, op: EntryOp) {
        self.check_is_table(cpu, table);
        let tables = self.tables();
        if self.watches_accessed_dirty() {
            let bits = self.0.accessed_dirty.lost(tables, cpu.id, (table, index), op);
            if bits != 0 {
                let found = Violation::LostAccessedDirty { table, index, bits };
                self.violation(found, self.history_of_place(table, index));
            }
        }
        self.check_breaks(table, index, op);
        if let Some(absent) = &self.0.absent
            && let Owner::Table(level) = self.owner(table)
        {
            absent.note(tables, (table, index), level, op);
        }
        if self.0.config.checks.frames {
            self.0.reverse_map.note(tables, table, index, op);
        }
    }

    /// I3: the entry is one of a table, and code has been led there.
    fn check_is_table(&self, cpu: &Cpu, table: Frame) {
        if self.0.config.checks.tables {
            let owner = self.owner(table);
            if !matches!(owner, Owner::Table(_)) {
                let (level, address, cached) = (None, None, false);
                let found = Violation::NotATable { table, owner, level, address, cached };
                self.violation(found, self.history_of(table));
            }
        }
        if self.0.config.checks.walked && self.0.graces[cpu.id.index()].is_in_section() {
            let walked = &mut locked(&cpu.state).walked;
            if !walked.contains(&table) {
                walked.push(table);
            }
        }
    }

    /// Only under the deterministic driver an access comes right after its step.
    fn watches_accessed_dirty(&self) -> bool {
        self.0.config.checks.accessed_dirty && !current_cpu::get().turn.is_null()
    }

    /// Called when a page walker has set bits in the entry of a page.
    pub(crate) fn note_accessed_dirty(&self, place: (Frame, usize), before: u64, after: u64) {
        if self.format().is_user(after) && self.watches_accessed_dirty() {
            self.0.accessed_dirty.note(place, before, after);
        }
    }

    /// An access faulted because an entry is absent. In the kernel's half there is no handler.
    pub(crate) fn check_published(&self, cpu: &Cpu, root: Frame, at: VirtAddr) {
        let Checks { published, .. } = self.0.config.checks;
        let Some(absent) = self.0.absent.as_ref().filter(|_| published && at.get() >> 63 != 0)
        else {
            return;
        };
        // Without a page the access faults anyway.
        let tables = self.tables();
        if tables.look(root, at).is_some_and(|leaf| leaf.page.is_some())
            && let Some((table, index)) = absent.first_unseen(tables, cpu.id, root, at)
        {
            let found = Violation::Unpublished { address: at, table, index };
            self.violation(found, self.history_of_place(table, index));
        }
    }
}
