//! Page faults: attempts, and the preparations between them (`prepare`). [`crate::protocol`]
//! explains why they need no lock of the address space.
//!
//! `attempt` has the parts of one attempt. If something is missing that cannot be had with a guard
//! held, the attempt ends with a `FaultStep` that names it, and `finish` gets it with nothing held.
//! By what the attempt finds, the way goes on in:
//!
//! ```text
//! a monitor's page ........ monitor/userfault.rs  also before the first write of a VMA
//! absent, anonymous ....... first_touch.rs        2 MiB: huge_page.rs; several: fault_blocks.rs
//! absent, with a mark ..... monitor/wp_unpopulated.rs     the page gets the mark
//! present, or an object's . small_page.rs         copy_on_write.rs: rules of copies;
//!                                                 new_frame.rs; fault_around.rs: neighbours
//! huge .................... huge_page.rs
//! in swap ................. reclaim/swap.rs       swap_in, from small_page.rs
//! ```
//!
//! At a hole, in a busy VMA, at a first write that a call has closed, where a fork has the tables,
//! and after too many attempts the fault takes the mmap lock. Then no VMA changes any more, and
//! only another fault can make it begin again. `rights` has the rights of pages, `zero_page` the
//! zero frame, `frame_ref` references to frames.
//!
//! A new kind of page is a file here, with a line in `attempt` or in `small_page`; and it is
//! special (`Core::is_special`) if no contents are there, so that sweeps leave it alone.

pub(crate) mod attempt;
pub(crate) mod copy_on_write;
pub(crate) mod fault_around;
pub(crate) mod fault_blocks;
pub(crate) mod first_touch;
pub(crate) mod frame_contents;
pub(crate) mod frame_ref;
pub(crate) mod huge_page;
pub(crate) mod new_frame;
mod prepare;
pub(crate) mod rights;
mod small_page;
pub(crate) mod zero_page;

use grace::Concurrent;
use machine::{FrameError, Machine, PageSize, VirtAddr};
use paging::Format;
use vma::VmFlags;

use crate::{
    Access, AddressSpace, FaultError, fault::attempt::FaultStep, fault::new_frame::NewFrame,
    fault::rights::WantedAccess, thresholds::FAULT_ATTEMPTS,
};

