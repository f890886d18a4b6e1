//! Groups of pages: the entries that a walk caches, and the machine's reports. Entries are written
//! by hand.

mod common;

use common::{pages, range};
use machine::*;
use sim::{Arch, Checks, Config, Sim, Violation, Want};

const READ: Want = Want { write: false, user: false, execute: false };
const WRITE: Want = Want { write: true, ..READ };

/// One table of each level, the lowest one changed by hand.
struct TablePath {
    sim: Sim,
    root: Frame,
    /// The table whose entry leads to the lowest one.
    above: Frame,
    lowest: Frame,
}

/// The entry of a page of a group, and its mark: without the frame, accessed and dirty.
fn entry(arch: Arch, index: u64) -> u64 {
    match arch {
        Arch::Aarch64 => 1 << 52 | (0x8_0000 + index) << 12 | 0xc03,
        _ => 1 << 63 | (0x8_0008 + (index & !15)) << 10 | 0xc7,
    }
}

/// The same page, in no group.
fn single(arch: Arch, index: u64) -> u64 {
    match arch {
        Arch::Aarch64 => (0x8_0000 + index) << 12 | 0xc03,
        _ => (0x8_0000 + index) << 10 | 0xc7,
    }
}

impl TablePath {
    /// Called as a CPU.
    fn new(sim: &Sim) -> TablePath {
        let config = sim.config();
        let tables: Vec<Frame> =
            (0..config.levels).map(|level| common::table(sim, level)).collect();
        for level in 1..tables.len() {
            let below = tables[level - 1].number();
            // SAFETY: a table.
            let slot = unsafe { sim.entry(tables[level], 0) }.unwrap();
            slot.store(if config.arch == Arch::Aarch64 {
                below << 12 | 3
            } else {
                below << 10 | 1
            });
        }
        let (root, above, lowest) = (tables[tables.len() - 1], tables[1], tables[0]);
        // SAFETY: the test needs no mapping.
        unsafe { sim.activate(root, Asid(1), false) };
        TablePath { sim: sim.clone(), root, above, lowest }
    }

    fn slot(&self, index: u64) -> Entry<'_, Sim> {
        // SAFETY: a table.
        unsafe { self.sim.entry(self.lowest, index as usize) }.unwrap()
    }

    fn fill(&self, pages: core::ops::Range<u64>) {
        pages.for_each(|page| self.slot(page).store(entry(self.sim.config().arch, page)));
    }

    fn touch(&self, page: u64, want: Want) -> Result<u64, FaultKind> {
        let at = VirtAddr::new(page << 12);
        // The tests are not about absent entries.
        self.sim.published(Some(Asid(1)), VirtRange::new(at, 4096).unwrap());
        let found = self.sim.translate(at, want);
        found.map(|at| at.get() >> 12).map_err(|fault| fault.kind)
    }
}

/// Runs a program on the only CPU, and returns what the machine has reported.
fn alone(arch: Arch, program: impl FnOnce(&TablePath) + Send) -> Option<Violation> {
    alone_with(arch, Config::default().upper_entries, program)
}

/// As [`alone`], with so many cached entries of each upper level.
fn alone_with(
    arch: Arch,
    upper_entries: usize,
    program: impl FnOnce(&TablePath) + Send,
) -> Option<Violation> {
    let checks = Checks::ALL;
    let config = Config { cpus: 1, frames: 64, arch, checks, upper_entries, ..Config::default() };
    common::alone_with(config, |sim| program(&TablePath::new(sim)))
}

const BOTH: [Arch; 2] = [Arch::Aarch64, Arch::RiscVNapot];

#[test]
fn a_walk_caches_the_group() {
    for arch in BOTH {
        let found = alone(arch, |path| {
            path.fill(16..32);
            let walks = || path.sim.stats().walks;
            for page in [20, 16, 31, 25] {
                assert_eq!(path.touch(page, WRITE), Ok(0x8_0000 + page));
            }
            assert_eq!(walks(), 1);
            // A flush of one page drops its translation. Hardware may drop others with it.
            path.sim.flush(pages(Some(Asid(1)), range(20 << 12, 4096), false));
            assert_eq!(path.touch(20, READ), Ok(0x8_0014));
            assert_eq!(walks(), 2);
            // The neighbours are not of the group.
            assert_eq!(path.touch(15, READ), Err(FaultKind::NotPresent));
            assert_eq!(path.touch(32, READ), Err(FaultKind::NotPresent));
        });
        assert_eq!(found, None, "{arch:?}");
    }
}

/// An entry that is not there yet does not matter.
#[test]
fn a_group_may_be_filled_and_cleared() {
    for arch in BOTH {
        let found = alone(arch, |path| {
            path.fill(16..24);
            assert_eq!(path.touch(16, READ), Ok(0x8_0010));
            path.fill(24..32);
            assert_eq!(path.touch(30, READ), Ok(0x8_001e));
        });
        assert_eq!(found, None, "{arch:?}");
    }
}

