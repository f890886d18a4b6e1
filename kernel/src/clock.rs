//! Time: the CPU's own counter, whose rate is measured by the oldest clock of a PC.

use crate::apic;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};
use x86_64::instructions::port::Port;

/// The rate of the PIT, in Hertz.
const PIT: u64 = 1_193_182;
/// Time that is measured: a fiftieth of a second.
const COUNTS: u16 = (PIT / 50) as u16;
/// Reads of the PIT after which it stands still.
const PATIENCE: u64 = 10_000_000;

/// Nanoseconds of a count of the CPU's, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
static APIC_HERTZ: AtomicU64 = AtomicU64::new(0);

/// Measures the rates of the CPU's counter and of the APIC's timer. Once, on the CPU that boots, interrupts off.
pub(crate) fn start() {
    let mut cycles = 0;
    let counts = apic::timer_counts(|| cycles = while_pit_counts());
    let nanos = u64::from(COUNTS) * 1_000_000_000 / PIT;
    // Relaxed, here and below: other CPUs start later.
    SCALE.store(((nanos as u128) << 32).div_ceil(cycles.max(1).into()) as u64, Ordering::Relaxed);
    APIC_HERTZ.store(counts * 1_000_000_000 / nanos, Ordering::Relaxed);
}

/// Counts of the CPU's counter while the PIT counts down so far. Its first channel, whose interrupt is masked: small machines have
/// no gate to look at the others by.
fn while_pit_counts() -> u64 {
    let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: nobody else uses it.
    let mut read = || unsafe {
        // What it holds at this moment is kept until both bytes have been read.
        command.write(0);
        u16::from_le_bytes([data.read(), data.read()])
    };
    let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: as above. Channel 0, both bytes, mode 0: it counts down once, from the largest number.
    unsafe {
        command.write(0b0011_0000);
        data.write(0xff);
        data.write(0xff);
    }
    let first = read();
    // SAFETY: every x86-64 CPU has it.
    let begun = unsafe { _rdtsc() };
    for _ in 0..PATIENCE {
        if first.wrapping_sub(read()) >= COUNTS {
            // SAFETY: as above.
            return unsafe { _rdtsc() } - begun;
        }
    }
    panic!("the machine has no PIT to measure time by");
}

/// Nanoseconds since the CPU was switched on. Any context; a multiplication.
#[inline]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    let count = unsafe { _rdtsc() };
    // Relaxed: it is written once, before others start.
    ((u128::from(count) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// Counts a second of the APIC's timer.
pub(crate) fn apic_hertz() -> u64 {
    // Relaxed: as above.
    APIC_HERTZ.load(Ordering::Relaxed)
}

/// Waits so many nanoseconds.
pub(crate) fn wait(nanos: u64) {
    let until = now() + nanos;
    while now() < until {
        core::hint::spin_loop();
    }
}