/// How a fault was handled. The access can be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultOutcome {
    /// A page was mapped, or got the right.
    Mapped,
    /// The page had the right already: another CPU was faster, or this CPU used an old translation,
    /// which is gone now.
    Spurious,
}

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
    /// [`FaultError`] names the signal of each that is the program's: [`FaultError::Unmapped`],
    /// [`FaultError::Denied`], [`FaultError::Guard`], [`FaultError::Object`],
    /// [`FaultError::Poisoned`]. The host has not helped: [`FaultError::UserFault`],
    /// [`FaultError::GroupLimit`]. [`FaultError::OutOfMemory`]: free memory, and try again.
    /// [`FaultError::Tables`]: the tables are corrupt.
    pub fn handle_fault(&self, at: VirtAddr, access: Access) -> Result<FaultOutcome, FaultError> {
        self.fault(at, WantedAccess::new(access))
    }

    #[inline]
    pub(crate) fn fault(
        &self,
        at: VirtAddr,
        want: WantedAccess,
    ) -> Result<FaultOutcome, FaultError> {
        let fresh = NewFrame::new(self.core.tables.paging(), self.core.group());
        let mut reclaimed = false;
        for _ in 0..FAULT_ATTEMPTS {
            let step = self.attempt(at, want, &fresh)?;
            if step == FaultStep::MappedFresh {
                fresh.mapped();
                return Ok(FaultOutcome::Mapped);
            }
            match self.finish(step, at, want, &fresh, &mut reclaimed)? {
                Some(outcome) => return Ok(outcome),
                None if step == FaultStep::NeedsLock => break,
                None => {}
            }
        }
        self.fault_locked(at, want, &fresh)
    }

    /// Ends an attempt that did something; prepares for the next one otherwise.
    fn finish(
        &self,
        step: FaultStep,
        at: VirtAddr,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
        reclaimed: &mut bool,
    ) -> Result<Option<FaultOutcome>, FaultError> {
        match step {
            FaultStep::Mapped | FaultStep::MappedObject | FaultStep::MappedHuge => {
                return Ok(Some(FaultOutcome::Mapped));
            }
            FaultStep::MappedFresh => {
                fresh.mapped();
                return Ok(Some(FaultOutcome::Mapped));
            }
            FaultStep::Spurious => {
                self.drop_translation(at);
                return Ok(Some(FaultOutcome::Spurious));
            }
            FaultStep::NeedsFrame => self.prepare(at, reclaimed, || fresh.prepare())?,
            FaultStep::NeedsObject => {
                if self.bring_in_object(at, reclaimed)? {
                    fresh.brought_in.set(true);
                }
            }
            FaultStep::NeedsZeroFrame => {
                self.prepare(at, reclaimed, || self.core.zero_frame.make())?
            }
            FaultStep::NeedsHuge => fresh.prepare_huge(),
            FaultStep::NeedsHugeZero => {
                if self.core.huge.zero(self.core.tables.paging()).make().is_err() {
                    fresh.deny_huge();
                }
            }
            FaultStep::NeedsUser(kind) => self.call_monitor(at, want, kind)?,
            FaultStep::NeedsSplit => match self.split_huge(at) {
                Ok(()) => {}
                Err(paging::Error::Frames(error)) => self.make_room(at, error.into(), reclaimed)?,
                Err(error) => return Err(FaultError::Tables(error)),
            },
            FaultStep::NeedsMemory(error) => self.make_room(at, error.into(), reclaimed)?,
            FaultStep::Again
            | FaultStep::NeedsLock
            | FaultStep::Replaced(_)
            | FaultStep::Flushing => {}
        }
        Ok(None)
    }

    /// Flushes this CPU's translation of the page, and the upper-level entries that led to it.
    fn drop_translation(&self, at: VirtAddr) {
        self.core.tables.flush_page_here(at, PageSize::Size4K);
    }

    /// The same on all CPUs that use the space.
    fn flush_everywhere(&self, at: VirtAddr) {
        self.core.tables.flush_page(at, PageSize::Size4K);
    }

    /// A fault that only the mmap lock can decide: at a hole, in a busy VMA, at a first write
    /// that a call has closed, or after too many attempts.
    fn fault_locked(
        &self,
        at: VirtAddr,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultOutcome, FaultError> {
        let mut reclaimed = false;
        // Prepared without the lock, if memory is at hand. If it is not, it may not be needed: the
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
                    return Ok::<_, vma::Error>(FaultStep::NeedsFrame);
                }
                if !found && calls.expand_stack(addr, self.stack_limit).is_err() {
                    error = Some(FaultError::Unmapped(at));
                    return Ok(FaultStep::Again);
                }
                let area = calls.area_at(addr).filter(|area| want.is_allowed(area.vma.flags));
                if let Some(area) = area {
                    if let Err(failed) =
                        self.refuse_guard(self.core.tables.walk(&G::pin()).get(at), at)
                    {
                        error = Some(failed);
                        return Ok(FaultStep::Again);
                    }
                    let is_huge = || self.may_be_huge(at, &(area.start..area.end), &area.vma);
                    match area.vma.is_private() && (want.writes() || is_huge()) {
                        true => calls.first_write(addr)?,
                        false => area.vma.mark_touched_for_call(),
                    }
                }
                // No VMA changes now: only another fault can be in the way.
                match self.attempt(at, want, fresh) {
                    // It was not for a busy VMA: a fault of another CPU has unlinked a table, and
                    // the page may be huge now.
                    Ok(FaultStep::NeedsLock)
                        if !calls.area_at(addr).is_some_and(|area| area.vma.is_busy()) =>
                    {
                        Ok(FaultStep::Again)
                    }
                    Ok(step) => Ok(step),
                    Err(failed) => {
                        error = Some(failed);
                        Ok(FaultStep::Again)
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
            if step == FaultStep::NeedsLock {
                return Err(FaultError::Unmapped(at));
            }
            if let Some(outcome) = self.finish(step, at, want, fresh, &mut reclaimed)? {
                return Ok(outcome);
            }
        }
    }
}
