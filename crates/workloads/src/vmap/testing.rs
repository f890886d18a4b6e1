//! Fixtures of the baselines' tests, and the tests that all baselines pass: on a machine in
//! software, with all its checks.

use super::Areas;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use machine::{Fault, Frame, FrameSource, NodePolicy, PageSize, Translated, VirtAddr, VirtRange};
use paging::{PageTables, Paging, X86_64L4};
use sim::{Config, Grace, Program, Sim, explore, seeded};
use std::sync::Mutex;

pub(super) type Kernel = Arc<PageTables<Sim, X86_64L4, Grace>>;

const START: VirtAddr = VirtAddr::new(0xffff_c900_0000_0000);

/// Page `page` of the addresses for areas.
pub(super) fn page(page: u64) -> VirtAddr {
    VirtAddr::new(START.get() + (page << 12))
}

/// The first so many pages.
pub(super) fn range(pages: u64) -> VirtRange {
    VirtRange::new(START, pages << 12).unwrap()
}

/// The kernel's tables. Runs on a CPU of the machine.
fn kernel(sim: &Sim) -> Kernel {
    let paging = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
    Arc::new(PageTables::kernel(&paging).unwrap())
}

/// Runs a test on CPU 0 of so many, which translates by the kernel's tables. It leaves nothing.
pub(super) fn with_kernel(cpus: usize, test: impl FnOnce(&Sim, &Kernel) + Send) {
    let sim = Sim::new(Config { cpus, ..Config::default() }).unwrap();
    let kernel = sim.on_cpu(0, || kernel(&sim));
    sim.on_cpu(0, || {
        // SAFETY: this test needs nothing else mapped.
        unsafe { kernel.activate() };
        test(&sim, &kernel);
    });
    nothing_left(&sim, kernel);
}

/// Writes a word in each page, and reads it.
pub(super) fn touch(sim: &Sim, at: VirtAddr, pages: u64, value: u64) -> Result<(), Fault> {
    for page in 0..pages {
        let at = VirtAddr::new(at.get() + (page << 12));
        // SAFETY: ordinary memory of the machine, and nothing has a reference to it.
        unsafe { sim.store(at, value) }?;
        // SAFETY: as above.
        assert_eq!(unsafe { sim.load(at) }?, value);
    }
    Ok(())
}

/// Allocates frames for `f`, which leaves them unmapped.
pub(super) fn with_frames<T>(sim: &Sim, count: usize, f: impl FnOnce(&[Frame]) -> T) -> T {
    let frames: Vec<_> = (0..count).map(|_| sim.alloc(0, NodePolicy::Local).unwrap()).collect();
    let result = f(&frames);
    // SAFETY: nothing leads to them any more.
    frames.into_iter().for_each(|frame| unsafe { sim.free(frame) }.unwrap());
    result
}

/// Checks that all frames are free once the tables are dropped.
fn nothing_left(sim: &Sim, kernel: Kernel) {
    let paging = Arc::clone(kernel.paging());
    sim.on_cpu(0, || drop(kernel));
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle());
            paging.quick().drain();
        });
    }
    sim.check_leaks().unwrap();
}

/// An allocation of so many pages fails at each frame once, and leaves nothing.
pub(super) fn all_or_nothing<A: Areas>(pages: usize, make: impl FnOnce(&Kernel) -> A + Send) {
    with_kernel(1, |sim, kernel| {
        let areas = make(kernel);
        let empty = areas.info();
        for nth in 1.. {
            sim.fail_alloc(nth, true);
            let made = areas.alloc(pages);
            let failed = sim.alloc_failed();
            assert_eq!(made.is_err(), failed, "{nth}");
            if let Ok(at) = made {
                areas.free(at).unwrap();
            }
            areas.purge();
            assert_eq!(areas.info(), empty, "{nth}");
            if !failed {
                assert!(nth as usize > pages);
                break;
            }
        }
    });
}

/// Each of three CPUs maps, uses and unmaps areas in the range, and takes over an area that another
/// has allocated. Addresses that come back were flushed everywhere.
pub(super) fn nothing_is_stale<A: Areas>(range: VirtRange, make: impl Fn(&Kernel) -> A + Sync) {
    let run = |seed| {
        let config = Config { cpus: 3, frames: 512, speculation: 100, ..Config::default() };
        let sim = Sim::new(config).unwrap();
        let kernel = sim.on_cpu(0, || kernel(&sim));
        let areas = make(&kernel);
        let left = Mutex::new(None);
        let frames: Vec<_> =
            sim.on_cpu(0, || (0..2).map(|_| sim.alloc(0, NodePolicy::Local).unwrap()).collect());
        let program = || {
            // SAFETY: this test needs nothing else mapped.
            unsafe { kernel.activate() };
            for turn in 0..3 {
                let at = areas.alloc(2).unwrap();
                touch(&sim, at, 2, turn).unwrap();
                let other = left.lock().unwrap().replace(at);
                other.into_iter().for_each(|at| {
                    touch(&sim, at, 2, turn).unwrap();
                    areas.free(at).unwrap();
                });
                let at = areas.map(&frames).unwrap();
                // The frames are shared, so only the write is tested. SAFETY: ordinary memory of
                // the machine.
                unsafe { sim.store(at, turn) }.unwrap();
                areas.unmap(at, 2).unwrap();
            }
        };
        let ran = seeded(&sim, seed, (0..3).map(|_| Box::new(program) as Program<'_>).collect());
        // The tables of a machine that has halted are never dropped.
        ran.inspect_err(|_| core::mem::forget(Arc::clone(&kernel)))?;
        let last = left.into_inner().unwrap().unwrap();
        sim.on_cpu(0, || {
            areas.free(last).unwrap();
            areas.purge();
            sim.check_flushed(kernel.root(), None, range);
            // SAFETY: nothing leads to them any more.
            frames.iter().for_each(|frame| unsafe { sim.free(*frame) }.unwrap());
            assert_eq!(areas.info().0, 0);
        });
        drop(areas);
        nothing_left(&sim, kernel);
        Ok(())
    };
    explore(100, run).unwrap_or_else(|failure| panic!("{failure}"));
}
