//! Steps: the changes of a call to the VMAs, and to the pages behind them. [`CallStep`] has the
//! essay.

use core::ops::Range;

use grace::Reclaim;

use crate::{
    Area, Error, MappedFile, RefCounted, SpaceId, Vma,
    host::Host,
    space::Writer,
    step_plan::{StepPlan, StepStores},
    tree::{TreeWrite, Vmas},
    work::Work,
};

/// One step of a call.
///
/// A call of the [`Writer`] looks at VMAs and decides on a step: the VMAs to store
/// or to erase, and the [`Work`] on pages that belongs to it. A call on several VMAs makes several
/// steps, one after the other. The host [admits](Host::admit) each of them first. A step with work
/// on pages then goes through one door, [`Host::apply`], where the host works between the stores:
///
/// | the step | the host |
/// | --- | --- |
/// | [`hold`](Self::hold): the VMAs that a move must find unchanged are busy | |
/// | | prepares all memory for its work; a failure drops the step |
/// | [`close`](Self::close): the range is gone, busy, or has its new rights | |
/// | | changes the pages, and flushes |
/// | [`open`](Self::open): the new VMAs, joined with their neighbours | |
///
/// A host without pages is `()`: its steps are only the [last stores](Self::store).
///
/// # Why in this order
/// A page fault takes no lock on VMAs. It looks up a VMA, prepares a page, takes the lock of the
/// entry's table, and looks the VMA up again ([`is_current`](crate::AddressSpace::is_current)); if
/// it finds the same one, it stores the entry. So once a store is done, a fault that has not stored
/// its entry yet finds another VMA, or none. The work on pages comes after that store, and finds
/// the entries of all faults that were faster.
///
/// A range that changes hands is *busy* meanwhile ([`Vma::is_busy`]): its VMA makes faults wait for
/// the mmap lock. Otherwise a fault could bring in a page of the new map before the old pages are
/// gone, and the sweep would take it for an old one.
///
/// A neighbour is joined when the range opens. Before, it keeps a VMA of its own, so a fault there
/// sees the rights that its own pages have.
///
/// # A step that is given up
/// If a step is dropped before [`close`](Self::close), nothing has changed: the held VMAs are given
/// back. If it is dropped between `close` and [`open`](Self::open), because the host panics, a busy
/// VMA stays busy: its range may still have old pages. It merges with no other VMA, and a call may
/// unmap or replace it.
pub struct CallStep<'s, 'a, F: MappedFile, R: Reclaim> {
    vmas: &'s mut Vmas<'a, F, R>,
    plan: StepPlan<F>,
    phase: StepPhase,
    /// The busy VMAs of a move: the new one, and the old one.
    busy: Option<[RefCounted<Vma<F>>; 2]>,
    /// The whole change is to be stored at the end; so many neighbours join then.
    left: Option<usize>,
}

/// How far a step has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepPhase {
    Planned,
    Held,
    Closed,
}

impl<'s, 'a, F: MappedFile, R: Reclaim> CallStep<'s, 'a, F, R> {
    fn new(vmas: &'s mut Vmas<'a, F, R>, plan: StepPlan<F>) -> Self {
        CallStep { vmas, plan, phase: StepPhase::Planned, busy: None, left: None }
    }

    /// The work on pages.
    #[inline]
    pub fn work(&self) -> &Work {
        &self.plan.work
    }

    /// The contents that a range gets, before [`close`](Self::close); with [`Work::Protect`] and
    /// [`Work::Advise`] those of the range, at any time.
    pub fn vma(&self) -> Option<&Vma<F>> {
        self.plan.vma()
    }

    /// Makes busy what the work must find unchanged: the source of a move, and VMAs that stay while
    /// all their pages change. Other steps hold nothing. Once it has held, it does nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed.
    pub fn hold(&mut self) -> Result<(), Error> {
        let CallStep { vmas, plan, busy, phase, .. } = self;
        if *phase != StepPhase::Planned {
            return Ok(());
        }
        match (&plan.stores, &plan.work) {
            (StepStores::Move { new, area, .. }, Work::Move { from, .. }) => {
                let [_, old] = busy.insert([vmas.busy(&new.vma)?, vmas.busy(&area.vma)?]);
                // Those of the worst case, so that nothing fails once pages have moved.
                vmas.tree.preallocate_writes(6)?;
                vmas.store(from.start, from.end, old.clone())?;
            }
            (StepStores::Held(areas), work) if work.holds() => {
                let held = || areas.iter().flatten();
                vmas.tree.preallocate_writes(2 * held().count())?;
                for (done, area) in held().enumerate() {
                    let stored = vmas.busy(&area.vma).and_then(|busy| vmas.put_area(area, busy));
                    if stored.is_err() {
                        held().take(done).for_each(|area| vmas.put_back(area));
                        return stored;
                    }
                }
            }
            _ => {}
        }
        *phase = StepPhase::Held;
        Ok(())
    }

