//! The page walkers of other architectures than x86-64, with entries written by hand from the
//! manuals.

use machine::*;
use sim::{Arch, Config, Sim, Want};

const AT: u64 = 0x12_3456_7000;

/// Tables with one way, to the entry for `AT` at a level, on a machine of one CPU.
struct Way {
    sim: Sim,
    tables: Vec<Frame>,
    link: fn(u64) -> u64,
}

impl Way {
    fn new(arch: Arch, levels: u8, link: fn(u64) -> u64) -> Way {
        let sim = Sim::new(Config { cpus: 1, frames: 64, arch, levels, ..Config::default() });
        let sim = sim.unwrap();
        let tables = sim.on_cpu(0, || {
            let table = |level| {
                let frame = sim.alloc(0, Place::Local).unwrap();
                // SAFETY: it is ours, and empty.
                unsafe { sim.set_owner(frame, Owner::Table(level)) }.unwrap();
                frame
            };
            (0..levels).map(table).collect()
        });
        Way { sim, tables, link }
    }

    fn slot(&self, level: usize) -> Entry<'_, Sim> {
        // SAFETY: a table.
        unsafe { self.sim.entry(self.tables[level], (AT >> (12 + 9 * level)) as usize & 511) }
            .unwrap()
    }

    /// Stores an entry at a level, and the way to it, and makes an access. Returns the frame number
    /// or the fault, and the entry after it.
    fn access(&self, level: usize, entry: u64, want: Want) -> (Result<u64, FaultKind>, u64) {
        let top = self.tables.len() - 1;
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

fn rows(way: &Way, rows: &[Row]) {
    way.sim.on_cpu(0, || {
        for &(level, entry, want, found, after) in rows {
            assert_eq!(
                way.access(level, entry, want),
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
        let way = Way::new(Arch::RiscV, levels, |frame| frame << 10 | 1);
        let page = 0x8_0000 << 10;
        rows(
            &way,
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
                // W without R is reserved; so are a table at the lowest level, high bits, and a table
                // with U.
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
