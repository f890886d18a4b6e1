//! The cursor: map, unmap, protect, split, over ranges.
//!
//! All go the same way. From where they are they walk down, without a lock, to the table whose
//! entries they will change; lock that table; change the entries of it that lie in the range;
//! unlock it, and go on behind it. So two CPUs meet only where they change the same table, which at
//! the lowest level is the same 2 MiB.
//!
//! # Why it is right
//! *A table that is locked and alive is linked*: tables are unlinked only with their own lock held
//! and that of the table above, and then they are dead. So what is written into it counts. If it is
//! dead, the walk begins again.
//!
//! *An empty table of a program is unlinked by who makes it empty* (`prune`). It holds both locks,
//! so nothing can come in between the look and the unlinking. Until the flush, other CPUs may have
//! cached the way to the old table: if a new one is linked there and something is mapped in it at
//! once, they may fault there, once each; a page-fault handler looks at the tables and tries again.
//! The kernel cannot bear that: its tables stay, until [`prune`](PageTables::prune) is called.
//!
//! *A table is filled before it is linked*, and linked by one store that releases.
//!
//! *All or nothing (I7).* What can be wrong with the input is looked at before anything is changed.
//! `map` needs memory on the way; if there is none, what it has mapped is unmapped again.
//! [`split`](PageTables::split) and [`reserve`](PageTables::reserve) take all tables that they need
//! before they link the first (`spare`). `unmap`, `protect` and `prune` need none: they refuse a
//! range that cuts a page in two. And before anything fails for want of a table, those that lie
//! idle are looked for (`reclaim`).
//!
//! # What is the caller's affair
//! Who maps what where: two calls on the same *pages* at the same time leave either result, page by
//! page, or [`Error::Occupied`] to one of them. (Calls on different pages of the same table do not
//! disturb each other.) Frames: the tables hold no reference. A frame that was unmapped may be
//! given back when what is owed has been flushed, by [`release`](machine::FrameSource::release),
//! since a walk without a lock may hold a reference for a moment.
//!
//! Context: see [`PageTables`]. Where memory gives out, `map`, `split` and `reserve` may run frees
//! that were deferred through `G`: the caller holds no lock that one of them takes (`reclaim`).

mod error;
mod leaf;
mod lend;
mod map;
mod protect;
mod prune;
mod spare;
mod split;
mod unmap;

pub use error::{Error, Failed};
pub use leaf::Leaf;
pub use map::Supply;

use lend::Lent;
use spare::Spare;

use crate::format::{Decoded, Format};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Walk, beyond};
use core::sync::atomic::AtomicU32;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};

type Result<'p, T, M, F, G> = core::result::Result<T, Failed<'p, M, F, G>>;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Whether the range is one that these tables translate.
    fn check(&self, range: VirtRange) -> core::result::Result<(), Error> {
        let last = range.last().ok_or(Error::Empty)?;
        let start = range.start();
        if !start.is_aligned(PageSize::Size4K) {
            return Err(Error::Misaligned(start));
        }
        if !range.len().is_multiple_of(PageSize::Size4K.bytes()) {
            return Err(Error::Misaligned(last));
        }
        if let Some(at) = [start, last].into_iter().find(|at| !F::is_canonical(*at)) {
            return Err(Error::NotCanonical(at));
        }
        match (F::is_upper(start), F::is_upper(last)) {
            (false, true) => Err(Error::NotCanonical(last)),
            (true, _) if self.space().is_some() => Err(Error::Kernel(start)),
            _ => Ok(()),
        }
    }

    /// Whether the range ends where pages end.
    fn check_ends(
        &self,
        walk: &Walk<'_, M, F>,
        range: VirtRange,
    ) -> core::result::Result<(), Error> {
        let last = range.last().ok_or(Error::Empty)?;
        for end in [range.start(), last] {
            if let Some(page) = walk.get(end)
                && !covers(range, page.page, page.size)
            {
                return Err(Error::Cut(page.page, page.size));
            }
        }
        Ok(())
    }

    /// Changes the pages of a range, table by table, each with its lock held: calls `change` with
    /// an address, the entry for it, what is in there, and the count of the table's entries. Empty
    /// tables are unlinked, also when `change` panics.
    fn each_page<'p>(
        &'p self,
        range: VirtRange,
        owed: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(
            &mut PendingFlush<'p, M, F, G>,
            &mut u32,
            Slot<'_, M>,
        ) -> core::result::Result<(), Error>,
    ) -> core::result::Result<(), Error> {
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            // A guard for each table: no grace period waits for a long range.
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            match spot.found {
                Decoded::Absent | Decoded::Table(_) => next = beyond(at, spot.level),
                Decoded::Malformed => return Err(Error::Malformed(at)),
                Decoded::Page(..) => {
                    let (table, level) = (spot.entry.table(), spot.level);
                    let Some(locked) = lock(self.machine(), table, at)? else { continue };
                    let mut changing = Changing {
                        tables: self,
                        walk: &walk,
                        at,
                        level,
                        locked: Some(locked),
                        owed,
                    };
                    let (end, result) = changing.each(range, table, &mut change);
                    drop(changing);
                    result?;
                    next = end;
                }
            }
        }
        Ok(())
    }
}

