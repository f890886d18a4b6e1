//! The cost of a fault in locked instructions and cache lines, counted by single-stepping on a
//! machine of plain memory.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use machine::{Asid, PageSize, VirtAddr};
use mm::*;
use paging::{Paging, X86_64L4};
use sim::{Bare, BareGrace};
use singlestep::{Counts, Region, operation};

type Space = AddressSpace<Bare, X86_64L4, BareGrace>;

const PAGE: usize = 4096;
const FIXED: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS).union(MapFlags::FIXED);
const RUNS: usize = 3;
/// A fork executes hundreds of thousands of instructions, the same each time.
const FORKS: usize = 1;
/// Of each count. A busy machine steps slowly, so the limit only ends what hangs.
const LIMIT: Duration = Duration::from_secs(1800);
const AT: usize = 0x4000_0000;

fn count(runs: usize, prepare: impl FnMut(&Space), mut run: impl FnMut(&Space)) -> Counts {
    let bare = Bare::new(1, 4096).unwrap();
    let mut prepare = prepare;
    bare.on_cpu(0, || {
        let shared: Arc<Paging<Bare, X86_64L4>> =
            Paging::try_new(bare.clone(), PageSize::Size1G).unwrap();
        let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
        let space = Space::try_new(&shared, Asid(1), None, Profile::LINUX_6_18, layout).unwrap();
        // SAFETY: plain memory translates nothing.
        unsafe { space.activate() };
        let registers = Region::new("registers", Bare::registers());
        operation(|| (), |()| run(&space))
            .prepare(|()| prepare(&space))
            .warm_up(runs)
            .runs(runs)
            .time_limit(LIMIT)
            .regions(|()| vec![registers])
            .count()
            .unwrap()
    })
}

/// Counts faults of one page after the other, in a table that exists.
fn fault(access: Access) -> Counts {
    let next = Cell::new(0);
    let begin = |space: &Space| {
        if next.get() == 0 {
            space.mmap(AT, 512 * PAGE, 3, FIXED).unwrap();
            space.handle_fault(VirtAddr::new(AT as u64), Access::Write).unwrap();
        }
        next.set(next.get() + 1);
    };
    count(RUNS, begin, |space| {
        let at = VirtAddr::new((AT + next.get() * PAGE) as u64);
        assert_eq!(space.handle_fault(at, access), Ok(FaultOutcome::Mapped));
    })
}

/// One is the lock of the lowest table, the other takes the frame. Neither line is written by a
/// fault elsewhere.
#[test]
fn a_fault_has_two_locked_instructions() {
    let write = fault(Access::Write);
    assert_eq!(write.atomics.largest, 2, "{write:?}");
    assert_eq!((write.fences.largest, write.syscalls.largest), (0, 0));
}

/// The zero frame is shared, and no line is written for it.
#[test]
fn a_fault_on_the_zero_frame_has_one_locked_instruction() {
    let read = fault(Access::Read);
    assert_eq!(read.atomics.largest, 1, "{read:?}");
    // The table's lock, the entry, and this CPU's own lines.
    assert!(read.other.written.largest <= 4, "{read:?}");
}

/// Counts a fork of a space with this many pages. The child ends outside of the count.
fn fork(pages: usize) -> Counts {
    let (mapped, child) = (Cell::new(false), RefCell::new(None));
    let prepare = |space: &Space| {
        child.take();
        if !mapped.replace(true) {
            space.mmap(AT, pages * PAGE, 3, FIXED).unwrap();
            for page in 0..pages {
                let at = VirtAddr::new((AT + page * PAGE) as u64);
                space.handle_fault(at, Access::Write).unwrap();
            }
        }
    };
    let counts = count(FORKS, prepare, |space| {
        *child.borrow_mut() = Some(space.fork(Asid(2)).unwrap());
    });
    child.take();
    counts
}

#[test]
fn a_fork_costs_the_same_however_much_is_mapped() {
    let [small, large] = [256, 3400].map(|pages| fork(pages).instructions.largest);
    assert!(large * 10 <= small * 11, "{large} instructions, and {small} for less memory");
}
