//! The TLB of a CPU of a model: it keeps what it has cached until a flush covers it.

use super::Model;
use crate::format::{Arch, Entry, Format, Rights};
use loom::sync::{Mutex, MutexGuard};
use machine::{Asid, Flush, Frame, Memory, VirtAddr};
use std::vec::Vec;

/// The bytes that a lowest table decides about.
const REGION: u64 = 1 << 21;

/// A cached translation, or a cached upper entry, which leads to a lowest table.
#[derive(Clone, Copy, Debug)]
struct Cached {
    asid: Asid,
    /// The address of the page, or of the region.
    at: u64,
    frame: Frame,
    write: bool,
}

#[derive(Default)]
pub(super) struct CpuTlb {
    active: Option<(Frame, Asid)>,
    pages: Vec<Cached>,
    uppers: Vec<Cached>,
}

#[derive(Default)]
pub(super) struct Cpu(Mutex<CpuTlb>);

impl Cpu {
    pub(super) fn lock(&self) -> MutexGuard<'_, CpuTlb> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl CpuTlb {
    pub(super) fn activate(&mut self, root: Frame, asid: Asid, keep: bool) {
        if !keep {
            self.keep(|cached| cached.asid != asid);
        }
        self.active = Some((root, asid));
    }

    pub(super) fn active(&self) -> Option<(Frame, Asid)> {
        self.active
    }

    fn keep(&mut self, is_kept: impl Fn(&Cached) -> bool) {
        self.pages.retain(&is_kept);
        self.uppers.retain(&is_kept);
    }

    pub(super) fn flush(&mut self, what: Flush) {
        match what {
            Flush::All => self.keep(|_| false),
            Flush::Space(asid) => self.keep(|cached| cached.asid != asid),
            Flush::Range { space, range, tables, .. } => {
                let outside = |cached: &Cached, bytes: u64| {
                    let (first, last) = (range.start().get(), range.last());
                    let before = last.is_some_and(|last| last.get() < cached.at);
                    space.is_some_and(|space| space != cached.asid)
                        || before
                        || first > cached.at + (bytes - 1)
                };
                self.pages.retain(|page| outside(page, 4096));
                self.uppers.retain(|upper| !tables || outside(upper, REGION));
            }
        }
    }

    /// The frame for an access, from the cache or by a walk. `None` is a fault, which drops what
    /// was cached for the address.
    pub(super) fn translate(
        &mut self,
        model: &Model,
        levels: u8,
        at: VirtAddr,
        write: bool,
    ) -> Option<Frame> {
        let frame = self.find(model, levels, at, write);
        if frame.is_none() {
            let covers = |cached: &Cached, bytes: u64| cached.at == at.get() & !(bytes - 1);
            self.pages.retain(|page| !covers(page, 4096));
            self.uppers.retain(|upper| !covers(upper, REGION));
        }
        frame
    }

    fn find(&mut self, model: &Model, levels: u8, at: VirtAddr, write: bool) -> Option<Frame> {
        let (root, asid) = self.active?;
        let (page, region) = (at.get() & !4095, at.get() & !(REGION - 1));
        let is = |cached: &&Cached, at| cached.asid == asid && cached.at == at;
        if let Some(cached) = self.pages.iter().find(|cached| is(cached, page)) {
            return (cached.write || !write).then_some(cached.frame);
        }
        let (mut level, mut table, mut may_write) = (levels - 1, root, true);
        if let Some(upper) = self.uppers.iter().find(|cached| is(cached, region)) {
            (level, table, may_write) = (0, upper.frame, upper.write);
        }
        let format = Format { arch: Arch::X86_64, levels };
        loop {
            let index = format.index(at, level);
            // SAFETY: hardware follows the tables, as software has stored them.
            let entry = unsafe { model.entry(table, index) }?.load();
            let found = format.decode(entry, level, index);
            may_write &= format.narrow(Rights::ALL, entry, &found).write;
            match found {
                Entry::Table(next) => {
                    (level, table) = (level - 1, next);
                    if level == 0 {
                        let upper = Cached { asid, at: region, frame: table, write: may_write };
                        self.uppers.push(upper);
                    }
                }
                Entry::Page(_, frame) => {
                    if write && !may_write {
                        return None;
                    }
                    self.pages.push(Cached { asid, at: page, frame, write: may_write });
                    return Some(frame);
                }
                Entry::Absent | Entry::Malformed => return None,
            }
        }
    }

    pub(super) fn has(&self, at: VirtAddr, is: impl Fn(Frame) -> bool) -> bool {
        let (at, active) = (at.get() & !4095, self.active.map(|active| active.1));
        let is_of = |page: &&Cached| page.at == at && Some(page.asid) == active;
        self.pages.iter().filter(is_of).any(|page| is(page.frame))
    }
}
