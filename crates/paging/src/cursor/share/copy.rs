//! Copying a shared table, and sharing its pages.

use super::fork::Copies;
use crate::block::block_of;
use crate::cursor::group::first_of;
use crate::cursor::{Error, PageEntry, TableUsers};
use crate::format::{
    Attrs, Decoded, Flags, Format, Geometry, Share, alone, entries, group_entries, is_grouped,
};
use crate::lock::{Locked, lock, max_shares};
use crate::tables::PageTables;
use crate::walk::Walk;
use core::sync::atomic::{AtomicU8, Ordering};
use grace::Concurrent;
use machine::{Entries, Frame, FrameError, Machine, Owner, VirtAddr, VirtRange};

/// Exclusive pages with pins, which a fork must not share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// They are shared as all others.
    Shared,
    /// They stay exclusive in the old table, and are left out of the new one.
    LeftOut,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Fills `new`, an empty table that no other CPU knows, with copies of the entries of a locked
    /// table. The tables and pages below are shared from then on. If it fails, `new` is empty
    /// again.
    ///
    /// Takes the locks of lower tables, one after the other.
    pub(super) fn copy_table(
        &self,
        walk: &Walk<'_, M, F>,
        locked: &Locked<'_, F>,
        new: Frame,
        level: u8,
        pinned: Pinned,
    ) -> Result<(), Error> {
        let malformed = Error::Malformed(VirtAddr::new(0));
        let mut count = 0;
        let entries = walk.entries(locked.table).zip(walk.entries(new)).ok_or(malformed)?;
        for (from, mut value) in entries.0.set(0..F::ENTRIES) {
            if pinned == Pinned::LeftOut && is_grouped::<F>(value, level) {
                self.part_group(VirtAddr::new(0), &from, TableUsers::Sharers);
                value = from.load();
            }
            match self.copy_entry(&from, value, level, pinned) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    entries.1.get(from.index()).ok_or(malformed)?.store(value);
                    count += 1;
                    // Behind the last one, no entry needs a look.
                    if count == locked.count {
                        break;
                    }
                }
                Err(error) => {
                    self.undo_copy(walk, new, level);
                    share_rest::<M, F>(&entries.0, &from, level);
                    return Err(error);
                }
            }
        }
        self.set_count(new, count);
        Ok(())
    }

    /// The entry for the copy, if there is one.
    fn copy_entry(
        &self,
        entry: &machine::Entry<'_, M>,
        value: u64,
        level: u8,
        pinned: Pinned,
    ) -> Result<Option<u64>, Error> {
        let machine = self.machine();
        match F::decode(alone::<F>(value, level, entry.index()), level) {
            Decoded::Absent => Ok(None),
            Decoded::Malformed => Err(Error::Malformed(VirtAddr::new(0))),
            Decoded::Table(lower) => {
                let shared = F::shared_table(lower)?;
                add_share::<M, F>(machine, lower)?;
                entry.store(shared);
                Ok(Some(shared))
            }
            Decoded::Page(frame, attrs) => {
                let pins = || block_of(machine, frame).is_some_and(|(_, info)| info.pins() != 0);
                if pinned == Pinned::LeftOut && attrs.share() == Share::Exclusive && pins() {
                    return Ok(None);
                }
                if !self.paging().hold_entry(frame) {
                    return Err(too_many(frame));
                }
                match shared(attrs) == attrs {
                    true => Ok(Some(value)),
                    false => share_page::<M, F>(*entry, value, level).map(Some),
                }
            }
        }
    }

    /// Shares a lowest table, and takes the right to write from its pages.
    pub(super) fn share_lowest_table(&self, table: Frame) -> Result<(), Error> {
        let (machine, at) = (self.machine(), VirtAddr::new(0));
        let mut locked = lock::<M, F>(machine, table, at)?.ok_or(Error::Malformed(at))?;
        if locked.shares == max_shares::<F>() {
            return Err(too_many(table));
        }
        // SAFETY: as its caller says; the lock is held.
        let entries = unsafe { entries::<M, F>(machine, table) }.ok_or(Error::Malformed(at))?;
        for (entry, value) in entries.set(0..F::ENTRIES) {
            let level = 0;
            // The marks of exclusive pages stay: the last sharer may write again.
            PageEntry { at, level, entry, value }.update::<F>(|attrs| {
                let flags = attrs.flags - Flags::WRITE;
                attrs.flags.contains(Flags::WRITE).then_some(Attrs { flags, ..attrs })
            })?;
        }
        locked.shares += 1;
        Ok(())
    }

    /// Maps a copy of a small page in another frame, exclusively, in tables that no CPU uses yet.
    pub(super) fn map_copy(
        &self,
        at: VirtAddr,
        source: Frame,
        attrs: Attrs,
        copies: &Copies<'_>,
    ) -> Result<(), Error> {
        let Some(frame) = copies(at)? else { return Ok(()) };
        let machine = self.machine();
        let copied = match (machine.frame_ptr(source), machine.frame_ptr(frame)) {
            (Some(from), Some(to)) => {
                // SAFETY: both are pages of this size; the new one is ours alone. Programs, and
                // holders of pins, may write to the source meanwhile, as during any fork of a
                // program with threads: so it is read by atomic bytes.
                unsafe { copy_bytes(from.as_ptr().cast(), to.as_ptr(), F::PAGE.bytes() as usize) };
                // SAFETY: ours alone.
                unsafe { machine.set_owner(frame, Owner::User) }.map_err(Error::from)
            }
            _ => Err(Error::Frames(FrameError::NotOurs(source))),
        };
        let attrs = Attrs { flags: attrs.flags - (Flags::ACCESSED | Flags::DIRTY), ..attrs };
        let mapped = copied.and_then(|()| {
            let page = VirtRange::new(at, F::PAGE.bytes()).ok_or(Error::Empty)?;
            // SAFETY: the child's addresses, which no CPU uses yet, and a frame of our own.
            unsafe { self.map(page, frame, attrs) }.map_err(|failed| failed.error)
        });
        if mapped.is_err() {
            // SAFETY: ours alone.
            let _ = unsafe { machine.release(frame) };
        }
        mapped
    }

    /// Empties a copy that was not linked.
    fn undo_copy(&self, walk: &Walk<'_, M, F>, new: Frame, level: u8) {
        let machine = self.machine();
        let Some(entries) = walk.entries(new) else { return };
        for (entry, value) in entries.set(0..F::ENTRIES) {
            entry.store(0);
            match F::decode(alone::<F>(value, level, entry.index()), level) {
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
            let _ = share_page::<M, F>(entry, value, level);
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
    entry: machine::Entry<'_, M>,
    value: u64,
    level: u8,
) -> Result<u64, Error> {
    let page = PageEntry { at: VirtAddr::new(0), level, entry, value };
    page.update::<F>(|attrs| Some(shared(attrs)))
}

/// The attributes of a page that spaces share: no right to write, unless it is an object's.
fn shared(mut attrs: Attrs) -> Attrs {
    if attrs.share() != Share::Object {
        attrs = attrs.with_share(Share::CopyOnWrite);
        attrs.flags -= Flags::WRITE;
    }
    attrs
}

/// Gives a page the rights back that [`share_page`] took from it; `attrs` are those that it had.
/// The caller has the table's lock, so only hardware changes the entry.
pub(super) fn unshare_page<M: Machine, F: Format>(
    entry: machine::Entry<'_, M>,
    attrs: Attrs,
    level: u8,
) -> Result<(), Error> {
    let (at, value, marks) = (VirtAddr::new(0), entry.load(), Flags::ACCESSED | Flags::DIRTY);
    let back = |now: Attrs| Some(Attrs { flags: attrs.flags | now.flags & marks, ..attrs });
    PageEntry { at, level, entry, value }.update::<F>(back).map(drop)
}

/// Copies so many bytes.
///
/// # Safety
/// Both are valid for so many bytes; no other code uses `to`. Other code that writes to `from` does
/// so by atomic bytes, or is not Rust code.
unsafe fn copy_bytes(from: *const AtomicU8, to: *mut u8, len: usize) {
    for index in 0..len {
        // SAFETY: within the page. Relaxed: the bytes may be of different moments. Bytes, because
        // atomic accesses of two sizes must not race.
        let byte = unsafe { &*from.add(index) }.load(Ordering::Relaxed);
        // SAFETY: within the page, which is ours.
        unsafe { to.add(index).write(byte) };
    }
}
