//! Shared by the tests: a machine, address spaces on it, and touches that fault.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;

use machine::{Asid, PageSize, Translated, VirtAddr};
use mm::*;
use paging::{Format, Paging, Tag, X86_64L4};
use sim::{Arch, Checks, Config, Grace, Report, Sim, Stale};

pub(crate) type Space = SpaceOf<X86_64L4>;
pub(crate) type SpaceOf<F> = AddressSpace<Sim, F, Grace>;
pub(crate) type SharedPaging = Arc<Paging<Sim, X86_64L4>>;

pub(crate) const PAGE: usize = 4096;
pub(crate) const BASE: usize = 0x7000_0000;
pub(crate) const HEAP: usize = 0x1000_0000;
pub(crate) const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::ANONYMOUS);
pub(crate) const FIXED: MapFlags = PRIVATE.union(MapFlags::FIXED);

pub(crate) fn paging(sim: &Sim) -> SharedPaging {
    Paging::try_new(sim.clone(), PageSize::Size1G).unwrap()
}

pub(crate) fn new_space<F: Format>(
    shared: &Arc<Paging<Sim, F>>,
    asid: u16,
) -> Result<SpaceOf<F>, Error> {
    tagged_space(shared, Asid(asid).into())
}

pub(crate) fn tagged_space<F: Format>(
    shared: &Arc<Paging<Sim, F>>,
    tag: Tag,
) -> Result<SpaceOf<F>, Error> {
    let layout = Layout { mmap_base: BASE, start_brk: HEAP, brk: HEAP, start_stack: 0 };
    SpaceOf::try_new(shared, tag, None, Profile::LINUX_6_18, layout)
}

/// For tests in which a CPU accesses pages that another one unmaps: it may use an old translation
/// until the flush.
pub(crate) const RACING: Checks = Checks { stale: Stale::Freed, walked: true, ..Checks::ALL };

/// Runs a test in a space that is active on the only CPU of a machine with this many frames. Then
/// ends the space, and checks that no frame is left.
pub(crate) fn with_space(frames: u64, test: impl FnOnce(&Sim, &SharedPaging, &Space)) {
    with_space_of(Arch::X86_64, frames, test);
}

/// As [`with_space`], on a machine whose hardware walks tables of this format.
pub(crate) fn with_space_of<F: Format>(
    arch: Arch,
    frames: u64,
    test: impl FnOnce(&Sim, &Arc<Paging<Sim, F>>, &SpaceOf<F>),
) {
    let sim = Sim::new(Config { cpus: 1, frames, arch, ..Config::default() }).unwrap();
    let shared = Paging::<Sim, F>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    let space = sim.on_cpu(0, || {
        let space = new_space(&shared, 1).unwrap();
        // SAFETY: the tests need no other mapping, and no other tables have the tag.
        unsafe { space.activate() };
        test(&sim, &shared, &space);
        space
    });
    // The CPU has stopped, so no tables are active on it.
    sim.on_cpu(0, || drop(space));
    all_given_back(&sim, &shared).unwrap();
}

/// Reads a word as a program does: a fault is handled, and the access repeated.
pub(crate) fn load<F: Format>(sim: &Sim, space: &SpaceOf<F>, at: usize) -> Result<u64, FaultError> {
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
pub(crate) fn store<F: Format>(
    sim: &Sim,
    space: &SpaceOf<F>,
    at: usize,
    value: u64,
) -> Result<(), FaultError> {
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
pub(crate) fn all_given_back<F: Format>(
    sim: &Sim,
    shared: &Arc<Paging<Sim, F>>,
) -> Result<(), Box<Report>> {
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            shared.quick().drain();
        });
    }
    sim.check_leaks()
}
