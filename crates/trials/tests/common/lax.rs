//! A machine that omits some of its flushes, which `stale` must notice.

use machine::*;
use sim::Sim;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A machine whose CPUs omit flushes.
#[derive(Clone)]
pub(crate) struct Lax {
    pub(crate) sim: Sim,
    pub(crate) left_out: LeftOut,
    pub(crate) which: Which,
    /// Flushes of ranges that were requested so far.
    asked: Arc<AtomicU64>,
}

/// The place where flushes are omitted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum LeftOut {
    /// On the CPU that requests them.
    Local,
    /// On the other CPUs.
    Remote,
    /// On all CPUs, at the end of a range.
    End,
    /// No flush, but what publishes entries that have become valid.
    Published,
}

/// The flushes that are affected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Which {
    /// All of them.
    Each,
    /// Those of everything, which `vmap` requests.
    Everything,
    /// Those of programs' tables.
    Programs,
    /// Those of ranges, after the first so many.
    After(u64),
}

impl Lax {
    pub(crate) fn new(sim: Sim, left_out: LeftOut, which: Which) -> Lax {
        Lax { sim, left_out, which, asked: Arc::default() }
    }

    /// Whether this flush is affected.
    fn applies(&self, what: Flush) -> bool {
        match (self.which, what) {
            _ if self.left_out == LeftOut::Published => false,
            (Which::Each, _) | (Which::Everything, Flush::All) => true,
            (Which::Programs, Flush::Range { space: Some(_), .. } | Flush::Space(_)) => true,
            // Relaxed: one CPU changes pages at a time.
            (Which::After(first), Flush::Range { .. }) => {
                self.asked.fetch_add(1, Ordering::Relaxed) >= first
            }
            _ => false,
        }
    }

    /// The flush that is made instead.
    fn less(&self, what: Flush) -> Flush {
        match what {
            Flush::Range { space, range, stride, tables } if self.left_out == LeftOut::End => {
                let left = (range.len() / 8).next_multiple_of(4096).min(range.len() - 4096);
                let range = VirtRange::new(range.start(), range.len() - left).unwrap();
                Flush::Range { space, range, stride, tables }
            }
            what => what,
        }
    }
}

// SAFETY: as the machine in software.
unsafe impl Cpus for Lax {
    fn count(&self) -> usize {
        self.sim.count()
    }
    fn current(&self) -> CpuId {
        self.sim.current()
    }
    fn online(&self) -> CpuSet {
        self.sim.online()
    }
    fn hurry(&self, cpus: &CpuSet) {
        self.sim.hurry(cpus);
    }
}

// SAFETY: as the machine in software.
unsafe impl Irqs for Lax {
    fn irq_enter(&self) {
        self.sim.irq_enter();
    }
    unsafe fn irq_leave(&self) {
        // SAFETY: passed on.
        unsafe { self.sim.irq_leave() }
    }
    fn irqs_enabled(&self) -> bool {
        self.sim.irqs_enabled()
    }
}

// SAFETY: as `Sim`.
unsafe impl Step for Lax {
    fn step(&self, access: SharedAccess) {
        self.sim.step(access);
    }
    fn relax(&self) {
        self.sim.relax();
    }
    fn checker(&self) -> Option<&dyn Checker> {
        self.sim.checker()
    }
}

// SAFETY: none: it breaks its obligations on purpose. The effect is confined to the frames of the
// machine in software.
unsafe impl Tlb for Lax {
    fn flush(&self, what: Flush) {
        match (self.applies(what), self.left_out) {
            (true, LeftOut::Local) => {}
            (true, _) => self.sim.flush(self.less(what)),
            (false, _) => self.sim.flush(what),
        }
    }
    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        if !self.applies(what) {
            return self.sim.flush_on(cpus, what);
        }
        let (here, mut cpus) = (self.current(), *cpus);
        match self.left_out {
            LeftOut::Local => cpus.remove(here),
            LeftOut::Remote => cpus = cpus.intersection(&CpuSet::only(here)),
            LeftOut::End | LeftOut::Published => {}
        }
        self.sim.flush_on(&cpus, self.less(what));
    }
    fn published(&self, space: Option<Asid>, range: VirtRange) {
        if self.left_out != LeftOut::Published {
            self.sim.published(space, range);
        }
    }
    fn interrupts(&self) -> bool {
        self.sim.interrupts()
    }
    fn tags(&self) -> u32 {
        self.sim.tags()
    }
    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool) {
        // SAFETY: passed on.
        unsafe { self.sim.activate(root, asid, keep) }
    }
    fn active(&self) -> Option<(Frame, Asid)> {
        self.sim.active()
    }
}

// SAFETY: as the machine in software.
unsafe impl Memory for Lax {
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        self.sim.frame_ptr(frame)
    }
}

// SAFETY: as the machine in software.
unsafe impl FrameSource for Lax {
    fn alloc(&self, order: u8, place: Place) -> Result<Frame, FrameError> {
        self.sim.alloc(order, place)
    }
    unsafe fn recycle(&self, frame: Frame, info: &FrameInfo) {
        // SAFETY: passed on.
        unsafe { self.sim.recycle(frame, info) }
    }
    unsafe fn free(&self, frame: Frame) -> Result<(), FrameError> {
        // SAFETY: passed on.
        unsafe { self.sim.free(frame) }
    }
    unsafe fn release(&self, frame: Frame) -> Result<bool, FrameError> {
        // SAFETY: passed on.
        unsafe { self.sim.release(frame) }
    }
    unsafe fn unpin(&self, frame: Frame, pins: u32) -> Result<bool, FrameError> {
        // SAFETY: passed on.
        unsafe { self.sim.unpin(frame, pins) }
    }
    unsafe fn split(&self, frame: Frame) -> Result<(), FrameError> {
        // SAFETY: passed on.
        unsafe { self.sim.split(frame) }
    }
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.sim.info(frame)
    }
    unsafe fn set_owner(&self, frame: Frame, owner: Owner) -> Result<(), FrameError> {
        // SAFETY: passed on.
        unsafe { self.sim.set_owner(frame, owner) }
    }
    fn accounts(&self) -> Option<&machine::Accounts> {
        self.sim.accounts()
    }
    fn nodes(&self) -> usize {
        self.sim.nodes()
    }
    fn local_node(&self) -> NodeId {
        self.sim.local_node()
    }
    fn free_frames(&self) -> usize {
        self.sim.free_frames()
    }
}

impl Translated for Lax {
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { self.sim.read(at, into) }
    }
    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { self.sim.write(at, from) }
    }
    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault> {
        // SAFETY: passed on.
        unsafe { self.sim.load(at) }
    }
    unsafe fn store(&self, at: VirtAddr, value: u64) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { self.sim.store(at, value) }
    }
}
