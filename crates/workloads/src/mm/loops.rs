//! The loops of will-it-scale, and CortenMM's microbenchmarks.
//!
//! `malloc2` is missing: its loop allocates and frees 1 KiB, which calls no memory manager. Loops
//! that touch all of their memory have 4 MiB of it, not 128, so that eight CPUs fit into memory.

use super::memory::{HEAP, Memory, PAGE, STACK, VmaType};
use crate::error::Error;
use alloc::vec::Vec;
use core::cell::RefCell;

/// A loop of calls and faults that one CPU runs again and again.
pub(super) struct Loop {
    pub(super) name: &'static str,
    /// The runs of a batch, which is timed as a whole.
    pub(super) batch: usize,
    /// The operations of a run.
    pub(super) operations: usize,
    /// Whether threads of one space can run it: the heap has only one end, and a child only one
    /// parent.
    pub(super) threads: bool,
    /// Prepares a batch; not timed.
    pub(super) begin: LoopStep,
    pub(super) once: LoopStep,
}

/// The calls and faults of the CPU in its run with the number `run`.
type LoopStep = fn(&dyn Memory, &Cpu, run: usize) -> Result<(), Error>;

/// A CPU that runs a loop. Its pages have tables of their own.
pub(super) struct Cpu {
    /// Its number among those that run the loop in this space.
    number: usize,
    /// The addresses and lengths that it mapped in the last batch.
    chosen: RefCell<Vec<(usize, usize)>>,
}

/// Addresses that nothing else uses.
const BASE: usize = 0x1000_0000_0000;
/// Pages of the loops that touch all of their memory.
const TOUCHED: usize = 1024;
/// Pages of the file.
pub(super) const FILE: usize = 512;
/// Bytes of the loops that touch at most one page, as in will-it-scale.
const LARGE: usize = 128 << 20;
/// Pages of a CPU that are faulted and unmapped one by one.
const OWN: usize = 512;

impl Cpu {
    pub(super) fn new(number: usize) -> Cpu {
        Cpu { number, chosen: RefCell::new(Vec::with_capacity(OWN)) }
    }

    /// The address of this CPU's slot `index` of [`OWN`]. A slot has `spread` pages.
    fn page(&self, index: usize, spread: usize) -> usize {
        BASE + (self.number * OWN + index) * spread * PAGE
    }

    /// Maps some pages where the space chooses.
    fn map(&self, memory: &dyn Memory, len: usize) -> Result<usize, Error> {
        let at = memory.map(None, len, VmaType::Anonymous)?;
        self.chosen.borrow_mut().push((at, len));
        Ok(at)
    }

    /// Maps all pages of this CPU, a page for each slot.
    fn map_all(&self, memory: &dyn Memory, spread: usize) -> Result<(), Error> {
        if spread == 1 {
            return memory.map(Some(self.page(0, 1)), OWN * PAGE, VmaType::Anonymous).map(drop);
        }
        let mut pages = 0..OWN;
        pages.try_for_each(|page| {
            memory.map(Some(self.page(page, spread)), PAGE, VmaType::Anonymous).map(drop)
        })
    }
}

/// Maps, touches all pages, and unmaps.
fn touch_all(memory: &dyn Memory, of: VmaType, pages: usize) -> Result<(), Error> {
    let at = memory.map(None, pages * PAGE, of)?;
    (0..pages).try_for_each(|page| memory.fault(at + page * PAGE))?;
    memory.unmap(at, pages * PAGE)
}

const NOTHING: LoopStep = |_, _, _| Ok(());

const fn page_fault(name: &'static str, pages: usize, once: LoopStep) -> Loop {
    Loop { name, batch: 1, operations: pages, threads: true, begin: NOTHING, once }
}

const fn call(name: &'static str, begin: LoopStep, once: LoopStep) -> Loop {
    Loop { name, batch: 128, operations: 1, threads: true, begin, once }
}

/// As will-it-scale defines them.
pub(super) const WILL_IT_SCALE: [Loop; 8] = [
    page_fault("page_fault1", TOUCHED, |memory, _, _| {
        touch_all(memory, VmaType::Anonymous, TOUCHED)
    }),
    page_fault("page_fault2", FILE, |memory, _, _| touch_all(memory, VmaType::PrivateFile, FILE)),
    page_fault("page_fault3", FILE, |memory, _, _| touch_all(memory, VmaType::SharedFile, FILE)),
    Loop {
        threads: false,
        ..call("brk1", NOTHING, |memory, _, _| {
            memory.brk(HEAP + PAGE)?;
            memory.brk(HEAP)
        })
    },
    call("mmap1", NOTHING, |memory, _, _| {
        let at = memory.map(None, LARGE, VmaType::Anonymous)?;
        memory.unmap(at, LARGE)
    }),
    call("mmap2", NOTHING, |memory, _, _| {
        let at = memory.map(None, FILE * PAGE, VmaType::PrivateFile)?;
        memory.unmap(at, FILE * PAGE)
    }),
    call("malloc1", NOTHING, |memory, _, _| {
        // The allocator writes the size of the block.
        let at = memory.map(None, LARGE + PAGE, VmaType::Anonymous)?;
        memory.fault(at)?;
        memory.unmap(at, LARGE + PAGE)
    }),
    Loop {
        batch: 8,
        threads: false,
        ..call("fork1", NOTHING, |memory, _, _| {
            let child = memory.fork()?;
            child.enter();
            // The child writes to its stack before it ends, and the parent to its own.
            let written = child.fault(STACK);
            child.leave();
            written.and(memory.fault(STACK))
        })
    },
];

/// The most frequent calls of threads that allocate and free: as malloc1, with one page.
pub(super) const TOUCH: Loop = call("map, touch, unmap", NOTHING, |memory, _, _| {
    let at = memory.map(None, PAGE, VmaType::Anonymous)?;
    memory.fault(at)?;
    memory.unmap(at, PAGE)
});

/// As CortenMM defines them.
pub(super) const CORTEN: [Loop; 5] = [
    Loop {
        batch: OWN,
        ..call("mmap 4 pages", unmap_all, |memory, cpu, _| cpu.map(memory, 4 * PAGE).map(drop))
    },
    Loop {
        batch: OWN,
        ..call("mmap and fault 1 page", unmap_all, |memory, cpu, _| {
            memory.fault(cpu.map(memory, PAGE)?)
        })
    },
    Loop {
        batch: OWN,
        ..call(
            "fault 1 page",
            |memory, cpu, _| cpu.map_all(memory, 1),
            |memory, cpu, run| memory.fault(cpu.page(run, 1)),
        )
    },
    Loop {
        batch: OWN,
        ..call(
            "munmap 1 touched page",
            |memory, cpu, _| {
                cpu.map_all(memory, SPREAD)?;
                (0..OWN).try_for_each(|page| memory.fault(cpu.page(page, SPREAD)))
            },
            |memory, cpu, run| memory.unmap(cpu.page(run, SPREAD), PAGE),
        )
    },
    Loop {
        batch: OWN,
        ..call(
            "munmap 1 page never touched",
            |memory, cpu, _| cpu.map_all(memory, SPREAD),
            |memory, cpu, run| memory.unmap(cpu.page(run, SPREAD), PAGE),
        )
    },
];

/// Pages of a slot of what is mapped page by page.
const SPREAD: usize = 8;

/// Unmaps what the last batch has mapped.
fn unmap_all(memory: &dyn Memory, cpu: &Cpu, _: usize) -> Result<(), Error> {
    cpu.chosen.borrow_mut().drain(..).try_for_each(|(at, len)| memory.unmap(at, len))
}
