//! Minimal page tables for tests of the machine: one global mapping at a time, no lock.
#![allow(dead_code, reason = "each test uses some of it")]

use machine::*;
use sim::{Config, Failure, Program, Sim, Violation, seeded};

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const GLOBAL: u64 = 1 << 8;

pub(crate) const RW: u64 = PRESENT | WRITE;

pub(crate) fn machine(cpus: usize) -> Sim {
    Sim::new(Config { cpus, frames: 256, ..Config::default() }).unwrap()
}

pub(crate) fn virt(at: u64) -> VirtAddr {
    VirtAddr::new(at)
}

pub(crate) fn range(at: u64, len: u64) -> VirtRange {
    VirtRange::new(virt(at), len).unwrap()
}

/// The violation that stopped a run, if one did.
pub(crate) fn found<T>(run: Result<T, Failure>) -> Option<Violation> {
    let failure = run.err()?;
    Some(failure.report().unwrap_or_else(|| panic!("{failure}")).violation.clone())
}

/// Runs a program on the first CPU of a machine, and returns what the machine has reported.
pub(crate) fn alone_with(config: Config, program: impl FnOnce(&Sim) + Send) -> Option<Violation> {
    let sim = Sim::new(config).unwrap();
    found(seeded(&sim, 0, vec![Box::new(|| program(&sim)) as Program]))
}

/// Runs a test on the first CPU of a machine, with a space that is active there.
pub(crate) fn with_space(config: Config, test: impl FnOnce(&Sim, &Space)) {
    let sim = Sim::new(config).unwrap();
    sim.on_cpu(0, || {
        let space = Space::new(&sim);
        space.activate(1);
        test(&sim, &space);
    });
}

/// A flush of pages of 4 KiB.
pub(crate) fn pages(space: Option<Asid>, range: VirtRange, tables: bool) -> Flush {
    Flush::Range { space, range, stride: PageSize::Size4K, tables }
}

/// Page tables of one address space.
#[derive(Clone)]
pub(crate) struct Space {
    pub(crate) sim: Sim,
    pub(crate) root: Frame,
}

impl Space {
    pub(crate) fn new(sim: &Sim) -> Space {
        let levels = sim.config().levels;
        Space { sim: sim.clone(), root: table(sim, levels - 1) }
    }

    pub(crate) fn activate(&self, asid: u16) {
        // SAFETY: the tests need no mapping but those that they access, and no tag is used for two
        // spaces.
        unsafe { self.sim.activate(self.root, Asid(asid), true) }
    }

    pub(crate) fn entry(&self, table: Frame, index: usize) -> Entry<'_, Sim> {
        // SAFETY: `table` is a table, or a mutant's mistake that the machine must report.
        unsafe { self.sim.entry(table, index) }.unwrap()
    }

    /// The table of this level on the way to `at`, if it exists.
    pub(crate) fn table(&self, at: u64, level: u8) -> Option<Frame> {
        let mut table = self.root;
        for above in (level + 1..self.sim.config().levels).rev() {
            let entry = self.entry(table, index(at, above)).load();
            if entry & PRESENT == 0 {
                return None;
            }
            table = Frame::containing(PhysAddr::new(entry & 0x000f_ffff_ffff_f000));
        }
        Some(table)
    }

    /// Writes an entry at a level, and makes the tables above it.
    pub(crate) fn set(&self, at: u64, level: u8, entry: u64) {
        for below in (level..self.sim.config().levels - 1).rev() {
            if self.table(at, below).is_none() {
                let upper = self.table(at, below + 1).unwrap();
                let new = table(&self.sim, below);
                self.entry(upper, index(at, below + 1)).store(new.start().get() | RW | 4);
            }
        }
        self.slot(at, level).store(entry);
    }

    pub(crate) fn slot(&self, at: u64, level: u8) -> Entry<'_, Sim> {
        self.entry(self.table(at, level).unwrap(), index(at, level))
    }

    pub(crate) fn map(&self, at: u64, frame: Frame) {
        self.set(at, 0, frame.start().get() | RW);
    }

    /// Clears the entry and returns its old frame.
    pub(crate) fn unmap(&self, at: u64) -> Frame {
        let old = self.slot(at, 0).swap(0);
        assert!(old & PRESENT != 0, "{at:#x} was not mapped");
        Frame::containing(PhysAddr::new(old & 0x000f_ffff_ffff_f000))
    }

    /// Flushes pages on all CPUs.
    pub(crate) fn flush(&self, at: u64, len: u64, tables: bool) {
        self.sim.flush_on(&self.sim.online(), pages(None, range(at, len), tables));
    }

    /// Unlinks the empty table of this level and returns it.
    pub(crate) fn unlink(&self, at: u64, level: u8) -> Frame {
        let old = self.slot(at, level + 1).swap(0);
        Frame::containing(PhysAddr::new(old & 0x000f_ffff_ffff_f000))
    }

    pub(crate) fn load(&self, at: u64) -> Result<u64, Fault> {
        // SAFETY: the tests map ordinary memory, and access it as such.
        unsafe { self.sim.load(virt(at)) }
    }

    /// An access that may fault.
    pub(crate) fn touch(&self, at: u64) {
        let _ = self.sim.translate(virt(at), sim::Want::default());
    }

    pub(crate) fn store(&self, at: u64, value: u64) -> Result<(), Fault> {
        // SAFETY: as above.
        unsafe { self.sim.store(virt(at), value) }
    }

    /// Gives all tables back. No page may be mapped, and no CPU may have the space active.
    pub(crate) fn destroy_all(&self) {
        self.sim.flush_on(&self.sim.online(), Flush::All);
        self.destroy_below(self.root, self.sim.config().levels - 1);
    }

    fn destroy_below(&self, table: Frame, level: u8) {
        for index in 0..ENTRIES {
            let entry = self.entry(table, index).load();
            if entry & PRESENT != 0 && level > 0 && entry & LARGE == 0 {
                self.entry(table, index).store(0);
                self.sim.flush_on(&self.sim.online(), Flush::All);
                self.destroy_below(
                    Frame::containing(PhysAddr::new(entry & 0x000f_ffff_ffff_f000)),
                    level - 1,
                );
            }
        }
        free(&self.sim, table);
    }
}

pub(crate) fn index(at: u64, level: u8) -> usize {
    (at >> (12 + 9 * level)) as usize & 511
}

/// An empty table.
pub(crate) fn table(sim: &Sim, level: u8) -> Frame {
    let frame = page(sim);
    clear(sim, frame);
    set_owner(sim, frame, Owner::Table(level));
    frame
}

pub(crate) fn set_owner(sim: &Sim, frame: Frame, owner: Owner) {
    // SAFETY: it is ours, and as the owner needs it, or a mutant's mistake, which the machine
    // must report.
    unsafe { sim.set_owner(frame, owner) }.unwrap();
}

/// A page of memory.
pub(crate) fn page(sim: &Sim) -> Frame {
    sim.alloc(0, NodePolicy::Local).unwrap()
}

pub(crate) fn clear(sim: &Sim, frame: Frame) {
    let at = sim.frame_ptr(frame).unwrap();
    // SAFETY: the frame was just allocated, so no other pointer to it exists.
    unsafe { at.write_bytes(0, 4096) }
}

pub(crate) fn free(sim: &Sim, frame: Frame) {
    // SAFETY: the tests have no pointer to it; the machine reports a mutant that has a translation.
    unsafe { sim.free(frame) }.unwrap()
}
