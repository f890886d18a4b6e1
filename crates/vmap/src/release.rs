//! Return of addresses: the limits of waiting addresses, and the last resort before a call
//! fails for lack of space.
//!
//! Normally addresses come back without IPIs: CPUs report their flushes, and a later call that
//! needs addresses takes those whose grace period has ended. CPUs are interrupted in three cases
//! only: so much waits in all zones and blocks that it is worth a broadcast; half of one CPU's
//! share waits; or space has run out.

use crate::area::{AreaState, Ours};
use crate::space::Vmap;
use crate::zone::Zone;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::Machine;
use paging::Format;

/// The minimum number of unmappings between two tests of a CPU whether a period has ended. On
/// machines with more CPUs than this, the number of CPUs: the test loads a line per CPU.
const LOOK_AFTER: u64 = 32;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Lets the addresses of an area wait. If too many wait, forces a flush to get some back.
    pub(crate) fn put(&self, area: Ours) {
        let Some(zone) = self.zone_of(area.start()) else { return };
        let waiting = zone.put(&self.tlb_grace, area);
        let look = self.local.with(|local| {
            local.unmapped += 1;
            local.unmapped.is_multiple_of(LOOK_AFTER.max(self.machine().count() as u64))
        });
        if look == Some(true) {
            self.return_blocks_on_shortage();
            if let Some(target) = zone.first_target(self.machine())
                && !self.tlb_grace.advance(target)
                && self.is_too_much(waiting, zone.range().len())
            {
                self.hurry_zone(zone, target);
            }
        }
    }

    /// Ends this period by a broadcast and takes back the waiting areas of a zone.
    fn hurry_zone(&self, zone: &Zone<G>, target: u64) {
        self.tlb_grace.expedite(target);
        zone.purge(&self.tlb_grace, true);
    }

    /// Whether enough waits to interrupt CPUs: more than half of `bytes`, the share of one CPU, of
    /// which `waiting` waits; or more than the limit of the whole space. Cost: a load per CPU and
    /// per zone.
    pub(crate) fn is_too_much(&self, waiting: u64, bytes: u64) -> bool {
        if waiting > bytes / 2 {
            return true;
        }
        // Relaxed: hints.
        let in_blocks = self.in_blocks.iter().map(|bytes| bytes.load(Ordering::Relaxed));
        let all: u64 = self.zones.iter().map(Zone::waiting).chain(in_blocks).sum();
        // All CPUs that take part count, not only those behind: with ticks, a few are always
        // slightly behind.
        let cpus = self.tlb_grace.taking_part() as u64;
        all > self.options.bytes_per_interrupt.saturating_mul(cpus)
    }

    /// Takes back all waiting addresses of the space, by one broadcast if anything waits.
    ///
    /// First frees the areas that were freed in interrupts on this CPU. Also returns this CPU's
    /// blocks that are then entirely free, and adopts blocks without an owner. For a caller that
    /// needs addresses immediately. Free blocks in another CPU's queue are returned when that CPU
    /// next makes a call that unmaps or lacks space, or calls [`poll`](Vmap::poll).
    pub fn purge(&self) {
        self.free_pending();
        // If the heap has no memory for the queue, the blocks stay orphans.
        while self.make_room().is_ok()
            && let Some(own) = self.shared.orphans.adopt(self.machine())
        {
            self.keep_block(own);
        }
        // Relaxed: a hint to other CPUs.
        let shortage = self.shared.shortage.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = self.local.with(|local| {
            local.shortage = shortage;
            local.blocks.gather_all(&self.tlb_grace)
        });
        if waiting != Some(0) || self.zones.iter().any(|zone| zone.waiting() != 0) {
            self.tlb_grace.expedite(self.tlb_grace.target());
        }
        self.local.with(|local| local.blocks.settle(&self.tlb_grace));
        self.give_back_free(0);
        for zone in &self.zones {
            zone.purge(&self.tlb_grace, false);
        }
    }

    /// Flushes all CPUs: when it returns, no CPU holds a translation of a range that was unmapped
    /// before the call.
    ///
    /// For callers that cannot tolerate aliases, for example because the attributes of a page's
    /// other mappings change. One broadcast to all running CPUs, idle ones included: hardware may
    /// fill a TLB at any time.
    pub fn vm_unmap_aliases(&self) {
        self.tlb_grace.broadcast();
    }

    /// Does deferred work: unmaps areas that were freed in interrupts, takes back areas whose
    /// period has ended in this CPU's zone and the common zone, and returns this CPU's free blocks
    /// except one.
    ///
    /// For a kernel's idle loop or a per-CPU thread. Never broadcasts, unless the space is nearly
    /// full.
    pub fn poll(&self) {
        self.free_pending();
        self.local.with(|local| local.blocks.gather(&self.tlb_grace));
        self.return_blocks_on_shortage();
        self.give_back_free(1);
        let common = self.zones.len() - 1;
        for zone in [self.first_zone(0), common] {
            let Some(zone) = self.zones.get(zone) else { continue };
            if let Some(target) = zone.first_target(self.machine()) {
                self.tlb_grace.advance(target);
            }
            zone.purge(&self.tlb_grace, true);
        }
    }

    /// Prepares this CPU for idling or stopping: does deferred work, returns its free blocks, and
    /// leaves its other blocks for adoption. Call it before
    /// [`TlbGrace::idle_enter`](crate::TlbGrace::idle_enter).
    pub fn idle(&self) {
        self.poll();
        self.give_back_free(0);
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop()) {
            self.shared.orphans.leave(self.machine(), own);
        }
        self.report_waiting();
    }

    /// Returns this CPU's free blocks if space has run out since its last look. Cost: a load if
    /// not.
    pub(crate) fn return_blocks_on_shortage(&self) {
        // Relaxed: a hint.
        let shortage = self.shared.shortage.load(Ordering::Relaxed);
        let is_new = self.local.with(|local| {
            let is_new = local.shortage != shortage;
            local.shortage = shortage;
            if is_new {
                local.blocks.gather(&self.tlb_grace);
            }
            is_new
        });
        if is_new == Some(true) {
            self.give_back_free(0);
        }
    }

    /// Returns this CPU's entirely free blocks to their zones, except `keep` of them. No CPU holds
    /// a translation of them.
    fn give_back_free(&self, keep: usize) {
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop_free(keep)) {
            own.set(AreaState::Unmapping);
            let zone = self.zone_of(own.start());
            if !zone.is_some_and(|zone| zone.drop_now(self.machine(), own)) {
                // If the heap has no memory for the removal, the block waits.
                self.put(own);
            }
        }
        self.report_waiting();
    }

    /// Publishes how much waits in this CPU's blocks.
    pub(crate) fn report_waiting(&self) {
        let _section = self.machine().irqs_off();
        let waiting = self.local.with(|local| local.blocks.waiting().0);
        if let (Some(waiting), Some(slot)) = (waiting, self.in_blocks.get(self.machine().current()))
        {
            // Relaxed: a hint.
            slot.store(waiting, Ordering::Relaxed);
        }
    }
}
