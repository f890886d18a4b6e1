//! The one door of calls: each step that a call of [`vma::Writer`] plans is applied here.
//!
//! [`Host::apply`] shows the way of every step: its memory is promised and prepared, its range is
//! closed, its pages change with one flush, its range opens. [`vma::CallStep`] says why in this
//! order.

use alloc::vec::Vec;
use core::{cell::Cell, ops::Range};

use grace::Concurrent;
use machine::{Frame, Machine, VirtRange};
use maple::RefCounted;
use paging::{Format, Mapping, Reserve, SweepChange};
use vma::{Advice, CallStep, EnteredRange, Host, SpaceId, VmFlags, Vma, Work};

use crate::{
    Backing, Error, MemoryPages,
    addresses::virt,
    change::gather::{SweptPages, TakenPages},
    change::move_pages::Moving,
    change::sweep::CutPage,
    entry_marks::{clear_of_object, is_guard, is_mark},
    error::no_memory,
    fault::rights,
    object::mappings::Family,
    space::Core,
    thresholds::PASSED_RANGES,
};

/// The pages behind the VMAs of a call: the host of its [`Calls`](crate::Calls).
pub struct PageHost<'a, M: Machine, F: Format, G: Concurrent> {
    pub(crate) core: &'a Core<M, F, G>,
    /// Bytes that the VMAs needed before the call.
    before: usize,
    /// Bytes that they need more than before, once the call has ended.
    added: isize,
    /// Bytes that were promised to the call.
    promised: Cell<usize>,
    /// Why a step was refused, where `vma` has no name for it. The call fails with it.
    refused: Option<Error>,
    /// The first failure that was [noted](Self::note).
    failed: Option<paging::Error>,
    /// Locked memory that has become writable, which gets pages after the call. Best effort: a
    /// range for which there is no memory here is left out.
    pub(super) to_bring_in: Vec<Range<usize>>,
    /// Pages that MADV_REMOVE frees in their objects after the call.
    pub(super) to_remove: Vec<(Backing<M>, Range<u64>)>,
    /// The family of the space, if the call may map objects.
    family: Option<&'a RefCounted<Family>>,
    /// The tables for huge pages that a range cuts.
    reserve: Option<Reserve<'a, M, F, G>>,
    pub(super) moving: Moving<'a, M, F, G>,
    /// The ranges that a search for a place has passed over.
    passed_over: Cell<usize>,
}

impl<'a, M: Machine, F: Format, G: Concurrent> PageHost<'a, M, F, G> {
    pub(crate) fn new(core: &'a Core<M, F, G>, family: Option<&'a RefCounted<Family>>) -> Self {
        PageHost {
            core,
            before: 0,
            added: 0,
            promised: Cell::new(0),
            refused: None,
            failed: None,
            to_bring_in: Vec::new(),
            to_remove: Vec::new(),
            family,
            reserve: None,
            moving: Moving::new(),
            passed_over: Cell::new(0),
        }
    }

    /// A call begins, with the mmap lock.
    pub(super) fn begin(&mut self) {
        self.before = self.core.vmas.accounted();
    }

    /// The call has ended, and the mmap lock is still held.
    pub(super) fn count_added(&mut self) {
        self.added = self.core.vmas.accounted().wrapping_sub(self.before) as isize;
    }

    /// Makes the promises those that the VMAs need, once the mmap lock is released.
    pub(super) fn settle(&mut self) {
        let added = core::mem::take(&mut self.added);
        if let Some(commitment) = self.core.commitment.get() {
            commitment.settle(added - self.promised.take() as isize);
        }
    }

    /// Tells faults that the VMAs have changed, before a sweep.
    pub(crate) fn count_change(&self) {
        #[cfg(not(loom))]
        debug_assert!(self.core.vmas.try_write().is_none(), "pages change without the mmap lock");
        self.core.changes.count(self.core.tables.machine());
    }

