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
    pub(crate) which: Affected,
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
    /// No flush, but the publication of entries that have become valid.
    Published,
}

/// The flushes that are affected.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Affected {
    /// All of them.
    Each,
    /// Those of everything, which `vmap` requests.
    Everything,
    /// Those of programs' tables.
    Programs,
    /// Those of ranges, after the first so many.
    After(u64),
}

/// Methods that the machine in software has.
macro_rules! pass_on {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    $(unsafe fn $unsafe_name:ident($($arg:ident: $arg_type:ty),*) $(-> $done:ty)?;)*) => {
        $(fn $name(&self, $($argument: $type),*) $(-> $result)? {
            self.sim.$name($($argument),*)
        })*
        $(unsafe fn $unsafe_name(&self, $($arg: $arg_type),*) $(-> $done)? {
            // SAFETY: passed on.
            unsafe { self.sim.$unsafe_name($($arg),*) }
        })*
    };
}

impl Lax {
    pub(crate) fn new(sim: Sim, left_out: LeftOut, which: Affected) -> Lax {
        Lax { sim, left_out, which, asked: Arc::default() }
    }

    /// Whether this flush is affected.
    fn applies(&self, what: Flush) -> bool {
        match (self.which, what) {
            _ if self.left_out == LeftOut::Published => false,
            (Affected::Each, _) | (Affected::Everything, Flush::All) => true,
            (Affected::Programs, Flush::Range { space: Some(_), .. } | Flush::Space(_)) => true,
            // Relaxed: one CPU changes pages at a time.
            (Affected::After(first), Flush::Range { .. }) => {
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
    pass_on! {
        fn count() -> usize;
        fn current() -> CpuId;
        fn online() -> CpuSet;
        fn hurry(cpus: &CpuSet);
    }
}

// SAFETY: as the machine in software.
unsafe impl Irqs for Lax {
    pass_on! {
        fn irq_enter();
        fn irqs_enabled() -> bool;
        unsafe fn irq_leave();
    }
}

// SAFETY: as `Sim`.
unsafe impl Step for Lax {
    pass_on! {
        fn step(access: SharedAccess);
        fn relax();
        fn checker() -> Option<&dyn Checker>;
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
    pass_on! {
        fn interrupts() -> bool;
        fn tags() -> u32;
        fn active() -> Option<(Frame, Asid)>;
        unsafe fn activate(root: Frame, asid: Asid, keep: bool);
    }
}

// SAFETY: as the machine in software.
unsafe impl Memory for Lax {
    pass_on! {
        fn frame_ptr(frame: Frame) -> Option<NonNull<u8>>;
    }
}

// SAFETY: as the machine in software.
unsafe impl FrameSource for Lax {
    pass_on! {
        fn alloc(order: u8, place: NodePolicy) -> Result<Frame, FrameError>;
        fn info(frame: Frame) -> Option<&FrameInfo>;
        fn accounts() -> Option<&machine::Accounts>;
        fn nodes() -> usize;
        fn local_node() -> NodeId;
        fn free_frames() -> usize;
        unsafe fn recycle(frame: Frame, info: &FrameInfo);
        unsafe fn free(frame: Frame) -> Result<(), FrameError>;
        unsafe fn release(frame: Frame) -> Result<bool, FrameError>;
        unsafe fn unpin(frame: Frame, pins: u32) -> Result<bool, FrameError>;
        unsafe fn split(frame: Frame) -> Result<(), FrameError>;
        unsafe fn set_owner(frame: Frame, owner: Owner) -> Result<(), FrameError>;
    }
}

impl Translated for Lax {
    pass_on! {
        unsafe fn read(at: VirtAddr, into: &mut [u8]) -> Result<(), Fault>;
        unsafe fn write(at: VirtAddr, from: &[u8]) -> Result<(), Fault>;
        unsafe fn load(at: VirtAddr) -> Result<u64, Fault>;
        unsafe fn store(at: VirtAddr, value: u64) -> Result<(), Fault>;
    }
}
