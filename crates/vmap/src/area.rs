//! An area: one mapping, as the tree holds it.
//!
//! What an area is never changes; what becomes of it is one word:
//!
//! ```text
//! Mapping --> Live --> Unmapping --> Waiting --> (out of the tree)
//!    |          |          ^            ^
//!    |          `-> Doomed-'            |
//!    `----------------------------------'
//! ```
//!
//! *Mapping*: its addresses are taken, its pages are being mapped; readers see it and do not look into it. *Live*: it is the
//! caller's. *Doomed*: freed in an interrupt, and to be unmapped later. *Unmapping*: whoever changed it to that takes its pages
//! out, and nobody else does: so a second unmapping finds that it came too late. *Waiting*: its pages are gone, its
//! addresses wait for a TLB grace period, in its zone's queue.

use crate::block::Bits;
use crate::error::Culprit;
use crate::mutant::{self, Mutant};
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use alloc::boxed::Box;
use core::panic::Location;
use machine::{PhysAddr, VirtAddr};

/// What an area was made by, and what is behind it.
pub(crate) enum Kind {
    /// `vmap`: frames of the caller.
    Vmap,
    /// `vm_map_ram`, where it was too large for a block: frames of the caller.
    Ram,
    /// `vmalloc` and its like: frames of its own.
    Vmalloc,
    /// `ioremap`: this physical range.
    Phys(PhysAddr),
    /// A block of a CPU, for `vm_map_ram`.
    Block(Box<Bits>),
    /// What lies outside of a zone.
    Wall,
}

/// What becomes of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Its pages are being mapped.
    Mapping,
    /// It is in use.
    Live,
    /// It was freed in an interrupt, and will be unmapped.
    Doomed,
    /// Its pages are being unmapped.
    Unmapping,
    /// It was unmapped, and its addresses wait for a TLB grace period.
    Waiting,
}

impl State {
    const ALL: [State; 5] =
        [State::Mapping, State::Live, State::Doomed, State::Unmapping, State::Waiting];
}

/// One mapping. The tree knows where it is; the range there includes its guard page.
pub(crate) struct Area {
    pub(crate) kind: Kind,
    /// Pages that are mapped.
    pub(crate) pages: usize,
    /// Bytes that were asked for: may change within the last page.
    bytes: AtomicU64,
    caller: Option<&'static Location<'static>>,
    state: AtomicU8,
    /// The period that a waiting area waits for.
    target: AtomicU64,
    /// Where the next area of its queue begins; 0 at the end.
    next: AtomicU64,
}

impl Area {
    pub(crate) fn new(
        kind: Kind,
        pages: usize,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> Area {
        let known = cfg!(any(feature = "listing", debug_assertions));
        Area {
            kind,
            pages,
            bytes: AtomicU64::new(bytes),
            caller: known.then_some(caller),
            state: AtomicU8::new(State::Mapping as u8),
            target: AtomicU64::new(0),
            next: AtomicU64::new(0),
        }
    }

    pub(crate) fn caller(&self) -> Option<&'static Location<'static>> {
        self.caller
    }

    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: for the listing.
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes(&self, bytes: u64) {
        // Relaxed: as `bytes`.
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        // Acquire: pairs with `set`: who sees an area live sees its pages mapped.
        let order = mutant::order(Ordering::Acquire, Mutant::StateRelaxed);
        State::ALL[usize::from(self.state.load(order))]
    }

    /// Whoever has the area to himself says so: who maps it, who unmaps it.
    pub(crate) fn set(&self, state: State) {
        // Release: pairs with `state`, and with `change`.
        self.state.store(state as u8, mutant::order(Ordering::Release, Mutant::SetRelaxed));
    }

    /// From one state to another, if it is in that; else the state that it is in.
    pub(crate) fn change(&self, from: State, to: State) -> Result<(), State> {
        // Acquire: what was done to the area before; pairs with `set`. Relaxed on failure: only the number is reported.
        let order = mutant::order(Ordering::Acquire, Mutant::ClaimRelaxed);
        if mutant::is(Mutant::ClaimInTwo) {
            let now = self.state.load(order);
            if now == from as u8 {
                self.set(to);
                return Ok(());
            }
        }
        let changed = self.state.compare_exchange(from as u8, to as u8, order, Ordering::Relaxed);
        changed.map(drop).map_err(|state| State::ALL[usize::from(state)])
    }

    /// It waits from now on, for this period.
    pub(crate) fn wait(&self, target: u64) {
        // Relaxed: the Release of `set` orders it, and the zone's lock.
        self.target.store(target, Ordering::Relaxed);
        self.set(State::Waiting);
    }

    pub(crate) fn target(&self) -> u64 {
        // Relaxed: under the zone's lock.
        self.target.load(Ordering::Relaxed)
    }

    pub(crate) fn next(&self) -> u64 {
        // Relaxed: under the lock of its queue.
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn set_next(&self, next: u64) {
        // Relaxed: as `next`.
        self.next.store(next, Ordering::Relaxed);
    }

    /// Of what the caller is told whose call this was.
    pub(crate) fn culprit(&self, at: VirtAddr, start: VirtAddr) -> Culprit {
        Culprit { at, start, by: self.caller }
    }

    pub(crate) fn bits(&self) -> Option<&Bits> {
        match &self.kind {
            Kind::Block(bits) => Some(bits),
            _ => None,
        }
    }
}
