//! Shared by the tests: a machine, and page tables on it.
#![allow(dead_code, reason = "each test uses some of it")]

mod arch;
mod own;
mod users;
#[allow(unused_imports, reason = "each test uses some of it")]
pub(crate) use arch::{OnSim, Sev};
pub(crate) use own::Own;
#[allow(unused_imports, reason = "each test uses some of it")]
pub(crate) use users::PagesInUse;

use grace::Concurrent;
use machine::*;
use paging::*;
use sim::{Config, Failure, Grace, Report, Sim, explore};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
#[allow(unused_imports, reason = "the unit tests have no prelude of `std`")]
use std::{boxed::Box, vec::Vec};

pub(crate) type Space<G = Grace> = PageTables<Sim, X86_64L4, G>;
pub(crate) type Shared = Arc<Paging<Sim, X86_64L4>>;

/// A machine that walks the tables of a format, and the state that these share.
pub(crate) fn machine_of<F: OnSim>(config: Config) -> (Sim, Arc<Paging<Sim, F>>) {
    let sim = Sim::new(Config { arch: F::ARCH, levels: F::LEVELS, ..config }).unwrap();
    let paging = Paging::try_new(sim.clone(), PageSize::Size1G).unwrap();
    (sim, paging)
}

/// Runs a test on CPU 0 of a machine, which has all frames back afterwards.
pub(crate) fn on_machine(cpus: usize, frames: u64, test: impl FnOnce(&Sim, &Shared)) {
    let (sim, shared) = machine_of(Config { cpus, frames, ..Config::default() });
    sim.on_cpu(0, || test(&sim, &shared));
    all_given_back(&sim, &shared).unwrap();
}

pub(crate) fn virt(at: u64) -> VirtAddr {
    VirtAddr::new(at)
}

/// A range of `pages` pages from an address on.
pub(crate) fn pages(at: u64, pages: u64) -> VirtRange {
    VirtRange::new(virt(at), pages << 12).unwrap()
}

/// A range of `count` smallest pages of a format, from an address on.
pub(crate) fn pages_of<F: Format>(at: u64, count: u64) -> VirtRange {
    VirtRange::new(virt(at), count << F::PAGE.shift()).unwrap()
}

pub(crate) fn paging(sim: &Sim) -> Shared {
    Paging::try_new(sim.clone(), PageSize::Size1G).unwrap()
}

/// A block of memory to be mapped.
pub(crate) fn block(sim: &Sim, order: u8) -> Frame {
    let frame = sim.alloc(order, NodePolicy::Local).unwrap();
    // SAFETY: it is ours.
    unsafe { sim.set_owner(frame, Owner::User) }.unwrap();
    frame
}

pub(crate) fn release(sim: &Sim, frame: Frame) {
    // SAFETY: the tests reach it by translations only, which the machine checks.
    unsafe { sim.release(frame) }.unwrap();
}

/// A page whose first word is `number`.
pub(crate) fn numbered_page(sim: &Sim, number: u64) -> Frame {
    let frame = block(sim, 0);
    // SAFETY: a frame of ours, which no CPU reaches yet.
    unsafe { sim.frame_ptr(frame).unwrap().cast::<u64>().write(number) };
    frame
}

/// Accesses of a CPU. They are safe for the reasons of [`Own`].
pub(crate) trait CpuAccess {
    fn load_own(&self, at: VirtAddr) -> Result<u64, Fault>;
    fn store_own(&self, at: VirtAddr, value: u64) -> Result<(), Fault>;
}

impl CpuAccess for Sim {
    fn load_own(&self, at: VirtAddr) -> Result<u64, Fault> {
        // SAFETY: see `Own`.
        unsafe { self.load(at) }
    }

    fn store_own(&self, at: VirtAddr, value: u64) -> Result<(), Fault> {
        // SAFETY: see `Own`.
        unsafe { self.store(at, value) }
    }
}

/// The error of a call that fails. Performs its flush.
#[track_caller]
pub(crate) fn refused<T, M: Machine, F: Format, G: Concurrent>(
    result: Result<T, Failed<'_, M, F, G>>,
) -> Error {
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(failed) => failed.error,
    }
}

/// Makes every CPU give back its cached pages, and checks that no frame is left allocated. Call it
/// when no address space is left.
pub(crate) fn all_given_back<F: Format>(
    sim: &Sim,
    paging: &Arc<Paging<Sim, F>>,
) -> Result<(), Box<Report>> {
    for cpu in 0..sim.config().cpus {
        sim.on_cpu(cpu, || {
            assert!(sim.settle(), "something is never freed");
            paging.quick().drain();
        });
    }
    sim.check_leaks()
}

/// A failed run leaks it: there is no CPU on which it could be dropped.
pub(crate) type Leaked<T> = ManuallyDrop<T>;

/// The tables of a program, for a run that may fail.
pub(crate) fn leaked_user<F: Format, G: Concurrent>(
    sim: &Sim,
    paging: &Arc<Paging<Sim, F>>,
) -> Leaked<PageTables<Sim, F, G>> {
    sim.on_cpu(0, || Leaked::new(PageTables::user(paging, Asid(1), None).unwrap()))
}

/// Ends a run that has not failed, whose only tables these are.
pub(crate) fn end<F: Format, G: Concurrent>(
    sim: &Sim,
    paging: &Arc<Paging<Sim, F>>,
    tables: Leaked<PageTables<Sim, F, G>>,
) -> Result<(), Failure> {
    sim.on_cpu(0, || drop(Leaked::into_inner(tables)));
    Ok(all_given_back(sim, paging)?)
}

/// The first word of a frame, which the tests access atomically only.
pub(crate) fn word_of(sim: &Sim, frame: Frame) -> &AtomicU64 {
    // SAFETY: as above.
    unsafe { sim.frame_ptr(frame).unwrap().cast().as_ref() }
}

/// The number of tables.
pub(crate) fn tables(sim: &Sim) -> usize {
    sim.allocated().iter().filter(|frame| matches!(frame.owner, Owner::Table(_))).count()
}

/// Maps and unmaps pages; returns the pending flush.
pub(crate) fn unmap_prune(
    range: VirtRange,
    space: &Space,
) -> PendingFlush<'_, Sim, X86_64L4, Grace> {
    // A frame beyond the machine's memory.
    space.map_own(range, Frame::new(1 << 24).unwrap(), Attrs::USER_RW).unwrap();
    space.unmap_own(range, |_| ()).unwrap()
}

/// Asserts that all seeds pass.
pub(crate) fn right(seeds: u64, run: impl Fn(u64) -> Result<(), Failure> + Sync) {
    explore(seeds, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Asserts that some seed finds a violation. `seeds` may be many more than that takes.
pub(crate) fn caught(seeds: u64, run: impl Fn(u64) -> Result<(), Failure> + Sync) -> Report {
    let failure = explore(seeds, &run).expect_err("the mutant was not caught");
    failure.report().unwrap_or_else(|| panic!("{failure}")).clone()
}
