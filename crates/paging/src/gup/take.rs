//! Pinning pages: without a lock, or with the table's lock.

use super::hold::{Held, hold, hold_one};
use super::pins::{Pins, why_not};
use crate::format::{Format, Geometry, load};
use crate::lock::lock;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{Entry, Frame, Machine, VirtAddr};

/// The outcome of pinning at an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PinOutcome {
    Some,
    /// The entry is absent, lacks a wanted right, or has changed.
    Not,
    NotMemory,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pins pages from `at` on, while each is mapped, has the wanted rights and does not change;
    /// until there is no room left.
    ///
    /// Cost: a guard; for each table one load per level; for each page two loads and a locked
    /// instruction.
    pub(super) fn take_fast(&self, mut at: VirtAddr, write: bool, pins: &mut Pins<'_, M>) {
        let guard = G::pin();
        let walk = self.walk(&guard);
        while pins.room() != 0 {
            let before = pins.frames().len();
            let Some((entry, level, value, own)) = walk.descend(at, 0) else { return };
            if F::SHARED_IS_READ_ONLY && write && !own {
                return;
            }
            // The way is read again after each pin: a fork's other space may have got the table.
            let table = entry.table();
            let still = || !self.forks() || self.is_way(&walk, at, level, table, own && write);
            // Pages of level 0 have more than one frame where the granule is larger than 4 KiB.
            if level != 0 || F::PAGE.order() != 0 {
                if take_large::<M, F>(at, &entry, level, value, write, still, pins)
                    != PinOutcome::Some
                {
                    return;
                }
            } else if pins.room() == 1 {
                let _ = take_page::<M, F>(&entry, value, write, still, pins);
                return;
            } else {
                // As many as are wanted in this table.
                let Some(entries) = walk.entries(entry.table()) else { return };
                let end = (entry.index() + pins.room()).min(F::ENTRIES);
                let taken = pins.fill(entries.range(entry.index()..end), |machine, entry| {
                    hold_page::<M, F>(machine, &entry, load::<M, F>(&entry, 0), write, still)
                });
                if taken != PinOutcome::Some {
                    return;
                }
            }
            let taken = (pins.frames().len() - before) as u64;
            let Some(next) = at.checked_add(taken << 12) else { return };
            at = next;
        }
    }

    /// Pins one page, or the wanted part of a large page, with the table locked.
    pub(super) fn take_locked(
        &self,
        at: VirtAddr,
        write: bool,
        pins: &mut Pins<'_, M>,
    ) -> PinOutcome {
        loop {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let Some((entry, level, _, own)) = walk.descend(at, 0) else {
                return PinOutcome::Not;
            };
            if F::SHARED_IS_READ_ONLY && write && !own {
                return PinOutcome::Not;
            }
            let table = entry.table();
            let still = || !self.forks() || self.is_way(&walk, at, level, table, own && write);
            match lock::<M, F>(self.machine(), table, at) {
                Ok(Some(_locked)) => {
                    if !still() {
                        continue;
                    }
                    // No writer can change the entry now; only hardware can set its bits.
                    let value = load::<M, F>(&entry, level);
                    if level == 0 && F::PAGE.order() == 0 {
                        return take_page::<M, F>(&entry, value, write, still, pins);
                    }
                    // A table has replaced a page: walk again from the top.
                    if F::next(value, level).is_none() {
                        return take_large::<M, F>(at, &entry, level, value, write, still, pins);
                    }
                }
                Ok(None) => {}
                Err(_) => return PinOutcome::Not,
            }
        }
    }
}

/// Pins the page of one frame of an entry, whose value was `value`.
#[inline(always)]
fn take_page<M: Machine, F: Format>(
    entry: &Entry<'_, M>,
    value: u64,
    write: bool,
    still: impl Fn() -> bool,
    pins: &mut Pins<'_, M>,
) -> PinOutcome {
    pins.fill(core::iter::once(entry), |machine, entry| {
        hold_page::<M, F>(machine, entry, value, write, &still)
    })
}

/// Pins the page of one frame of an entry whose value was `value`, and reads the entry again. The
/// accessed and dirty bits may have changed; the frame and the wanted rights must be the same, and
/// `still` says whether the way leads there.
#[inline(always)]
fn hold_page<M: Machine, F: Format>(
    machine: &M,
    entry: &Entry<'_, M>,
    value: u64,
    write: bool,
    still: impl Fn() -> bool,
) -> Result<Frame, PinOutcome> {
    let frame = F::usable(value, 0, write).ok_or(PinOutcome::Not)?;
    hold_one(machine, frame, || {
        let now = load::<M, F>(entry, 0);
        (now == value || F::usable(now, 0, write) == Some(frame)) && still()
    })
}

/// As [`hold_page`], for a larger page: as much as is wanted from `at` on.
#[cold]
fn take_large<M: Machine, F: Format>(
    at: VirtAddr,
    entry: &Entry<'_, M>,
    level: u8,
    value: u64,
    write: bool,
    still: impl Fn() -> bool,
    pins: &mut Pins<'_, M>,
) -> PinOutcome {
    let (Some(first), Some(size)) = (F::usable(value, level, write), F::size_at(level)) else {
        return PinOutcome::Not;
    };
    let offset = at.offset_in(size) >> 12;
    let Some(frame) = first.checked_add(offset) else { return PinOutcome::NotMemory };
    let count = (size.frames() - offset).min(pins.room() as u64);
    let before = pins.frames().len();
    let look = || F::usable(load::<M, F>(entry, level), level, write) == Some(first) && still();
    let add = |pins: &mut Pins<'_, M>| pins.add(frame, count as usize);
    match hold(pins, add, look, |pins| pins.cut(before)) {
        Held::Yes => PinOutcome::Some,
        Held::Free => why_not(pins.machine(), frame),
        Held::Changed => PinOutcome::Not,
    }
}
