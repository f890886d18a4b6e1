//! Pins of kernel mappings, for code that reads them through their frames while they may be
//! unmapped.

use super::hold::hold_one;
use super::pins::Pins;
use super::take::PinOutcome;
use crate::format::{Flags, Format};
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pins the frames of mapped pages, of the kernel or a user, beginning with the frame at
    /// `start`, for reading, or, with `write`, for writing. Stops at the first page that
    /// lacks the right, is absent or is not memory, or when `into` is full. Correct as
    /// [`get_user_pages_fast`](Self::get_user_pages_fast) is: each page was mapped at a moment when
    /// it was pinned.
    ///
    /// Takes no lock and waits for nothing; allowed in any context. Cost: for each page two walks,
    /// and one locked instruction on its own count.
    pub fn pin_mapped<'a>(
        &'a self,
        start: VirtAddr,
        write: bool,
        into: &'a mut [Frame],
    ) -> Pins<'a, M> {
        let wanted = Flags::READ | if write { Flags::WRITE } else { Flags::empty() };
        let mut pins = Pins::none(self.machine(), into);
        let guard = G::pin();
        let walk = self.walk(&guard);
        let look = |at| {
            let page = walk.get(at).filter(|page: &Mapping| page.attrs.flags.contains(wanted))?;
            page.frame_of(at)
        };
        let first = Some(start.align_down(PageSize::Size4K));
        let places = core::iter::successors(first, |at| at.checked_add(PageSize::Size4K.bytes()));
        let _ = pins.fill(places, |machine, at| {
            let frame = look(at).ok_or(PinOutcome::Not)?;
            hold_one(machine, frame, || look(at) == Some(frame))
        });
        pins
    }
}
