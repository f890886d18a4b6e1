//! Page faults. [`crate::protocol`] explains why they need no lock of the address space.

pub(crate) mod anon;
pub(crate) mod around;
pub(crate) mod block;
pub(crate) mod fresh;
pub(crate) mod huge;
pub(crate) mod reference;
pub(crate) mod rights;
pub(crate) mod touch;
pub(crate) mod zero;

use grace::Concurrent;
use machine::{Frame, FrameError, Machine, PageSize, VirtAddr};
use paging::{EntryChange, Format};
use vma::{Touched, VmFlags};

use crate::{
    Access, AddressSpace, FaultError, HugePages, ObjectError, UserFaultKind,
    fault::anon::Prepared,
    fault::fresh::{Fresh, Huge, Unready},
    fault::huge::huge_around,
    fault::reference::NoFrame,
    fault::rights::Want,
    fault::touch::{Look, refused},
    monitor::absent::over_mark,
    object::HeldPage,
    space::changes::Changes,
};

/// How a fault was handled. The access can be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// A page was mapped, or got the right.
    Mapped,
    /// The page had the right already: another CPU was faster, or this CPU used an old translation,
    /// which is gone now.
    Spurious,
}

/// The end of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Mapped,
    /// The fresh frame was mapped.
    MappedFresh,
    /// The object's frame was mapped.
    MappedObject,
    Spurious,
    /// The fresh frame replaced this one, whose translations must be flushed.
    Replaced(Frame),
    /// Another CPU replaced the page and has not ended its flush.
    Flushing,
    /// The fresh frame, or what it holds, is not what the entry needs.
    NeedsFrame,
    /// The object must bring the page in.
    NeedsObject,
    /// The zero frame is needed, and there is none yet.
    NeedsZeroFrame,
    /// The VMA was another one at the second look.
    Again,
    /// Only the write right can decide.
    NeedsRight,
    /// A block of zeros was mapped.
    MappedHuge,
    /// A block of zeros is needed, if there is one.
    NeedsHuge,
    /// The huge zero page is needed, if there is memory for it.
    NeedsHugeZero,
    /// A monitor resolves the fault.
    NeedsUser(UserFaultKind),
    /// The huge page must be split.
    NeedsSplit,
    /// There is no memory for a table.
    NeedsMemory(FrameError),
}

