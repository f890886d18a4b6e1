//! Short turns of the CPUs for an emulator that counts instructions, so that waiting counts, too.
//!
//! To count instructions, QEMU runs one CPU at a time. Two effects of that differ from silicon. A
//! CPU that executes `pause` gives up the rest of its turn, so waiting seems to cost nothing. And a
//! turn ends at the next virtual timer, after some hundred thousand instructions, so CPUs hardly
//! ever meet. This module makes the CPUs run as if side by side: it keeps a timer due soon, the
//! PIT's, whose interrupt is masked; and CPUs wait without `pause`. It also measures the resulting
//! turns.
//!
//! This holds for QEMU 7.2. An instruction must take several nanoseconds. Otherwise the end of a
//! turn can fall on the nanosecond of the timer, and the next CPU, always the same one, gets no
//! time.

use crate::machine::Kernel;
use crate::smp::host;
use alloc::vec::Vec;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use machine::{Irqs, Step};
use x86_64::instructions::port::Port;

/// Picoseconds of one PIT count.
const COUNT: u64 = 838_095;
/// The instructions of all CPUs during which turns are measured.
const SPAN: u64 = 1 << 20;
/// A gap in this CPU's counter that shows another CPU's turn: more instructions than between two
/// reads of the counter.
const AWAY: u64 = 32;

/// Counts of the PIT in two turns of the usual length.
pub(crate) const MEDIUM: u8 = 8;

/// An instruction takes two to this power of nanoseconds.
static SHIFT: AtomicU32 = AtomicU32::new(0);
static WAITING: AtomicBool = AtomicBool::new(false);

/// Counts waiting from now on, on a machine whose instructions take `1 << shift` nanoseconds.
pub(crate) fn count_waiting(shift: u32) {
    // Relaxed, both: no CPU runs a job yet, and an interrupt starts each job.
    SHIFT.store(shift, Ordering::Relaxed);
    WAITING.store(true, Ordering::Relaxed);
}

/// Returns whether a waiting CPU keeps its turn.
#[inline]
pub(crate) fn waiting_counts() -> bool {
    // Relaxed: written before other CPUs run a job.
    WAITING.load(Ordering::Relaxed)
}

/// The instructions of all CPUs since the machine was switched on, including those that a sleeping
/// machine could have executed.
pub(crate) fn instructions() -> u64 {
    // SAFETY: every x86-64 CPU has a TSC.
    let nanos = unsafe { _rdtsc() };
    // Relaxed: as above.
    nanos >> SHIFT.load(Ordering::Relaxed)
}

/// Makes a turn end twice in this many PIT counts, and returns the instructions of one turn. Call
/// it after the clock has been measured.
pub(crate) fn take(counts: u8) -> u64 {
    let (mut command, mut data) = (Port::<u8>::new(0x43), Port::<u8>::new(0x40));
    // SAFETY: no other code uses the PIT any more. Channel 0, both bytes, mode 3: a square wave;
    // each edge is a timer of QEMU.
    unsafe {
        command.write(0b0011_0110);
        data.write(counts);
        data.write(0);
    }
    // Relaxed: as above.
    (u64::from(counts) * COUNT / 2000) >> SHIFT.load(Ordering::Relaxed)
}

/// The measured turns.
pub(crate) struct Turns {
    /// The average number of instructions of a turn.
    pub(crate) length: f64,
    /// The largest share of one CPU, relative to an even share.
    pub(crate) largest_share: f64,
}

/// Measures the turns of this many busy CPUs.
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
        // Of a gap with other CPUs' turns in it, the time of one read is this CPU's own.
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
