//! The checkers that are not part of a translation.
//!
//! Most detect the error itself, not only its effect: a table that is given up while a CPU has a
//! cached entry for it is a violation at that moment, even if the CPU never walks into it. So a
//! seed needs only one coincidence, not two.

use crate::cpu::Cpu;
use crate::events::{EventKind, Stamped};
use crate::format::Entry;
use crate::lock::locked;
use crate::report::{Leaked, Report, Violation};
use crate::sim::Sim;
use crate::tables::Leaf;
use crate::tlb::{Translation, Upper};
use machine::{Asid, ENTRIES, Frame, FrameSource, Owner, VirtAddr, VirtRange};
use std::sync::Arc;

impl Sim {
    /// I3: checks a table before a walk of the hardware reads it. The walk was led there at
    /// `since`.
    pub(crate) fn check_table(
        &self,
        table: Frame,
        level: u8,
        at: VirtAddr,
        since: u64,
        cached: bool,
    ) {
        if !self.0.config.checks.tables {
            return;
        }
        let owner = self.owner(table);
        let same =
            self.0.table(table).is_some_and(|stamp| stamp.get().yes() && stamp.get().at() <= since);
        if owner != Owner::Table(level) || !same {
            let (level, address) = (Some(level), Some(at));
            let found = Violation::NotATable { table, owner, level, address, cached };
            let mut history = self.history_of(table);
            history.push(format!("the entry that led there was read at {since}"));
            self.violation(found, history);
        }
    }

    pub(crate) fn owner(&self, frame: Frame) -> Owner {
        self.0.frames.info(frame).map_or(Owner::Free, |info| info.owner())
    }

    /// Checks that the frame of an access is allocated.
    pub(crate) fn check_frame(&self, address: VirtAddr, frame: Frame) {
        if self.0.config.checks.frames && !self.is_alive(frame) {
            self.violation(Violation::FreeFrame { address, frame }, self.history_of(frame));
        }
    }

    /// Whether the frame is allocated. A frame that is not memory always counts as allocated.
    fn is_alive(&self, frame: Frame) -> bool {
        let at = |stamp: Option<&Stamped>| stamp.map_or(0, |stamp| stamp.get().at());
        self.0.arena.index(frame).is_none() || at(self.0.born(frame)) > at(self.0.died(frame))
    }

    /// I3: checks, when a table gets another owner, that no CPU can walk it any more.
    pub(crate) fn check_given_up(&self, table: Frame, becomes: Owner) {
        if !self.0.config.checks.tables {
            return;
        }
        let here = self.cpu().id;
        for cpu in &self.0.cpus {
            let how = {
                let state = &mut *locked(&cpu.state);
                // This CPU may give the table up in an interrupt that hit a section. The reuse of
                // the frame is no concern of that section.
                if cpu.id == here {
                    state.walked.retain(|walked| *walked != table);
                }
                let walked = state.walked.contains(&table);
                let root = state.root.is_some_and(|(root, _)| root == table);
                let cached = state.uppers.iter().any(|upper| upper.table == table);
                match () {
                    () if root => "it is the active top-level table",
                    () if state.walking == Some(table) => "a walk is under way in it",
                    () if cached => "a cached upper-level entry leads there",
                    () if walked => "code has been led there, in a section that has not ended",
                    () => continue,
                }
            };
            let found = Violation::TableInUse { table, becomes, by: cpu.id, how };
            self.violation(found, self.history_of(table));
        }
        self.check_unmapped(table, self.format().order());
    }

    /// Checks that no page table leads to a block of frames that is given up.
    pub(crate) fn check_unmapped(&self, frame: Frame, order: u8) {
        if !self.0.reverse_map.may_lead_to(self.tables(), frame, order) {
            return;
        }
        if let Some((table, index)) = self.find_entry(frame, order) {
            let mut history = self.history_of(frame);
            history.extend(self.history_of_entry(table, index));
            self.violation(Violation::FreedWhileMapped { frame, table, index }, history);
        }
    }

    /// Checks a block of frames that its owner frees.
    pub(crate) fn check_freed(&self, frame: Frame) {
        let Some(info) = self.0.frames.info(frame) else { return };
        let (pins, order) = (info.pins(), info.order());
        if self.0.config.checks.frames {
            if pins != 0 {
                self.violation(Violation::FreedWhilePinned { frame, pins }, self.history_of(frame));
            }
            if !matches!(info.owner(), Owner::Table(_)) {
                self.check_unmapped(frame, order);
            }
        }
        if self.0.config.checks.freed_cached {
            self.check_not_cached(frame, order);
        }
    }

