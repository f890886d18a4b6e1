//! A machine that is nothing but memory and threads: no TLB, no interrupts, no checks, no steps. For measuring, and for Miri.
#![allow(dead_code, reason = "each user uses some of it")]

use grace::quiescent::{Domain, Periods, Quiescent, Shared, Slot};
use machine::*;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// As many CPUs as a host may have.
pub(crate) const CPUS: usize = 8;
const FIRST: u64 = 1 << 18;

struct Inner {
    base: NonNull<u8>,
    layout: Layout,
    span: FrameRange,
    cpus: usize,
    frames: Frames,
    flushes: AtomicU64,
}

// SAFETY: memory, which is only handed out.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made by `Host::new`; the last handle is gone.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[derive(Clone)]
pub(crate) struct Host(Arc<Inner>);

thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl Host {
    pub(crate) fn new(cpus: usize, frames: u64) -> Host {
        assert!(cpus <= CPUS);
        let span = FrameRange::new(Frame::new(FIRST).unwrap(), frames).unwrap();
        let layout = Layout::from_size_align(frames as usize * 4096, 4096).unwrap();
        // SAFETY: not of size 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        let mut source = Frames::try_new(span, cpus).unwrap();
        // SAFETY: the block was just allocated for these.
        unsafe { source.add(span, NodeId(0)) }.unwrap();
        Host(Arc::new(Inner {
            base,
            layout,
            span,
            cpus,
            frames: source,
            flushes: AtomicU64::new(0),
        }))
    }

    /// This thread is that CPU from now on. Each is one thread.
    pub(crate) fn be(cpu: usize) {
        assert!(cpu < CPUS);
        CPU.set(cpu);
    }

    /// Brings what was retired to its end, when no other thread is a CPU any more.
    pub(crate) fn settle() {
        for _ in 0..64 {
            Grace::announce();
            Grace::reclaim(usize::MAX);
            if !Grace::is_pending() {
                return;
            }
        }
        panic!("something is never freed");
    }
}

// SAFETY: each CPU is one thread (`be`).
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        self.0.cpus
    }
    #[inline]
    fn current(&self) -> CpuId {
        CpuId::new(CPU.get()).unwrap_or_default()
    }
    fn online(&self) -> CpuSet {
        CpuSet::first(self.0.cpus)
    }
}

// SAFETY: there are no interrupts, and a thread stays the CPU that it is.
unsafe impl Irqs for Host {
    #[inline]
    fn irq_enter(&self) {
        DEPTH.set(DEPTH.get() + 1);
    }
    #[inline]
    unsafe fn irq_leave(&self) {
        DEPTH.set(DEPTH.get() - 1);
    }
    fn irqs_enabled(&self) -> bool {
        DEPTH.get() == 0
    }
}

impl Step for Host {
    fn relax(&self) {
        std::thread::yield_now();
    }
}

/// Nothing translates, so nothing is cached.
impl Tlb for Host {
    fn flush(&self, _: Flush) {}
    fn flush_on(&self, _: &CpuSet, _: Flush) {
        self.0.flushes.fetch_add(1, Ordering::Relaxed);
    }
    fn tags(&self) -> u32 {
        1
    }
    unsafe fn activate(&self, _: Frame, _: Asid, _: bool) {}
    fn active(&self) -> Option<(Frame, Asid)> {
        None
    }
}

// SAFETY: pieces of one aligned block, which lives as long as a handle.
unsafe impl Memory for Host {
    #[inline]
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        let index = frame.number().checked_sub(self.0.span.start().number())?;
        // SAFETY: within the block.
        (index < self.0.span.len()).then(|| unsafe { self.0.base.add(index as usize * 4096) })
    }
}

// SAFETY: as `Frames`.
unsafe impl FrameSource for Host {
    #[inline]
    fn alloc(&self, order: u8, place: Place) -> Result<Frame, FrameError> {
        self.0.frames.alloc(self, order, place)
    }
    #[inline]
    unsafe fn free(&self, frame: Frame) -> Result<(), FrameError> {
        // SAFETY: passed on.
        unsafe { self.0.frames.free(self, frame) }
    }
    #[inline]
    unsafe fn release(&self, frame: Frame) -> Result<bool, FrameError> {
        // SAFETY: passed on.
        unsafe { self.0.frames.release(self, frame) }
    }
    #[inline]
    unsafe fn unpin(&self, frame: Frame, pins: u32) -> Result<bool, FrameError> {
        // SAFETY: passed on.
        unsafe { self.0.frames.unpin(self, frame, pins) }
    }
    fn split(&self, frame: Frame) -> Result<(), FrameError> {
        self.0.frames.split(frame)
    }
    #[inline]
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        self.0.frames.info(frame)
    }
    fn nodes(&self) -> usize {
        self.0.frames.nodes()
    }
    #[inline]
    fn local_node(&self) -> NodeId {
        self.0.frames.local_node(self)
    }
    fn free_frames(&self) -> usize {
        self.0.frames.free_frames(self)
    }
}

/// The CPUs of all hosts; one host at a time.
pub(crate) struct Domains;

static SHARED: Shared = Shared::new();
static SLOTS: [Slot; CPUS] = [const { Slot::new() }; CPUS];

// SAFETY: a thread is one CPU, nothing interrupts it, and the state is one.
unsafe impl Domain for Domains {
    type Exclusive = ();
    #[inline]
    fn cpu() -> usize {
        CPU.get()
    }
    fn exclusive() {}
    #[inline]
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        f(Periods::new(&SHARED, &SLOTS))
    }
}

pub(crate) type Grace = Quiescent<Domains>;
