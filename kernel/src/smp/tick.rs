//! What each CPU does in its timer interrupt: it says that it is in no section, and that it has
//! flushed, if anybody waits; and gives back the empty tables that it keeps, if others have none.

use crate::cpu::area::{self, bump};
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::space;
use alloc::sync::Arc;
use machine::{Irqs, Step};
use spin::{Once, RwLock};
use vmap::TlbGrace;
use workloads::Tick;

static FLUSHES: Once<Arc<TlbGrace<Kernel>>> = Once::new();
/// What an experiment does there, too.
static TICK: RwLock<Option<Tick>> = RwLock::new(None);

/// The TLB grace periods of this machine.
pub(crate) fn flushes() -> &'static Arc<TlbGrace<Kernel>> {
    FLUSHES.call_once(|| TlbGrace::try_new(Kernel).expect("the heap has just been made"))
}

/// Those, once somebody has asked for them.
pub(crate) fn flushes_if_any() -> Option<&'static Arc<TlbGrace<Kernel>>> {
    FLUSHES.get()
}

/// Has all CPUs do something in their timer interrupts from now on, or nothing more.
pub(crate) fn set_tick(tick: Option<Tick>) {
    // Nobody who reads may interrupt this.
    let before = {
        let _section = Kernel.irqs_off();
        let mut place = loop {
            match TICK.try_write() {
                Some(place) => break place,
                // Another CPU's tick may wait for this one to answer.
                None => Kernel.relax(),
            }
        };
        core::mem::replace(&mut *place, tick)
    };
    drop(before);
}

/// Whether this CPU is in its timer interrupt.
pub(crate) fn is_ticking() -> bool {
    area::here().ticking.get()
}

/// A timer interrupt, or another CPU that waits for one.
pub(crate) fn tick() {
    area::here().ticking.set(true);
    bump(&area::here().counts.ticks, 1);
    Grace::quiescent_state();
    if let Some(flushes) = flushes_if_any() {
        flushes.tick();
    }
    space::tables().paging().quick().tick();
    TICK.read().iter().for_each(|tick| tick());
    crate::test::tell();
    area::here().ticking.set(false);
}
