//! The page walkers of other architectures than x86-64, with entries written by hand from the
//! manuals.

mod common;

use common::{pages, range, set_owner, table};
use machine::*;
use sim::{Arch, Config, Sim, Want};

const AT: u64 = 0x12_3456_7000;

/// One table of each level, for the address `AT`, on a machine of one CPU.
struct TablePath {
    sim: Sim,
    tables: Vec<Frame>,
    link: fn(u64) -> u64,
}

/// The base-2 logarithm of the bytes of a table.
fn granule(arch: Arch) -> u32 {
    match arch {
        Arch::Aarch64G16 | Arch::Aarch64G16Lpa2 => 14,
        Arch::Aarch64G64 | Arch::Aarch64G64Lpa => 16,
        _ => 12,
    }
}

impl TablePath {
    fn new(arch: Arch, levels: u8, link: fn(u64) -> u64) -> TablePath {
        let sim = Sim::new(Config { cpus: 1, frames: 256, arch, levels, ..Config::default() });
        let sim = sim.unwrap();
        let order = (granule(arch) - 12) as u8;
        let tables = sim.on_cpu(0, || {
            let table = |level| {
                let frame = sim.alloc(order, NodePolicy::Local).unwrap();
                set_owner(&sim, frame, Owner::Table(level));
                frame
            };
            (0..levels).map(table).collect()
        });
        TablePath { sim, tables, link }
    }

    fn slot(&self, level: usize) -> Entry<'_, Sim> {
        let granule = granule(self.sim.config().arch);
        let index = AT >> (granule + (granule - 3) * level as u32) & ((1 << (granule - 3)) - 1);
        // SAFETY: a table.
        let entries = unsafe { self.sim.entries_in(self.tables[level], (granule - 12) as u8) };
        entries.unwrap().get(index as usize).unwrap()
    }

    /// Stores an entry at a level, and those that lead to it, and makes an access. Returns the
    /// frame number or the fault, and the entry after it.
    fn access(&self, level: usize, entry: u64, want: Want) -> (Result<u64, FaultKind>, u64) {
        let top = self.tables.len() - 1;
        // Break before make.
        (level..=top).for_each(|level| self.slot(level).store(0));
        self.sim.flush(Flush::All);
        for above in level + 1..=top {
            self.slot(above).store((self.link)(self.tables[above - 1].number()));
        }
        self.slot(level).store(entry);
        self.sim.flush(Flush::All);
        // SAFETY: the test needs no mapping but this one.
        unsafe { self.sim.activate(self.tables[top], Asid(1), false) };
        let found = self.sim.translate(VirtAddr::new(AT), want);
        let found = found.map(|at| at.get() >> 12).map_err(|fault| fault.kind);
        for above in level + 1..=top {
            // The hardware has nothing to set there.
            assert_eq!(self.slot(above).load(), (self.link)(self.tables[above - 1].number()));
        }
        (found, self.slot(level).load())
    }
}

const READ: Want = Want { write: false, user: false, execute: false };
const STORE: Want = Want { write: true, ..READ };
const FETCH: Want = Want { execute: true, ..READ };
const USER: Want = Want { user: true, ..READ };

/// Entries of one level, the access, its result, and the entry after it.
type Row = (usize, u64, Want, Result<u64, FaultKind>, u64);

fn rows(path: &TablePath, rows: &[Row]) {
    path.sim.on_cpu(0, || {
        for &(level, entry, want, found, after) in rows {
            assert_eq!(
                path.access(level, entry, want),
                (found, after),
                "{level} {entry:#x} {want:?}"
            );
        }
    });
}

const NOT: Result<u64, FaultKind> = Err(FaultKind::Protection);
const BAD: Result<u64, FaultKind> = Err(FaultKind::Malformed);

