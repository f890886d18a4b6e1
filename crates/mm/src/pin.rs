//! Pins: frames of a program's pages that a device, or other code, uses directly.
//!
//! # Pins and fork
//! A page that is pinned for writing is exclusive. It must stay so: if a fork shared it, the next
//! write of the program would go to a copy, and the holder of the pin would be left with the old
//! frame. So a fork copies pinned pages for the child at once. It looks for them only in spaces
//! that have ever pinned, and it must see each pin that is kept. Pins are taken without a lock, so
//! each side stores first and then looks:
//!
//! - a pin marks the space, reads the count of forks, takes the pins, and reads the count again. If
//!   a fork was under way or has begun, it gives the pins back, and takes them with the write
//!   right;
//! - a fork raises the count, and then looks for the mark, and for pinned pages.
//!
//! Between its store and its look each side has a SeqCst fence. So if the fork misses a pin, the
//! pin sees the fork.
//!
//! A pin for reading promises less: it is a snapshot. After a write by the program, the holder may
//! have the frame that the page had before.

use core::sync::atomic::{Ordering, fence};

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{Format, GupError, unpin};

use crate::{Access, AddressSpace, FaultError, Outcome};

/// Pinned frames of a program. Dropping this unpins them.
///
/// ```
/// # use machine::{Asid, PageSize};
/// # use mm::*;
/// # use paging::{Paging, X86_64L4};
/// # use sim::{Config, Grace, Sim};
/// # let sim = Sim::new(Config::default()).unwrap();
/// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
/// # sim.on_cpu(0, || {
/// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
/// # let profile = Profile::LINUX_6_18;
/// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, Asid(1), None, profile, layout)?;
/// let at = space.mmap(0, 8192, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
/// let mut frames = [machine::Frame::default(); 2];
/// let pins = space.pin_pages(at, Access::Write, &mut frames)?;
/// assert_eq!(pins.frames().len(), 2);
/// # drop(pins);
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
#[must_use = "the pages are unpinned when this is dropped"]
#[derive(Debug)]
pub struct UserPins<'a, M: Machine> {
    machine: &'a M,
    frames: &'a [Frame],
}

impl<M: Machine> UserPins<'_, M> {
    /// The frames, in the order of the pages.
    pub fn frames(&self) -> &[Frame] {
        self.frames
    }
}

impl<M: Machine> Drop for UserPins<'_, M> {
    fn drop(&mut self) {
        // SAFETY: these pins are ours.
        unsafe { unpin(self.machine, self.frames) };
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Pins the pages from the one that contains `at` on, one for each element of `into`, for
    /// reading or writing. Brings pages in that are missing. Stops early where the program has no
    /// such access: see [`UserPins::frames`].
    ///
    /// A holder that writes to pages of files says so afterwards:
    /// [`mark_written`](Self::mark_written).
    ///
    /// What the program writes to a page that is pinned for writing, the holder sees, and the other
    /// way round, until the program unmaps or discards it.
    ///
    /// Cost: that of [`get_user_pages_fast`](paging::PageTables::get_user_pages_fast), and two
    /// fences.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    ///
    /// # Errors
    /// As for [`handle_fault`](Self::handle_fault), for the first page; nothing is pinned then.
    pub fn pin_pages<'a>(
        &'a self,
        at: usize,
        access: Access,
        into: &'a mut [Frame],
    ) -> Result<UserPins<'a, M>, FaultError> {
        let machine = self.core.tables.machine();
        machine.step(machine::Access::Shared);
        // Relaxed: the fence below orders it before the count.
        if !self.pinned.load(Ordering::Relaxed) {
            self.pinned.store(true, Ordering::Relaxed);
        }
        // SeqCst: pairs with the fence in `fork_begins`.
        fence(Ordering::SeqCst);
        machine.step(machine::Access::Shared);
        // Relaxed: the fences order it.
        let forks = self.fork_count.load(Ordering::Relaxed);
        if forks.is_multiple_of(2) {
            let len = self.take_pins(at, access, into, true)?;
            // SeqCst: as above; the pins come before the look.
            fence(Ordering::SeqCst);
            machine.step(machine::Access::Shared);
            if self.fork_count.load(Ordering::Relaxed) == forks {
                return Ok(UserPins { machine, frames: &into[..len] });
            }
            // SAFETY: just taken, and never used.
            unsafe { unpin(machine, &into[..len]) };
        }
        self.pin_with_right(at, access, into)
    }

    /// As `pin_pages`, with the write right while the pins are taken, so that no fork runs.
    fn pin_with_right<'a>(
        &'a self,
        at: usize,
        access: Access,
        into: &'a mut [Frame],
    ) -> Result<UserPins<'a, M>, FaultError> {
        let machine = self.core.tables.machine();
        loop {
            // Brings the pages in, without the right.
            let most = self.take_pins(at, access, into, true)?;
            // SAFETY: just taken, and never used.
            unsafe { unpin(machine, &into[..most]) };
            let mut taken = Ok(0);
            let done = self.change(|_| {
                taken = self.take_pins(at, access, into, false);
                Ok::<_, vma::Error>(())
            });
            match (done, taken) {
                (Ok(()), Ok(len)) => return Ok(UserPins { machine, frames: &into[..len] }),
                // The first page went meanwhile: once more.
                (Ok(()), Err(_)) => {}
                (Err(crate::Error::Tables(error)), _) => return Err(FaultError::Tables(error)),
                (Err(_), _) => return Err(FaultError::Unmapped(VirtAddr::new(at as u64))),
            }
        }
    }

    /// Takes pins; returns how many. With `bring_in`, missing pages are brought in.
    fn take_pins(
        &self,
        at: usize,
        access: Access,
        into: &mut [Frame],
        bring_in: bool,
    ) -> Result<usize, FaultError> {
        let start = VirtAddr::new(at as u64);
        let mut failed = None;
        let fault = |page: VirtAddr, _: bool| {
            let outcome = match bring_in {
                true => self.handle_fault(page, access),
                false => Err(FaultError::Unmapped(page)),
            };
            let ok = matches!(outcome, Ok(Outcome::Mapped | Outcome::Spurious));
            failed = failed.or(outcome.err());
            ok
        };
        let write = access == Access::Write;
        match self.core.tables.get_user_pages_fast(start, write, into, fault) {
            Ok(pins) => Ok(pins.keep()),
            Err(GupError::Hole(_) | GupError::Unsettled(_)) => {
                Err(failed.unwrap_or(FaultError::Unmapped(start)))
            }
            Err(_) => Err(FaultError::Unmapped(start)),
        }
    }

    /// A fork begins, with the write right. Returns whether the space has ever pinned; the value
    /// that it returns besides ends the fork when it is dropped.
    pub(crate) fn fork_begins(&self) -> (bool, impl Drop + '_) {
        struct Ends<'s>(&'s core::sync::atomic::AtomicU64, u64);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                // Release: a pin that sees it sees what the fork has shared.
                self.0.store(self.1 + 2, Ordering::Release);
            }
        }
        self.core.tables.machine().step(machine::Access::Shared);
        // Relaxed: only the holder of the write right changes it.
        let forks = self.fork_count.load(Ordering::Relaxed);
        self.fork_count.store(forks + 1, Ordering::Relaxed);
        // SeqCst: pairs with the fences in `pin_pages`.
        fence(Ordering::SeqCst);
        self.core.tables.machine().step(machine::Access::Shared);
        (self.pinned.load(Ordering::Relaxed), Ends(&self.fork_count, forks))
    }
}