    /// Gives back what is held: these VMAs are as they were.
    fn give_back(&mut self) {
        let CallStep { vmas, plan, .. } = self;
        match &plan.stores {
            StepStores::Move { area, .. } => {
                // One VMA again. The memory for this store was allocated when it was held.
                let back = vmas.store(area.start, area.end, area.vma.clone());
                debug_assert!(back.is_ok(), "the memory of the store was allocated before");
            }
            StepStores::Held(areas) if plan.work.holds() => {
                areas.iter().flatten().for_each(|area| vmas.put_back(area));
            }
            _ => {}
        }
    }

    /// Closes the range: it is gone, or busy, or has its new rights. [Holds](Self::hold) first, if
    /// the host has not. If `apart`, neighbours with the same rights join only when the range
    /// [opens](Self::open). Once it has closed, it does nothing.
    ///
    /// Cost: one store; two for a move.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed, and it may be tried again.
    pub fn close(&mut self, apart: bool) -> Result<(), Error> {
        if self.phase == StepPhase::Closed {
            return Ok(());
        }
        self.hold()?;
        let CallStep { vmas, plan, busy, left, .. } = self;
        match &mut plan.stores {
            StepStores::One(change, more) => {
                let whole = change.start..change.end;
                let first = match (&change.vma, &plan.work) {
                    (Some(vma), Work::Replace(_)) => Some((whole.clone(), vmas.busy(vma)?)),
                    (Some(vma), Work::Protect { range, .. }) if apart && *range != whole => {
                        Some((range.clone(), vma.clone()))
                    }
                    _ => None,
                };
                match first {
                    None => {
                        // The work needs the VMA.
                        let kept = match plan.work {
                            Work::Protect { .. } => change.vma.clone(),
                            _ => None,
                        };
                        vmas.put_from(whole, &mut change.vma)?;
                        change.vma = kept;
                    }
                    Some((part, now)) => {
                        vmas.tree.preallocate_writes(2)?;
                        vmas.put(part.clone(), Some(now.clone()))?;
                        let neighbours = usize::from(whole.start < part.start)
                            + usize::from(part.end < whole.end);
                        vmas.state.count_apart(neighbours, &now);
                        *left = Some(neighbours);
                    }
                }
                vmas.state.count_more(*more);
            }
            // It cannot fail: the memory was allocated when the source was held.
            StepStores::Move { new, .. } => {
                let (Some([busy_new, busy_old]), Work::Move { from, .. }) =
                    (busy.take(), &plan.work)
                else {
                    return Ok(());
                };
                vmas.store(new.start, new.end, busy_new)?;
                // The new VMA may have merged with the old one.
                if from.start < new.start || new.end < from.end {
                    vmas.store(from.start, from.end, busy_old)?;
                }
            }
            // A new end has no work on pages: it is stored at once.
            StepStores::End { .. } | StepStores::Held(_) => {}
        }
        self.phase = StepPhase::Closed;
        Ok(())
    }

    /// Calls `work` with the VMA of [`Work::Advise`] while a part of it is busy: no fault brings a
    /// page in there.
    ///
    /// Cost: two stores.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::WrongKind`] for other work, [`Error::BadRange`] if the part
    /// is not in the VMA; `work` was not called.
    pub fn while_busy<T>(
        &mut self,
        part: Range<usize>,
        work: impl FnOnce(&Vma<F>) -> T,
    ) -> Result<T, Error> {
        let CallStep { vmas, plan, .. } = self;
        let (StepStores::Held([Some(area), _]), Work::Advise { .. }) = (&plan.stores, &plan.work)
        else {
            return Err(Error::WrongKind);
        };
        if part.is_empty() || part.start < area.start || area.end < part.end {
            return Err(Error::BadRange);
        }
        let busy = vmas.busy(&area.vma)?;
        vmas.tree.preallocate_writes(2)?;
        vmas.put(part, Some(busy))?;
        let done = work(&area.vma);
        // One VMA again.
        vmas.put_back(area);
        Ok(done)
    }

