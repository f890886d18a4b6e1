//! The cursor: map, unmap, protect, sweep and split ranges, change single entries, and fork.
//!
//! All operations proceed alike. From the current address they walk down, without a lock, to the
//! table whose entries they will change. They lock that table, change its entries in the range,
//! unlock it, and continue after it. So two CPUs contend only where they change the same table,
//! which at the lowest level covers 2 MiB, or more with a larger granule.
//!
//! # Why it is right
//! - *A table that is locked and alive is linked.* A table is unlinked only with its own lock and
//!   the lock of the table above held, and is dead afterwards. So a write to a live locked table
//!   takes effect. If the table is dead, the walk starts again.
//! - *An empty user table is unlinked by the CPU that empties it* (`prune`). It holds both locks,
//!   so nothing can change between the check and the unlinking. Until the flush, other CPUs may
//!   have cached the way to the old table. If a new table is linked there and a page is mapped in
//!   it at once, each of them may fault there once; its page-fault handler reads the tables and
//!   retries. The kernel cannot tolerate such faults: its tables stay until
//!   [`prune`](PageTables::prune) is called.
//! - *Some architectures demand break-before-make* where a page is split, joined, or gets another
//!   memory type (`breaks`).
//! - *A table is filled before it is linked*, and linked by one store with Release.
//! - *All or nothing (I7).* Input is checked before anything changes. `map` needs memory on the
//!   way; if there is none, it unmaps again what it has mapped. [`split`](PageTables::split) and
//!   [`reserve`](PageTables::reserve) take all tables that they need before they link the first
//!   (`spare`). `unmap`, `protect`, `sweep` and `prune` need none: they refuse a range that cuts a
//!   page in two. Before an operation fails for lack of a table, it reclaims idle ones (`reclaim`);
//!   not so `with_entry`, whose caller holds a guard.
//!
//! # What is left to the caller
//! - Coordination: two concurrent calls on the same *pages* leave either result, page by page, or
//!   [`Error::Occupied`] to one of them. (Calls on different pages of one table do not disturb each
//!   other.)
//! - Frames: the tables hold no reference. An unmapped frame may be given back after its flush, by
//!   [`release`](machine::FrameSource::release), since a lock-free pin may hold a reference for a
//!   moment.
//! - Context: see [`PageTables`]. When memory runs out, `map`, `split` and `reserve` may run frees
//!   that were deferred through `G`. The caller holds no lock that one of these takes (`reclaim`).

mod breaks;
mod collapse;
mod entry;
mod error;
mod group;
mod leaf;
mod lend;
mod log;
mod map;
mod neighbours;
mod protect;
mod prune;
mod relocate;
mod share;
mod spare;
mod split;
mod sweep;
#[cfg(test)]
mod tests;
mod unmap;

pub use entry::EntryChange;
pub use error::{Error, Failed};
pub use leaf::Leaf;
pub use log::Logging;
pub use map::Supply;
pub use relocate::Relocation;
pub(crate) use share::leave_table;
pub use split::Reserve;
pub use sweep::SweepChange;

use group::{Passing, Users};
use lend::Lent;
use spare::{Spare, TableSource};

use crate::format::{Decoded, Format, alone, is_grouped, span_at};
use crate::gather::State;
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Walk, beyond};
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};

type Result<'p, T, M, F, G> = core::result::Result<T, Failed<'p, M, F, G>>;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Checks that these tables translate the range.
    fn check(&self, range: VirtRange) -> core::result::Result<(), Error> {
        let last = range.last().ok_or(Error::Empty)?;
        let start = range.start();
        if !start.is_aligned(F::PAGE) {
            return Err(Error::Misaligned(start));
        }
        if !range.len().is_multiple_of(F::PAGE.bytes()) {
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

    /// Checks that the range cuts no page at its ends.
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

    /// Changes the pages of a range, table by table, each with its lock held. Calls `change` with
    /// each page's slot and the table's entry count. Empty tables are unlinked, also when `change`
    /// panics.
    fn each_page<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(
            &mut PendingFlush<'p, M, F, G>,
            &mut u32,
            Slot<'_, M>,
        ) -> core::result::Result<(), Error>,
    ) -> core::result::Result<(), Error> {
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            // One guard for each table, so that a long range holds up no grace period.
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            match spot.found {
                Decoded::Absent | Decoded::Table(_) => next = beyond::<F>(at, spot.level),
                Decoded::Malformed => return Err(Error::Malformed(at)),
                Decoded::Page(..) => {
                    let (table, level) = (spot.entry.table(), spot.level);
                    let Some(locked) = lock::<M, F>(self.machine(), table, at)? else { continue };
                    let mut changing =
                        self.changing(&walk, (at, level), locked, Users::Own, pending);
                    let (end, result) = changing.each(range, table, &mut change);
                    drop(changing);
                    result?;
                    next = end;
                }
            }
        }
        Ok(())
    }

    /// A table on the way to an address, with its level and its lock, whose entries will change.
    #[inline(always)]
    fn changing<'c, 'p>(
        &'p self,
        walk: &'c Walk<'c, M, F>,
        (at, level): (VirtAddr, u8),
        locked: Locked<'c, F>,
        users: Users,
        pending: &'c mut PendingFlush<'p, M, F, G>,
    ) -> Changing<'c, 'p, M, F, G> {
        let (locked, passing) = (Some(locked), Passing::nothing());
        Changing { tables: self, walk, at, level, locked, users, passing, pending }
    }
}