/// Attempts without the write right. Each that fails means that a call or a fault of another CPU
/// was faster.
const TRIES: usize = 16;

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Handles a page fault of a program at `at`: brings the page in, or gives it the right.
    ///
    /// Cost of a fault on memory that was not touched: two descents of the tree of VMAs; one walk
    /// of the tables; the frame, and its zeroing; one locked instruction for the table's lock, and
    /// those of the frame source. Writes no line of the VMA or of the address space, but for the
    /// first write of a VMA.
    ///
    /// # Context
    /// With interrupts enabled, or in the fault handler of code that had them enabled. The caller
    /// holds no guard of `G`, no lock of a table, and no lock that is held around calls of this
    /// space. May run deferred frees.
    ///
    /// # Errors
    /// [`FaultError::Unmapped`] and [`FaultError::Denied`] are the program's: SIGSEGV.
    /// [`FaultError::OutOfMemory`]: nothing has changed. [`FaultError::Tables`]: the tables are
    /// corrupt.
    pub fn handle_fault(&self, at: VirtAddr, access: Access) -> Result<Outcome, FaultError> {
        self.fault(at, Want::new(access))
    }

    #[inline]
    pub(crate) fn fault(&self, at: VirtAddr, want: Want) -> Result<Outcome, FaultError> {
        let fresh = Fresh::new(self.core.tables.paging(), self.core.group());
        let mut reclaimed = false;
        for _ in 0..TRIES {
            let step = self.attempt(at, want, &fresh)?;
            if step == Step::MappedFresh {
                fresh.mapped();
                return Ok(Outcome::Mapped);
            }
            match self.finish(step, at, want, &fresh, &mut reclaimed)? {
                Some(outcome) => return Ok(outcome),
                None if step == Step::NeedsRight => break,
                None => {}
            }
        }
        self.fault_with_right(at, want, &fresh)
    }

    /// Ends an attempt that did something; prepares for the next one otherwise.
    fn finish(
        &self,
        step: Step,
        at: VirtAddr,
        want: Want,
        fresh: &Fresh<'_, M>,
        reclaimed: &mut bool,
    ) -> Result<Option<Outcome>, FaultError> {
        match step {
            Step::Mapped | Step::MappedObject | Step::MappedHuge => {
                return Ok(Some(Outcome::Mapped));
            }
            Step::MappedFresh => {
                fresh.mapped();
                return Ok(Some(Outcome::Mapped));
            }
            Step::Spurious => {
                self.drop_translation(at);
                return Ok(Some(Outcome::Spurious));
            }
            Step::NeedsFrame => self.prepare(at, reclaimed, || fresh.prepare())?,
            Step::NeedsObject => {
                self.bring_in_object(at, reclaimed)?;
                fresh.brought_in.set(true);
            }
            Step::NeedsZeroFrame => self.prepare(at, reclaimed, || self.core.zero.make())?,
            Step::NeedsHuge => fresh.prepare_huge(),
            Step::NeedsHugeZero => {
                if self.core.huge.zero(self.core.tables.paging()).make().is_err() {
                    fresh.deny_huge();
                }
            }
            Step::NeedsUser(kind) => self.call_monitor(at, want, kind)?,
            Step::NeedsSplit => match self.split_huge(at) {
                Ok(()) => {}
                Err(paging::Error::Frames(error)) => self.make_room(at, error.into(), reclaimed)?,
                Err(error) => return Err(FaultError::Tables(error)),
            },
            Step::NeedsMemory(error) => self.make_room(at, error.into(), reclaimed)?,
            Step::Again | Step::NeedsRight | Step::Replaced(_) | Step::Flushing => {}
        }
        Ok(None)
    }

    /// Prepares a frame; makes room once if there is none. No guard is held.
    fn prepare<E: Into<Unready>>(
        &self,
        at: VirtAddr,
        reclaimed: &mut bool,
        what: impl Fn() -> Result<(), E>,
    ) -> Result<(), FaultError> {
        while let Err(error) = what() {
            self.make_room(at, error.into(), reclaimed)?;
        }
        Ok(())
    }

    /// Lets the object behind an address bring its page in. Nothing is held meanwhile.
    fn bring_in_object(&self, at: VirtAddr, reclaimed: &mut bool) -> Result<(), FaultError> {
        let found = self.core.vmas.lookup(&G::pin(), at.get() as usize).and_then(|(_, vma)| {
            Some((vma.file.clone()?, vma.offset_at(at.get() as usize) as u64))
        });
        // Otherwise the VMA has changed: the fault begins again.
        let Some((file, index)) = found else { return Ok(()) };
        loop {
            match file.object().bring_in(index) {
                Ok(()) => return Ok(()),
                Err(ObjectError::OutOfMemory(error)) => {
                    self.make_room(at, error.into(), reclaimed)?
                }
                Err(ObjectError::GroupLimit) => return Err(FaultError::GroupLimit),
                Err(error) => return Err(FaultError::Object(at, error)),
            }
        }
    }

    fn make_room(
        &self,
        at: VirtAddr,
        error: Unready,
        reclaimed: &mut bool,
    ) -> Result<(), FaultError> {
        let error = match error {
            Unready::Lost => return Err(FaultError::Poisoned(at)),
            Unready::NoFrame(NoFrame::Source(error)) => error,
            Unready::NoFrame(NoFrame::Group { .. }) if self.purge() > 0 => return Ok(()),
            Unready::NoFrame(NoFrame::Group { needed }) => {
                let more = self.core.group().is_some_and(|group| group.make_room(needed));
                return if more { Ok(()) } else { Err(FaultError::GroupLimit) };
            }
        };
        if self.purge() > 0 {
            return Ok(());
        }
        if core::mem::replace(reclaimed, true) {
            return Err(FaultError::OutOfMemory(error));
        }
        self.core.tables.reclaim();
        Ok(())
    }

    /// Flushes this CPU's translation of the page, and what led to it.
    fn drop_translation(&self, at: VirtAddr) {
        self.core.tables.flush_page_here(at, PageSize::Size4K);
    }

    /// The same on all CPUs that use the space.
    fn flush_everywhere(&self, at: VirtAddr) {
        self.core.tables.flush_page(at, PageSize::Size4K);
    }

    /// One attempt: the first look, the entry with the second look in it.
    fn attempt(&self, at: VirtAddr, want: Want, fresh: &Fresh<'_, M>) -> Result<Step, FaultError> {
        let page = at.align_down(PageSize::Size4K);
        let Ok(addr) = usize::try_from(page.get()) else { return Err(FaultError::Unmapped(at)) };
        let guard = G::pin();
        let (machine, changes) = (self.core.tables.machine(), &self.core.changes);
        let seen = changes.now(machine);
        let Some((range, vma)) = self.core.vmas.lookup(&guard, addr) else {
            return Ok(Step::NeedsRight);
        };
        if vma.is_busy() {
            return Ok(Step::NeedsRight);
        }
        if !want.is_allowed(vma.flags) {
            return Err(FaultError::Denied(at, want.access));
        }
        let walk = self.core.tables.walk(&guard);
        // As in Linux, a guard page of a file gives its VMA no anon_vma, nor does a page that a
        // monitor protects.
        let protects = vma.flags.contains(VmFlags::UFFD_WP);
        if want.writes() && !vma.is_faulted() && (vma.file.is_some() || protects) {
            let found = walk.get(page);
            if vma.file.is_some() {
                self.refuse_guard(found, at)?;
            }
            let look = Look { guard: &guard, at, addr, vma, seen };
            let present = found.filter(|page| !self.core.is_mark(page));
            if protects
                && present.is_some()
                && let Some(step) = self.userfault_step(&look, present, want, false)
            {
                return Ok(step);
            }
        }
        let touched = match want.writes() && vma.is_private() {
            true if self.core.vmas.first_write(&guard, addr, vma) => Touched::Marked,
            true => Touched::NeedsRight,
            false => vma.mark_touched(),
        };
        let seen = match touched {
            Touched::Marked => seen,
            Touched::LookAgain => Changes::NEVER,
            Touched::NeedsRight => return Ok(Step::NeedsRight),
        };
        let place = walk.look(page);
        let found = place.mapping();
        let look = Look { guard: &guard, at, addr, vma, seen };
        let is_marked = found.is_some_and(|page| self.core.is_mark(&page));
        let present = found.filter(|_| !is_marked);
        if vma.flags.intersects(VmFlags::UFFD)
            && let Some(step) = self.userfault_step(&look, present, want, fresh.brought_in.get())
        {
            // As in Linux, before the fault asks the object for its own page.
            if vma.file.is_some() && found.is_none() && !want.writes() {
                self.fault_around(&guard, addr, &range, vma);
            }
            return Ok(step);
        }
        if let Some(page) = found.filter(|page| page.size != PageSize::Size4K) {
            return self.huge_present(&look, &range, page, want, fresh);
        }
        if found.is_none() && vma.file.is_none() {
            let policy = self.core.huge.policy();
            if policy != HugePages::Never
                && !place.has_table()
                && fresh.huge() != Huge::Denied
                && policy.allows(vma)
                && let Some(huge) = huge_around(addr, &range)
            {
                // Also for a read, as in Linux.
                if !self.core.vmas.first_write(&guard, addr, vma) {
                    return Ok(Step::NeedsRight);
                }
                return self.huge_first_touch(&look, &huge, want, fresh);
            }
            if want.writes() && self.fill_groups(&look, &range, want) {
                return Ok(Step::Mapped);
            }
            let step = self.first_touch(&look, &place, want, fresh, None)?;
            if step == Step::MappedFresh {
                self.fill_block(&look, &range);
            }
            return Ok(step);
        }
        if is_marked && vma.file.is_none() {
            return self.touch_marked(&look, &place, want, fresh);
        }
        // The object's page is absent; its mark goes over to the page that comes in.
        let found = present;
        let keeps = is_marked && self.keeps_mark(vma, want);
        self.refuse_guard(found, at)?;
        if let Some(page) = found
            && self.core.tables.paging().slot_of(page.frame).is_some()
        {
            return self.swap_in(&look, &place, page.frame, fresh);
        }
        let object = match &vma.file {
            Some(file) if found.is_none() || (want.writes() && !vma.is_private()) => {
                match HeldPage::get(machine, &**file.object(), vma.offset_at(addr) as u64) {
                    Ok(page) => Some(page),
                    Err(ObjectError::Absent) => return Ok(Step::NeedsObject),
                    Err(ObjectError::OutOfMemory(error)) => {
                        return Err(FaultError::OutOfMemory(error));
                    }
                    Err(error) => {
                        // As in Linux, also by a fault that fails.
                        if !want.writes() {
                            self.fault_around(&guard, addr, &range, vma);
                        }
                        return Err(FaultError::Object(at, error));
                    }
                }
            }
            _ => None,
        };
        let write_protected = self.is_write_protected(vma);
        let prepared = Prepared { machine, fresh, object, write_protected };
        if let Some(needed) = prepared.needs(vma, want, found) {
            // A frame that is to be copied is held from here on. If the entry leads to it now, it
            // has not been given to another user in between.
            let still = walk.get(page).filter(|page| !self.core.is_mark(page));
            let still = still.map(|page| (page.frame, page.attrs.share()));
            if still != found.map(|page| (page.frame, page.attrs.share())) {
                return Ok(Step::Again);
            }
            // The entry still leads there, so the frame is not free: it has too many references.
            if let (Step::Again, Some(page)) = (needed, found) {
                let (frame, refs, pins) = (page.frame, u32::MAX, 0);
                return Ok(Step::NeedsMemory(FrameError::InUse { frame, refs, pins }));
            }
            // With memory at hand, this attempt goes on. Without, the guard must go first: a
            // reclaim waits for it.
            if needed != Step::NeedsFrame || fresh.prepare().is_err() {
                return Ok(needed);
            }
        }
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped, and then the
        // page's until it is unmapped and flushed. A range is flushed before it gets another VMA.
        let done = unsafe {
            self.core.tables.with_found(&guard, &place, |now| {
                if !self.is_current(&look) {
                    return (EntryChange::Keep, Step::Again);
                }
                // A guard was installed since the first look, or the page went to swap.
                let has_mark = now.is_some_and(|page| self.core.is_mark(&page));
                let special = now.is_some_and(|page| self.core.is_special(page.frame));
                if has_mark != is_marked || special && !has_mark {
                    return (EntryChange::Keep, Step::Again);
                }
                let (change, step) = anon::decide(vma, want, now.filter(|_| !has_mark), &prepared);
                (if has_mark { over_mark(change, keeps) } else { change }, step)
            })
        };
        match done {
            Ok((step, pending)) => {
                pending.flush();
                Ok(match step {
                    Step::Replaced(old) => {
                        let new = fresh.copy_of(old);
                        fresh.mapped();
                        // SAFETY: no CPU has a translation of it any more, and the entry held the
                        // reference.
                        unsafe { self.core.tables.paging().release_entry(old) };
                        self.end_replacement(&guard, page, vma, new)
                    }
                    Step::Flushing => {
                        self.flush_everywhere(page);
                        self.end_replacement(&guard, page, vma, found.map(|page| page.frame))
                    }
                    // A write goes on with the fault of a protected page.
                    Step::MappedFresh if keeps => {
                        fresh.mapped();
                        Step::Again
                    }
                    Step::MappedObject => {
                        // The entry has the reference now.
                        prepared.object.into_iter().for_each(HeldPage::mapped);
                        if keeps && want.writes() {
                            return Ok(Step::Again);
                        }
                        if !want.writes() {
                            self.fault_around(&guard, addr, &range, vma);
                        }
                        step
                    }
                    step => step,
                })
            }
            Err(failed) => refused(failed, at),
        }
    }

    /// A fault that only the write right can decide: at a hole, in a busy VMA, at a first write
    /// that a call has closed, or after too many attempts.
    fn fault_with_right(
        &self,
        at: VirtAddr,
        want: Want,
        fresh: &Fresh<'_, M>,
    ) -> Result<Outcome, FaultError> {
        let mut reclaimed = false;
        // Prepared without the right, if memory is at hand. If it is not, it may not be needed: the
        // program's own error needs none.
        let _at_hand = fresh.prepare();
        let addr = at.get() as usize;
        loop {
            let mut error = None;
            let step = self.change(|calls| {
                let found = calls.area_at(addr).is_some();
                // A stack grows only when there is memory for its page.
                let grows = |area: &vma::Area<_>| area.vma.flags.contains(VmFlags::GROWSDOWN);
                if !found
                    && !fresh.is_ready()
                    && calls.areas_from(addr).next().is_some_and(|area| grows(&area))
                {
                    return Ok::<_, vma::Error>(Step::NeedsFrame);
                }
                if !found && calls.expand_stack(addr, self.stack_limit).is_err() {
                    error = Some(FaultError::Unmapped(at));
                    return Ok(Step::Again);
                }
                let area = calls.area_at(addr).filter(|area| want.is_allowed(area.vma.flags));
                if let Some(area) = area {
                    if let Err(failed) =
                        self.refuse_guard(self.core.tables.walk(&G::pin()).get(at), at)
                    {
                        error = Some(failed);
                        return Ok(Step::Again);
                    }
                    let is_huge = || self.may_be_huge(at, &(area.start..area.end), &area.vma);
                    match area.vma.is_private() && (want.writes() || is_huge()) {
                        true => calls.first_write(addr)?,
                        false => area.vma.mark_touched_for_call(),
                    }
                }
                // No VMA changes now, so one attempt is enough.
                match self.attempt(at, want, fresh) {
                    Ok(step) => Ok(step),
                    Err(failed) => {
                        error = Some(failed);
                        Ok(Step::Again)
                    }
                }
            });
            if let Some(error) = error {
                return Err(error);
            }
            let step = match step {
                Ok(step) => step,
                Err(crate::Error::Tables(error)) => return Err(FaultError::Tables(error)),
                // Only memory for the anon_vma, or for the stack's VMA, can be missing.
                Err(_) => {
                    return Err(FaultError::OutOfMemory(FrameError::OutOfFrames { order: 0 }));
                }
            };
            // A VMA that is busy although no call is under way: the call has panicked, and nothing
            // is known of the pages.
            if step == Step::NeedsRight {
                return Err(FaultError::Unmapped(at));
            }
            if let Some(outcome) = self.finish(step, at, want, fresh, &mut reclaimed)? {
                return Ok(outcome);
            }
        }
    }
}