    fn check_not_cached(&self, frame: Frame, order: u8) {
        for cpu in &self.0.cpus {
            let leads = |held: &&Translation| {
                let (start, len) = (held.frame.number(), held.size.frames());
                start < frame.number() + (1 << order) && frame.number() < start + len
            };
            let held = locked(&cpu.state).tlb.iter().find(leads).copied();
            if let Some(held) = held {
                let found = Violation::FreedWhileCached { frame, by: cpu.id, page: held.page };
                self.violation(found, self.history_of(frame));
            }
        }
    }

    /// Finds a present entry in a reachable table that leads into a block of frames.
    fn find_entry(&self, frame: Frame, order: u8) -> Option<(Frame, usize)> {
        let roots: Vec<Frame> = locked(&self.0.roots).iter().copied().collect();
        let block = frame.number()..frame.number() + (1 << order);
        let mut open: Vec<(Frame, u8)> =
            roots.into_iter().map(|root| (root, self.0.config.levels - 1)).collect();
        while let Some((table, level)) = open.pop() {
            for index in 0..self.format().entries() {
                let Some(entry) = self.0.arena.load(table, index) else { break };
                let (start, len) = match self.format().decode(entry, level, index) {
                    Entry::Absent | Entry::Malformed => continue,
                    Entry::Page(size, frame) => (frame.number(), size.frames()),
                    Entry::Table(next) => {
                        if level > 0 && self.owner(next) == Owner::Table(level - 1) {
                            open.push((next, level - 1));
                        }
                        (next.number(), 1)
                    }
                };
                if start < block.end && block.start < start + len {
                    return Some((table, index));
                }
            }
        }
        None
    }

    /// I4: checks that no TLB translates addresses that are reused.
    pub(crate) fn check_reused(&self, space: Option<Asid>, range: VirtRange) {
        if !self.0.config.checks.check_reuse {
            return;
        }
        for cpu in &self.0.cpus {
            if let Some(held) = cached(cpu, space, range).first() {
                let Translation { page, frame, .. } = *held;
                let root = locked(&cpu.state).root;
                let leaf = root.and_then(|(root, _)| self.tables().look(root, page));
                let found = Violation::ReusedEarly { range, by: cpu.id, page, frame };
                self.violation(found, self.history_of_cached(cpu, held, leaf.as_ref()));
            }
        }
    }

    /// Checks that no TLB holds a translation of addresses in `range` that the tables below `root`
    /// do not allow, or would send elsewhere. Holds after all pending flushes of the range have
    /// been performed. Reports a violation otherwise.
    ///
    /// For tests, after an operation: it detects a missing flush without an access that happens to
    /// use the stale translation. `space` is as in [`Flush::Range`](machine::Flush::Range).
    pub fn check_flushed(&self, root: Frame, space: Option<Asid>, range: VirtRange) {
        for cpu in &self.0.cpus {
            for held in cached(cpu, space, range) {
                let leaf = self.tables().look(root, held.page);
                let page = leaf.as_ref().and_then(|leaf| leaf.page);
                let now = page.filter(|(.., rights)| held.rights.within(*rights));
                let now = now.and_then(|(size, frame, _)| {
                    frame.checked_add(held.page.offset_in(size) >> 12)
                });
                if let Some((size, ..)) = page
                    && size != held.size
                    && now == Some(held.frame)
                {
                    let history = self.history_of(held.frame);
                    let (page, by, held) = (held.page, cpu.id, held.size);
                    self.violation(Violation::OtherSize { page, by, held, now: size }, history);
                }
                if now != Some(held.frame) {
                    let Translation { page, frame, .. } = held;
                    let found = Violation::NotFlushed { page, by: cpu.id, frame, now };
                    self.violation(found, self.history_of_cached(cpu, &held, leaf.as_ref()));
                }
            }
        }
    }

    /// As [`check_flushed`](Sim::check_flushed), for cached upper-level entries that lead to
    /// addresses in `range`: none may lead to another table than those below `root`. Meanwhile no
    /// CPU may unlink tables there, and no flush may be pending.
    pub fn check_upper_flushed(&self, root: Frame, space: Option<Asid>, range: VirtRange) {
        for cpu in &self.0.cpus {
            self.check_uppers_of(cpu, root, space, range);
        }
    }

