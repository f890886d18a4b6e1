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

use crate::format::Entry;
use crate::lock::locked;
use crate::tables::{Tables, result};
use machine::{Asid, CpuId, EntryOp, Flush, Frame, VirtAddr, VirtRange};
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

/// A set of CPUs, by bits.
type Cpus = u64;

/// The entries that some CPUs still take for absent.
#[derive(Default)]
pub(crate) struct CachedAbsent(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    /// By table.
    entries: HashMap<Frame, HashMap<usize, Cpus>>,
    /// The top-level table that was last active on each CPU under each tag.
    roots: HashMap<(CpuId, Asid), Frame>,
}

impl CachedAbsent {
    /// Called before code changes an entry of a table of this level.
    pub(crate) fn note(
        &self,
        tables: Tables<'_>,
        (table, index): (Frame, usize),
        level: u8,
        op: EntryOp,
    ) {
        let (format, old) = (tables.format, tables.arena.load(table, index).unwrap_or(0));
        let Some(new) = result(op, old) else { return };
        let noted = &mut *locked(&self.0);
        if let Entry::Table(next) = format.decode(new, level, index) {
            noted.forget(tables, next, level);
        }
        if !format.is_present(new) {
            noted.see((table, index), Cpus::MAX);
        } else if !format.is_present(old) {
            noted.entries.entry(table).or_default().insert(index, Cpus::MAX);
        }
    }

    /// Whether the CPU takes a valid entry for absent.
    pub(crate) fn is_unseen(&self, cpu: CpuId, table: Frame, index: usize) -> bool {
        let noted = locked(&self.0);
        let blind = noted.entries.get(&table).and_then(|entries| entries.get(&index));
        blind.is_some_and(|blind| blind & bit(cpu) != 0)
    }

    /// A CPU translates by these tables from now on.
    pub(crate) fn now_active(
        &self,
        tables: Tables<'_>,
        cpu: CpuId,
        (root, space): (Frame, Asid),
        is_first: bool,
    ) {
        let noted = &mut *locked(&self.0);
        noted.roots.insert((cpu, space), root);
        if is_first {
            noted.flush(tables, cpu, Flush::All);
        }
    }

    /// Entries that lead to the range are published, by this CPU.
    pub(crate) fn publish(
        &self,
        tables: Tables<'_>,
        cpu: CpuId,
        space: Option<Asid>,
        range: VirtRange,
    ) {
        let cpus = if space.is_none() { Cpus::MAX } else { bit(cpu) };
        let space = space.map(|space| (cpu, space));
        locked(&self.0).see_range(tables, cpus, space, range);
    }

    /// The CPU drops absent entries with the translations that a flush covers.
    pub(crate) fn flush(&self, tables: Tables<'_>, cpu: CpuId, what: Flush) {
        locked(&self.0).flush(tables, cpu, what);
    }

    /// The first valid entry on the way to `at` that the CPU takes for absent.
    pub(crate) fn first_unseen(
        &self,
        tables: Tables<'_>,
        cpu: CpuId,
        root: Frame,
        at: VirtAddr,
    ) -> Option<(Frame, usize)> {
        let mut table = root;
        for level in (0..tables.levels).rev() {
            let index = tables.format.index(at, level);
            let (found, value) = tables.entry(table, index, level)?;
            if tables.format.is_present(value) && self.is_unseen(cpu, table, index) {
                return Some((table, index));
            }
            let Entry::Table(below) = found else { return None };
            table = below;
        }
        None
    }
}

impl Noted {
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

    /// A table below an entry of this level is being linked.
    fn forget(&mut self, tables: Tables<'_>, table: Frame, level: u8) {
        let entries = self.entries.remove(&table).unwrap_or_default();
        let Some(below) = level.checked_sub(1) else { return };
        for index in entries.into_keys() {
            if let Some((Entry::Table(next), _)) = tables.entry(table, index, below) {
                self.forget(tables, next, below);
            }
        }
    }

    fn flush(&mut self, tables: Tables<'_>, cpu: CpuId, what: Flush) {
        let cpus = bit(cpu);
        match what {
            Flush::Range { space, range, .. } => {
                self.see_range(tables, cpus, space.map(|space| (cpu, space)), range);
            }
            Flush::Space(space) => {
                let half = VirtRange::new(VirtAddr::new(0), 1 << 63);
                half.inspect(|half| self.see_range(tables, cpus, Some((cpu, space)), *half));
                // The space has its own copy of what leads to the other half.
                if let Some(root) = self.roots.get(&(cpu, space)).copied() {
                    (0..tables.format.entries()).for_each(|at| self.see((root, at), cpus));
                }
            }
            Flush::All => {
                let places = self.entries.iter().flat_map(|(table, entries)| {
                    entries.keys().map(|index| (*table, *index)).collect::<Vec<_>>()
                });
                let places: Vec<_> = places.collect();
                places.into_iter().for_each(|place| self.see(place, cpus));
            }
        }
    }

    /// `None` is every space. For the kernel's half they differ only in the top-level table.
    fn see_range(
        &mut self,
        tables: Tables<'_>,
        cpus: Cpus,
        space: Option<(CpuId, Asid)>,
        range: VirtRange,
    ) {
        if self.entries.values().all(HashMap::is_empty) {
            return;
        }
        let roots: Vec<_> = match space {
            Some(space) => self.roots.get(&space).copied().into_iter().collect(),
            None => self.roots.values().copied().collect::<BTreeSet<_>>().into_iter().collect(),
        };
        for root in roots {
            let mut next = Some(range.start());
            let is_in = |at: &VirtAddr| range.contains(*at) && tables.format.is_canonical(*at);
            while let Some(at) = next.filter(is_in) {
                next = self.see_walk(tables, cpus, root, at);
            }
        }
    }

    /// A walk to `at`. Returns the first address behind those of its last entry.
    fn see_walk(
        &mut self,
        tables: Tables<'_>,
        cpus: Cpus,
        root: Frame,
        at: VirtAddr,
    ) -> Option<VirtAddr> {
        let (mut table, mut level) = (root, tables.levels - 1);
        loop {
            let index = tables.format.index(at, level);
            self.see((table, index), cpus);
            match tables.entry(table, index, level) {
                Some((Entry::Table(below), _)) if level != 0 => (table, level) = (below, level - 1),
                _ => break,
            }
        }
        let shift = tables.format.shift(level);
        // It wraps behind the last address.
        let next = VirtAddr::new(((at.get() >> shift) + 1) << shift);
        (next > at).then_some(next)
    }
}

fn bit(cpu: CpuId) -> Cpus {
    1 << cpu.index()
}
