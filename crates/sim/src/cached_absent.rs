//! Absent entries that CPUs have cached, on AArch64 and RISC-V or with [`Config::caches_absent`].
//!
//! A CPU of such an architecture may read an entry ahead while it is absent, and use what it read
//! until [`published`](machine::Tlb::published) or a flush; or its walks do not see the store of an
//! entry before a barrier. This machine assumes the worst: each CPU has read each absent entry. So
//! an entry that becomes valid is noted here with all CPUs. A walk of a noted CPU takes it for
//! absent. A `published` or a flush takes the CPU away from the entries that lead to its range.
//!
//! A table that is filled before it is linked has no such entries: no CPU could read it. (A table
//! of which two spaces know is forgotten, too, when the second links it. So the machine is too
//! lenient there.)
//!
//! A missed `published` is a violation where the kernel would fault. In the half of programs the
//! handler is called, as on hardware.
//!
//! [`Config::caches_absent`]: crate::Config::caches_absent

use crate::config::Checks;
use crate::cpu::Cpu;
use crate::format::Entry;
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use machine::{Asid, CpuId, EntryOp, Flush, Frame, Owner, VirtAddr, VirtRange};
use std::collections::{BTreeSet, HashMap};

/// A set of CPUs, by bits.
type Cpus = u64;

/// The entries that some CPUs still take for absent, by their tables.
#[derive(Default)]
pub(crate) struct CachedAbsent {
    entries: HashMap<Frame, HashMap<usize, Cpus>>,
    /// The top-level table that was last active on each CPU under each tag.
    roots: HashMap<(CpuId, Asid), Frame>,
}

impl CachedAbsent {
    fn see(&mut self, (table, index): (Frame, usize), cpus: Cpus) {
        if let Some(entries) = self.entries.get_mut(&table)
            && let Some(blind) = entries.get_mut(&index)
        {
            *blind &= !cpus;
            if *blind == 0 {
                entries.remove(&index);
            }
        }
    }
}

impl Sim {
    /// Called before code changes an entry.
    pub(crate) fn note_valid(&self, table: Frame, index: usize, op: EntryOp) {
        if !self.0.config.caches_absent() {
            return;
        }
        let Owner::Table(level) = self.owner(table) else { return };
        let old = self.0.arena.load(table, index).unwrap_or(0);
        let Some(new) = result(op, old) else { return };
        let (format, absent) = (self.format(), &mut *locked(&self.0.absent));
        if let Entry::Table(next) = format.decode(new, level, index) {
            self.forget(absent, next, level);
        }
        if !format.is_present(new) {
            absent.see((table, index), Cpus::MAX);
        } else if !format.is_present(old) {
            absent.entries.entry(table).or_default().insert(index, Cpus::MAX);
        }
    }

    /// A table below an entry of this level is being linked.
    fn forget(&self, absent: &mut CachedAbsent, table: Frame, level: u8) {
        let entries = absent.entries.remove(&table).unwrap_or_default();
        let Some(below) = level.checked_sub(1) else { return };
        for index in entries.into_keys() {
            if let Some((Entry::Table(next), _)) = self.entry_now(table, index, below) {
                self.forget(absent, next, below);
            }
        }
    }

    fn entry_now(&self, table: Frame, index: usize, level: u8) -> Option<(Entry, u64)> {
        let value = self.0.arena.load(table, index)?;
        Some((self.format().decode(value, level, index), value))
    }

    /// Whether the CPU takes a valid entry for absent.
    pub(crate) fn is_unseen(&self, cpu: &Cpu, table: Frame, index: usize) -> bool {
        self.0.config.caches_absent()
            && locked(&self.0.absent)
                .entries
                .get(&table)
                .and_then(|entries| entries.get(&index))
                .is_some_and(|blind| blind & bit(cpu.id) != 0)
    }

    /// A CPU translates by these tables from now on.
    pub(crate) fn now_active(&self, cpu: &Cpu, root: Frame, space: Asid, is_first: bool) {
        if !self.0.config.caches_absent() {
            return;
        }
        let absent = &mut *locked(&self.0.absent);
        absent.roots.insert((cpu.id, space), root);
        if is_first {
            self.see(absent, cpu.id, Flush::All);
        }
    }

    /// Entries that lead to the range are published, by this CPU.
    pub(crate) fn publish(&self, cpu: &Cpu, space: Option<Asid>, range: VirtRange) {
        if self.0.config.caches_absent() {
            let cpus = if space.is_none() { Cpus::MAX } else { bit(cpu.id) };
            let space = space.map(|space| (cpu.id, space));
            self.see_range(&mut locked(&self.0.absent), cpus, space, range);
        }
    }

