//! The work of objects in a space that maps them.

use core::ops::Range;

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{Format, Mapping, Share, SweepChange};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    Backing, Mappings,
    addresses::{HUGE, virt},
    change::gather::SweptPages,
    change::sweep::CutPage,
    entry_marks::{clear_of_object, is_poison},
    fault::rights,
    object::mappings::{Take, TakeBack, Visit},
    space::Core,
};

impl<M: Machine, F: Format, G: Concurrent> Visit for Core<M, F, G> {
    fn take_back(&self, what: &TakeBack<'_>) {
        let calls = self.writer();
        for area in calls.areas_from(what.addresses.start) {
            if area.start >= what.addresses.end {
                break;
            }
            if !is_of(&area.vma, what.mappings) {
                continue;
            }
            let first = area.vma.offset_at(area.start) as u64;
            let address = |page: u64| {
                let pages =
                    page.saturating_sub(first).min(((area.end - area.start) / PAGE_SIZE) as u64);
                area.start + pages as usize * PAGE_SIZE
            };
            let start = address(what.pages.start).max(what.addresses.start);
            let end = address(what.pages.end).min(what.addresses.end);
            if start < end {
                self.take_back_from(start..end, what, &area.vma);
            }
        }
    }

    fn maps(&self, addresses: Range<usize>, mappings: &Mappings) -> bool {
        let guard = G::pin();
        let mut vmas = self.vmas.iter(&guard, addresses.start);
        vmas.any(|(range, vma)| range.start < addresses.end && is_of(vma, mappings))
    }

    fn is_changing(&self, own: *const ()) -> bool {
        !core::ptr::eq(own, (&raw const self.tables).cast()) && self.vmas.try_write().is_none()
    }

    fn may_write(&self, addresses: Range<usize>, mappings: &Mappings) -> bool {
        let writes = VmFlags::SHARED | VmFlags::MAYWRITE;
        self.writer()
            .areas_from(addresses.start)
            .take_while(|area| area.start < addresses.end)
            .any(|area| is_of(&area.vma, mappings) && area.vma.flags.contains(writes))
    }

    fn table_at(&self, at: VirtAddr) -> Option<Frame> {
        self.tables.walk(&G::pin()).table_at(at)
    }

    fn frame_at(&self, at: VirtAddr) -> Option<Frame> {
        self.tables.walk(&G::pin()).get(at)?.frame_of(at)
    }
}

fn is_of<M: Machine>(vma: &Vma<Backing<M>>, mappings: &Mappings) -> bool {
    vma.file.as_ref().is_some_and(|file| file.is_of(mappings))
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    /// Waits for the faults in a range that have looked at its VMAs before the caller changed them:
    /// those that come to the lock of their table later look again. The pages stay. Called with the
    /// mmap lock.
    pub(crate) fn settle_faults(&self, range: Range<usize>) {
        self.changes.count(self.tables.machine());
        // A huge page is cut by no border.
        let end = range.end.checked_next_multiple_of(HUGE).unwrap_or(range.end);
        let Some(range) = virt(range.start & !(HUGE - 1)..end) else { return };
        let mut pending = self.tables.no_flush();
        // SAFETY: no entry changes. The mmap lock keeps forks, unmappings and moves away.
        let passed = unsafe { self.tables.pass_locks(range, &mut pending) };
        debug_assert!(passed.is_ok(), "{passed:?}");
        pending.flush();
    }

    /// Takes the pages of an object from a part of one VMA. Called with the mmap lock, which
    /// keeps forks, unmappings and moves away.
    fn take_back_from(&self, range: Range<usize>, what: &TakeBack<'_>, vma: &Vma<Backing<M>>) {
        let index = |page: &Mapping| vma.offset_at(page.page.get() as usize) as u64;
        let clear = |page: &Mapping| clear_of_object(page, self.guard_frame.get());
        let change = |page: &Mapping| match (what.what, page.attrs.share()) {
            // Lost contents go with the copies.
            (Take::All, _) if is_poison(page.attrs) && self.is_guard(page.frame) => {
                SweepChange::Clear
            }
            _ if self.is_guard(page.frame) => SweepChange::Keep,
            // UFFDIO_ZEROPAGE has put it there. It is no copy, so Linux removes it.
            (Take::Own(_), _) if Some(page.frame) == self.zero_frame.get() => clear(page),
            // A copy, which goes with the others only.
            (Take::Write | Take::Own(_), _) if self.is_special(page.frame) => SweepChange::Keep,
            (Take::Write, Share::Object) => SweepChange::Set(rights::attrs_kept::<M, F>(
                vma,
                page.attrs.with_share(Share::CopyOnWrite),
            )),
            (Take::Write, _) => SweepChange::Keep,
            (Take::All, _) | (Take::Own(_), Share::Object) => clear(page),
            // A page of the object, or a copy; the copy may be shared with a fork.
            (Take::Own(is_ours), _) if is_ours(index(page), page.frame) => clear(page),
            (Take::Own(_), _) => SweepChange::Keep,
        };
        let swept = self.sweep(SweptPages::OfAll, range, CutPage::Fails, change);
        debug_assert!(swept.is_ok(), "{swept:?}");
    }
}
