//! Translation as the hardware does it: the TLB, then the cached upper levels, then the tables in
//! memory.
//!
//! - A walk reads one entry per step, so writers can come between its levels. It starts at the
//!   lowest cached upper-level entry and relies on nothing else, so a table that was freed too
//!   early is really walked.
//! - Accessed and dirty bits are set by compare-and-exchange on the entry that was read. If the
//!   entry has changed, it is read again. Absent entries are cached only by a machine that is
//!   configured so (`cached_absent`).
//! - An access that a cached translation does not allow is a fault, and drops the translation. A
//!   walk that ends in a fault drops the upper-level entries from which it began. So a fault may be
//!   spurious, but does not repeat. The manual promises that (Intel SDM 3A, 4.10.4.1: a page fault
//!   invalidates the entries for its address, so it recurs only if the tables in memory cause it).
//! - This hides no missing flush from the checks. A table that is given up while a cached entry
//!   leads there is detected at that moment, and [`Sim::check_upper_flushed`] reads the caches.
//!   With [`Config::faults_drop`](crate::Config::faults_drop) off, the machine does not make that
//!   promise.
//! - No interrupt is taken within a walk, since a walk is part of an instruction.

use crate::config::Stale;
use crate::cpu::Cpu;
use crate::events::EventKind;
use crate::format::{Entry, Rights, Want};
use crate::lock::locked;
use crate::report::Violation;
use crate::sim::Sim;
use crate::tlb::{Translation, Upper};
use machine::{Asid, Fault, FaultKind, Flush, Frame, PageSize, PhysAddr, VirtAddr, VirtRange};
use std::sync::atomic::Ordering;

impl Sim {
    /// Translates an address for an access, as this CPU would at this moment: fills its caches,
    /// sets accessed and dirty bits, and checks. The access itself may follow at once.
    ///
    /// # Errors
    /// The fault that the CPU would take.
    pub fn translate(&self, at: VirtAddr, want: Want) -> Result<PhysAddr, Fault> {
        let cpu = self.cpu();
        self.instruction(cpu);
        let _busy = self.busy(cpu);
        self.translate_now(cpu, at, want)
    }

    /// As [`translate`](Sim::translate), within an instruction that the caller has begun.
    pub(crate) fn translate_now(
        &self,
        cpu: &Cpu,
        at: VirtAddr,
        want: Want,
    ) -> Result<PhysAddr, Fault> {
        let fault = |kind| {
            cpu.stats.faults.add(1);
            Fault { address: at, write: want.write, kind }
        };
        if !self.format().is_canonical(at) {
            return Err(fault(FaultKind::NotCanonical));
        }
        let (held, root, space) = {
            let mut state = locked(&cpu.state);
            state.last = at;
            let Some((root, space)) = state.root else { return Err(fault(FaultKind::NotPresent)) };
            (state.tlb.find(space, at), root, space)
        };
        let found = match held {
            Some(held) if !held.rights.allow(want) => {
                // The fault drops the translation that caused it.
                if self.0.config.faults_drop
                    && let Some(range) = held.range()
                {
                    let (space, stride) = (held.space, held.size);
                    cpu.drop_silently(Flush::Range { space, range, stride, tables: false });
                }
                return Err(fault(FaultKind::Protection));
            }
            // To set the dirty bit in memory takes a walk.
            Some(held) if !want.write || held.dirty => {
                cpu.stats.hits.add(1);
                self.check_hit(cpu, at, want, &held);
                held
            }
            _ => {
                let held = locked(&cpu.state).uppers.find(space, at).is_some();
                let found = self.walk(cpu, root, space, at, want).map_err(|kind| {
                    // The fault drops the upper-level entries that led to it, so the next walk
                    // begins at the top, and a fault by an old entry does not repeat. Entries that
                    // this very walk has cached stay: hardware may cache them again at any moment.
                    let (space, stride) = (Some(space), PageSize::Size4K);
                    if held
                        && self.0.config.faults_drop
                        && let Some(range) = VirtRange::new(at.align_down(stride), 4096)
                    {
                        let tables = true;
                        cpu.drop_silently(Flush::Range { space, range, stride, tables });
                    }
                    if kind == FaultKind::NotPresent {
                        self.check_published(cpu, root, at);
                    }
                    fault(kind)
                })?;
                self.fill(cpu, found);
                found
            }
        };
        if self.0.config.speculation != 0 {
            let up = locked(&cpu.state).random.rand_u32() & 1 == 0;
            let page = 1 << self.format().granule();
            let near = if up { at.checked_add(page) } else { at.checked_sub(page) };
            near.inspect(|near| self.speculate(cpu, root, space, *near));
        }
        let offset = at.offset_in(found.size);
        let into =
            found.frame.start().checked_add(offset).ok_or_else(|| fault(FaultKind::Malformed))?;
        self.check_frame(at, Frame::containing(into));
        Ok(into)
    }

    fn fill(&self, cpu: &Cpu, new: Translation) {
        self.check_sizes(cpu, &new);
        self.fill_group(cpu, &new);
        locked(&cpu.state).tlb.insert(new);
        self.note_if(cpu, || EventKind::Fill(new.page, new.size, new.frame));
    }

