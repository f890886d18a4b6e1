//! One attempt of a fault: look, prepare, commit.
//!
//! 1. *Look* ([`FirstLook`]): the VMA, the count of changes before it, and the entry, without a
//!    lock.
//! 2. *Prepare*: the frame of the entry. If the entry needs something that cannot be had with a
//!    guard held, the attempt ends with a step that names it, and the next attempt finds it.
//! 3. *Commit*: with the lock of the table held, the second look
//!    ([`is_current`](AddressSpace::is_current)), then the change of the entry. If something is not
//!    as it was looked at, nothing changes, and the next attempt begins anew.
//!
//! Each kind of page has its file: absent pages of anonymous memory (`first_touch`), small pages
//! that are present or an object's (`small_page`, `copy_on_write`), huge pages (`huge_page`), pages
//! in swap (`reclaim/swap`), pages that a monitor resolves (`monitor/userfault`).

use core::ops::Range;

use grace::Concurrent;
use machine::{FrameError, Machine, PageSize, VirtAddr};
use paging::{Error as TableError, Failed, Format, Mapping, PendingFlush};
use vma::{TouchMark, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, FaultError, UserFaultKind, fault::new_frame::NewFrame,
    fault::rights::WantedAccess, space::change_count::Changes,
};

/// The end of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultStep {
    Mapped,
    /// The fresh frame was mapped.
    MappedFresh,
    /// The object's frame was mapped.
    MappedObject,
    Spurious,
    /// The fresh frame replaced this one, whose translations must be flushed.
    Replaced(machine::Frame),
    /// Another CPU replaced the page and has not ended its flush.
    Flushing,
    /// The fresh frame, or its contents, does not fit the entry.
    NeedsFrame,
    /// The object must bring the page in.
    NeedsObject,
    /// The zero frame is needed, and there is none yet.
    NeedsZeroFrame,
    /// The VMA was another one at the second look.
    Again,
    /// Only the mmap lock can decide.
    NeedsLock,
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

/// The first look of a fault.
pub(crate) struct FirstLook<'g, M: Machine, G: Concurrent> {
    pub(crate) guard: &'g G::Guard,
    /// The address of the access.
    pub(crate) at: VirtAddr,
    /// The start of its page.
    pub(crate) addr: usize,
    /// The addresses of the VMA.
    pub(crate) range: Range<usize>,
    pub(crate) vma: &'g Vma<Backing<M>>,
    /// The count of changes before the look.
    pub(crate) seen: u64,
}

impl<M: Machine, G: Concurrent> FirstLook<'_, M, G> {
    /// The page of the access.
    pub(crate) fn page(&self) -> VirtAddr {
        self.at.align_down(PageSize::Size4K)
    }
}

type Changed<'p, M, F, G> = (FaultStep, PendingFlush<'p, M, F, G>);

/// The step after a change of the page at `at`, which is flushed, or which the tables have refused.
#[inline]
pub(crate) fn flushed<M: Machine, F: Format, G: Concurrent>(
    done: Result<Changed<'_, M, F, G>, Failed<'_, M, F, G>>,
    at: VirtAddr,
) -> Result<FaultStep, FaultError> {
    match done {
        Ok((step, pending)) => {
            pending.flush();
            Ok(step)
        }
        Err(failed) => refused(failed, at),
    }
}

