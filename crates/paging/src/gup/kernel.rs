//! Pins of what the kernel has mapped for itself: for who looks at it by its frames, and must not
//! meet them in other hands.

use super::hold::hold_one;
use super::pins::Pins;
use super::take::Taken;
use crate::format::{Flags, Format};
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pins the frames of pages that are mapped, whoever's they are, from the one that `start` lies
    /// in on: those that allow to be read, or, with `write`, written. It stops at the first that
    /// does not, is absent, or is no memory, or when `into` is full. Why it is right: as for
    /// [`get_user_pages_fast`](Self::get_user_pages_fast); each page was mapped at a moment when it
    /// was pinned.
    ///
    /// Takes no lock and waits for nobody; any context. For each page two walks and one locked
    /// instruction on its own count.
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
            let frame = look(at).ok_or(Taken::Not)?;
            hold_one(machine, frame, || look(at) == Some(frame))
        });
        pins
    }
}