    /// Opens the range, when its pages are as its VMAs have them. The memory of all stores was
    /// allocated before the first, so they do not fail. Does nothing if the range is not closed.
    pub fn open(mut self) {
        if self.phase != StepPhase::Closed {
            return;
        }
        if matches!(self.plan.stores, StepStores::Held(_)) {
            return self.give_back();
        }
        let stores = core::mem::replace(&mut self.plan.stores, StepStores::Held([None, None]));
        let CallStep { vmas, plan, left, .. } = &mut self;
        match stores {
            StepStores::One(change, _) => {
                let (Some(neighbours), Some(vma)) = (*left, change.vma) else { return };
                let range = change.start..change.end;
                match vmas.put(range, Some(vma.clone())) {
                    Ok(()) => vmas.state.count_joined(neighbours, &vma),
                    // The call has had its effect. Should the join need more memory than was
                    // reserved, the neighbours stay apart, as they do where nothing joins them.
                    Err(error) => debug_assert!(neighbours > 0, "{error}"),
                }
            }
            StepStores::Move { new, left_behind, .. } => {
                let opened = vmas.open_move(new, left_behind, &plan.work);
                debug_assert!(opened.is_ok(), "the memory of all stores was allocated before");
            }
            StepStores::End { .. } | StepStores::Held(_) => {}
        }
    }

    /// Applies a step without pages: one store; two for a move.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed.
    pub fn store(mut self) -> Result<(), Error> {
        if self.phase != StepPhase::Planned {
            self.close(false)?;
            self.open();
            return Ok(());
        }
        let stores = core::mem::replace(&mut self.plan.stores, StepStores::Held([None, None]));
        self.vmas.store_all(stores)
    }
}

impl<F: MappedFile, R: Reclaim> Drop for CallStep<'_, '_, F, R> {
    #[inline]
    fn drop(&mut self) {
        if self.phase == StepPhase::Held {
            self.give_back();
        }
    }
}

impl<F: MappedFile, R: Reclaim> Vmas<'_, F, R> {
    /// A copy of a VMA that makes faults wait. No fault fills its anon_vma: the copy is about to
    /// be replaced, so that first write would be lost.
    fn busy(&self, vma: &Vma<F>) -> Result<RefCounted<Vma<F>>, Error> {
        let busy = Vma { busy: true, ..Vma::clone(vma) };
        busy.anon.close();
        Ok(RefCounted::new(busy)?)
    }

    /// Stores contents over a VMA that count as its own.
    fn put_area(&mut self, area: &Area<F>, vma: RefCounted<Vma<F>>) -> Result<(), Error> {
        self.put(area.start..area.end, Some(vma))
    }

    /// Stores a VMA again that was made busy.
    fn put_back(&mut self, area: &Area<F>) {
        let back = self.put_area(area, area.vma.clone());
        debug_assert!(back.is_ok(), "the memory of all stores was allocated before the first");
    }

    /// All stores of a step without work on pages.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn store_all(&mut self, stores: StepStores<F>) -> Result<(), Error> {
        match stores {
            StepStores::One(change, more) => {
                self.put(change.start..change.end, change.vma)?;
                self.state.count_more(more);
                Ok(())
            }
            StepStores::End { start, end, more } => {
                self.tree.set_end(start, end - 1)?;
                self.state.count_more(more);
                Ok(())
            }
            StepStores::Move { new, left_behind, .. } => {
                self.tree.preallocate_writes(2)?;
                self.store(new.start, new.end, new.vma)?;
                self.write(left_behind)
            }
            StepStores::Held(_) => Ok(()),
        }
    }

    /// The last stores of a move: the rest of the old VMA, and the new VMA.
    fn open_move(
        &mut self,
        new: Area<F>,
        left_behind: TreeWrite<F>,
        work: &Work,
    ) -> Result<(), Error> {
        let Work::Move { from, .. } = work else { return Ok(()) };
        let covers = left_behind.start <= new.start && new.end <= left_behind.end;
        let hole = left_behind.vma.is_none();
        self.write(left_behind)?;
        if covers {
            return Ok(());
        }
        // The parts of its range that the new VMA keeps: all, or the parts around the hole.
        let (low, high) = (new.start.max(from.end), new.end.min(from.start));
        if hole && new.start < from.end && from.start < new.end {
            if new.start < high {
                self.store(new.start, high, new.vma.clone())?;
            }
            if low < new.end {
                self.store(low, new.end, new.vma)?;
            }
            return Ok(());
        }
        self.store(new.start, new.end, new.vma)
    }
}

impl<F: MappedFile, R: Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// Applies a step. One without work on pages is a store, once the host has admitted it;
    /// inlined, so that its plan is never in memory.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn apply(&mut self, plan: StepPlan<F>) -> Result<(), Error> {
        let Writer { vmas, host } = self;
        if cfg!(debug_assertions)
            && let StepStores::One(change, more) = &plan.stores
        {
            vmas.check_known(change, *more);
        }
        host.admit(SpaceId::new(vmas.state), plan.growth, plan.enters.as_ref(), plan.vma())?;
        match plan.work {
            Work::Nothing => vmas.store_all(plan.stores),
            _ => host.apply(CallStep::new(vmas, plan)),
        }
    }
}