#[test]
fn riscv() {
    for levels in 3..=5 {
        let path = TablePath::new(Arch::RiscV, levels, |frame| frame << 10 | 1);
        let page = 0x8_0000 << 10;
        rows(
            &path,
            &[
                // V, R: accessed by a read. With W, a store sets D, too.
                (0, page | 0x3, READ, Ok(0x8_0000), page | 0x43),
                (0, page | 0x7, STORE, Ok(0x8_0000), page | 0xc7),
                (0, page | 0x3, STORE, NOT, page | 0x3),
                (0, page | 0x3, USER, NOT, page | 0x3),
                (0, page | 0x13, USER, Ok(0x8_0000), page | 0x53),
                // X without R: instructions, not data.
                (0, page | 0x9, FETCH, Ok(0x8_0000), page | 0x49),
                (0, page | 0x9, READ, NOT, page | 0x9),
                // W without R is reserved; so are a table at the lowest level, high bits, and a
                // table with U.
                (0, page | 0x5, READ, BAD, page | 0x5),
                (0, page | 0x1, READ, BAD, page | 0x1),
                (0, 1 << 54 | page | 0x3, READ, BAD, 1 << 54 | page | 0x3),
                (1, page | 0x11, READ, BAD, page | 0x11),
                // Svpbmt: three memory types.
                (0, 2 << 61 | page | 0x3, READ, Ok(0x8_0000), 2 << 61 | page | 0x43),
                (0, 3 << 61 | page | 0x3, READ, BAD, 3 << 61 | page | 0x3),
                // 2 MiB, aligned and not.
                (1, page | 0x3, READ, Ok(0x8_0000 + (AT >> 12 & 511)), page | 0x43),
                (1, page | 1 << 10 | 0x3, READ, BAD, page | 1 << 10 | 0x3),
            ],
        );
    }
}

#[test]
fn ept() {
    let path = TablePath::new(Arch::Ept, 4, |frame| frame << 12 | 0x107);
    let page = 0x8_0000 << 12;
    rows(
        &path,
        &[
            // R, write-back; accessed is bit 8, dirty bit 9.
            (0, page | 0x31, READ, Ok(0x8_0000), page | 0x131),
            (0, page | 0x33, STORE, Ok(0x8_0000), page | 0x333),
            (0, page | 0x31, STORE, NOT, page | 0x31),
            (0, page | 0x31, FETCH, NOT, page | 0x31),
            (0, page | 0x35, FETCH, Ok(0x8_0000), page | 0x135),
            // All accesses are the guest's.
            (0, page | 0x31, USER, Ok(0x8_0000), page | 0x131),
            // Misconfigurations.
            (0, page | 0x32, STORE, BAD, page | 0x32),
            (0, page | 0x34, FETCH, BAD, page | 0x34),
            (0, page | 0x11, READ, BAD, page | 0x11),
            (0, page | 0x39, READ, BAD, page | 0x39),
            (1, page | 0x17, READ, BAD, page | 0x17),
            (1, page | 0x10b1, READ, BAD, page | 0x10b1),
            (1, page | 0xb1, READ, Ok(0x8_0000 + (AT >> 12 & 511)), page | 0x1b1),
        ],
    );
}

#[test]
fn npt() {
    let path = TablePath::new(Arch::Npt, 5, |frame| frame << 12 | 0x27);
    let page = 0x8_0000 << 12;
    rows(
        &path,
        &[
            (0, page | 0x5, READ, Ok(0x8_0000), page | 0x25),
            (0, page | 0x7, STORE, Ok(0x8_0000), page | 0x67),
            (0, page | 0x5, STORE, NOT, page | 0x5),
            // Without the user bit no access of a guest succeeds.
            (0, page | 0x3, READ, BAD, page | 0x3),
        ],
    );
}

/// INVEPT, and the flush of an ASID: the whole space goes, and no other.
#[test]
fn a_second_stage_flushes_spaces() {
    for (arch, link, page) in [(Arch::Ept, 0x107, 0x31), (Arch::Npt, 0x27, 0x5)] {
        let sim = Sim::new(Config { cpus: 1, frames: 64, arch, ..Config::default() }).unwrap();
        sim.on_cpu(0, || {
            let tables: Vec<Frame> = (0..4).map(|level| table(&sim, level)).collect();
            // SAFETY: a table.
            let entry = |table, index| unsafe { sim.entry(table, index) }.unwrap();
            for level in 1..4 {
                entry(tables[level], 0).store(tables[level - 1].number() << 12 | link);
            }
            let touch = |at| sim.translate(VirtAddr::new(at), READ).unwrap();
            for (space, frame) in [(1, 0x8_0000), (2, 0x8_0000)] {
                // SAFETY: both spaces have these tables.
                unsafe { sim.activate(tables[3], Asid(space), true) };
                for at in [0, 1] {
                    entry(tables[0], at).store((frame + at as u64) << 12 | page);
                    touch(at as u64 * 4096);
                }
            }
            let before = sim.stats().dropped;
            sim.flush(pages(Some(Asid(2)), range(0, 4096), false));
            assert_eq!(sim.stats().dropped - before, 2, "both pages of space 2");
        });
    }
}