/// A table whose entries are being changed. When this is dropped, also by a panic, the table is
/// unlocked, and an empty user table is unlinked.
struct Changing<'c, 'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    walk: &'c Walk<'c, M, F>,
    at: VirtAddr,
    level: u8,
    /// `None` in `drop`, and after `take_lock`.
    locked: Option<Locked<'c, F>>,
    /// The spaces that translate by the table.
    users: Users,
    passing: Passing<'c, M>,
    pending: &'c mut PendingFlush<'p, M, F, G>,
}

impl<'c, 'p, M: Machine, F: Format, G: Concurrent> Changing<'c, 'p, M, F, G> {
    /// Takes the lock: when this is dropped, the table is not unlinked.
    fn take_lock(&mut self) -> Option<Locked<'c, F>> {
        self.passing.leave(self.tables, self.users);
        self.locked.take()
    }

    /// Changes its entries in the range. Returns the address after the last one.
    #[inline(always)]
    fn each<E: From<Error>>(
        &mut self,
        range: VirtRange,
        table: Frame,
        change: &mut impl FnMut(
            &mut PendingFlush<'p, M, F, G>,
            &mut u32,
            Slot<'_, M>,
        ) -> core::result::Result<(), E>,
    ) -> (Option<VirtAddr>, core::result::Result<(), E>) {
        let &mut Changing { tables, walk, level, at: start, users, .. } = self;
        let Some(locked) = &mut self.locked else { return (Some(start), Ok(())) };
        let (first, shift) = (F::index(start, level), F::shift(level));
        // The last entry of the range in this table.
        let end = range.last().unwrap_or(start).get();
        let more = (end >> shift).saturating_sub(start.get() >> shift);
        let last = (F::ENTRIES - 1).min(first.saturating_add(more as usize));
        let address = |index: usize| match index - first {
            0 => start,
            more => VirtAddr::new(((start.get() >> shift) + more as u64) << shift),
        };
        let Some(entries) = walk.entries(table) else {
            return (Some(start), Err(Error::Malformed(start).into()));
        };
        for entry in entries.range(first..last + 1) {
            let value = entry.load();
            // Most entries of a sparse range.
            if value == 0 {
                continue;
            }
            let at = address(entry.index());
            let grouped = is_grouped::<F>(value, level);
            let value = alone::<F>(value, level, entry.index());
            self.passing.pass(entry.index(), tables, users);
            match F::decode(value, level) {
                Decoded::Absent => {}
                // The pages lie in a lower table, with another lock.
                Decoded::Table(_) => return (Some(at), Ok(())),
                Decoded::Malformed => return (Some(at), Err(Error::Malformed(at).into())),
                Decoded::Page(..) => {
                    if grouped {
                        self.passing.enter(at, entry);
                    }
                    let slot = Slot { at, level, entry, value, grouped };
                    if let Err(error) = change(self.pending, &mut locked.count, slot) {
                        return (Some(at), Err(error));
                    }
                }
            }
        }
        (beyond::<F>(address(last), level), Ok(()))
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Changing<'_, '_, M, F, G> {
    #[inline(always)]
    fn drop(&mut self) {
        self.passing.leave(self.tables, self.users);
        self.pending.flush_broken();
        let empty = self.locked.take().is_some_and(|locked| locked.count == 0);
        let keeps = self.pending.gather.state.contains(State::KEEPS_TABLES);
        if empty && self.tables.space().is_some() && !keeps {
            self.tables.prune_at(self.walk, self.at, self.level, &mut self.pending.gather);
        }
    }
}

/// The entry of a page, with its table locked.
struct Slot<'m, M> {
    at: VirtAddr,
    level: u8,
    entry: machine::Entry<'m, M>,
    /// Its value, as if the page were in no group.
    value: u64,
    /// Whether the page is in a group.
    grouped: bool,
}

/// Writes pages into entries of a locked table, up to the first entry that is not absent, or the
/// first page that has no encoding. Returns how many were written.
#[inline]
fn fill<'m, M: Machine, F: Format>(
    entries: impl Iterator<Item = machine::Entry<'m, M>>,
    level: u8,
    pages: impl Iterator<Item = Option<u64>>,
    locked: &mut Locked<'_, F>,
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

/// Whether all that the entry for `at` at this level decides about lies in the range.
fn covers_entry<F: Format>(range: VirtRange, at: VirtAddr, level: u8) -> bool {
    span_at::<F>(at, level).is_some_and(|span| range.covers(&span))
}

/// Whether the page lies wholly in the range.
fn covers(range: VirtRange, page: VirtAddr, size: PageSize) -> bool {
    VirtRange::new(page, size.bytes()).is_some_and(|page| range.covers(&page))
}
