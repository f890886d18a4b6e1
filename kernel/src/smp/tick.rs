//! The timer interrupt of each CPU. It reports a quiescent state to the readers' grace periods,
//! flushes and reports to the TLB grace periods if one waits, and returns idle tables if another
//! CPU has run out.

use crate::cpu::area::{self, bump};
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::space;
use alloc::sync::Arc;
use machine::{Irqs, Step};
use spin::{Once, RwLock};
use vmap::TlbGrace;
use workloads::Tick;

static TLB_GRACE: Once<Arc<TlbGrace<Kernel>>> = Once::new();
/// A function that an experiment runs there, too.
static TICK: RwLock<Option<Tick>> = RwLock::new(None);

/// The TLB grace periods of this machine.
pub(crate) fn tlb_grace() -> &'static Arc<TlbGrace<Kernel>> {
    TLB_GRACE.call_once(|| TlbGrace::try_new(Kernel).expect("the heap has just been made"))
}

/// The TLB grace periods, if they have been made.
pub(crate) fn tlb_grace_if_any() -> Option<&'static Arc<TlbGrace<Kernel>>> {
    TLB_GRACE.get()
}

/// Sets or removes the function that all CPUs run in their timer interrupts.
pub(crate) fn set_tick(tick: Option<Tick>) {
    // An interrupt within this section would wait for its own CPU's lock.
    let before = {
        let _section = Kernel.irqs_off();
        let mut place = loop {
            match TICK.try_write() {
                Some(place) => break place,
                // Another CPU's tick may be waiting for this one to answer.
                None => Kernel.relax(),
            }
        };
        core::mem::replace(&mut *place, tick)
    };
    drop(before);
}

/// Returns whether this CPU is in its timer interrupt.
pub(crate) fn is_ticking() -> bool {
    area::here().ticking.get()
}

/// Handles a timer interrupt, or an IPI from a CPU that waits for one.
pub(crate) fn tick() {
    area::here().ticking.set(true);
    bump(&area::here().stats.ticks, 1);
    Grace::quiescent_state();
    if let Some(tlb_grace) = tlb_grace_if_any() {
        tlb_grace.tick();
    }
    space::tables().paging().quick().tick();
    TICK.read().iter().for_each(|tick| tick());
    #[cfg(target_arch = "x86_64")]
    crate::stats::look_at_frames();
    crate::progress::tell();
    area::here().ticking.set(false);
}