    /// The CPU drops absent entries with the translations that a flush covers.
    pub(crate) fn drop_absent(&self, cpu: &Cpu, what: Flush) {
        if self.0.config.caches_absent() {
            self.see(&mut locked(&self.0.absent), cpu.id, what);
        }
    }

    fn see(&self, absent: &mut CachedAbsent, cpu: CpuId, what: Flush) {
        let cpus = bit(cpu);
        match what {
            Flush::Range { space, range, .. } => {
                self.see_range(absent, cpus, space.map(|space| (cpu, space)), range);
            }
            Flush::Space(space) => {
                let half = VirtRange::new(VirtAddr::new(0), 1 << 63);
                half.inspect(|half| self.see_range(absent, cpus, Some((cpu, space)), *half));
                // The space has its own copy of what leads to the other half.
                if let Some(root) = absent.roots.get(&(cpu, space)).copied() {
                    (0..self.format().entries()).for_each(|at| absent.see((root, at), cpus));
                }
            }
            Flush::All => {
                let places = absent.entries.iter().flat_map(|(table, entries)| {
                    entries.keys().map(|index| (*table, *index)).collect::<Vec<_>>()
                });
                let places: Vec<_> = places.collect();
                places.into_iter().for_each(|place| absent.see(place, cpus));
            }
        }
    }

    /// `None` is every space. For the kernel's half they differ only in the top-level table.
    fn see_range(
        &self,
        absent: &mut CachedAbsent,
        cpus: Cpus,
        space: Option<(CpuId, Asid)>,
        range: VirtRange,
    ) {
        if absent.entries.values().all(HashMap::is_empty) {
            return;
        }
        let roots: Vec<_> = match space {
            Some(space) => absent.roots.get(&space).copied().into_iter().collect(),
            None => absent.roots.values().copied().collect::<BTreeSet<_>>().into_iter().collect(),
        };
        for root in roots {
            let mut next = Some(range.start());
            let is_in = |at: &VirtAddr| range.contains(*at) && self.format().is_canonical(*at);
            while let Some(at) = next.filter(is_in) {
                next = self.see_walk(absent, cpus, root, at);
            }
        }
    }

    /// A walk to `at`. Returns the first address behind those of its last entry.
    fn see_walk(
        &self,
        absent: &mut CachedAbsent,
        cpus: Cpus,
        root: Frame,
        at: VirtAddr,
    ) -> Option<VirtAddr> {
        let (format, mut table, mut level) = (self.format(), root, self.0.config.levels - 1);
        loop {
            let index = format.index(at, level);
            absent.see((table, index), cpus);
            match self.entry_now(table, index, level) {
                Some((Entry::Table(below), _)) if level != 0 => (table, level) = (below, level - 1),
                _ => break,
            }
        }
        let shift = format.shift(level);
        // It wraps behind the last address.
        let next = VirtAddr::new(((at.get() >> shift) + 1) << shift);
        (next > at).then_some(next)
    }

    /// An access faulted because an entry is absent. In the kernel's half there is no handler.
    pub(crate) fn check_published(&self, cpu: &Cpu, root: Frame, at: VirtAddr) {
        let Checks { published, .. } = self.0.config.checks;
        if !published || !self.0.config.caches_absent() || at.get() >> 63 == 0 {
            return;
        }
        // No page, so the access faults anyway.
        if self.look(root, at).is_none_or(|leaf| leaf.page.is_none()) {
            return;
        }
        let mut table = root;
        for level in (0..self.0.config.levels).rev() {
            let index = self.format().index(at, level);
            let Some((found, value)) = self.entry_now(table, index, level) else { return };
            if self.format().is_present(value) && self.is_unseen(cpu, table, index) {
                let found = Violation::Unpublished { address: at, table, index };
                self.violation(found, self.history_of_place(table, index));
            }
            let Entry::Table(below) = found else { return };
            table = below;
        }
    }
}

/// The value of an entry after an operation; `None` if it does not change it.
pub(crate) fn result(op: EntryOp, old: u64) -> Option<u64> {
    match op {
        EntryOp::Store(new) | EntryOp::Swap(new) => Some(new),
        EntryOp::CompareExchange(expected, new) => (expected == old).then_some(new),
        EntryOp::And(mask) => Some(old & mask),
        EntryOp::Or(mask) => Some(old | mask),
        EntryOp::Load => None,
    }
}

fn bit(cpu: CpuId) -> Cpus {
    1 << cpu.index()
}
