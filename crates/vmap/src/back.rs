//! How addresses come back: what waits, when it is too much, and what is done before space is
//! refused.
//!
//! Addresses come back by themselves as CPUs announce that they have flushed, and somebody wants
//! some. CPUs are interrupted for it only if so much waits, in all zones and blocks, that an
//! interrupt is worth it; if half of what a CPU has waits; or if space has run out.

use crate::area::{Ours, State};
use crate::vmap::Vmap;
use crate::zone::Zone;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::Machine;
use paging::Format;

/// As many unmappings as go by at least until a CPU looks whether a period has ended; and as many
/// as there are CPUs, as that takes a load for each.
const LOOK_AFTER: u64 = 32;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// The addresses of an area wait from now on. If too many do, they come back at the price of a
    /// flush.
    pub(crate) fn put(&self, area: Ours) {
        let Some(zone) = self.zone_of(area.start()) else { return };
        let waiting = zone.put(&self.flushes, area);
        let look = self.local.with(|local| {
            local.unmapped += 1;
            local.unmapped.is_multiple_of(LOOK_AFTER.max(self.machine().count() as u64))
        });
        if look == Some(true) {
            self.answer_shortage();
            if let Some(target) = zone.first_target(self.machine())
                && !self.flushes.advance(target)
                && self.is_too_much(waiting, zone.range().len())
            {
                self.hurry_zone(zone, target);
            }
        }
    }

    /// What waits in a zone for this period comes back now.
    fn hurry_zone(&self, zone: &Zone<G>, target: u64) {
        self.flushes.expedite(target);
        zone.purge(&self.flushes, true);
    }

    /// Whether so much waits that CPUs are to be interrupted for it: `waiting` of so many bytes
    /// that somebody has, or all that waits anywhere. A load for each CPU and zone.
    pub(crate) fn is_too_much(&self, waiting: u64, bytes: u64) -> bool {
        if waiting > bytes / 2 {
            return true;
        }
        // Relaxed: hints.
        let in_blocks = self.in_blocks.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        let all: u64 = self.zones.iter().map(Zone::waiting).chain(in_blocks).sum();
        // Not only those that are behind: of CPUs that tick some always are, a little.
        let cpus = self.flushes.taking_part() as u64;
        all > self.options.bytes_per_interrupt.saturating_mul(cpus)
    }

    /// All that waits anywhere in the space comes back, and so do the blocks of this CPU that are
    /// all free then: one broadcast, if anything waits. What was freed in interrupts here is given
    /// back before.
    ///
    /// For who needs addresses, or address space, at once. Blocks that nobody has come to this CPU;
    /// those that are free in another CPU's queue are given back when that CPU next makes a call
    /// that unmaps, or that lacks space, or [`poll`](Vmap::poll)s.
    pub fn purge(&self) {
        self.free_pending();
        // Without memory for that, they stay.
        while self.make_room().is_ok()
            && let Some(own) = self.shared.orphans.adopt(self.machine())
        {
            self.keep_block(own);
        }
        // Relaxed: a hint to others, and to this CPU no news.
        let shortage = self.shared.shortage.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = self.local.with(|local| {
            local.shortage = shortage;
            local.blocks.gather_all(&self.flushes)
        });
        if waiting != Some(0) || self.zones.iter().any(|zone| zone.waiting() != 0) {
            self.flushes.expedite(self.flushes.target());
        }
        self.local.with(|local| local.blocks.settle(&self.flushes));
        self.give_back_free(0);
        for zone in &self.zones {
            zone.purge(&self.flushes, false);
        }
    }

    /// When it returns, no CPU holds a translation of anything that was unmapped before the call:
    /// for who cannot bear aliases, as when the attributes of a page's other mappings change. One
    /// broadcast to all CPUs that run, those that are away included: hardware may fill a TLB at any
    /// time.
    pub fn vm_unmap_aliases(&self) {
        self.flushes.broadcast();
    }

    /// Does what was put off: unmaps what was freed in interrupts, takes back what has come due in
    /// this CPU's zone and the common one, and gives back blocks of this CPU that are free, but for
    /// one. For a kernel's idle loop, or a thread of each CPU. Never broadcasts, but for a space
    /// that is nearly full.
    pub fn poll(&self) {
        self.free_pending();
        self.local.with(|local| local.blocks.gather(&self.flushes));
        self.answer_shortage();
        self.give_back_free(1);
        let common = self.zones.len() - 1;
        for zone in [self.first_zone(0), common] {
            let Some(zone) = self.zones.get(zone) else { continue };
            if let Some(target) = zone.first_target(self.machine()) {
                self.flushes.advance(target);
            }
            zone.purge(&self.flushes, true);
        }
    }

    /// This CPU is about to be idle, or to stop: does what was put off, gives back its blocks that
    /// are free, and leaves the others to whoever wants one. Before
    /// [`TlbGrace::idle_enter`](crate::TlbGrace::idle_enter).
    pub fn idle(&self) {
        self.poll();
        self.give_back_free(0);
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop()) {
            self.shared.orphans.leave(self.machine(), own);
        }
        self.say_what_waits();
    }

    /// If space has run out since this CPU last looked, it gives back the blocks that it does not
    /// use. A load if not.
    pub(crate) fn answer_shortage(&self) {
        // Relaxed: a hint.
        let shortage = self.shared.shortage.load(Ordering::Relaxed);
        let is_new = self.local.with(|local| {
            let is_new = local.shortage != shortage;
            local.shortage = shortage;
            if is_new {
                local.blocks.gather(&self.flushes);
            }
            is_new
        });
        if is_new == Some(true) {
            self.give_back_free(0);
        }
    }

    /// Blocks of this CPU that are all free go back to their zones, but for so many. Nobody holds a
    /// translation of them.
    fn give_back_free(&self, keep: usize) {
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop_free(keep)) {
            own.set(State::Unmapping);
            let zone = self.zone_of(own.start());
            if !zone.is_some_and(|zone| zone.drop_now(self.machine(), own)) {
                // Without memory for that, it waits.
                self.put(own);
            }
        }
        self.say_what_waits();
    }

    /// Tells the others how much waits in this CPU's blocks.
    pub(crate) fn say_what_waits(&self) {
        let _section = self.machine().irqs_off();
        let waiting = self.local.with(|local| local.blocks.waiting().0);
        if let (Some(waiting), Some(slot)) = (waiting, self.in_blocks.get(self.machine().current()))
        {
            // Relaxed: a hint.
            slot.store(waiting, Ordering::Relaxed);
        }
    }
}