    fn check_uppers_of(&self, cpu: &Cpu, root: Frame, space: Option<Asid>, range: VirtRange) {
        let ours = |held: &&Upper| space.is_none_or(|space| held.space == space);
        let held: Vec<_> = {
            let state = locked(&cpu.state);
            let held = state.uppers.iter().filter(ours).filter(|held| held.overlaps(&range));
            held.copied().collect()
        };
        for held in held {
            let now = self.tables().table_at(root, held.start, held.level);
            if now != Some(held.table) {
                let mut history = self.history_of(held.table);
                history.push(format!("{} cached the entry at {}", cpu.id, held.since));
                let Upper { start, level, table, .. } = held;
                let found = Violation::UpperNotFlushed { start, level, by: cpu.id, table, now };
                self.violation(found, history);
            }
        }
    }

    /// States the contents of a page on quicklist `list`, word by word.
    ///
    /// Not needed for lists of the crate `paging`: without it, a page must be as it was when
    /// constructed.
    pub fn constructed(&self, list: u8, image: impl Fn(usize) -> u64 + Send + Sync + 'static) {
        self.0.constructed.state(list, Arc::new(image));
    }

    /// Code has constructed a page for a quicklist.
    pub(crate) fn learn_constructed(&self, frame: Frame, list: u8) {
        if self.0.config.checks.constructed {
            self.0.constructed.learn(&self.0.arena, frame, self.words_of(frame), list);
        }
    }

    /// I6: checks a page that enters or leaves a quicklist.
    pub(crate) fn check_constructed(&self, frame: Frame, list: u8, entering: bool) {
        if !self.0.config.checks.constructed {
            return;
        }
        let len = self.words_of(frame);
        if let Err(found) = self.0.constructed.check(&self.0.arena, frame, len, list, entering) {
            let mut history = self.history_of(frame);
            if let Violation::NotConstructed { index, .. } = found {
                history.extend(self.history_of_entry(frame, index));
            }
            self.violation(found, history);
        }
    }

    /// The words of a page that begins at a frame: those of its block.
    fn words_of(&self, frame: Frame) -> usize {
        self.0.frames.info(frame).map_or(0, |info| ENTRIES << info.order())
    }

    /// The blocks of frames that are allocated at this moment.
    pub fn allocated(&self) -> Vec<Leaked> {
        let leaked = |frame| {
            let info = self.0.frames.info(frame)?;
            let stamp = self.0.born(frame)?.get();
            (info.refs() != 0).then(|| Leaked {
                frame,
                order: info.order(),
                owner: info.owner(),
                node: info.node(),
                counts: (info.refs(), info.pins()),
                at: stamp.at(),
                by: stamp.cpu(),
            })
        };
        self.0.arena.span().iter().filter_map(leaked).collect()
    }

    /// Checks that all frames have been given back. For the end of a test; reads the state of every
    /// frame.
    ///
    /// # Errors
    /// The frames that have not been given back.
    pub fn check_leaks(&self) -> Result<(), Box<Report>> {
        let leaked = self.allocated();
        if leaked.is_empty() {
            return Ok(());
        }
        Err(Box::new(Report {
            violation: Violation::Leak(leaked),
            cpu: None,
            at: self.0.log.now(),
            history: Vec::new(),
            events: self.0.log.last(32),
        }))
    }

    /// The number of free frames, those in caches included.
    pub fn free_count(&self) -> u64 {
        let held: u64 = self.allocated().iter().map(|block| 1 << block.order).sum();
        self.0.config.frames - held
    }

    pub(crate) fn history_of(&self, frame: Frame) -> Vec<String> {
        let mut lines = Vec::new();
        let table = self.0.table(frame);
        let is_table = table.is_some_and(|table| table.get().yes());
        let of_table = if is_table { "made a table" } else { "given up as a table" };
        for (stamp, what) in
            [(self.0.born(frame), "allocated"), (self.0.died(frame), "freed"), (table, of_table)]
        {
            if let Some(stamp) = stamp.map(|stamp| stamp.get()).filter(|stamp| stamp.at() != 0) {
                let (cpu, at) = (stamp.cpu(), stamp.at());
                lines.push(format!("frame {frame} was last {what} by {cpu} at {at}"));
            }
        }
        lines
    }

