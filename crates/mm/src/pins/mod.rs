//! Pins: frames of a program's pages that a device, or other code, uses directly.
//!
//! # Pins and fork
//! A page that is pinned for writing is exclusive. It must stay so: if a fork shared it, the next
//! write of the program would go to a copy, and the holder of the pin would be left with the old
//! frame. So a fork copies pinned pages for the child at once. It looks for them only while the
//! space has pins for writing, and it must see each one that is kept. Pins are taken without a
//! lock, so each side stores first and then looks (`pin_counts`):
//!
//! - a pin counts itself, reads the count of forks, takes the pins, and reads the count again. If a
//!   fork was under way or has begun, it gives the pins back, and takes them with the mmap lock;
//! - a fork raises the count, and then looks at the count of pins, and for pinned pages.
//!
//! A pin for reading promises less, and is not counted: it is a snapshot. After a write by the
//! program, the holder may have the frame that the page had before. One that lasts is made in
//! another way (`long_term`).

pub(crate) mod foll_force;
pub(crate) mod long_term;
pub(crate) mod pin_counts;
pub(crate) mod user_copy;

use core::fmt;

use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr};
use paging::{Format, GupError, unpin};

use crate::{Access, AddressSpace, FaultError, FaultOutcome, pins::pin_counts::PinCounts};

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
///
/// # Misuse
/// They may be kept over an unmapping or a fork, which copies pinned pages for the child. Forgotten
/// pins leak the frames.
#[must_use = "the pages are unpinned when this is dropped"]
#[derive(Debug)]
pub struct UserPins<'a, M: Machine> {
    machine: &'a M,
    frames: &'a [Frame],
    /// Dropped after the pages are unpinned.
    _counted: Option<CountedWriter<'a, M>>,
}

/// A pin that forks see.
pub(crate) struct CountedWriter<'a, M: Machine> {
    machine: &'a M,
    pins: &'a PinCounts,
}

impl<'a, M: Machine> CountedWriter<'a, M> {
    /// Begins to count, as [`PinCounts::begin`].
    pub(crate) fn begin(machine: &'a M, pins: &'a PinCounts) -> (Self, Option<u64>) {
        let begun = pins.begin(machine);
        (CountedWriter { machine, pins }, begun)
    }
}

impl<M: Machine> fmt::Debug for CountedWriter<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

impl<M: Machine> Drop for CountedWriter<'_, M> {
    fn drop(&mut self) {
        self.pins.end(self.machine);
    }
}

impl<'a, M: Machine> UserPins<'a, M> {
    pub(crate) fn new(
        machine: &'a M,
        frames: &'a [Frame],
        counted: Option<CountedWriter<'a, M>>,
    ) -> Self {
        UserPins { machine, frames, _counted: counted }
    }

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
    /// Writes of a holder to a page of a file are written out by the next sync, also once the map
    /// has gone: a page that a sync finds pinned stays marked as written. The holder keeps the file
    /// until it has unpinned the page.
    ///
    /// The holder of a page that is pinned for writing sees the program's writes, and the program
    /// those of the holder, until the program unmaps or discards it.
    ///
    /// Cost: that of [`get_user_pages_fast`](paging::PageTables::get_user_pages_fast); for writing,
    /// two locked instructions on a line that few CPUs share, and a fence.
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
        if access != Access::Write {
            let len = self.take_pins(at, access, into, true)?;
            return Ok(UserPins::new(machine, &into[..len], None));
        }
        let (counted, begun) = CountedWriter::begin(machine, &self.pins);
        if let Some(forks) = begun {
            let len = self.take_pins(at, access, into, true)?;
            if self.pins.stays(machine, forks) {
                return Ok(UserPins::new(machine, &into[..len], Some(counted)));
            }
            // SAFETY: just taken, and never used.
            unsafe { unpin(machine, &into[..len]) };
        }
        let len = self.pin_with_right(at, access, into)?;
        Ok(UserPins::new(machine, &into[..len], Some(counted)))
    }

    /// Takes pins with the mmap lock, so that no fork runs. Returns how many.
    fn pin_with_right(
        &self,
        at: usize,
        access: Access,
        into: &mut [Frame],
    ) -> Result<usize, FaultError> {
        let machine = self.core.tables.machine();
        loop {
            // Brings the pages in, without the lock.
            let most = self.take_pins(at, access, into, true)?;
            // SAFETY: just taken, and never used.
            unsafe { unpin(machine, &into[..most]) };
            let mut taken = Ok(0);
            let done = self.change(|_| {
                taken = self.take_pins(at, access, &mut into[..most], false);
                Ok::<_, vma::Error>(())
            });
            match (done, taken) {
                (Ok(()), Ok(len)) if len == most => return Ok(len),
                // A page went meanwhile: once more.
                // SAFETY: just taken, and never used.
                (Ok(()), taken) => unsafe { unpin(machine, &into[..taken.unwrap_or(0)]) },
                (Err(crate::Error::Tables(error)), _) => return Err(FaultError::Tables(error)),
                (Err(_), _) => return Err(FaultError::Unmapped(VirtAddr::new(at as u64))),
            }
        }
    }

    /// Takes pins; returns how many. With `bring_in`, missing pages are brought in.
    pub(crate) fn take_pins(
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
            let ok = matches!(outcome, Ok(FaultOutcome::Mapped | FaultOutcome::Spurious));
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
}
