//! Pins for reading that last: registered buffers of devices (FOLL_LONGTERM).
//!
//! A pin for reading is a snapshot ([`crate::pins`]). A device that reads a buffer again and again
//! wants what the program writes there meanwhile. So each private page becomes the program's own
//! first, also in a map that is not writable, as by a write of a debugger
//! ([`crate::pins::foll_force`]). The pin is counted as one for writing, so that a fork copies the
//! page for the child.
//!
//! # Correctness
//! The pages are made exclusive by faults. With the mmap lock, each is looked at once more, and
//! pinned: no fork shares it in between, and no call takes it away. A few pages are pinned at a
//! time: reclaim leaves them alone from then on, so a buffer that is larger than the limit of a
//! group ends in an error, and not in a loop.

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{EntryChange, Format, Mapping, unpin};
use vma::PAGE_SIZE;

use crate::{
    Access, AddressSpace, FaultError, UserPins, fault::rights::WantedAccess, pins::CountedWriter,
    thresholds::LONG_TERM_PAGES,
};

/// The pages that were pinned, and whether no more can be.
struct Found {
    pinned: usize,
    is_end: bool,
}

/// The pins of a call under way. They end with it if a host's call panics.
struct Taken<'a, M: Machine> {
    machine: &'a M,
    frames: &'a mut [Frame],
    pinned: usize,
}

impl<'a, M: Machine> Taken<'a, M> {
    /// The pinned pages, whose pins are the caller's from here on.
    fn keep(mut self) -> &'a [Frame] {
        let pinned = core::mem::take(&mut self.pinned);
        &core::mem::take(&mut self.frames)[..pinned]
    }
}

impl<M: Machine> Drop for Taken<'_, M> {
    fn drop(&mut self) {
        // SAFETY: these pins are ours, and nothing has used them.
        unsafe { unpin(self.machine, &self.frames[..self.pinned]) };
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Pins the pages from the one that contains `at` on for reading, one for each element of
    /// `into`, for as long as the holder likes. Stops early where the program may not read: see
    /// [`UserPins::frames`].
    ///
    /// The holder sees later writes of the program, also after forks, until the program
    /// unmaps or discards the page. Pages of private maps are copied for it if they are shared.
    ///
    /// Cost: a fault and two looks for each page, and the mmap lock.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// As for [`handle_fault`](Self::handle_fault), for the first page; nothing is pinned then.
    pub fn pin_pages_long_term<'a>(
        &'a self,
        at: usize,
        into: &'a mut [Frame],
    ) -> Result<UserPins<'a, M>, FaultError> {
        let machine = self.core.tables.machine();
        let counted = CountedWriter::begin(machine, &self.pins).0;
        let mut taken = Taken { machine, frames: into, pinned: 0 };
        let mut part = LONG_TERM_PAGES;
        while taken.pinned < taken.frames.len() {
            let next = (at & !(PAGE_SIZE - 1)).checked_add(taken.pinned * PAGE_SIZE);
            let Some(next) = next else { break };
            let rest = &mut taken.frames[taken.pinned..];
            let len = part.min(rest.len());
            let found = match self.pin_settled(next, &mut rest[..len]) {
                Ok(found) => found,
                Err(_) if taken.pinned != 0 => break,
                Err(error) => return Err(error),
            };
            taken.pinned += found.pinned;
            if found.is_end {
                break;
            }
            // Pages that reclaim has taken back meanwhile come in one by one, so that the first
            // of them is not the price of the last.
            if found.pinned < len {
                part = 1;
            }
        }
        Ok(UserPins::new(machine, taken.keep(), Some(counted)))
    }

    /// Brings pages in, and pins those that are still there with the mmap lock.
    fn pin_settled(&self, at: usize, into: &mut [Frame]) -> Result<Found, FaultError> {
        let first = VirtAddr::new(at as u64);
        let count = into.len() as u64;
        let pages = || (0..count).map_while(|page| first.checked_add(page << 12));
        let (mut settled, mut failed) = (0, None);
        for page in pages() {
            match self.settle_page(page) {
                Ok(()) => settled += 1,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let (0, Some(error)) = (settled, failed) {
            return Err(error);
        }
        let (mut taken, mut fit) = (Ok(0), 0);
        let done = self.change(|_| {
            fit = pages().take(settled).take_while(|page| self.is_settled(*page)).count();
            if fit > 0 {
                taken = self.take_pins(at, Access::Read, &mut into[..fit], false);
            }
            Ok::<_, vma::Error>(())
        });
        if let Err(crate::Error::Tables(error)) = done {
            return Err(FaultError::Tables(error));
        }
        let pinned = taken?;
        // If fewer pages were pinned than fit, the next one is the memory of a device.
        let is_end = pinned < fit || fit == settled && failed.is_some();
        Ok(Found { pinned, is_end })
    }

    /// Whether the map at an address is private.
    fn is_private_at(&self, page: VirtAddr) -> bool {
        let guard = G::pin();
        let found = self.core.vmas.lookup(&guard, page.get() as usize);
        found.is_none_or(|(_, vma)| vma.is_private())
    }

    /// Brings a page in, and makes it the program's own in a private map.
    fn settle_page(&self, page: VirtAddr) -> Result<(), FaultError> {
        self.handle_fault(page, Access::Read)?;
        if self.is_private_at(page) {
            self.fault(page, WantedAccess::forced(Access::Write))?;
        }
        Ok(())
    }

    /// Whether a page is as [`settle_page`](Self::settle_page) leaves it. The caller has the mmap
    /// lock.
    fn is_settled(&self, page: VirtAddr) -> bool {
        let want = match self.is_private_at(page) {
            true => WantedAccess::forced(Access::Write),
            false => WantedAccess::new(Access::Read),
        };
        let look = |now: Option<Mapping>| {
            let fits =
                now.is_some_and(|now| want.is_met(now.attrs) && !self.core.is_special(now.frame));
            (EntryChange::Keep, fits)
        };
        let guard = G::pin();
        // SAFETY: the entry stays as it is.
        match unsafe { self.core.tables.with_entry(&guard, page, look) } {
            Err(failed) if matches!(failed.error, paging::Error::Occupied(_)) => {
                drop(failed);
                // SAFETY: as above.
                unsafe { self.core.tables.with_large(&guard, page, look) }
                    .is_ok_and(|(fits, _)| fits)
            }
            done => done.is_ok_and(|(fits, _)| fits),
        }
    }
}