    /// The history of a table, and of an entry of it.
    pub(crate) fn history_of_place(&self, table: Frame, index: usize) -> Vec<String> {
        let mut history = self.history_of(table);
        history.extend(self.history_of_entry(table, index));
        history
    }

    /// The history of a cached translation, whose address leads to this entry now.
    pub(crate) fn history_of_cached(
        &self,
        cpu: &Cpu,
        held: &Translation,
        leaf: Option<&Leaf>,
    ) -> Vec<String> {
        let mut history = self.history_of(held.frame);
        history.extend(leaf.and_then(|leaf| self.history_of_entry(leaf.table, leaf.index)));
        history.push(format!("{} cached the translation at {}", cpu.id, held.since));
        history
    }

    pub(crate) fn history_of_entry(&self, table: Frame, index: usize) -> Option<String> {
        let change = self.0.log.last_change(table, index)?;
        Some(format!(
            "entry {index} of table {table} was last changed by {} at {}",
            change.cpu, change.at
        ))
    }

    /// Stamps a block as allocated or freed, and logs it.
    pub(crate) fn stamp(&self, frame: Frame, order: u8, allocated: bool) {
        let cpu = self.cpu();
        let what =
            || if allocated { EventKind::Alloc(frame, order) } else { EventKind::Free(frame) };
        let at = self.0.log.note(cpu.id, what);
        for number in 0..1 << order {
            let frame = frame.checked_add(number);
            let stamp = frame
                .and_then(|frame| if allocated { self.0.born(frame) } else { self.0.died(frame) });
            if let Some(stamp) = stamp {
                stamp.set(at, cpu.id, allocated);
            }
        }
    }

    /// Stamps a frame that changes its owner, and logs it.
    pub(crate) fn stamp_owner(&self, frame: Frame, before: Owner, after: Owner) {
        let cpu = self.cpu();
        let at = self.0.log.note(cpu.id, || EventKind::Owner(frame, after));
        let (was, is) = (matches!(before, Owner::Table(_)), matches!(after, Owner::Table(_)));
        if let Some(table) = self.0.table(frame)
            && (was || is)
        {
            table.set(at, cpu.id, is);
        }
        let top = Owner::Table(self.0.config.levels - 1);
        let mut roots = locked(&self.0.roots);
        if after == top {
            roots.insert(frame);
        } else if before == top {
            roots.remove(&frame);
        }
    }

    /// Whether the machine keeps stamps and events at all.
    pub(crate) fn watches(&self) -> bool {
        let config = &self.0.config;
        config.checks != crate::Checks::NONE || config.events != 0 || config.caches_absent()
    }

    /// Called before the last reference to a block is dropped.
    pub(crate) fn before_free(&self, frame: Frame) {
        if !self.watches() {
            return;
        }
        self.check_freed(frame);
        let Some(info) = self.0.frames.info(frame) else { return };
        let owner = info.owner();
        if matches!(owner, Owner::Table(_)) {
            self.check_given_up(frame, Owner::Free);
            self.stamp_owner(frame, owner, Owner::Free);
        }
        self.forget_block(frame, info.order());
    }

    fn forget_block(&self, frame: Frame, order: u8) {
        self.0.constructed.forget(frame);
        self.0.reverse_map.forget(frame, order);
        self.stamp(frame, order, false);
    }

    /// Called before the last pins of a block are dropped, if nothing else holds it.
    pub(crate) fn before_unpin(&self, frame: Frame) {
        if !self.watches() {
            return;
        }
        let Some(info) = self.0.frames.info(frame) else { return };
        if self.0.config.checks.frames {
            self.check_unmapped(frame, info.order());
        }
        if self.0.config.checks.freed_cached {
            self.check_not_cached(frame, info.order());
        }
        self.forget_block(frame, info.order());
    }

    pub(crate) fn refs_of(&self, frame: Frame) -> u32 {
        self.info(frame).map_or(0, |info| info.refs())
    }
}

/// The translations of addresses in a range that a CPU has cached, in a space or in all.
fn cached(cpu: &Cpu, space: Option<Asid>, range: VirtRange) -> Vec<Translation> {
    let ours = |held: Option<Asid>| space.is_none() || held.is_none() || held == space;
    let state = locked(&cpu.state);
    let held = state.tlb.iter().filter(|held| ours(held.space) && held.overlaps(&range));
    held.copied().collect()
}
