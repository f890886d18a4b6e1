//! Fixtures of the baselines' tests: a machine in software with the kernel's tables.

use alloc::sync::Arc;
use alloc::vec::Vec;
use machine::{Fault, Frame, FrameSource, PageSize, Place, Translated, VirtAddr};
use paging::{PageTables, Paging, X86_64L4};
use sim::{Grace, Sim};

pub(super) type Kernel = Arc<PageTables<Sim, X86_64L4, Grace>>;

pub(super) const START: u64 = 0xffff_c900_0000_0000;

/// The kernel's tables. Runs on a CPU of the machine.
pub(super) fn kernel(sim: &Sim) -> Kernel {
    let paging = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
    Arc::new(PageTables::kernel(&paging).unwrap())
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
    let frames: Vec<_> = (0..count).map(|_| sim.alloc(0, Place::Local).unwrap()).collect();
    let result = f(&frames);
    // SAFETY: nothing leads to them any more.
    frames.into_iter().for_each(|frame| unsafe { sim.free(frame) }.unwrap());
    result
}

/// Checks that all frames are free once the tables are dropped.
pub(super) fn nothing_left(sim: &Sim, kernel: Kernel) {
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
