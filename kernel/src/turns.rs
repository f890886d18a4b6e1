//! Turns of the CPUs, where the emulator counts instructions, and waiting that counts.
//!
//! To count, QEMU runs one CPU at a time. Two things of that are unlike any silicon. A CPU that
//! executes `pause` gives the rest of its turn away, so whoever waits seems to do nothing; and a
//! turn ends when the next virtual timer is due, after some hundred thousand instructions, so CPUs
//! hardly meet. Here is what makes it a machine whose CPUs run side by side: a timer is always due
//! soon, the PIT's, which interrupts nobody, as its line is masked; and CPUs wait without `pause`.
//! What turns become is measured, too.
//!
//! Of QEMU 7.2. An instruction must take several nanoseconds: where the end of a turn falls upon
//! the timer's very nanosecond, the next CPU finds no time left, and the same CPU each time.

use crate::machine::Kernel;
use crate::smp::host;
use alloc::vec::Vec;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use machine::{Irqs, Step};
use x86_64::instructions::port::Port;

/// Picoseconds of a count of the PIT.
const COUNT: u64 = 838_095;
/// Instructions of all CPUs in which turns are looked at.
const SPAN: u64 = 1 << 20;
/// Instructions that a CPU takes no part in, if it was another's turn: more than those between two
/// looks at the counter.
const AWAY: u64 = 32;

/// An instruction takes two to this power of nanoseconds.
static SHIFT: AtomicU32 = AtomicU32::new(0);
static WAITING: AtomicBool = AtomicBool::new(false);

/// Has waiting counted from now on, on a machine whose instructions take `1 << shift` nanoseconds.
pub(crate) fn count_waiting(shift: u32) {
    // Relaxed, both: no CPU runs anything yet; an interrupt starts them.
    SHIFT.store(shift, Ordering::Relaxed);
    WAITING.store(true, Ordering::Relaxed);
}

/// Whether a CPU that waits keeps its turn.
#[inline]
pub(crate) fn waiting_counts() -> bool {
    // Relaxed: written before others run anything.
    WAITING.load(Ordering::Relaxed)
}

/// Instructions of all CPUs since the machine was switched on, those included that a sleeping
/// machine could have executed.
pub(crate) fn instructions() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    let nanos = unsafe { _rdtsc() };
    // Relaxed: as above.
    nanos >> SHIFT.load(Ordering::Relaxed)
}

/// Makes turns end twice in so many counts of the PIT, and returns the instructions that are in
/// one. The clock must have been measured.
pub(crate) fn take(counts: u8) -> u64 {
    let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: nobody else uses it any more. Channel 0, both bytes, mode 3: a square wave, each edge
    // of which is a timer of QEMU's.
    unsafe {
        command.write(0b0011_0110);
        data.write(counts);
        data.write(0);
    }
    // Relaxed: as above.
    (u64::from(counts) * COUNT / 2000) >> SHIFT.load(Ordering::Relaxed)
}

/// What turns are.
pub(crate) struct Turns {
    /// Instructions of one, on average.
    pub(crate) length: f64,
    /// The share of the CPU that has most, of an even one.
    pub(crate) largest_share: f64,
}

/// Looks at the turns of so many CPUs that all have something to do.
pub(crate) fn measure(cpus: usize) -> Turns {
    let ready = AtomicUsize::new(0);
    let look = || {
        let _section = Kernel.irqs_off();
        // Relaxed: nothing else is shared.
        ready.fetch_add(1, Ordering::Relaxed);
        while ready.load(Ordering::Relaxed) < cpus {
            Kernel.relax();
        }
        let began = instructions();
        let (mut last, mut away, mut turns, mut least) = (began, 0, 1, AWAY);
        while last - began < SPAN {
            let now = instructions();
            least = least.min(now - last);
            if now - last > AWAY {
                away += now - last;
                turns += 1;
            }
            last = now;
        }
        // Of the time between two looks with turns of others in between, a look's is this CPU's
        // own.
        (last - began - away.saturating_sub(turns * least), turns)
    };
    let looks: Vec<(u64, u64)> = host().on_each(cpus, |_| look()).into_iter().flatten().collect();
    let own: u64 = looks.iter().map(|(own, _)| own).sum();
    let turns: u64 = looks.iter().map(|(_, turns)| turns).sum();
    let most = looks.iter().map(|(own, _)| *own).max().unwrap_or_default();
    Turns {
        length: own as f64 / turns as f64,
        largest_share: (most * cpus as u64) as f64 / own as f64,
    }
}
