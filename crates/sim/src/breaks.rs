//! Break-before-make, where the architecture demands it (Arm ARM, D8.16).
//!
//! A valid entry must not be replaced by a valid one that maps pages of another size, another
//! memory type, or other memory, if either may be written or the contents differ; nor by a global
//! one, if it is not global; and the contiguous hint must not come or go. Code makes the entry
//! invalid, flushes, and then stores the new one. A CPU that has cached the old entry would
//! otherwise hold two that conflict.
//!
//! Two errors are reported, at the store:
//! - the entry is valid, and the new value conflicts with it;
//! - a CPU has still cached a translation, or an upper-level entry, by an earlier value of the
//!   entry with which the new value conflicts: the flush is missing.
//!
//! A table may be replaced by one whose entries lead to the same places, in the same groups, since
//! the translations stay, and by any where no CPU has cached the entry, or a page of the table.

use crate::config::Checks;
use crate::cpu::Cpu;
use crate::format::{Entry, Rights};
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use crate::tables::result;
use crate::tlb::Translation;
use machine::{CpuId, EntryOp, Frame, Owner, PageSize};

/// The parts of a page's translation that break-before-make regards.
#[derive(Clone, Copy)]
struct Mapping {
    size: PageSize,
    frame: Frame,
    write: bool,
    memory: u8,
    global: bool,
    /// The contiguous hint.
    group: bool,
}

impl Sim {
    /// Called before code changes an entry.
    pub(crate) fn check_breaks(&self, table: Frame, index: usize, op: EntryOp) {
        let Checks { breaks, .. } = self.0.config.checks;
        if !breaks || !self.0.config.arch.breaks_before_make() {
            return;
        }
        let Owner::Table(level) = self.owner(table) else { return };
        let old = self.0.arena.load(table, index).unwrap_or(0);
        let Some(new) = result(op, old) else { return };
        if !self.format().is_present(new) {
            return;
        }
        let by = match self.conflict((table, index), old, new, level) {
            true => Some(None),
            false => self.conflict_cached((table, index), new, level).map(Some),
        };
        if let Some(by) = by {
            let found = Violation::NotBroken { table, index, old, new, by };
            self.violation(found, self.history_of_place(table, index));
        }
    }

    fn maps(&self, entry: u64, found: &Entry, level: u8) -> Option<Mapping> {
        let format = self.format();
        let Entry::Page(size, frame) = *found else { return None };
        let write = format.narrow(Rights::ALL, entry, found).write;
        let (memory, global) = (format.memory_type(entry), format.is_global(entry));
        let group = format.is_group(entry, level);
        Some(Mapping { size, frame, write, memory, global, group })
    }

    fn conflict(&self, place: (Frame, usize), old: u64, new: u64, level: u8) -> bool {
        let decode = |value| self.format().decode(value, level, place.1);
        let (before, after) = (decode(old), decode(new));
        match (&before, &after) {
            (Entry::Page(..), Entry::Table(_)) | (Entry::Table(_), Entry::Page(..)) => true,
            // Only if a CPU has cached it: tables of a space that was never active may change.
            (Entry::Table(before), Entry::Table(after)) => {
                before != after
                    && self.is_cached(place, *before, level)
                    && !self.alike(*before, *after, level - 1)
            }
            _ => {
                let pages = self.maps(old, &before, level).zip(self.maps(new, &after, level));
                pages.is_some_and(|(before, after)| self.differ(before, after))
            }
        }
    }

    /// Whether a CPU has cached an entry of this level that leads to a table, or a page of that
    /// table by this entry.
    fn is_cached(&self, place: (Frame, usize), table: Frame, level: u8) -> bool {
        let is_by = |held: &Translation| {
            held.place.0 == table
                && self.format().index(held.page, level) == place.1
                && self.tables().table_at(held.root, held.page, level) == Some(place.0)
        };
        let has = |cpu: &Cpu| {
            let state = locked(&cpu.state);
            state.uppers.iter().any(|held| held.place == place) || state.tlb.iter().any(is_by)
        };
        self.0.cpus.iter().any(|cpu| has(cpu))
    }

    fn differ(&self, before: Mapping, after: Mapping) -> bool {
        before.size != after.size
            || before.memory != after.memory
            || before.group != after.group
            || after.global && !before.global
            || before.frame != after.frame
                && (before.write || after.write || !self.same_contents(before.frame, after.frame))
    }

    fn same_contents(&self, one: Frame, other: Frame) -> bool {
        (0..self.format().entries())
            .all(|index| self.0.arena.load(one, index) == self.0.arena.load(other, index))
    }

    /// Whether all entries of two tables lead to the same places.
    fn alike(&self, one: Frame, other: Frame, level: u8) -> bool {
        (0..self.format().entries()).all(|index| {
            let entry = |table| {
                let value = self.0.arena.load(table, index)?;
                let is_group = self.format().is_group(value, level);
                Some((self.format().decode(value, level, index), is_group))
            };
            match (entry(one), entry(other)) {
                (Some((Entry::Page(size, frame), one)), Some((Entry::Page(of, to), other))) => {
                    (size, frame, one) == (of, to, other)
                }
                (Some((Entry::Table(one), _)), Some((Entry::Table(other), _))) => one == other,
                (Some((Entry::Absent, _)), Some((Entry::Absent, _))) => true,
                _ => false,
            }
        })
    }

    /// The CPU that has cached something by the entry with which the new value conflicts.
    fn conflict_cached(&self, place: (Frame, usize), new: u64, level: u8) -> Option<CpuId> {
        let found = self.format().decode(new, level, place.1);
        let after = self.maps(new, &found, level);
        let conflicts = |held: &Translation| {
            let (size, frame, write) = (held.size, held.frame, held.rights.write);
            let (memory, global) = (held.memory, held.space.is_none());
            let before = Mapping { size, frame, write, memory, global, group: held.group };
            held.place == place && after.is_none_or(|after| self.differ(before, after))
        };
        self.0.cpus.iter().find_map(|cpu| {
            let state = locked(&cpu.state);
            let upper = after.is_some() && state.uppers.iter().any(|held| held.place == place);
            (upper || state.tlb.iter().any(conflicts)).then_some(cpu.id)
        })
    }
}
