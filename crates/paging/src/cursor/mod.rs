//! The cursor: map, unmap, protect, sweep and split ranges, change single entries, and fork.
//!
//! A call that changes a range iterates a [`Cursor`](range::Cursor). From the current address the
//! cursor walks down, without a lock, to the table whose entries will change, and locks it. The
//! call iterates the pages of the locked table and changes each by a method of its
//! [`LockedEntry`]:
//!
//! ```text
//! let mut cursor = tables.cursor(range, Locking::Everywhere, &mut pending);
//! while let Some(mut table) = cursor.next_table()? {
//!     while let Some((found, mut page)) = table.next_page()? {
//!         page.change(found, decide(found))?;
//!     }
//! }
//! ```
//!
//! A dropped table parts groups, flushes broken pages, is unlocked, and is unlinked if it is empty
//! (`table`). So two CPUs contend only where they change the same table, which at the lowest level
//! covers 2 MiB, or more with a larger granule. A call that changes one entry uses the same types:
//! it locks the table, reads the entry, decides, and applies its decision (`entry`).
//!
//! | module | contents |
//! |---|---|
//! | `range`, `table`, `page` | the cursor; a locked table, an entry of it |
//! | `map`, `unmap`, `protect`, `sweep`, `map_over`, `leaf`, `supervisor` | the calls on ranges; small kernel maps; pages for the kernel alone |
//! | `change` | the changes that callers ask for |
//! | `entry`, `neighbours` | one entry by a decision under its table's lock; the group around it |
//! | `share` | tables that spaces share after a fork |
//! | `split`, `collapse`, `relocate`, `spare`, `prune` | large pages, moves; tables that are new, or empty |
//! | `group`, `breaks`, `publish` | what hardware demands: groups, break-before-make, barriers |
//! | `log`, `frame_check` | dirty logging, and why no write is lost; the check of user frames |
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
//!   (`spare`). `unmap`, `protect`, `sweep` and `prune` need none, unless a fork shares the tables:
//!   they refuse a range that cuts a page in two. Before an operation fails for lack of a table, it
//!   reclaims idle ones (`reclaim`); not so `with_entry`, whose caller holds a guard.
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
mod change;
mod collapse;
mod entry;
mod failed;
mod frame_check;
mod group;
mod leaf;
mod log;
mod map;
mod map_over;
mod neighbours;
mod page;
mod protect;
mod prune;
mod publish;
mod range;
mod relocate;
mod share;
mod spare;
mod split;
mod supervisor;
mod sweep;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod unmap;

pub use change::{EntryChange, SweepChange};
pub use failed::Failed;
pub use leaf::Leaf;
pub use log::Logging;
pub use map::Supply;
pub use relocate::Relocation;
pub use split::Reserve;

use frame_check::CheckedBlock;
use group::{OpenGroup, TableUsers};
use page::{LockedEntry, PageEntry};
use range::Locking;
use spare::{Spare, TableSource};
use table::{LockedTable, TablePages};

use crate::error::Error;
use crate::format::{Decoded, Format, Geometry, span_at};
use crate::lock::Locked;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, Walk, mapping};
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange};

type Result<'p, T, M, F, G> = core::result::Result<T, Failed<'p, M, F, G>>;

/// The result of a call, and the flush of its changes.
type Changed<'p, T, M, F, G> = (T, PendingFlush<'p, M, F, G>);

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Runs a change. Its flush is returned with the result, or with the error.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn with_flush<'p, T>(
        &'p self,
        change: impl FnOnce(&mut PendingFlush<'p, M, F, G>) -> core::result::Result<T, Error>,
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        let mut pending = self.no_flush();
        match change(&mut pending) {
            Ok(result) => Ok((result, pending)),
            Err(error) => Err(Failed { error, pending }),
        }
    }

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

    /// Checks that the range cuts no page at its ends. Cost: a walk, and one more if the end lies
    /// in another table.
    fn check_ends(
        &self,
        walk: &Walk<'_, M, F>,
        range: VirtRange,
    ) -> core::result::Result<(), Error> {
        let (start, last) = (range.start(), range.last().ok_or(Error::Empty)?);
        let cuts = |page: &Mapping| !covers(range, page.page, page.size);
        let cut = |page: Mapping| Err(Error::Cut(page.page, page.size));
        let spot = if F::is_canonical(start) { walk.find(start, 0) } else { None };
        if let Some(page) = spot.as_ref().and_then(|spot| mapping::<M, F>(start, spot))
            && cuts(&page)
        {
            return cut(page);
        }
        // A lowest table has no large pages, but it may have groups.
        let table = |at: VirtAddr| at.get() >> F::shift(1);
        if F::GROUP.is_none()
            && spot.is_some_and(|spot| spot.level == 0)
            && table(start) == table(last)
        {
            return Ok(());
        }
        walk.get(last).filter(cuts).map_or(Ok(()), cut)
    }
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

/// The range from an address in it on.
fn rest(range: VirtRange, from: VirtAddr) -> Option<VirtRange> {
    let done = from.get().checked_sub(range.start().get())?;
    VirtRange::new(from, range.len().checked_sub(done)?)
}

/// Whether all that the entry for `at` at this level decides about lies in the range.
fn covers_entry<F: Format>(range: VirtRange, at: VirtAddr, level: u8) -> bool {
    span_at::<F>(at, level).is_some_and(|span| range.covers(&span))
}

/// Whether the page lies wholly in the range.
fn covers(range: VirtRange, page: VirtAddr, size: PageSize) -> bool {
    VirtRange::new(page, size.bytes()).is_some_and(|page| range.covers(&page))
}