fn refused<M: Machine, F: Format, G: Concurrent>(
    failed: Failed<'_, M, F, G>,
    at: VirtAddr,
) -> Result<FaultStep, FaultError> {
    let error = failed.error;
    drop(failed);
    match error {
        TableError::Frames(error) => Ok(FaultStep::NeedsMemory(error)),
        // The fork has the mmap lock.
        TableError::Fork => Ok(FaultStep::NeedsLock),
        // A huge page came first, or small ones.
        TableError::Occupied(_) => Ok(FaultStep::Again),
        TableError::NotCanonical(_) | TableError::Kernel(_) => Err(FaultError::Unmapped(at)),
        error => Err(FaultError::Tables(error)),
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// One attempt.
    pub(super) fn attempt(
        &self,
        at: VirtAddr,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, FaultError> {
        let page = at.align_down(PageSize::Size4K);
        let Ok(addr) = usize::try_from(page.get()) else { return Err(FaultError::Unmapped(at)) };
        let guard = G::pin();
        let seen = self.core.changes.now(self.core.tables.machine());
        let Some((range, vma)) = self.core.vmas.lookup(&guard, addr) else {
            return Ok(FaultStep::NeedsLock);
        };
        if vma.is_busy() {
            return Ok(FaultStep::NeedsLock);
        }
        if !want.is_allowed(vma.flags) {
            return Err(FaultError::Denied(at, want.access));
        }
        let mut look = FirstLook { guard: &guard, at, addr, range, vma, seen };
        if let Some(step) = self.before_first_write(&look, want)? {
            return Ok(step);
        }
        match self.mark_touched(&look, want) {
            TouchMark::Marked => {}
            TouchMark::LookAgain => look.seen = Changes::NEVER,
            TouchMark::NeedsLock => return Ok(FaultStep::NeedsLock),
        }
        let place = self.core.tables.walk(&guard).look(page);
        let found = place.mapping();
        let has_mark = found.is_some_and(|page| self.core.is_mark(&page));
        if vma.flags.intersects(VmFlags::UFFD) {
            let present = found.filter(|_| !has_mark);
            let brought_in = fresh.brought_in.get();
            if let Some(step) = self.userfault_step(&look, present, want, brought_in) {
                // A call may have moved the page away since the look: then it is not absent.
                if found.is_none() && !self.is_current(&look) {
                    return Ok(FaultStep::Again);
                }
                // As in Linux, before the fault asks the object for its own page.
                if vma.file.is_some() && found.is_none() && !want.writes() {
                    self.fault_around(&look);
                }
                return Ok(step);
            }
        }
        match found {
            Some(page) if page.size != PageSize::Size4K => {
                self.huge_present(&look, page, want, fresh)
            }
            None if vma.file.is_none() => self.touch_absent(&look, &place, want, fresh),
            Some(_) if has_mark && vma.file.is_none() => {
                self.touch_marked(&look, &place, want, fresh)
            }
            _ => self.fault_small(&look, &place, want, fresh, has_mark),
        }
    }

    /// The answers to a write that come before the VMA gets an anon_vma. As in Linux, a guard page
    /// of a file gives its VMA none, nor does a page that a monitor protects.
    #[inline]
    fn before_first_write(
        &self,
        look: &FirstLook<'_, M, G>,
        want: WantedAccess,
    ) -> Result<Option<FaultStep>, FaultError> {
        let vma = look.vma;
        let protects = vma.flags.contains(VmFlags::UFFD_WP);
        if !want.writes() || vma.is_faulted() || (vma.file.is_none() && !protects) {
            return Ok(None);
        }
        let found = self.core.tables.walk(look.guard).get(look.page());
        if vma.file.is_some() {
            self.refuse_guard(found, look.at)?;
        }
        let is_present = |page: &Mapping| protects && !self.core.is_mark(page);
        let present = found.filter(is_present);
        Ok(present.and_then(|page| self.userfault_step(look, Some(page), want, false)))
    }

    /// Marks the VMA before a page of it comes in.
    #[inline]
    fn mark_touched(&self, look: &FirstLook<'_, M, G>, want: WantedAccess) -> TouchMark {
        match want.writes() && look.vma.is_private() {
            true if self.core.vmas.first_write(look.guard, look.addr, look.vma) => {
                TouchMark::Marked
            }
            true => TouchMark::NeedsLock,
            false => look.vma.mark_touched(),
        }
    }

    /// The second look, with the table's lock held: whether the VMA of the first look still decides
    /// about the page. Cost: a load, if no call has swept pages since; otherwise a descent.
    #[inline]
    pub(crate) fn is_current(&self, look: &FirstLook<'_, M, G>) -> bool {
        let (machine, changes) = (self.core.tables.machine(), &self.core.changes);
        changes.is(machine, look.seen) || self.core.vmas.is_current(look.guard, look.addr, look.vma)
    }
}