/// A table whose entries are being changed. When this is dropped, also by a panic, it is unlocked,
/// and unlinked if it has become empty and is a program's.
struct Changing<'c, 'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    walk: &'c Walk<'c, M, F>,
    at: VirtAddr,
    level: u8,
    /// There until it is dropped.
    locked: Option<Locked<'p, AtomicU32>>,
    owed: &'c mut PendingFlush<'p, M, F, G>,
}

impl<'p, M: Machine, F: Format, G: Concurrent> Changing<'_, 'p, M, F, G> {
    /// Its entries in the range. Returns where to go on.
    #[inline(always)]
    fn each(
        &mut self,
        range: VirtRange,
        table: Frame,
        change: &mut impl FnMut(
            &mut PendingFlush<'p, M, F, G>,
            &mut u32,
            Slot<'_, M>,
        ) -> core::result::Result<(), Error>,
    ) -> (Option<VirtAddr>, core::result::Result<(), Error>) {
        let &mut Changing { walk, level, at: start, .. } = self;
        let mut next = Some(start);
        let Some(locked) = &mut self.locked else { return (next, Ok(())) };
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            if at != start && F::index(at, level) == 0 {
                break;
            }
            let Some(entry) = walk.entry(table, F::index(at, level)) else {
                return (next, Err(Error::Malformed(at)));
            };
            let value = entry.load();
            match F::decode(value, level) {
                Decoded::Absent => {}
                // Below it there are others to lock.
                Decoded::Table(_) => break,
                Decoded::Malformed => return (next, Err(Error::Malformed(at))),
                Decoded::Page(..) => {
                    let slot = Slot { at, level, entry, value };
                    if let Err(error) = change(self.owed, &mut locked.count, slot) {
                        return (next, Err(error));
                    }
                }
            }
            next = beyond(at, level);
        }
        (next, Ok(()))
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Changing<'_, '_, M, F, G> {
    #[inline(always)]
    fn drop(&mut self) {
        let empty = self.locked.take().is_some_and(|locked| locked.count == 0);
        if empty && self.tables.space().is_some() {
            self.tables.prune_at(self.walk, self.at, self.level, &mut self.owed.gather);
        }
    }
}

/// A page's entry, with its table locked.
struct Slot<'m, M> {
    at: VirtAddr,
    level: u8,
    entry: machine::Entry<'m, M>,
    value: u64,
}

/// Writes pages into entries of a table that is locked, up to the first that is not absent, or the
/// first page that there can be no entry for; how many.
#[inline]
fn fill<'m, M: Machine, F: Format>(
    entries: impl Iterator<Item = machine::Entry<'m, M>>,
    level: u8,
    pages: impl Iterator<Item = Option<u64>>,
    locked: &mut Locked<'_, AtomicU32>,
) -> usize {
    let mut written = 0;
    for (entry, page) in entries.zip(pages) {
        let (Decoded::Absent, Some(page)) = (F::decode(entry.load(), level), page) else { break };
        entry.store(page);
        written += 1;
    }
    locked.count += written as u32;
    written
}

/// Whether the page lies wholly in the range.
fn covers(range: VirtRange, page: VirtAddr, size: PageSize) -> bool {
    VirtRange::new(page, size.bytes()).is_some_and(|page| range.covers(&page))
}