    /// Splits the huge pages that a range cuts. The VMAs have changed, and faults know it; or
    /// nothing of the kind is to be known.
    pub(crate) fn split_ends(&mut self, range: &Range<usize>) {
        if !self.core.huge.may_exist() {
            return;
        }
        let (Some(mut reserve), Some(range)) = (self.reserve.take(), virt(range.clone())) else {
            return;
        };
        let mut pending = self.core.tables.no_flush();
        // SAFETY: the space owns the pages, and their entries hold references. The flush is done
        // below.
        let split = unsafe { self.core.tables.split_ends(range, &mut reserve, &mut pending) };
        pending.flush();
        self.note(split);
    }

    /// Removes all pages of the range and gives their frames back, a gather for each flush. Tables
    /// that a forked space shares are left to it. The tables at the ends of the range are this
    /// space's own (`prepare`), so this needs no memory.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        self.sweep_out(range, false, ALL);
    }

    /// As [`remove`](Self::remove), but keeps guard pages, whose frame is `kept`; and with `marks`,
    /// write-protected pages leave their marks.
    pub(super) fn remove_but(&mut self, range: Range<usize>, kept: Option<Frame>, marks: bool) {
        let Some(guard) = kept else { return self.remove(range) };
        let marks = marks.then_some(guard);
        let clears = |page: &Mapping| match page.frame {
            _ if is_guard(page, guard) => SweepChange::Keep,
            frame if marks == Some(frame) && is_mark(page.attrs) => SweepChange::Keep,
            _ => clear_of_object(page, marks),
        };
        self.sweep_out(range, false, TakenPages::Those(clears));
    }

    pub(super) fn sweep_out(
        &mut self,
        range: Range<usize>,
        may_wait: bool,
        clears: TakenPages<impl FnMut(&Mapping) -> SweepChange>,
    ) {
        self.count_change();
        self.split_ends(&range);
        let left = self.core.leave_shared(range.clone());
        let swept = match may_wait {
            true => self.core.take_out_and_wait(range, clears),
            false => self.core.take_out(range, clears),
        };
        self.note(left.and(swept));
    }

    /// In a debug build, checks that a range that was unmapped has no pages: also where a VMA was
    /// never touched, so that its step had no work on pages. Called with the mmap lock.
    #[inline]
    pub(super) fn check_unmapped(&self, range: Range<usize>) {
        if cfg!(debug_assertions)
            && let Some(range) = virt(range)
        {
            let guard = G::pin();
            let found = self.core.tables.walk(&guard).pages(range).next();
            assert!(found.is_none(), "an unmapped range has a page: {found:?}");
        }
    }

    /// Notes a failure, if it is the first: corrupt tables, or no memory for marks of absent pages.
    pub(crate) fn note(&mut self, done: Result<(), paging::Error>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    /// The first failure that was [noted](Self::note).
    pub(crate) fn noted(&self) -> Result<(), paging::Error> {
        self.failed.map_or(Ok(()), Err)
    }

    /// How the call ends: with a failure that was noted, whatever its steps have ended with; or
    /// with the error for which a step has ended with [a stand-in](Self::refuse).
    pub(crate) fn outcome<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        self.noted()?;
        match (done, self.refused.take()) {
            (Err(Error::Vma(vma::Error::WrongKind)), Some(refused)) => Err(refused),
            (done, _) => done,
        }
    }

    /// Tables of this space's own, and those for huge pages that the range cuts.
    fn prepare_tables(&mut self, range: VirtRange, work: TableWork) -> Result<(), vma::Error> {
        match work {
            TableWork::Empty => self.core.tables.unshare_ends(range),
            _ => self.core.tables.unshare(range),
        }
        .map_err(no_memory)?;
        if self.core.huge.may_exist() {
            self.reserve = Some(self.core.tables.reserve_ends(range).map_err(no_memory)?);
        }
        Ok(())
    }
}