#[test]
fn uneven_groups_are_reported() {
    // A single page, another frame, another right, and, on RISC-V, a group of no defined size.
    for arch in BOTH {
        let read_only = if arch == Arch::Aarch64 { 0 } else { 1 << 3 };
        let executable = if arch == Arch::Aarch64 { 1 << 53 | 1 << 54 } else { 0 };
        for odd in [
            single(arch, 18),
            single(arch, 21) | (entry(arch, 0) & 1 << 52),
            entry(arch, 18) | read_only | executable,
        ] {
            let found = alone(arch, |path| {
                path.fill(16..32);
                path.slot(18).store(0);
                path.sim.flush(Flush::All);
                path.slot(18).store(odd);
                let _ = path.touch(20, READ);
            });
            let is = matches!(found, Some(Violation::GroupUneven { index: 20, other: 18, .. }));
            assert!(is, "{arch:?}, {odd:#x}: {found:?}");
        }
    }
}

/// The right to write may differ for a moment.
#[test]
fn the_right_to_write_may_go_one_by_one() {
    for arch in BOTH {
        let found = alone(arch, |path| {
            path.fill(16..32);
            let (set, clear) = if arch == Arch::Aarch64 { (1 << 7, 0) } else { (0, 1 << 2) };
            for page in 16..20 {
                path.slot(page).store((entry(arch, page) | set) & !clear);
            }
            assert_eq!(path.touch(17, READ), Ok(0x8_0011));
        });
        assert_eq!(found, None, "{arch:?}");
    }
}

#[test]
fn marks_in_a_group_are_reported() {
    for arch in BOTH {
        let accessed = if arch == Arch::Aarch64 { 1 << 10 } else { 1 << 6 };
        let found = alone(arch, |path| {
            (16..32).for_each(|page| path.slot(page).store(entry(arch, page) & !accessed));
            let _ = path.touch(20, READ);
        });
        assert!(
            matches!(found, Some(Violation::GroupAccessedDirty { index: 20, .. })),
            "{found:?}"
        );
    }
}

/// A page that joins or leaves a group: by a store over it, and without a flush.
#[test]
fn groups_come_and_go_by_break_before_make() {
    for from_group in [false, true] {
        let old = if from_group { entry } else { single };
        let new = if from_group { single } else { entry };
        let found = alone(Arch::Aarch64, |path| {
            path.slot(20).store(old(Arch::Aarch64, 20));
            path.slot(20).store(new(Arch::Aarch64, 20));
        });
        assert!(matches!(found, Some(Violation::NotBroken { index: 20, by: None, .. })));
        // It was cached by the walk of another entry, or of its own.
        let found = alone(Arch::Aarch64, |path| {
            (16..32).for_each(|page| path.slot(page).store(old(Arch::Aarch64, page)));
            path.touch(if from_group { 17 } else { 20 }, READ).unwrap();
            path.slot(20).store(0);
            path.slot(20).store(new(Arch::Aarch64, 20));
        });
        assert!(matches!(found, Some(Violation::NotBroken { index: 20, by: Some(_), .. })));
    }
}

/// A page that is taken out of a group alone comes back with the next walk of another.
#[test]
fn a_part_of_a_group_that_is_unmapped_is_found() {
    for arch in BOTH {
        let found = alone(arch, |path| {
            path.fill(16..32);
            path.touch(20, READ).unwrap();
            path.slot(20).store(0);
            path.sim.flush(Flush::All);
            // Without a mark, the group would have been parted first.
            path.touch(21, READ).unwrap();
            path.sim.check_flushed(path.root, Some(Asid(1)), range(20 << 12, 4096));
        });
        assert!(matches!(found, Some(Violation::NotFlushed { .. })), "{arch:?}: {found:?}");
    }
}

/// Without Svnapot its bit is reserved, as are sizes that it does not define.
#[test]
fn svnapot_is_an_extension() {
    for (arch, entry) in [
        (Arch::RiscV, entry(Arch::RiscVNapot, 16)),
        (Arch::RiscVNapot, entry(Arch::RiscVNapot, 16) ^ 12 << 10),
    ] {
        let found = alone(arch, |path| {
            path.slot(16).store(entry);
            assert_eq!(path.touch(16, READ), Err(FaultKind::Malformed));
        });
        assert_eq!(found, None);
    }
}

/// A table whose pages are a group is replaced by one with single pages, or vice versa.
#[test]
fn groups_come_and_go_with_tables_by_break_before_make() {
    let arch = Arch::Aarch64;
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let of = |group| if group { entry } else { single };
        // With upper-level entries cached, too, and with the pages alone.
        for upper_entries in [8, 0] {
            let found = alone_with(arch, upper_entries, |path| {
                (16..32).for_each(|page| path.slot(page).store(of(before)(arch, page)));
                path.touch(20, READ).unwrap();
                let other = common::table(&path.sim, 0);
                for page in 16..32 {
                    // SAFETY: a table.
                    let slot = unsafe { path.sim.entry(other, page as usize) }.unwrap();
                    slot.store(of(after)(arch, page));
                }
                // SAFETY: a table.
                let link = unsafe { path.sim.entry(path.above, 0) }.unwrap();
                link.store(other.number() << 12 | 3);
            });
            let is = matches!(found, Some(Violation::NotBroken { index: 0, .. }));
            assert_eq!(is, before != after, "{before}, {upper_entries}: {found:?}");
        }
    }
}