    /// Sometimes caches a page without an access to it: the neighbour of an accessed page, or, when
    /// other tables become active, the page that was used last.
    pub(crate) fn speculate(&self, cpu: &Cpu, root: Frame, space: Asid, at: VirtAddr) {
        let possible = {
            let state = &mut *locked(&cpu.state);
            let chosen = state.random.rand_range(0..1000) < self.0.config.speculation;
            chosen && self.format().is_canonical(at) && state.tlb.find(space, at).is_none()
        };
        let _busy = self.busy(cpu);
        if possible && let Ok(found) = self.walk(cpu, root, space, at, Want::default()) {
            cpu.stats.speculated.add(1);
            self.fill(cpu, found);
        }
    }

    fn walk(
        &self,
        cpu: &Cpu,
        root: Frame,
        space: Asid,
        at: VirtAddr,
        want: Want,
    ) -> Result<Translation, FaultKind> {
        cpu.stats.walks.add(1);
        let _done = Walking(cpu);
        let held = locked(&cpu.state).uppers.find(space, at);
        let (mut level, mut table, mut rights, mut since) = match held {
            Some(Upper { level, table, rights, since, .. }) => {
                cpu.stats.upper_hits.add(1);
                (level, table, rights, since)
            }
            None => (self.0.config.levels - 1, root, Rights::ALL, self.0.log.now()),
        };
        let mut cached = held.is_some();
        loop {
            locked(&cpu.state).walking = Some(table);
            self.point(cpu);
            self.check_table(table, level, at, since, cached);
            let (entry, found) = self.read_entry(cpu, table, level, at, rights, want)?;
            // After the read of the entry: its target has its stamps before that.
            let read_at = self.0.log.now();
            rights = self.format().narrow(rights, entry, &found);
            let place = (table, self.format().index(at, level));
            match found {
                Entry::Table(next) => {
                    level -= 1;
                    (table, since, cached) = (next, read_at, false);
                    let (start, bits) = (at, 0);
                    let upper =
                        Upper { level, start, bits, space, root, table, rights, place, since };
                    locked(&cpu.state).uppers.insert(at, upper);
                }
                Entry::Page(size, frame) => {
                    let global = self.format().is_global(entry);
                    return Ok(Translation {
                        page: at.align_down(size),
                        size,
                        space: (!global).then_some(space),
                        root,
                        top: if global { self.tables().top_entry(root, at) } else { None },
                        frame,
                        rights,
                        dirty: self.format().is_dirty(entry),
                        memory: self.format().memory_type(entry),
                        place,
                        group: self.format().is_group(entry, level),
                        since: read_at,
                    });
                }
                Entry::Absent | Entry::Malformed => return Err(FaultKind::Malformed),
            }
        }
    }

    /// Reads the entry for `at`, and sets its accessed bit, and the dirty bit of a written page.
    fn read_entry(
        &self,
        cpu: &Cpu,
        table: Frame,
        level: u8,
        at: VirtAddr,
        rights: Rights,
        want: Want,
    ) -> Result<(u64, Entry), FaultKind> {
        cpu.stats.entries_walked.add(1);
        let format = self.format();
        let index = format.index(at, level);
        let cell = self.0.arena.word(table, index).ok_or(FaultKind::Malformed)?;
        let absent = self.0.absent.as_ref();
        let is_unseen = || absent.is_some_and(|absent| absent.is_unseen(cpu.id, table, index));
        loop {
            // Acquire: pairs with the Release of the CPU that linked the entry's target.
            let entry = cell.load(Ordering::Acquire);
            let found = format.decode(entry, level, index);
            let is_page = match found {
                Entry::Table(_) | Entry::Page(..) if is_unseen() => {
                    return Err(FaultKind::NotPresent);
                }
                Entry::Absent => return Err(FaultKind::NotPresent),
                Entry::Malformed => return Err(FaultKind::Malformed),
                Entry::Table(_) => false,
                Entry::Page(..) => true,
            };
            if is_page && !format.narrow(rights, entry, &found).allow(want) {
                return Err(FaultKind::Protection);
            }
            let marked = format.with_accessed_dirty(entry, &found, want.write);
            // AcqRel, Relaxed: atomic with the read, so no change by software is lost. If it fails,
            // the entry is read again.
            let same = marked == entry
                || cell
                    .compare_exchange(entry, marked, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            if same {
                if format.is_group(entry, level) {
                    self.check_group((table, index), entry, marked);
                }
                if is_page && marked != entry {
                    self.note_accessed_dirty((table, index), entry, marked);
                }
                return Ok((marked, found));
            }
        }
    }

    fn check_hit(&self, cpu: &Cpu, at: VirtAddr, want: Want, held: &Translation) {
        if self.0.config.checks.stale == Stale::Off {
            return;
        }
        let Some(used) = held.frame.checked_add(at.offset_in(held.size) >> 12) else { return };
        let freed = self.0.died(used).is_some_and(|died| died.get().at() > held.since);
        let root = locked(&cpu.state).root;
        let leaf = root.and_then(|(root, _)| self.tables().look(root, at));
        let page =
            leaf.as_ref().and_then(|leaf| leaf.page).filter(|(.., rights)| rights.allow(want));
        let now = page.and_then(|(size, frame, _)| frame.checked_add(at.offset_in(size) >> 12));
        if freed || (self.0.config.checks.stale == Stale::Changed && now != Some(used)) {
            let write = want.write;
            let found = Violation::StaleTranslation { address: at, write, used, now, freed };
            let held = Translation { frame: used, ..*held };
            self.violation(found, self.history_of_cached(cpu, &held, leaf.as_ref()));
        }
    }
}

/// Marks the end of a walk, also after an error or a panic.
struct Walking<'a>(&'a Cpu);

impl Drop for Walking<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).walking = None;
    }
}
