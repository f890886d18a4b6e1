//! Flushes of this CPU's TLB, and its active table.
//!
//! There is one tag: the software MMU of QEMU has no PCID, so flushes by tag could not be tested.

use super::shootdown;
use crate::cpu::area::{self, bump};
use crate::machine::Kernel;
use crate::mutant::{self, Mutant};
use crate::smp;
use machine::{Asid, CpuSet, Flush, Frame, Irqs, Tlb};
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::PhysFrame;

/// From this many pages on, one flush of everything replaces flushes of single pages. Linux has the
/// same limit.
const WHOLE_FLUSH_FROM: u64 = 33;

/// Flushes this CPU's TLB at the request of another CPU.
pub(super) fn flush_for_another(what: Flush) {
    if !mutant::is(Mutant::Remote) {
        flush(what, flush_all_quiescent);
    }
}

/// Flushes this CPU's TLB as its part of a shootdown.
pub(super) fn flush_with_others(what: Flush) {
    if !mutant::is(Mutant::Local) {
        flush(what, flush_all_quiescent);
    }
}

/// Flushes this CPU's TLB for this CPU only. It does not report a quiescent state, because the code
/// that reports calls it.
fn flush_here(what: Flush) {
    let left_out = if smp::is_ticking() { Mutant::Tick } else { Mutant::Local };
    if !mutant::is(left_out) {
        flush(what, all);
    }
}

/// Flushes this CPU's TLB: one instruction a page, or two loads of a control register for
/// everything.
fn flush(what: Flush, all: fn()) {
    let _section = Kernel.irqs_off();
    bump(&area::here().stats.flushes, 1);
    match what {
        Flush::Range { range, stride, .. }
            if range.len().div_ceil(stride.bytes()) < WHOLE_FLUSH_FROM =>
        {
            // INVLPG also drops all cached upper-level entries. The tag is the only one there is.
            for page in range.pages(stride) {
                x86_64::instructions::tlb::flush(x86_64::VirtAddr::new_truncate(page.get()));
            }
        }
        // Reloading CR3 drops everything that is not global.
        Flush::Space(_) | Flush::Range { space: Some(_), .. } => {
            x86_64::instructions::tlb::flush_all()
        }
        Flush::Range { .. } | Flush::All => all(),
    }
}

/// Drops everything, including global translations: turning global pages off does that.
fn all() {
    let flags = Cr4::read();
    // SAFETY: the mappings stay the same.
    unsafe {
        Cr4::write(flags.difference(Cr4Flags::PAGE_GLOBAL));
        Cr4::write(flags);
    }
}

/// Drops everything and reports a quiescent state, whatever the reason of the flush.
fn flush_all_quiescent() {
    match smp::tlb_grace_if_any() {
        // SAFETY: the closure drops every translation.
        Some(tlb_grace) => unsafe { tlb_grace.quiescent_state(all) },
        None => all(),
    }
}

// SAFETY: `flush_here` follows the manual. `shoot` waits until all running CPUs have flushed. Tags
// are not used: each `activate` drops everything that is not global.
unsafe impl Tlb for Kernel {
    fn flush(&self, what: Flush) {
        flush_here(what);
    }

    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        if !cpus.is_empty() {
            shootdown::shoot(cpus, what);
        }
    }

    fn tags(&self) -> u32 {
        1
    }

    unsafe fn activate(&self, root: Frame, asid: Asid, _: bool) {
        let _section = self.irqs_off();
        let frame = PhysFrame::containing_address(PhysAddr::new(root.start().get()));
        // SAFETY: the caller's promise is passed on.
        unsafe { Cr3::write(frame, Cr3Flags::empty()) };
        area::here().active.set(Some((root, asid)));
    }

    fn active(&self) -> Option<(Frame, Asid)> {
        area::here().active.get()
    }
}
