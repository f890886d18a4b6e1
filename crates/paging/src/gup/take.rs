//! A page is taken: without a lock, or with its table's.

use super::hold::{Held, hold, hold_one};
use super::pins::{Pins, why_not};
use crate::format::{Format, size_at};
use crate::lock::lock;
use crate::tables::PageTables;
use grace::Concurrent;
use machine::{ENTRIES, Entry, Frame, Machine, VirtAddr};

/// Whether pages were pinned at an entry, or why none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Some,
    /// It is absent, does not allow it, or has changed.
    Not,
    NotMemory,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Pages from `at` on, for as long as each is there, allows it and stays; until there is no
    /// room.
    ///
    /// Cost: a guard; a load a level for each table; two loads and a locked instruction for each
    /// page.
    pub(super) fn take_fast(&self, mut at: VirtAddr, write: bool, pins: &mut Pins<'_, M>) {
        let guard = G::pin();
        let walk = self.walk(&guard);
        while pins.room() != 0 {
            let before = pins.frames().len();
            let Some((entry, level, value)) = walk.descend(at, 0) else { return };
            if level != 0 {
                if take_large::<M, F>(at, &entry, level, value, write, pins) != Taken::Some {
                    return;
                }
            } else if pins.room() == 1 {
                let _ = take_page::<M, F>(&entry, value, write, pins);
                return;
            } else {
                // As many as are wanted of this table.
                let Some(entries) = walk.entries(entry.table()) else { return };
                let end = (entry.index() + pins.room()).min(ENTRIES);
                let taken = pins.fill(entries.range(entry.index()..end), |machine, entry| {
                    hold_page::<M, F>(machine, &entry, entry.load(), write)
                });
                if taken != Taken::Some {
                    return;
                }
            }
            let taken = (pins.frames().len() - before) as u64;
            let Some(next) = at.checked_add(taken << 12) else { return };
            at = next;
        }
    }

    /// One page, or what of its large page is wanted, with the table locked.
    pub(super) fn take_locked(&self, at: VirtAddr, write: bool, pins: &mut Pins<'_, M>) -> Taken {
        loop {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let Some((entry, level, _)) = walk.descend(at, 0) else {
                return Taken::Not;
            };
            match lock(self.machine(), entry.table(), at) {
                Ok(Some(_locked)) => {
                    // Nobody unmaps it now, so it does not change but for what hardware marks.
                    let value = entry.load();
                    if level == 0 {
                        return take_page::<M, F>(&entry, value, write, pins);
                    }
                    // A table where a page was: the walk begins again.
                    if F::next(value, level).is_none() {
                        return take_large::<M, F>(at, &entry, level, value, write, pins);
                    }
                }
                Ok(None) => {}
                Err(_) => return Taken::Not,
            }
        }
    }
}

/// Pins the page of 4 KiB that one entry leads to, which said `value`.
#[inline(always)]
fn take_page<M: Machine, F: Format>(
    entry: &Entry<'_, M>,
    value: u64,
    write: bool,
    pins: &mut Pins<'_, M>,
) -> Taken {
    pins.fill(core::iter::once(entry), |machine, entry| {
        hold_page::<M, F>(machine, entry, value, write)
    })
}

/// Pins the page of 4 KiB that an entry leads to, which said `value`, and looks again whether it
/// still does. Bits that hardware marks may change; all else that matters is as it was.
#[inline(always)]
fn hold_page<M: Machine, F: Format>(
    machine: &M,
    entry: &Entry<'_, M>,
    value: u64,
    write: bool,
) -> Result<Frame, Taken> {
    let frame = F::usable(value, 0, write).ok_or(Taken::Not)?;
    hold_one(machine, frame, || {
        let now = entry.load();
        now == value || F::usable(now, 0, write) == Some(frame)
    })
}

/// As [`hold_page`], of a larger page, from `at` on as much as is wanted.
#[cold]
fn take_large<M: Machine, F: Format>(
    at: VirtAddr,
    entry: &Entry<'_, M>,
    level: u8,
    value: u64,
    write: bool,
    pins: &mut Pins<'_, M>,
) -> Taken {
    let (Some(first), Some(size)) = (F::usable(value, level, write), size_at(level)) else {
        return Taken::Not;
    };
    let offset = at.offset_in(size) >> 12;
    let Some(frame) = first.checked_add(offset) else { return Taken::NotMemory };
    let count = (size.frames() - offset).min(pins.room() as u64);
    let before = pins.frames().len();
    let look = || F::usable(entry.load(), level, write) == Some(first);
    let add = |pins: &mut Pins<'_, M>| pins.add(frame, count as usize);
    match hold(pins, add, look, |pins| pins.cut(before)) {
        Held::Yes => Taken::Some,
        Held::Free => why_not(pins.machine(), frame),
        Held::Changed => Taken::Not,
    }
}
