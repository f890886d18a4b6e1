//! A host whose every answer is unknown to the compiler.

use crate::any;
use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;
use core::ptr::NonNull;
use grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use machine::{
    Asid, CpuId, CpuSet, Cpus, Flush, Frame, FrameError, FrameInfo, FrameSource, Irqs, Memory,
    NodePolicy, Step, Tlb, VirtRange,
};

struct NoHeap;

#[global_allocator]
static HEAP: NoHeap = NoHeap;

// SAFETY: it never returns a block that the program uses: the program is not run.
unsafe impl GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        black_box(layout.size() as *mut u8)
    }
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        black_box(block);
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// The machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host;

// SAFETY: the program is not run. So for all of this file.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        any()
    }
    fn current(&self) -> CpuId {
        CpuId::new(any()).unwrap_or_default()
    }
    fn online(&self) -> CpuSet {
        CpuSet::first(any())
    }
}

// SAFETY: as above.
unsafe impl Irqs for Host {
    fn irq_enter(&self) {
        black_box(());
    }
    unsafe fn irq_leave(&self) {
        black_box(());
    }
    fn irqs_enabled(&self) -> bool {
        any::<u8>() != 0
    }
}

// SAFETY: as above.
unsafe impl Step for Host {}

// SAFETY: as above.
unsafe impl Memory for Host {
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        NonNull::new(core::ptr::with_exposed_provenance_mut(black_box(frame.number()) as usize))
    }
}

static INFO: [FrameInfo; 16] = [const { FrameInfo::new() }; 16];

// SAFETY: as above.
unsafe impl FrameSource for Host {
    fn alloc(&self, order: u8, _: NodePolicy) -> Result<Frame, FrameError> {
        Frame::new(any()).ok_or(FrameError::OutOfFrames { order })
    }
    unsafe fn recycle(&self, frame: Frame, _: &FrameInfo) {
        black_box(frame);
    }
    fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        INFO.get(black_box(frame.number()) as usize)
    }
    fn free_frames(&self) -> usize {
        any()
    }
}

// SAFETY: as above.
unsafe impl Tlb for Host {
    fn flush(&self, what: Flush) {
        black_box(what);
    }
    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        black_box((cpus, what));
    }
    fn published(&self, space: Option<Asid>, range: VirtRange) {
        black_box((space, range));
    }
    fn tags(&self) -> u32 {
        any()
    }
    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool) {
        black_box((root, asid, keep));
    }
    fn active(&self) -> Option<(Frame, Asid)> {
        Frame::new(any()).map(|frame| (frame, Asid(any())))
    }
}

static SHARED: Shared = Shared::new();
static SLOTS: [CpuSlot; 16] = [const { CpuSlot::new() }; 16];

/// The CPUs of the host, for grace periods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCpus;

/// The engine of grace periods.
pub(crate) type Grace = Quiescent<HostCpus>;

// SAFETY: as above.
unsafe impl Domain for HostCpus {
    const PREEMPTED: bool = false;
    type Exclusive = machine::IrqOff<'static, Host>;

    fn cpu() -> usize {
        any()
    }
    fn exclusive() -> Self::Exclusive {
        Host.irqs_off()
    }
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        f(Periods::new(&SHARED, &SLOTS))
    }
}
