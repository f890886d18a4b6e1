//! Translations that survive their address space, and pages of two sizes for one address.
//!
//! - *Tags.* The entries that a TLB holds under a tag belong to the tables that were walked for it.
//!   A CPU that begins to use the tag for other tables, and keeps these entries, would use
//!   translations of the old space.
//! - *Tags that are taken back, and flushes that pass over idle CPUs.* A space may lose its tag
//!   while CPUs have cached entries under it, and a flush may pass over CPUs that have it not
//!   active. These entries are void: each CPU drops them before it uses the tag again, for the same
//!   space or another. So the other checks do not see them.
//! - *Global pages.* They stay when a CPU switches to other tables. So all spaces must map them
//!   alike, by the same table below the top level, as the kernel's half is.
//! - *Sizes.* A CPU may cache a piece of a large page while it still holds the large page. On most
//!   hardware that is right until the flush of the split, as long as both lead to the same frames.
//!   Two translations that lead to different frames are never right.

use crate::cpu::Cpu;
use crate::current_cpu;
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use crate::tlb::{Translation, flush};
use machine::{Asid, CpuId, Flush, Frame, VirtAddr};

impl Sim {
    /// Checks, when a CPU has activated other tables, that its cached entries belong to them.
    pub(crate) fn check_kept(&self, cpu: &Cpu, root: Frame, asid: Asid) {
        if !self.0.config.checks.spaces {
            return;
        }
        // The same frame may have become the table of another space since.
        let made = self.0.table(root).map_or(0, |stamp| stamp.get().at());
        let tables = self.tables();
        let other = |of: Frame, since: u64| of != root || since < made;
        let (kept, global) = {
            let state = locked(&cpu.state);
            let pages = state.tlb.iter().filter(|held| held.space == Some(asid));
            let pages = pages.map(|held| (held.page, held.root, held.since));
            let uppers = state.uppers.iter().filter(|held| held.space == asid);
            let uppers = uppers.map(|held| (held.start, held.root, held.since));
            let kept = pages.chain(uppers).find(|(_, root, since)| other(*root, *since));
            let is_astray = |held: &&Translation| {
                held.space.is_none() && held.top != tables.top_entry(root, held.page)
            };
            (kept, state.tlb.iter().find(is_astray).copied())
        };
        if let Some((page, before, since)) = kept {
            let found = Violation::TagReused { tag: asid.0, by: cpu.id, page, before, root };
            let mut history = self.history_of(before);
            history.push(format!("{} cached the entry for {page} at {since}", cpu.id));
            self.violation(found, history);
        }
        if let Some(held) = global {
            let found = Violation::GlobalNotShared {
                page: held.page,
                by: cpu.id,
                frame: held.frame,
                before: held.root,
                root,
            };
            let mut history = self.history_of(held.frame);
            history.push(format!("{} cached the translation at {}", cpu.id, held.since));
            self.violation(found, history);
        }
    }

    /// A space loses its tag: drops what is cached under it from the view of the other checks.
    pub(crate) fn take_tag(&self, asid: Asid) {
        if !self.0.config.checks.spaces {
            return;
        }
        for cpu in &self.0.cpus {
            let root = {
                let state = &mut *locked(&cpu.state);
                flush(&mut state.tlb, &mut state.uppers, Flush::Space(asid));
                state.void.insert(asid);
                state.root.filter(|(_, active)| *active == asid)
            };
            if let Some((root, _)) = root {
                let found = Violation::TagTakenActive { tag: asid.0, by: cpu.id, root };
                self.violation(found, self.history_of(root));
            }
        }
    }

    /// A flush of a tag passes over a CPU: as `take_tag`, unless the CPU has come back. On host
    /// threads it may come back and leave again meanwhile, so there it may keep what it has dropped
    /// and cached again.
    pub(crate) fn pass_over(&self, cpu: CpuId, asid: Asid) {
        let Some(cpu) = self.0.cpus.get(cpu.index()).filter(|_| self.0.config.checks.spaces) else {
            return;
        };
        let state = &mut *locked(&cpu.state);
        if state.root.is_some_and(|(_, active)| active == asid) {
            return;
        }
        flush(&mut state.tlb, &mut state.uppers, Flush::Space(asid));
        if !current_cpu::get().turn.is_null() {
            state.void.insert(asid);
        }
    }

    /// Checks, when a CPU has activated a tag, that it has dropped what is void.
    pub(crate) fn check_not_void(&self, cpu: &Cpu, root: Frame, asid: Asid, kept: bool) {
        let void = locked(&cpu.state).void.remove(&asid);
        if void && kept {
            let found = Violation::TagKept { tag: asid.0, by: cpu.id, root };
            self.violation(found, self.history_of(root));
        }
    }

    /// Checks, before a CPU caches a translation, that it holds no other one of these addresses, of
    /// another size, that leads elsewhere.
    pub(crate) fn check_sizes(&self, cpu: &Cpu, new: &Translation) {
        if !self.0.config.checks.spaces {
            return;
        }
        let Some(range) = new.range() else { return };
        let differs = |held: &&Translation| {
            let at = held.page.max(new.page);
            held.size != new.size
                && (held.space == new.space || held.space.is_none() || new.space.is_none())
                && held.overlaps(&range)
                && frame_at(held, at) != frame_at(new, at)
        };
        let held = locked(&cpu.state).tlb.iter().find(differs).copied();
        if let Some(held) = held {
            let found = Violation::TwoSizes {
                page: held.page.max(new.page),
                by: cpu.id,
                held: (held.size, held.frame),
                new: (new.size, new.frame),
            };
            let mut history = self.history_of(held.frame);
            history.push(format!("{} cached the older one at {}", cpu.id, held.since));
            self.violation(found, history);
        }
    }
}

fn frame_at(held: &Translation, at: VirtAddr) -> Option<Frame> {
    held.frame.checked_add(at.offset_in(held.size) >> 12)
}
