//! Flushes of TLBs, and the active table.
//!
//! The hardware broadcasts a flush to all CPUs, which need not answer: `TLBI` of the inner
//! shareable domain, and a `DSB` that waits until all CPUs have finished the accesses that use the
//! flushed translations. So no flush interrupts a CPU, and a section holds none back.
//!
//! Each space has a tag. `TTBR0_EL1` has the lower half of the active space, with its tag.
//! `TTBR1_EL1` always has the kernel's half, which all spaces share.

use super::features::has_long_tags;
use crate::cpu::area::{self, bump};
use crate::machine::Kernel;
use crate::mutant::{self, Mutant};
use crate::smp;
use core::arch::asm;
use machine::{Asid, CpuSet, Cpus, Flush, Frame, Irqs, Tlb, VirtRange};

/// From this many pages on, one flush of everything replaces flushes of single pages.
const WHOLE_FLUSH_FROM: u64 = 64;

/// Executes a `TLBI` for this CPU or, with `everywhere`, for all.
macro_rules! tlbi {
    ($everywhere:expr, $here:literal, $all:literal, $operand:expr) => {
        // SAFETY: a flush is always allowed.
        unsafe {
            match $everywhere {
                true => asm!(concat!("tlbi ", $all, ", {}"), in(reg) $operand, options(nostack, preserves_flags)),
                false => asm!(concat!("tlbi ", $here, ", {}"), in(reg) $operand, options(nostack, preserves_flags)),
            }
        }
    };
}

/// Flushes on this CPU or on all of them: one instruction a page, or one for a space or everything,
/// between two barriers.
fn flush(what: Flush, everywhere: bool) {
    // Stores to entries before it are visible to all later walks. SAFETY: a barrier.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    match what {
        Flush::Range { space, range, stride, tables }
            if range.len().div_ceil(stride.bytes()) < WHOLE_FLUSH_FROM =>
        {
            for page in range.pages(stride) {
                // Bits 12 to 55 of the address, and the tag above them.
                let address = page.get() << 8 >> 20;
                match (space.map(|tag| address | tag_bits(tag)), tables) {
                    (Some(operand), true) => tlbi!(everywhere, "vae1", "vae1is", operand),
                    (Some(operand), false) => tlbi!(everywhere, "vale1", "vale1is", operand),
                    (None, true) => tlbi!(everywhere, "vaae1", "vaae1is", address),
                    (None, false) => tlbi!(everywhere, "vaale1", "vaale1is", address),
                }
            }
        }
        Flush::Space(tag) | Flush::Range { space: Some(tag), .. } => {
            tlbi!(everywhere, "aside1", "aside1is", tag_bits(tag));
        }
        // SAFETY: a flush is always allowed.
        Flush::Range { .. } | Flush::All => unsafe {
            match everywhere {
                true => asm!("tlbi vmalle1is", options(nostack, preserves_flags)),
                false => asm!("tlbi vmalle1", options(nostack, preserves_flags)),
            }
        },
    }
    // The flush is complete on all CPUs that it names, and this one fetches anew. SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

fn tag_bits(Asid(tag): Asid) -> u64 {
    u64::from(tag) << 48
}

/// As [`flush`], with interrupts off: counts it, unless a mutant leaves it out.
fn counted(what: Flush, everywhere: bool) {
    let _section = Kernel.irqs_off();
    let left_out = if smp::is_ticking() { Mutant::Tick } else { Mutant::Local };
    if !mutant::is(left_out) {
        bump(&area::here().stats.flushes, 1);
        flush(what, everywhere && !mutant::is(Mutant::Remote));
    }
}

// SAFETY: `flush` follows the manual. The tags are those that the CPU has.
unsafe impl Tlb for Kernel {
    fn flush(&self, what: Flush) {
        counted(what, false);
    }

    fn flush_on(&self, cpus: &CpuSet, what: Flush) {
        if cpus.is_empty() {
            return;
        }
        let _section = self.irqs_off();
        let everywhere = *cpus != CpuSet::only(self.current());
        match smp::tlb_grace_if_any() {
            // SAFETY: the closure drops every translation of this CPU.
            Some(tlb_grace) if what == Flush::All && cpus.contains(self.current()) => unsafe {
                tlb_grace.quiescent_state(|| counted(what, everywhere));
            },
            _ => counted(what, everywhere),
        }
    }

    fn published(&self, _: Option<Asid>, _: VirtRange) {
        // Stores to entries before it are visible to all later walks, and this CPU fetches later
        // instructions anew. Another CPU may still fault once (`trap`). SAFETY: barriers.
        unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
    }

    fn interrupts(&self) -> bool {
        false
    }

    fn tags(&self) -> u32 {
        if has_long_tags() { 1 << 16 } else { 1 << 8 }
    }

    unsafe fn activate(&self, root: Frame, asid: Asid, keep: bool) {
        let _section = self.irqs_off();
        let at = root.start().get();
        // SAFETY: by the caller's promise. Tag 0 is the kernel's: then the upper half of the root,
        // which begins with entry 256, is that of all spaces.
        unsafe {
            set_register!("ttbr0_el1", at | tag_bits(asid));
            if asid == Asid(0) {
                set_register!("ttbr1_el1", at + 256 * 8);
            }
            asm!("isb", options(nostack, preserves_flags));
        }
        if !keep {
            flush(Flush::Space(asid), false);
        }
        area::here().active.set(Some((root, asid)));
    }

    fn active(&self) -> Option<(Frame, Asid)> {
        area::here().active.get()
    }
}