#[test]
fn aarch64() {
    for levels in 4..=5 {
        let path = TablePath::new(Arch::Aarch64, levels, |frame| frame << 12 | 3);
        let page = 0x8_0000 << 12;
        let (clean, dbm, uxn, pxn) = (1 << 7, 1 << 51, 1 << 54, 1 << 53);
        // A page, not global: AF is bit 10.
        let plain = page | 0x803;
        rows(
            &path,
            &[
                (0, plain | clean, READ, Ok(0x8_0000), plain | clean | 0x400),
                (0, plain | clean, STORE, NOT, plain | clean),
                // DBM: the write takes the read-only bit away.
                (0, plain | clean | dbm, STORE, Ok(0x8_0000), plain | dbm | 0x400),
                (0, plain | clean | dbm, READ, Ok(0x8_0000), plain | clean | dbm | 0x400),
                (0, plain, USER, NOT, plain),
                (0, plain | 0x40, USER, Ok(0x8_0000), plain | 0x440),
                (0, plain | pxn, FETCH, NOT, plain | pxn),
                (0, plain | uxn, FETCH, Ok(0x8_0000), plain | uxn | 0x400),
                // A block at the lowest level is reserved.
                (0, page | 0x801, READ, BAD, page | 0x801),
                (1, page | 0x801, READ, Ok(0x8_0000 + (AT >> 12 & 511)), page | 0xc01),
                (1, page | 1 << 12 | 0x801, READ, BAD, page | 1 << 12 | 0x801),
            ],
        );
        // APTable\[1\]: no write below.
        let shared = TablePath { link: |frame| 1 << 62 | frame << 12 | 3, ..path };
        rows(&shared, &[(0, plain | dbm, STORE, NOT, plain | dbm)]);
    }
}

/// The sizes of granules, and the places of the high address bits.
#[test]
fn aarch64_granules() {
    let bits = 0x803;
    let (page, used) = (0x8_0000 << 12 | bits, 0x400);
    let in_page = |granule: u32| 0x8_0000 + (AT >> 12 & ((1 << (granule - 12)) - 1));
    let in_large = |size: u32| 0x8_0000 + (AT >> 12 & ((1 << (size - 12)) - 1));
    let block = 0x8_0000 << 12 | 0x801;
    for (arch, levels) in [(Arch::Aarch64G16, 3), (Arch::Aarch64G16, 4), (Arch::Aarch64G16Lpa2, 4)]
    {
        let path = TablePath::new(arch, levels, |frame| frame << 12 | 3);
        rows(
            &path,
            &[
                (0, page, READ, Ok(in_page(14)), page | used),
                // Bits 12 and 13 must be clear.
                (0, page | 1 << 12, READ, BAD, page | 1 << 12),
                (0, page | 2 << 12, READ, BAD, page | 2 << 12),
                // 32 MiB.
                (1, block, READ, Ok(in_large(25)), block | used),
                (1, block | 1 << 24, READ, BAD, block | 1 << 24),
                // A block of 64 GiB: this machine has none.
                (2, 0x801, READ, BAD, 0x801),
            ],
        );
        let astray = TablePath { link: |frame| (frame | 1) << 12 | 3, ..path };
        rows(&astray, &[(0, page, READ, BAD, page)]);
    }
    for arch in [Arch::Aarch64G64, Arch::Aarch64G64Lpa] {
        let path = TablePath::new(arch, 3, |frame| frame << 12 | 3);
        rows(
            &path,
            &[
                (0, page, READ, Ok(in_page(16)), page | used),
                (1, block, READ, Ok(in_large(29)), block | used),
                (1, block | 1 << 28, READ, BAD, block | 1 << 28),
            ],
        );
    }
    let path = TablePath::new(Arch::Aarch64G64, 3, |frame| frame << 12 | 3);
    rows(&path, &[(0, page | 8 << 12, READ, BAD, page | 8 << 12)]);
    // FEAT_LPA: bits 48 to 51 of the address. FEAT_LPA2: 48 and 49 in place, 50 and 51 in bits 8,
    // 9.
    let path = TablePath::new(Arch::Aarch64G64Lpa, 3, |frame| frame << 12 | 3);
    rows(&path, &[(0, page | 9 << 12, READ, Ok(in_page(16) | 9 << 36), page | 9 << 12 | used)]);
    let path = TablePath::new(Arch::Aarch64G16Lpa2, 4, |frame| frame << 12 | 3);
    let high = page | 1 << 49 | 1 << 8;
    rows(&path, &[(0, high, READ, Ok(in_page(14) | 6 << 36), high | used)]);
}

