//! Time: the CPU's time-stamp counter (TSC), calibrated by the PIT.

use super::apic;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};
use x86_64::instructions::port::Port;

/// The rate of the PIT, in Hz.
const PIT: u64 = 1_193_182;
/// PIT counts of one measurement: a hundredth of a second.
const COUNTS: u16 = (PIT / 100) as u16;
/// The number of measurements. Two consecutive ones must agree.
const TIMES: usize = 100;
/// The number of readings. The quickest is used.
const READINGS: usize = 8;
/// Reads of the PIT after which it counts as stopped.
const PATIENCE: u64 = 10_000_000;

/// Nanoseconds of one TSC count, times 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
static APIC_HERTZ: AtomicU64 = AtomicU64::new(0);

/// Measures the rates of the TSC and of the APIC's timer. Call it once, on the boot CPU, with
/// interrupts off.
///
/// The host of an emulator may pause it at any moment, even for longer than a period of the PIT. So
/// a result is accepted only when two measurements agree.
pub(crate) fn start() {
    let mut last = Rates::measure();
    for _ in 0..TIMES {
        let rates = Rates::measure();
        if rates.scale.abs_diff(last.scale) <= rates.scale / 64
            && rates.apic.abs_diff(last.apic) <= rates.apic / 64
        {
            // Relaxed, here and below: other CPUs start later.
            SCALE.store(rates.scale, Ordering::Relaxed);
            APIC_HERTZ.store(rates.apic, Ordering::Relaxed);
            return;
        }
        last = rates;
    }
    panic!("the machine's clocks do not agree with one another");
}

/// The results of [`start`].
struct Rates {
    scale: u64,
    apic: u64,
}

impl Rates {
    /// Uses channel 0 of the PIT, with its interrupt masked: small machines cannot read the other
    /// channels.
    fn measure() -> Rates {
        apic::restart_timer();
        let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
        // SAFETY: no other code uses the PIT. Channel 0, both bytes, mode 0: it counts down once,
        // from the largest number.
        unsafe {
            command.write(0b0011_0000);
            data.write(0xff);
            data.write(0xff);
        }
        let first = Reading::quickest();
        let stands_still = (0..PATIENCE).all(|_| first.pit.wrapping_sub(pit()) < COUNTS);
        assert!(!stands_still, "the machine has no PIT to measure time by");
        let last = Reading::quickest();
        let counts = first.pit.wrapping_sub(last.pit).max(1);
        let nanos = u64::from(counts) * 1_000_000_000 / PIT;
        let cycles = (last.cycles - first.cycles).max(1);
        Rates {
            scale: (u128::from(nanos) << 32).div_ceil(cycles.into()) as u64,
            apic: u64::from(first.timer.wrapping_sub(last.timer)) * 1_000_000_000 / nanos,
        }
    }
}

/// All clocks at one moment.
struct Reading {
    pit: u16,
    timer: u32,
    cycles: u64,
}

impl Reading {
    /// The reading that took the least time, so its clocks were read most nearly at once.
    fn quickest() -> Reading {
        let read = |_| {
            // SAFETY: every x86-64 CPU has a TSC.
            let before = unsafe { _rdtsc() };
            let (pit, timer) = (pit(), apic::timer());
            // SAFETY: as above.
            let took = unsafe { _rdtsc() } - before;
            (took, Reading { pit, timer, cycles: before + took / 2 })
        };
        let quickest = (0..READINGS).map(read).min_by_key(|(took, _)| *took);
        quickest.expect("there are some").1
    }
}

/// The PIT's current count.
fn pit() -> u16 {
    let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: no other code uses the PIT. It latches the count until both bytes have been read.
    unsafe {
        command.write(0);
        u16::from_le_bytes([data.read(), data.read()])
    }
}

/// Nanoseconds since the CPU was switched on. Any context. Costs a TSC read and a multiplication.
#[inline]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 CPU has a TSC.
    let count = unsafe { _rdtsc() };
    // Relaxed: written once, before other CPUs start.
    ((u128::from(count) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// The rate of the APIC's timer, in Hz.
pub(crate) fn apic_hertz() -> u64 {
    // Relaxed: as above.
    APIC_HERTZ.load(Ordering::Relaxed)
}
