//! The floating-point and vector registers of a thread.
//!
//! The kernel itself is built without them. So they stay in place while the kernel works for a
//! thread, and are saved only when its CPU runs another one.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use raw_cpuid::CpuId;
use spin::Once;
use x86_64::registers::xcontrol::{XCr0, XCr0Flags};

/// x87, SSE, AVX, AVX-512.
const KEPT: XCr0Flags = XCr0Flags::X87
    .union(XCr0Flags::SSE)
    .union(XCr0Flags::AVX)
    .union(XCr0Flags::OPMASK)
    .union(XCr0Flags::ZMM_HI256)
    .union(XCr0Flags::HI16_ZMM);
/// The bytes of the part that every CPU has, and of the header.
const LEAST: usize = 576;
const MXCSR: usize = 24;
/// The bytes of x87 and SSE, which all CPUs have. The header comes behind them.
pub(crate) const LEGACY: usize = 512;
const HEADER: usize = LEGACY;
/// The bytes of the header that `xrstor` looks at.
const CHECKED: usize = 24;
/// The first of the bytes that the CPU leaves to software.
const SOFTWARE: usize = 464;
/// FP_XSTATE_MAGIC1: Linux's mark there.
const START_MARK: u32 = 0x4650_5853;
/// FP_XSTATE_MAGIC2: Linux's mark behind a program's copy.
pub(crate) const END_MARK: u32 = 0x4650_5845;

/// XCR0 as it is on all CPUs. Not each hypervisor lets a kernel read it.
static ENABLED: AtomicU64 = AtomicU64::new(3);
static BYTES: Once<usize> = Once::new();
/// The bits of MXCSR that this CPU has. `xrstor` faults for others.
static MXCSR_BITS: Once<u32> = Once::new();

/// Enables the registers on this CPU. One without `xsave` has x87 and SSE alone.
pub(super) fn start() {
    MXCSR_BITS.call_once(mxcsr_bits);
    let id = CpuId::new();
    if !id.get_feature_info().is_some_and(|features| features.has_xsave()) {
        return;
    }
    let all = id.get_extended_state_info().map_or(0, |info| {
        u64::from(info.xcr0_supports_avx_256()) << 2
            | if info.xcr0_supports_avx512_opmask() { 7 << 5 } else { 0 }
            | 3
    });
    let enabled = KEPT.intersection(XCr0Flags::from_bits_truncate(all)).bits();
    // SAFETY: the CPU has these registers. No other bit is set after a reset.
    unsafe { XCr0::write_raw(enabled) };
    // Relaxed, here and below: only the number, and the same on all CPUs.
    ENABLED.store(enabled, Ordering::Relaxed);
    BYTES.call_once(area);
}

/// The bytes for the enabled registers, by the place of each. The sum that CPUID also has follows
/// XCR0, which some hypervisors overlook.
fn area() -> usize {
    let enabled = enabled();
    let parts = (2..32).filter(|part| enabled >> part & 1 != 0);
    let ends = parts.map(|part| {
        let leaf = core::arch::x86_64::__cpuid_count(0xd, part);
        leaf.eax as usize + leaf.ebx as usize
    });
    ends.fold(LEAST, usize::max)
}

fn mxcsr_bits() -> u32 {
    /// The bits of a CPU that leaves the field 0.
    const OLD: u32 = 0xffbf;
    const FIELD: usize = 28;
    #[repr(align(16))]
    struct Area([u8; LEGACY]);
    let mut area = Area([0; LEGACY]);
    // SAFETY: the area is large enough, and aligned.
    unsafe { asm!("fxsave64 [{}]", in(reg) area.0.as_mut_ptr(), options(nostack)) };
    match word(&area.0, FIELD) {
        0 => OLD,
        bits => bits,
    }
}

/// The bytes of the saved registers.
pub(crate) fn bytes() -> usize {
    BYTES.get().copied().unwrap_or(LEAST)
}

/// Whether this CPU has `xsave`. `fxsave` leaves the header of the format as it is: zeros.
fn has_xsave() -> bool {
    BYTES.get().is_some()
}

