//! A boot loader that makes page tables.

use crate::common::*;
use machine::*;
use paging::*;
use sim::{Grace, Sim};
use std::sync::Arc;

pub(crate) type Tables<F> = PageTables<Sim, F, Grace>;

/// A format, the bits of a table's entry that a loader leaves clear, and a value that no entry of
/// level 1 has.
pub(crate) trait Loads: OnSim {
    const LEFT_OUT: u64;
    const MALFORMED: u64;
}

macro_rules! loads {
    ($($format:ident)+: $left_out:expr, $malformed:expr) => {
        $(impl Loads for $format {
            const LEFT_OUT: u64 = $left_out;
            const MALFORMED: u64 = $malformed;
        })+
    };
}

// User and accessed.
loads!(X86_64L4 X86_64L5: 1 << 2 | 1 << 5, 0x81 | 1 << 13);
// Bits for software.
loads!(Sv39 Sv48: 1 << 8, 5);
// Bits for software, and the access flag.
loads!(Aarch64 Aarch64G16 Aarch64G64: 1 << 55 | 1 << 10, 1 | 1 << 52);

/// A boot loader: it writes to its tables without the machine's knowledge.
pub(crate) struct Loader {
    sim: Sim,
    pub(crate) root: Frame,
    pub(crate) tables: Vec<Frame>,
}

impl Loader {
    pub(crate) fn new<F: Loads>(sim: &Sim) -> Self {
        let mut loader = Loader { sim: sim.clone(), root: Frame::default(), tables: Vec::new() };
        loader.root = loader.table::<F>();
        loader
    }

    fn table<F: Loads>(&mut self) -> Frame {
        let table = self.sim.alloc(F::PAGE.order(), NodePolicy::Local).unwrap();
        (0..F::ENTRIES).for_each(|index| self.write(table, index, 0));
        self.tables.push(table);
        table
    }

    fn word(&self, table: Frame, index: usize) -> *mut u64 {
        let frame = table.checked_add(index as u64 / 512).unwrap();
        let words = self.sim.frame_ptr(frame).unwrap().cast::<u64>().as_ptr();
        words.wrapping_add(index % 512)
    }

    pub(crate) fn write(&self, table: Frame, index: usize, value: u64) {
        // SAFETY: the loader's frames, which no CPU walks yet.
        unsafe { self.word(table, index).write(value) }
    }

    pub(crate) fn read(&self, table: Frame, index: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.word(table, index).read() }
    }

    /// The table of this level on the way to an address.
    pub(crate) fn way<F: Loads>(&mut self, at: u64, level: u8) -> Frame {
        let mut table = self.root;
        for above in (level + 1..F::LEVELS).rev() {
            let index = F::index(virt(at), above);
            table = match F::decode(self.read(table, index), above) {
                Decoded::Table(next) => next,
                _ => {
                    let next = self.table::<F>();
                    self.write(table, index, F::table(next).unwrap() & !F::LEFT_OUT);
                    next
                }
            };
        }
        table
    }

    pub(crate) fn map<F: Loads>(&mut self, at: u64, size: PageSize, frame: Frame, attrs: Attrs) {
        let level = F::level_of(size).unwrap();
        let table = self.way::<F>(at, level);
        self.write(table, F::index(virt(at), level), F::page(size, frame, attrs).unwrap());
    }

    /// Everything that a failed call leaves as it was.
    pub(crate) fn state<F: Loads>(&self) -> Vec<(Owner, u32, u32, Vec<u64>)> {
        let state = |table: &Frame| {
            let info = self.sim.info(*table).unwrap();
            // SAFETY: no other code uses the frame.
            let word = unsafe { info.word() }.load(std::sync::atomic::Ordering::Relaxed);
            let entries = (0..F::ENTRIES).map(|index| self.read(*table, index)).collect();
            (info.owner(), info.refs(), word, entries)
        };
        self.tables.iter().map(state).collect()
    }

    pub(crate) fn adopt<F: Loads>(
        &self,
        shared: &Arc<Paging<Sim, F>>,
    ) -> Result<Tables<F>, AdoptError> {
        // SAFETY: the loader's tables, which it uses no more.
        unsafe { Tables::<F>::adopt(shared, self.root) }
    }

    /// The call fails in this way, and nothing has changed.
    pub(crate) fn refused<F: Loads>(&self, shared: &Arc<Paging<Sim, F>>, error: AdoptError) {
        let before = self.state::<F>();
        assert_eq!(self.adopt::<F>(shared).map(drop), Err(error));
        assert!(self.state::<F>() == before, "{error}");
        assert!(!error.to_string().is_empty());
    }
}
