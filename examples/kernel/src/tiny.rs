//! The machine as Samara's crates see it: [`Tiny`] implements the traits of `machine`, and the
//! domain of `grace`. `FrameSource` is in `frames.rs`, and `Translated` in `trap.rs`.

use crate::frames;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use machine::{Asid, CpuId, CpuSet, Cpus, Flush, Frame, IrqOff, Irqs, Memory, PhysAddr, Step, Tlb};
use x86_64::instructions::interrupts;
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::PhysFrame;

/// The machine: a handle that the crates copy.
#[derive(Clone, Copy, Debug)]
pub struct Tiny;
pub type Grace = Quiescent<Tiny>;
pub type Format = paging::X86_64L4;
pub type Tables = paging::PageTables<Tiny, Format, Grace>;

// SAFETY: one CPU, with the number 0.
unsafe impl Cpus for Tiny {
    fn count(&self) -> usize {
        1
    }
    fn current(&self) -> CpuId {
        CpuId::default()
    }
    fn online(&self) -> CpuSet {
        CpuSet::only(self.current())
    }
}

/// The number of open sections. Boot begins the first one, and this kernel never ends it: it needs
/// no interrupts. Relaxed: only this CPU uses it.
static DEPTH: AtomicU32 = AtomicU32::new(1);

// SAFETY: interrupts are off from the first section to the end of the last one.
unsafe impl Irqs for Tiny {
    fn irq_enter(&self) {
        interrupts::disable();
        DEPTH.store(DEPTH.load(Relaxed) + 1, Relaxed);
    }
    unsafe fn irq_leave(&self) {
        DEPTH.store(DEPTH.load(Relaxed) - 1, Relaxed);
        if self.irqs_enabled() {
            interrupts::enable();
        }
    }
    fn irqs_enabled(&self) -> bool {
        DEPTH.load(Relaxed) == 0
    }
}

// SAFETY: the defaults do nothing, and pause.
unsafe impl Step for Tiny {}

// SAFETY: `boot.rs` maps all frames, each once, one after the other.
unsafe impl Memory for Tiny {
    fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        frames::pointer(frame)
    }
}

// SAFETY: each flush drops all translations of the only CPU. All spaces have the tag 0.
unsafe impl Tlb for Tiny {
    /// A change of CR4.PGE drops global translations, too. INVLPG is faster for a few pages.
    fn flush(&self, _: Flush) {
        // SAFETY: no other effect.
        unsafe {
            Cr4::update(|flags| flags.remove(Cr4Flags::PAGE_GLOBAL));
            Cr4::update(|flags| flags.insert(Cr4Flags::PAGE_GLOBAL));
        }
    }
    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        if cpus.contains(self.current()) {
            self.flush(what);
        }
    }
    fn tags(&self) -> u32 {
        1
    }
    unsafe fn activate(&self, root: Frame, _: Asid, _: bool) {
        let root = x86_64::PhysAddr::new_truncate(root.start().get());
        // SAFETY: the caller's promise. It drops all translations but global ones.
        unsafe { Cr3::write(PhysFrame::containing_address(root), Cr3Flags::empty()) };
    }
    fn active(&self) -> Option<(Frame, Asid)> {
        let root = PhysAddr::new(Cr3::read().0.start_address().as_u64());
        Some((Frame::containing(root), Asid::default()))
    }
}

static SHARED: Shared = Shared::new();
static SLOTS: [CpuSlot; 1] = [CpuSlot::new()];

// SAFETY: one CPU, and one state. Only handlers would interrupt code, and a section keeps them out.
unsafe impl Domain for Tiny {
    const PREEMPTED: bool = false;
    type Exclusive = IrqOff<'static, Tiny>;
    fn cpu() -> usize {
        0
    }
    fn exclusive() -> Self::Exclusive {
        Tiny.irqs_off()
    }
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        f(Periods::new(&SHARED, &SLOTS))
    }
}