/// The registers that are saved: without `xsave` x87 and SSE.
fn enabled() -> u32 {
    ENABLED.load(Ordering::Relaxed) as u32
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The bytes behind the legacy part that a program's copy describes, if they are no more than
/// `most`.
pub(crate) fn described(legacy: &[u8], most: usize) -> Option<usize> {
    let (len, with_mark) = (word(legacy, SOFTWARE + 16), word(legacy, SOFTWARE + 4));
    let fits = word(legacy, SOFTWARE) == START_MARK && len as usize >= LEAST && len <= with_mark;
    (fits && len as usize - LEGACY <= most).then(|| len as usize - LEGACY)
}

/// Saved registers, in the format of `xsave`.
pub(crate) struct XState {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for XState {}

impl XState {
    /// The registers as a program finds them at its start. `None` without memory.
    pub(crate) fn try_new() -> Option<XState> {
        let bytes = bytes();
        // SAFETY: the size is not 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })?;
        let mut state = XState { at, bytes };
        state.reset();
        Some(state)
    }

    /// A copy. `None` without memory.
    pub(crate) fn try_clone(&self) -> Option<XState> {
        let mut copy = XState::try_new()?;
        copy.bytes_mut().copy_from_slice(self.as_bytes());
        Some(copy)
    }

    /// The registers as a program finds them at its start.
    pub(crate) fn reset(&mut self) {
        let bytes = self.bytes_mut();
        bytes.fill(0);
        bytes[MXCSR..MXCSR + 4].copy_from_slice(&0x1f80_u32.to_le_bytes());
        self.describe();
    }

    /// As `xsave` stores them.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: it owns these bytes, which were zeroed.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    /// Takes over registers that a program has written in the format of `xsave`, which `fill`
    /// copies. Returns false, and resets the registers, if it fails, or if `xrstor` would refuse
    /// the copy: reserved bits of MXCSR or of the header, or the compact format.
    pub(crate) fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> bool) -> bool {
        let good = fill(self.bytes_mut()) && self.is_good();
        if good {
            self.bytes_mut()[HEADER + CHECKED..HEADER + 64].fill(0);
            self.describe();
        } else {
            self.reset();
        }
        good
    }

    /// Whether `xrstor` takes the registers.
    fn is_good(&self) -> bool {
        let bytes = self.as_bytes();
        let known = MXCSR_BITS.get().copied().unwrap_or(0);
        let (parts, reserved) = bytes[HEADER..HEADER + CHECKED].split_at(4);
        word(bytes, MXCSR) & !known == 0
            && word(parts, 0) & !enabled() == 0
            && reserved.iter().all(|byte| *byte == 0)
    }

    /// Writes the bytes that the CPU leaves to software: they say how much is here.
    fn describe(&mut self) {
        let len = self.bytes as u32;
        let words = [START_MARK, len + size_of_val(&END_MARK) as u32, enabled(), 0, len];
        let bytes = &mut self.bytes_mut()[SOFTWARE..LEGACY];
        bytes.fill(0);
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Saves this CPU's registers.
    pub(crate) fn save(&mut self) {
        let at = self.at.as_ptr();
        if has_xsave() {
            // SAFETY: the area is large enough, and aligned.
            unsafe {
                asm!("xsave64 [{}]", in(reg) at, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
            }
        } else {
            // SAFETY: as above. Each x86-64 CPU has the instruction.
            unsafe { asm!("fxsave64 [{}]", in(reg) at, options(nostack)) };
        }
    }

    /// Loads this CPU's registers.
    pub(crate) fn load(&self) {
        let at = self.at.as_ptr();
        if has_xsave() {
            // SAFETY: `save` or `fill` made the area. No code of the kernel uses the registers.
            unsafe {
                asm!("xrstor64 [{}]", in(reg) at, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
            }
        } else {
            // SAFETY: as above.
            unsafe { asm!("fxrstor64 [{}]", in(reg) at, options(nostack)) };
        }
    }
}

impl Drop for XState {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), layout(self.bytes)) };
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).expect("a small size")
}