/// The addresses that hardware translates: those of the base registers' two halves.
#[test]
fn aarch64_halves() {
    let canonical = |arch, levels, half: u32| {
        let path = TablePath::new(arch, levels, |frame| frame << 12 | 3);
        let fault = |at: u64| {
            let found = path.sim.on_cpu(0, || path.sim.translate(VirtAddr::new(at), READ));
            found.map_err(|fault| fault.kind).unwrap_err()
        };
        let absent = path.sim.on_cpu(0, || path.access(0, 0, READ).0);
        assert_eq!(absent, Err(FaultKind::NotPresent));
        assert_eq!(fault((1 << half) - 4096), FaultKind::NotPresent);
        assert_eq!(fault(1 << half), FaultKind::NotCanonical);
        assert_eq!(fault(!0 << half), FaultKind::NotPresent);
        assert_eq!(fault((!0 << half) - 4096), FaultKind::NotCanonical);
    };
    canonical(Arch::Aarch64, 4, 47);
    canonical(Arch::Aarch64, 5, 51);
    canonical(Arch::Aarch64G16, 3, 46);
    canonical(Arch::Aarch64G16, 4, 48);
    canonical(Arch::Aarch64G16Lpa2, 4, 51);
    canonical(Arch::Aarch64G64, 3, 47);
    canonical(Arch::Aarch64G64Lpa, 3, 51);
}

#[test]
fn aarch64_stage_2() {
    let path = TablePath::new(Arch::Aarch64Stage2, 4, |frame| frame << 12 | 3);
    let page = 0x8_0000 << 12 | 0x43f;
    let dbm = 1 << 51;
    rows(
        &path,
        &[
            (0, page | 0x40, USER, Ok(0x8_0000), page | 0x40),
            (0, page | 0x40, STORE, NOT, page | 0x40),
            (0, page | 0x40 | dbm, STORE, Ok(0x8_0000), page | 0xc0 | dbm),
            (0, page | 0x80, READ, NOT, page | 0x80),
            (0, page | 0x40 | 1 << 54, FETCH, NOT, page | 0x40 | 1 << 54),
        ],
    );
}

/// A value that replaces another one: whether the machine reports it, with the old one cached.
#[test]
fn break_before_make() {
    let page = |frame: u64, bits: u64| frame << 12 | 0xc43 | bits;
    let (old, read_only, device) = (page(0x8_0000, 0), 1 << 7, 1 << 2);
    let replaced = |old: u64, steps: &[(u64, bool)]| {
        let path = TablePath::new(Arch::Aarch64, 4, |frame| frame << 12 | 3);
        let run = || {
            path.sim.on_cpu(0, || {
                assert!(path.access(0, old, READ).0.is_ok());
                for &(value, flush) in steps {
                    path.slot(0).store(value);
                    if flush {
                        path.sim.flush(Flush::Space(Asid(1)));
                    }
                }
            });
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    // The same page, or other rights.
    assert!(!replaced(old, &[(old, false), (old | read_only, false), (old, false)]));
    // Another frame, a memory type; at once, or without a flush in between.
    for new in [page(0x8_0001, 0), page(0x8_0001, read_only), old | device] {
        assert!(replaced(old, &[(new, true)]), "{new:#x}");
        assert!(replaced(old, &[(0, false), (new, true)]), "{new:#x}");
        assert!(!replaced(old, &[(0, true), (new, true)]), "{new:#x}");
    }
    // Two that cannot be written, with the same contents: as far as the machine knows.
    let shared = old | read_only;
    assert!(!replaced(shared, &[(page(0x8_0001, read_only), true)]));
}

/// A table may be replaced by its copy, and by any other one where no CPU has been.
#[test]
fn tables_are_replaced() {
    let replaced = |used: bool, copied: bool| {
        let path = TablePath::new(Arch::Aarch64, 4, |frame| frame << 12 | 3);
        let run = || {
            path.sim.on_cpu(0, || {
                let page = 0x8_0000 << 12 | 0xc43;
                assert!(path.access(0, page, READ).0.is_ok());
                let other = table(&path.sim, 0);
                let index = (AT >> 12) as usize & 511;
                let page = if copied { page } else { page + 0x1000 };
                // SAFETY: a table.
                unsafe { path.sim.entry(other, index) }.unwrap().store(page);
                if !used {
                    path.sim.flush(Flush::All);
                }
                path.slot(1).store(other.number() << 12 | 3);
            });
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    assert!(!replaced(true, true));
    assert!(!replaced(false, false));
    assert!(replaced(true, false));
}
