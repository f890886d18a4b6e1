//! Groups: neighbouring pages of the lowest level whose entries say that hardware may cache them as
//! one translation. They are the contiguous hint of AArch64, and Svnapot of RISC-V.
//!
//! A walk of one entry caches all pages of the group, each as if its own entry had been walked,
//! with what this entry says. Real hardware may do so or not.
//!
//! Two errors are reported when a walk uses an entry of a group:
//! - another entry of the group is valid, and does not say the same: all must have the mark of the
//!   group, and lead to neighbouring frames with the same memory type and rights. The right to
//!   write may differ, since a call that takes it from a range takes it from one entry after the
//!   other, and then flushes. An entry may be absent, while a call fills or clears the group;
//! - the walk sets an accessed or a dirty bit there. Hardware may set it in any entry of the group.
//!   Code could combine the bits of all. The code under test promises that all bits are set before.

use crate::cpu::Cpu;
use crate::format::Rights;
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use crate::tlb::Translation;
use machine::{Frame, VirtAddr};

impl Sim {
    /// Caches the other pages of a group.
    pub(crate) fn fill_group(&self, cpu: &Cpu, walked: &Translation) {
        if !walked.group {
            return;
        }
        let (table, at) = walked.place;
        let count = self.format().group();
        let first = at & !(count - 1);
        let pages = walked.size.frames();
        let tlb = &mut locked(&cpu.state).tlb;
        for index in (first..first + count).filter(|index| *index != at) {
            let apart = (index as u64).wrapping_sub(at as u64);
            let frame = walked.frame.number().wrapping_add(apart.wrapping_mul(pages));
            let page = walked.page.get().wrapping_add(apart.wrapping_mul(walked.size.bytes()));
            if let Some(frame) = Frame::new(frame) {
                let page = VirtAddr::new(page);
                tlb.insert(Translation { page, frame, place: (table, index), ..*walked });
            }
        }
    }

    /// Checks a group when a walk has used one of its entries, and has changed it from `entry` to
    /// `marked`.
    pub(crate) fn check_group(&self, place: (Frame, usize), entry: u64, marked: u64) {
        if !self.0.config.checks.tables {
            return;
        }
        let (table, index) = place;
        if entry != marked {
            let found = Violation::GroupAccessedDirty { table, index, entry, marked };
            self.violation(found, self.history_of(table));
        }
        let format = self.format();
        let of = |index: usize, value: u64| {
            let found = format.decode(value, 0, index);
            let rights = format.narrow(Rights::ALL, value, &found);
            let first = format.targets(value, index).next().map_or(0, Frame::number);
            let first = first.wrapping_sub(index as u64 * (1 << format.order()));
            let rights = Rights { write: false, ..rights };
            let group = format.is_group(value, 0);
            (first, rights, format.memory_type(value), format.is_global(value), group)
        };
        let expected = of(index, entry);
        let first = index & !(format.group() - 1);
        for other in first..first + format.group() {
            let value = self.0.arena.load(table, other).unwrap_or(0);
            if format.is_present(value) && of(other, value) != expected {
                let found = Violation::GroupUneven { table, index, entry, other, value };
                let mut history = self.history_of_place(table, index);
                history.extend(self.history_of_entry(table, other));
                self.violation(found, history);
            }
        }
    }
}
