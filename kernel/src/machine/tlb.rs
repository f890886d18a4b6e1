//! Flushes of this CPU's translations, and the table that it uses.
//!
//! There is one tag: QEMU's software MMU has no PCID, and what cannot be tried is not promised.

use super::{Kernel, shootdown};
use crate::cpu::area::{self, bump};
use crate::mutant::{self, Mutant};
use crate::smp;
use machine::{Asid, CpuSet, Flush, Frame, Irqs, Tlb};
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags, Cr4, Cr4Flags};
use x86_64::structures::paging::PhysFrame;

/// Pages from which on all is dropped rather than each: as in Linux.
const MANY: u64 = 33;

/// Drops translations of this CPU, as another one asks.
pub(super) fn flush_for_another(what: Flush) {
    if !mutant::is(Mutant::Remote) {
        flush(what, announce_all);
    }
}

/// Drops translations of this CPU, for itself and others.
pub(super) fn flush_with_others(what: Flush) {
    if !mutant::is(Mutant::Local) {
        flush(what, announce_all);
    }
}

/// Drops translations of this CPU, for itself. Not announced: whoever announces does it by this.
fn flush_here(what: Flush) {
    let left_out = if smp::is_ticking() { Mutant::Tick } else { Mutant::Local };
    if !mutant::is(left_out) {
        flush(what, all);
    }
}

/// Drops translations of this CPU: one instruction a page, or two loads of a control register for
/// all.
fn flush(what: Flush, all: fn()) {
    let _section = Kernel.irqs_off();
    bump(&area::here().counts.flushes, 1);
    match what {
        Flush::Range { range, stride, .. } if range.len().div_ceil(stride.bytes()) < MANY => {
            // Upper-level entries go with any INVLPG. A tag of programs is the one there is.
            for page in range.pages(stride) {
                x86_64::instructions::tlb::flush(x86_64::VirtAddr::new_truncate(page.get()));
            }
        }
        // Reloading the table drops what is not global.
        Flush::Space(_) | Flush::Range { space: Some(_), .. } => {
            x86_64::instructions::tlb::flush_all()
        }
        Flush::Range { .. } | Flush::All => all(),
    }
}

/// Global translations too: all go when global pages are turned off.
fn all() {
    let flags = Cr4::read();
    // SAFETY: what is mapped stays mapped.
    unsafe {
        Cr4::write(flags.difference(Cr4Flags::PAGE_GLOBAL));
        Cr4::write(flags);
    }
}

/// The same; and whatever it was done for, whoever waits for this CPU's flush has it.
fn announce_all() {
    match smp::flushes_if_any() {
        // SAFETY: everything is dropped.
        Some(flushes) => unsafe { flushes.quiescent_state(all) },
        None => all(),
    }
}

// SAFETY: `flush_here` is what the manual says; `shoot` waits until all that run have flushed. Tags
// are not used: each `activate` drops what is not global.
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
        // SAFETY: passed on.
        unsafe { Cr3::write(frame, Cr3Flags::empty()) };
        area::here().active.set(Some((root, asid)));
    }

    fn active(&self) -> Option<(Frame, Asid)> {
        area::here().active.get()
    }
}
