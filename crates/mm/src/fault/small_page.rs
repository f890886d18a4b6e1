//! Faults at small pages that are present, and at those of objects.
//!
//! `copy_on_write` has the rules: the preparations, and the new value of the entry.

use grace::Concurrent;
use machine::{FrameError, Machine};
use paging::{EntryChange, Format, Found, Mapping};

use crate::{
    AddressSpace, FaultError, ObjectError,
    change::release::release,
    entry_marks::over_mark,
    fault::attempt::{FaultStep, FirstLook, flushed},
    fault::copy_on_write::{self, PreparedEntry},
    fault::new_frame::NewFrame,
    fault::rights::WantedAccess,
    object::HeldPage,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The fault at a small page that is present, or at a page of an object's map. With `has_mark`
    /// the object's page is absent, and its mark goes over to the page that comes in.
    pub(super) fn fault_small(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &Found<'_>,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
        has_mark: bool,
    ) -> Result<FaultStep, FaultError> {
        let found = place.mapping().filter(|_| !has_mark);
        self.refuse_guard(found, look.at)?;
        if let Some(page) = found
            && self.core.tables.paging().slot_of(page.frame).is_some()
        {
            return self.swap_in(look, place, page.frame, fresh);
        }
        let object = match self.page_of_object(look, found, want)? {
            Ok(object) => object,
            Err(needed) => return Ok(needed),
        };
        let write_protected = self.is_write_protected(look.vma);
        let machine = self.core.tables.machine();
        let prepared = PreparedEntry { machine, fresh, object, write_protected };
        if let Some(needed) = prepared.needs(look.vma, want, found)
            && let Some(step) = self.prepare_copy(look, found, needed, fresh)
        {
            return Ok(step);
        }
        self.commit_small(look, place, want, prepared, has_mark)
    }

    /// The page of the VMA's object, where the fault needs it.
    fn page_of_object<'g>(
        &'g self,
        look: &FirstLook<'g, M, G>,
        found: Option<Mapping>,
        want: WantedAccess,
    ) -> Result<Result<Option<HeldPage<'g, M>>, FaultStep>, FaultError> {
        let vma = look.vma;
        let Some(file) = &vma.file else { return Ok(Ok(None)) };
        if found.is_some() && (!want.writes() || vma.is_private()) {
            return Ok(Ok(None));
        }
        let (machine, index) = (self.core.tables.machine(), vma.offset_at(look.addr) as u64);
        match HeldPage::get(machine, &**file.object(), index) {
            Ok(page) => Ok(Ok(Some(page))),
            // Also if it has gone since the look, and is a monitor's: `bring_in_page` looks.
            Err(ObjectError::Absent) => Ok(Err(FaultStep::NeedsObject)),
            Err(ObjectError::OutOfMemory(error)) => Err(FaultError::OutOfMemory(error)),
            // A call may have put another map there before the object has answered.
            Err(_) if !self.is_current(look) => Ok(Err(FaultStep::Again)),
            Err(error) => {
                // As in Linux, also by a fault that fails.
                if !want.writes() {
                    self.fault_around(look);
                }
                Err(FaultError::Object(look.at, error))
            }
        }
    }

    /// Prepares the copy of a page, which is held from here on. Returns the step that ends the
    /// attempt, if it cannot go on.
    fn prepare_copy(
        &self,
        look: &FirstLook<'_, M, G>,
        found: Option<Mapping>,
        needed: FaultStep,
        fresh: &NewFrame<'_, M>,
    ) -> Option<FaultStep> {
        // If the entry leads to the frame now, it has not been given to another user in between.
        let still = self.core.tables.walk(look.guard).as_hint().get(look.page());
        let still = still.filter(|page| !self.core.is_mark(page));
        let same = |page: Mapping| (page.frame, page.attrs.share());
        if still.map(same) != found.map(same) {
            return Some(FaultStep::Again);
        }
        // The entry still leads there, so the frame is not free: it has too many references.
        if let (FaultStep::Again, Some(page)) = (needed, found) {
            let (frame, refs, pins) = (page.frame, u32::MAX, 0);
            return Some(FaultStep::NeedsMemory(FrameError::InUse { frame, refs, pins }));
        }
        // With memory at hand, this attempt goes on. Without, the guard must go first: a reclaim
        // waits for it.
        (needed != FaultStep::NeedsFrame || fresh.prepare().is_err()).then_some(needed)
    }

    fn commit_small(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &Found<'_>,
        want: WantedAccess,
        prepared: PreparedEntry<'_, '_, M>,
        has_mark: bool,
    ) -> Result<FaultStep, FaultError> {
        let (vma, fresh, was) = (look.vma, prepared.fresh, place.mapping());
        let keeps = has_mark && self.keeps_mark(vma, want);
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped, and then the
        // page's until it is unmapped and flushed. A range is flushed before it gets another VMA.
        let done = unsafe {
            self.core.tables.with_found(look.guard, place, |now| {
                if !self.is_current(look) {
                    return (EntryChange::Keep, FaultStep::Again);
                }
                // A guard was installed since the first look, or the page went to swap.
                let mark_now = now.is_some_and(|page| self.core.is_mark(&page));
                let special = now.is_some_and(|page| self.core.is_special(page.frame));
                // A page that has gone may be one that a monitor brings in.
                let gone = now.is_none() && was.is_some();
                if mark_now != has_mark || special && !mark_now || gone {
                    return (EntryChange::Keep, FaultStep::Again);
                }
                let (change, step) =
                    copy_on_write::decide::<M, F>(vma, want, now.filter(|_| !has_mark), &prepared);
                (if has_mark { over_mark(change, keeps) } else { change }, step)
            })
        };
        let step = flushed(done, look.at)?;
        Ok(match step {
            FaultStep::Replaced(old) => {
                let new = fresh.copy_of(old);
                fresh.mapped();
                // SAFETY: no CPU has a translation of it any more, and the entry held the
                // reference.
                unsafe { release(&self.core.tables, [old]) };
                self.end_replacement(look, new)
            }
            FaultStep::Flushing => {
                self.flush_everywhere(look.page());
                self.end_replacement(look, place.mapping().map(|page| page.frame))
            }
            // A write goes on with the fault of a protected page.
            FaultStep::MappedFresh if keeps => {
                fresh.mapped();
                FaultStep::Again
            }
            FaultStep::MappedObject => {
                // The entry has the reference now.
                prepared.object.into_iter().for_each(HeldPage::mapped);
                if keeps && want.writes() {
                    return Ok(FaultStep::Again);
                }
                if !want.writes() {
                    self.fault_around(look);
                }
                step
            }
            step => step,
        })
    }
}