/// All pages of a range.
pub(crate) const ALL: TakenPages<fn(&Mapping) -> SweepChange> = TakenPages::All;

/// Work on the pages of a range, for which tables are prepared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableWork {
    /// They go: only the tables at the ends of the range must be this space's own.
    Empty,
    /// They change: all tables must be.
    Protect,
}

impl<M: Machine, F: Format, G: Concurrent> Host<Backing<M>, G> for PageHost<'_, M, F, G> {
    const MARKS_TOUCHED: bool = true;

    /// Memory is promised, an object knows of its map, and nothing waits in the range.
    #[inline]
    fn admit(
        &mut self,
        space: SpaceId,
        growth: isize,
        enters: Option<&EnteredRange>,
        vma: Option<&Vma<Backing<M>>>,
    ) -> Result<(), vma::Error> {
        self.refused = None;
        // A copy of the VMAs (`vma::Writer::duplicate`) has no pages of its own.
        if space != self.core.vmas.id() {
            return Err(vma::Error::NotHere);
        }
        if let Ok(more @ 1..) = usize::try_from(growth) {
            self.promise(more)?;
        }
        if let Some(enters) = enters {
            if let Some(vma) = vma.filter(|vma| vma.file.is_some()) {
                self.map(enters.range.clone(), vma, enters.new)?;
            }
            self.claim(&enters.range);
        }
        Ok(())
    }

    fn apply(&mut self, mut step: CallStep<'_, '_, Backing<M>, G>) -> Result<(), vma::Error> {
        step.hold()?;
        self.prepare_work(step.work())?;
        // Until its rights have changed, a first touch in a neighbour brings in no huge page that
        // reaches into the range. Whatever the policy is now: a fault may have asked before it
        // changed.
        let apart = self.core.huge.may_exist() && step.vma().is_some_and(|vma| vma.file.is_none());
        step.close(apart)?;
        let done = self.carry_out(&mut step);
        step.open();
        done
    }

    fn waiting(&self, range: Range<usize>) -> Option<Range<usize>> {
        let machine = self.core.tables.machine();
        let found = self.core.waiting.overlapping(machine, &range)?;
        let passed = self.passed_over.get();
        self.passed_over.set(passed + 1);
        match passed < PASSED_RANGES {
            true => Some(found),
            false => self.core.waiting.hull(machine),
        }
    }

    fn end_wait(&mut self) -> bool {
        self.core.waiting.flush(&self.core.tables) > 0
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Prepares all memory that the work may need.
    fn prepare_work(&mut self, work: &Work) -> Result<(), vma::Error> {
        match work {
            Work::Unmap { range, .. } | Work::Replace(range) => {
                self.prepare(range.clone(), TableWork::Empty)
            }
            Work::Protect { range, .. } => self.prepare(range.clone(), TableWork::Protect),
            Work::Move { from, to, stays } => self.prepare_move(from, *to, *stays),
            // An advice prepares part by part.
            Work::Nothing | Work::Advise { .. } => Ok(()),
        }
    }

    /// Changes the pages, and flushes. Only an advice may fail.
    fn carry_out(&mut self, step: &mut CallStep<'_, '_, Backing<M>, G>) -> Result<(), vma::Error> {
        match (step.work(), step.vma()) {
            (Work::Advise { range, advice: Advice::Collapse }, Some(_)) => {
                let range = range.clone();
                return self.collapse(range, step);
            }
            (Work::Unmap { range, may_wait: true }, _) => {
                let wait = self.core.waiting.is_on();
                self.sweep_out(range.clone(), wait, ALL);
            }
            (Work::Unmap { range, .. } | Work::Replace(range), _) => {
                // Holes in the range may wait.
                self.claim(range);
                self.remove(range.clone());
            }
            (Work::Protect { range, old }, Some(now)) => self.protect(range.clone(), now, *old),
            (Work::Move { from, to, .. }, _) => self.move_pages(from.clone(), *to),
            (Work::Advise { range, advice }, Some(vma)) => {
                return self.advise(range.clone(), vma, *advice);
            }
            (Work::Protect { .. } | Work::Advise { .. }, None) => {
                debug_assert!(false, "this work has a VMA");
            }
            // Not applied here.
            (Work::Nothing, _) => {}
        }
        Ok(())
    }

    /// The call fails with this error. Its steps end with one of `vma`, which is not the call's.
    pub(super) fn refuse(&mut self, error: impl Into<Error>) -> vma::Error {
        self.refused = Some(error.into());
        vma::Error::WrongKind
    }

    /// Prepares tables of this space's own for work on the pages of a range.
    pub(crate) fn prepare(
        &mut self,
        range: Range<usize>,
        work: TableWork,
    ) -> Result<(), vma::Error> {
        let Some(range) = virt(range) else { return Ok(()) };
        match self.prepare_tables(range, work) {
            Err(vma::Error::OutOfMemory) if self.core.waiting.flush(&self.core.tables) > 0 => {
                self.prepare_tables(range, work)
            }
            prepared => prepared,
        }
    }

    /// Tells an object of a map in a range. The step may still fail, and the VMA may join its
    /// neighbours.
    fn map(
        &mut self,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        new: bool,
    ) -> Result<(), vma::Error> {
        let (Some(file), Some(family)) = (&vma.file, self.family) else { return Ok(()) };
        let object = file.object();
        // Its frame numbers mean nothing here; or a copy of a page would have no source.
        let foreign = !file.is_at_home(self.core.tables.paging());
        if foreign || vma.is_private() && object.info().device_memory.is_some() {
            return Err(vma::Error::NotHere);
        }
        let own = core::ptr::from_ref(&self.core.tables).cast();
        object.mappings().add(self.core.tables.machine(), family, own, range)?;
        // Added first: a seal that this look misses finds the range. A map that is moved was found,
        // or is found.
        self.core.tables.machine().step(machine::SharedAccess::Other);
        let writes = VmFlags::SHARED | VmFlags::MAYWRITE;
        let admits = || object.in_memory().is_none_or(MemoryPages::admits_writes);
        match new && vma.flags.contains(writes) && !admits() {
            true => Err(vma::Error::Sealed),
            false => Ok(()),
        }
    }

    fn promise(&self, bytes: usize) -> Result<(), vma::Error> {
        let Some(commitment) = self.core.commitment.get() else { return Ok(()) };
        // What the call has unmapped is promised until it ends.
        let promised = self.before + self.promised.get();
        let more = (self.core.vmas.accounted() + bytes).saturating_sub(promised);
        if more > 0 && !commitment.charge(more) {
            return Err(vma::Error::Overcommit);
        }
        self.promised.set(self.promised.get() + more);
        Ok(())
    }

    /// Makes nothing wait in a range.
    fn claim(&mut self, range: &Range<usize>) {
        if self.core.waiting.overlapping(self.core.tables.machine(), range).is_some() {
            self.core.waiting.flush(&self.core.tables);
        }
    }

    fn protect(&mut self, range: Range<usize>, now: &Vma<Backing<M>>, old: VmFlags) {
        let before = old & (VmFlags::LOCKED | VmFlags::WRITE | VmFlags::SHARED);
        if before == VmFlags::LOCKED
            && now.flags.contains(VmFlags::WRITE)
            && self.to_bring_in.try_reserve(1).is_ok()
        {
            self.to_bring_in.push(range.clone());
        }
        self.count_change();
        self.split_ends(&range);
        let change = |page: &Mapping| match self.core.is_special(page.frame) {
            true => SweepChange::Keep,
            // A page that is not exclusive stays read-only: its first write must fault.
            false => SweepChange::Set(rights::attrs_kept::<M, F>(now, page.attrs)),
        };
        let swept = self.core.sweep(SweptPages::Own, range, CutPage::Fails, change);
        self.note(swept);
    }
}
