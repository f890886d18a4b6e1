//! Shared by the tests: a machine, address spaces on it, and touches that fault.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;

use machine::{Asid, PageSize, Translated, VirtAddr};
use mm::*;
use paging::{Paging, X86_64L4};
use sim::{Grace, Report, Sim};

pub(crate) type Space = AddressSpace<Sim, X86_64L4, Grace>;
pub(crate) type Shared = Arc<Paging<Sim, X86_64L4>>;

pub(crate) const PAGE: usize = 4096;
pub(crate) const BASE: usize = 0x7000_0000;
pub(crate) const HEAP: usize = 0x1000_0000;
pub(crate) const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
pub(crate) const FIXED: MapFlags = PRIVATE.union(MapFlags::FIXED);

pub(crate) fn paging(sim: &Sim) -> Shared {
    Paging::try_new(sim.clone(), PageSize::Size1G).unwrap()
}

pub(crate) fn new_space(shared: &Shared, asid: u16) -> Result<Space, Error> {
    let layout = Layout { mmap_base: BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
    Space::try_new(shared, Asid(asid), None, Profile::LINUX_6_18, layout)
}

/// Reads a word as a program does: a fault is handled, and the access repeated.
pub(crate) fn load(sim: &Sim, space: &Space, at: usize) -> Result<u64, FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: a program's memory, which no Rust code holds a reference to.
        match unsafe { sim.load(at) } {
            Ok(value) => return Ok(value),
            Err(_) => space.handle_fault(at, Access::Read)?,
        };
    }
}

/// Writes a word in the same way.
pub(crate) fn store(sim: &Sim, space: &Space, at: usize, value: u64) -> Result<(), FaultError> {
    let at = VirtAddr::new(at as u64);
    loop {
        // SAFETY: as for `load`.
        match unsafe { sim.store(at, value) } {
            Ok(()) => return Ok(()),
            Err(_) => space.handle_fault(at, Access::Write)?,
        };
    }
}

/// Makes every CPU give back its cached pages, and checks that no frame is left allocated. Call it
/// when no address space is left.
pub(crate) fn all_given_back(sim: &Sim, shared: &Shared) -> Result<(), Box<Report>> {
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            shared.quick().drain();
        });
    }
    sim.check_leaks()
}
