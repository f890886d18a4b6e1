//! Pages behind the VMAs of a test: a map from page numbers to what was put there. It checks the
//! order of stores and page work.

use alloc::{collections::BTreeMap, vec::Vec};
use core::ops::Range;

use grace::Reclaim;

use super::{
    File,
    world::{Allow, OurWriter},
};
use crate::{Advice, CallStep, Error, Host, PAGE_SIZE, VmFlags, Vma, Work};

/// A page as it was put in: its file, its offset, and its VMA's rights.
#[derive(Clone, PartialEq, Debug)]
struct Page {
    file: Option<File>,
    offset: usize,
    access: VmFlags,
}

impl Page {
    fn of(vma: &Vma<File>, addr: usize) -> Page {
        let access = vma.flags & (VmFlags::ACCESS | VmFlags::PKEY);
        Page { file: vma.file, offset: vma.offset_at(addr), access }
    }
}

/// The pages of one address space, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct SomePages {
    pages: BTreeMap<usize, Page>,
    /// Suspended while it works: real pages need no memory of the heap either.
    pub(super) allow: Option<Allow>,
}

impl SomePages {
    fn without_limit<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let left = self.allow.and_then(|allow| allow(None));
        let done = work(self);
        if let Some(allow) = self.allow {
            allow(left);
        }
        done
    }

    fn take(&mut self, range: Range<usize>) -> BTreeMap<usize, Page> {
        let mut rest = self.pages.split_off(&range.start);
        let mut behind = rest.split_off(&range.end);
        self.pages.append(&mut behind);
        rest
    }

    /// Whether there is a page in the range.
    pub(super) fn any(&self, range: Range<usize>) -> bool {
        self.pages.range(range).next().is_some()
    }

    pub(super) fn is_same(&self, other: &SomePages) -> bool {
        self.pages == other.pages
    }

    /// The distances of the pages in a range from its start.
    pub(super) fn places(&self, range: Range<usize>) -> Vec<usize> {
        self.pages.range(range.clone()).map(|(addr, _)| addr - range.start).collect()
    }

    /// Checks that each page is still in the VMA that it was put into, or where that has moved; and
    /// that no VMA is left busy.
    pub(super) fn check(&self, space: &OurWriter<'_>) {
        for area in space.areas() {
            assert!(!area.vma.is_busy(), "{:#x} is left busy", area.start);
        }
        for (&addr, page) in &self.pages {
            let area = space.area_at(addr);
            let vma = area.map(|area| Page::of(&area.vma, addr));
            assert_eq!(vma.as_ref(), Some(page), "the page at {addr:#x}");
        }
    }

    /// Puts pages into VMAs whose pages keep their offset when they move, some here and some there.
    pub(super) fn touch(&mut self, space: &OurWriter<'_>) {
        for area in space.areas() {
            if area.vma.is_anonymous() && !area.vma.is_faulted() {
                continue;
            }
            area.vma.mark_touched_for_call();
            let some = (area.start..area.end).step_by(PAGE_SIZE);
            for addr in some.filter(|addr| !(addr / PAGE_SIZE).is_multiple_of(3)) {
                self.pages.entry(addr).or_insert_with(|| Page::of(&area.vma, addr));
            }
        }
    }
}

impl<R: Reclaim> Host<File, R> for SomePages {
    /// Calls that populate count as first writes.
    const BRINGS_IN: bool = false;
    const MARKS_TOUCHED: bool = true;

    fn apply(&mut self, mut step: CallStep<'_, '_, File, R>) -> Result<(), Error> {
        step.hold()?;
        step.close(true)?;
        self.without_limit(|pages| pages.work(step.work(), step.vma()));
        step.open();
        Ok(())
    }
}

impl SomePages {
    fn work(&mut self, work: &Work, now: Option<&Vma<File>>) {
        match work.clone() {
            Work::Nothing => unreachable!("no host is asked to apply it"),
            Work::Unmap { range, .. }
            | Work::Replace(range)
            | Work::Advise { range, advice: Advice::DontNeed } => drop(self.take(range)),
            Work::Advise { .. } => {}
            Work::Protect { range, old } => {
                let rights = VmFlags::ACCESS | VmFlags::PKEY;
                for (addr, mut page) in self.take(range) {
                    assert_eq!(page.access, old & rights, "the rights before, at {addr:#x}");
                    page.access = now.unwrap().flags & rights;
                    self.pages.insert(addr, page);
                }
            }
            Work::Move { from, to, .. } => {
                assert!(!self.any(to..to + from.len()), "pages move to a place that has some");
                for (addr, page) in self.take(from.clone()) {
                    self.pages.insert(addr - from.start + to, page);
                }
            }
        }
    }
}
