//! Copying a shared table.

use crate::block::block_of;
use crate::cursor::group::first_of;
use crate::cursor::{Error, Users};
use crate::format::{Decoded, Flags, Format, Share, alone, group_entries, is_grouped, like};
use crate::lock::{Locked, lock, max_shares};
use crate::tables::PageTables;
use crate::walk::Walk;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Entries, Frame, FrameError, Machine, VirtAddr};

/// Exclusive pages with pins, which a fork must not share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// They are shared as all others.
    Shared,
    /// They stay exclusive in the old table, and are left out of the new one.
    LeftOut,
}

/// The new entry for an old one.
enum Copied {
    Nothing,
    Entry(u64),
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Fills `new`, an empty table that no other CPU knows, with copies of the entries of `table`,
    /// whose lock is held. What the entries lead to is shared from then on. If it fails, `new` is
    /// empty again.
    ///
    /// Takes the locks of lower tables, one after the other.
    pub(super) fn copy_table(
        &self,
        walk: &Walk<'_, M, F>,
        table: Frame,
        _locked: &Locked<'_, F>,
        new: Frame,
        level: u8,
        pinned: Pinned,
    ) -> Result<(), Error> {
        let malformed = Error::Malformed(VirtAddr::new(0));
        let mut count = 0;
        let entries = walk.entries(table).zip(walk.entries(new)).ok_or(malformed)?;
        for index in 0..F::ENTRIES {
            let from = entries.0.get(index).ok_or(malformed)?;
            let mut value = from.load();
            if value == 0 {
                continue;
            }
            if pinned == Pinned::LeftOut && is_grouped::<F>(value, level) {
                self.part_group(VirtAddr::new(0), &from, Users::Sharers);
                value = from.load();
            }
            match self.copy_entry(&from, value, level, pinned) {
                Ok(Copied::Nothing) => {}
                Ok(Copied::Entry(value)) => {
                    entries.1.get(index).ok_or(malformed)?.store(value);
                    count += 1;
                }
                Err(error) => {
                    self.undo_copy(walk, new, level);
                    share_rest::<M, F>(&entries.0, &from, level);
                    return Err(error);
                }
            }
        }
        // SAFETY: the count of a table that is ours alone. Relaxed: the entry that links it is
        // stored with Release.
        self.machine()
            .info(new)
            .inspect(|info| unsafe { info.word() }.store(count, Ordering::Relaxed));
        Ok(())
    }

    fn copy_entry(
        &self,
        entry: &machine::Entry<'_, M>,
        value: u64,
        level: u8,
        pinned: Pinned,
    ) -> Result<Copied, Error> {
        let machine = self.machine();
        match F::decode(alone::<F>(value, level, entry.index()), level) {
            Decoded::Absent => Ok(Copied::Nothing),
            Decoded::Malformed => Err(Error::Malformed(VirtAddr::new(0))),
            Decoded::Table(lower) => {
                let shared = F::shared_table(lower)?;
                add_share::<M, F>(machine, lower)?;
                entry.store(shared);
                Ok(Copied::Entry(shared))
            }
            Decoded::Page(frame, attrs) => {
                let pins = || block_of(machine, frame).is_some_and(|(_, info)| info.pins() != 0);
                if pinned == Pinned::LeftOut && attrs.share() == Share::Exclusive && pins() {
                    return Ok(Copied::Nothing);
                }
                if !self.paging().hold_entry(frame) {
                    return Err(too_many(frame));
                }
                Ok(Copied::Entry(share_page::<M, F>(entry, value, level)?))
            }
        }
    }

    /// Empties a copy that was not linked.
    fn undo_copy(&self, walk: &Walk<'_, M, F>, new: Frame, level: u8) {
        let machine = self.machine();
        for index in 0..F::ENTRIES {
            let Some(entry) = walk.entry(new, index) else { return };
            match F::decode(alone::<F>(entry.swap(0), level, index), level) {
                Decoded::Page(frame, _) => {
                    // SAFETY: the copy took this reference, for an entry that no CPU has used.
                    unsafe { self.paging().release_entry(frame) };
                }
                Decoded::Table(lower) => {
                    if let Ok(Some(mut lower)) = lock::<M, F>(machine, lower, VirtAddr::new(0)) {
                        lower.shares -= 1;
                    }
                }
                _ => {}
            }
        }
    }
}

/// One more entry leads to the table.
pub(super) fn add_share<M: Machine, F: Format>(machine: &M, table: Frame) -> Result<(), Error> {
    let at = VirtAddr::new(0);
    let mut locked = lock::<M, F>(machine, table, at)?.ok_or(Error::Malformed(at))?;
    if locked.shares == max_shares::<F>() {
        return Err(too_many(table));
    }
    locked.shares += 1;
    Ok(())
}

fn too_many(frame: Frame) -> Error {
    Error::Frames(FrameError::InUse { frame, refs: u32::MAX, pins: 0 })
}

/// A copy of the table has failed at this entry. If it is one of a group, shares the rest of the
/// group as the pages before it, so that all are alike.
#[cold]
fn share_rest<M: Machine, F: Format>(
    entries: &Entries<'_, M>,
    failed: &machine::Entry<'_, M>,
    level: u8,
) {
    let end = first_of::<F>(failed.index()) + group_entries::<F>();
    for entry in entries.range(failed.index()..end) {
        let value = entry.load();
        if is_grouped::<F>(value, level) {
            // An entry of a group is a page's.
            let _ = share_page::<M, F>(&entry, value, level);
        }
    }
}

/// Takes from a page the right to write, unless it is an object's, and the mark of an exclusive
/// page. The caller has the table's lock, so only hardware changes the entry. Returns the value for
/// a copy of the entry, which has the mark of a group if this one has.
///
/// No flush is needed for it: the entry above has withheld that right since the fork, or the fork
/// flushes.
pub(super) fn share_page<M: Machine, F: Format>(
    entry: &machine::Entry<'_, M>,
    mut value: u64,
    level: u8,
) -> Result<u64, Error> {
    let malformed = Error::Malformed(VirtAddr::new(0));
    let size = F::size_at(level).unwrap_or(F::PAGE);
    loop {
        let single = alone::<F>(value, level, entry.index());
        let Decoded::Page(frame, mut attrs) = F::decode(single, level) else {
            return Err(malformed);
        };
        if attrs.share() != Share::Object {
            attrs = attrs.with_share(Share::CopyOnWrite);
            attrs.flags -= Flags::WRITE;
        }
        let shared = like::<F>(value, F::page(size, frame, attrs)?, level);
        if shared == value {
            return Ok(shared);
        }
        // Hardware may set the accessed and dirty bits at any moment; none is lost.
        match entry.compare_exchange(value, shared) {
            Ok(()) => return Ok(shared),
            Err(now) => value = now,
        }
    }
}
