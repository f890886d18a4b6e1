//! Moves the pages of a range to other addresses of the same space (mremap).
//!
//! Both ranges are *still*: no other CPU adds pages to them. A kernel makes page faults there wait.
//! A fault that had passed its second look before that may still hold a table's lock, so a sweep of
//! the old range comes first: it takes each lock. Then the tables that the target needs are known,
//! and taken, before the first page moves, and the move itself cannot fail (I7). A table that is
//! there counts only if it has an entry: a fault that was under way may unlink an empty one. A page
//! is nowhere for a moment: it leaves its old table before it enters the new one, so no two locks
//! of one level are held. A pin that comes then takes its slow path.
//!
//! A page of [`Geometry::LARGE`] (2 MiB) moves whole, by its one entry, if the two ranges lie alike
//! within one. At the target a fault that was under way may have linked a lower table, which it
//! will find useless. The move unlinks it: nothing is mapped there.

use super::{Error, Locking, Spare, SweepChange, TableSource, covers, rest};
use crate::format::{Decoded, Format, Geometry};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, beyond};
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange};

/// A move that cannot fail any more: its ranges, and the tables in hand for the target.
#[must_use = "dropping it gives the tables back; `PageTables::relocate` moves the pages"]
pub struct Relocation<'p, M: Machine, F: Format, G: Concurrent> {
    spare: Spare<'p, M, F, G>,
    from: VirtRange,
    to: VirtRange,
}

/// The most pages that are between two tables.
const BATCH: usize = 64;

/// A page between two tables: its new address, and the value of its entry.
#[derive(Clone, Copy)]
struct MovingPage {
    at: VirtAddr,
    size: PageSize,
    value: u64,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Prepares a move of the pages of `from` to the range of the same length at `to`: makes the
    /// tables of both this space's own, and takes those that the target will need. Until the move,
    /// or until the returned value is dropped, no page is added to either range. Deferred frees may
    /// run: see [Context](Self#context).
    ///
    /// Cost: two loads for each page of `from`, a walk and a lock for each table, and the tables.
    ///
    /// # Errors
    /// - As [`unshare`](Self::unshare), for either range; [`Error::Empty`] if `to` wraps;
    ///   [`Error::Overlap`].
    /// - [`Error::Cut`]: a large page is in `from` that cannot move whole: `from` has a part of it,
    ///   the two ranges do not lie alike within large pages, or it has 1 GiB. Split it first.
    /// - [`Error::Occupied`]: a page is in the target.
    /// - [`Error::Frames`]: no memory for the tables.
    ///
    /// # Misuse
    /// A [`Relocation`] gives its tables back when it is dropped. `relocate` refuses that of other
    /// page tables.
    pub fn prepare_relocation(
        &self,
        from: VirtRange,
        to: VirtAddr,
    ) -> Result<Relocation<'_, M, F, G>, Error> {
        let to = VirtRange::new(to, from.len()).ok_or(Error::Empty)?;
        if let Some(both) = from.intersection(&to) {
            return Err(Error::Overlap(both.start()));
        }
        self.unshare(from)?;
        self.unshare(to)?;
        let mut settled = self.no_flush();
        // SAFETY: it changes no page. It unlinks tables that are empty, and flushes for them.
        unsafe { self.sweep(from, &mut settled, |_| SweepChange::Keep) }?;
        settled.flush();
        let mut spare = Spare::none(self);
        let mut needed = 0;
        {
            let guard = G::pin();
            if let Some(page) = self.walk(&guard).pages(to).next() {
                return Err(Error::Occupied(page.page));
            }
            // For each level the last table that was counted, by the first address beyond it.
            let mut counted: [Option<VirtAddr>; 5] = [None; 5];
            // The lowest table that stays, as above.
            let mut has = None;
            for page in self.walk(&guard).pages(from) {
                let lowest = match F::level_of(page.size) {
                    Some(0) => 0,
                    Some(1) if moves_whole::<F>(from, to, page.page) => 1,
                    _ => return Err(Error::Cut(page.page, page.size)),
                };
                let at = moved(from, to, page.page);
                let table = beyond::<F>(at, 1);
                if counted[0] == table || has == Some(table) {
                    continue;
                }
                if lowest == 0 && self.has_table(at, from)? {
                    has = Some(table);
                    continue;
                }
                let upper = usize::from(F::LEVELS - 1);
                for (level, counted) in counted.iter_mut().enumerate().take(upper) {
                    let end = beyond::<F>(at, level as u8 + 1);
                    if *counted != end {
                        *counted = end;
                        needed += 1;
                    }
                }
            }
        }
        // A few more: a fault outside of the ranges may unlink a new table that is empty for a
        // moment.
        spare.fill(if needed == 0 { 0 } else { needed + usize::from(F::LEVELS) })?;
        Ok(Relocation { spare, from, to })
    }

    /// Whether the lowest table for an address has an entry, so that it and the way there stay. A
    /// fault that is under way unlinks a table that is empty, and those above it that become empty
    /// by that. (It may also split a large page: then its pieces need a table, too.)
    fn has_table(&self, at: VirtAddr, from: VirtRange) -> Result<bool, Error> {
        // Its entries may be those that move.
        let first = at.align_down(F::LARGE);
        let table = VirtRange::new(first, F::LARGE.bytes()).ok_or(Error::Empty)?;
        if table.contains(from.start()) || from.contains(first) {
            return Ok(false);
        }
        let guard = G::pin();
        let spot = self.walk(&guard).find(at, 0).ok_or(Error::Malformed(at))?;
        if spot.level != 0 {
            return Ok(false);
        }
        let locked = lock::<M, F>(self.machine(), spot.entry.table(), at)?;
        Ok(locked.is_some_and(|locked| locked.count != 0))
    }

    /// Moves the pages, with all their attributes. The flush of the old range is added to
    /// `pending`. Nothing fails, unless the tables are corrupt.
    ///
    /// Cost: for each page a swap, and a walk, a lock and a store at its target; for each 64 pages,
    /// a walk and a lock for each of their tables.
    ///
    /// # Context
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// [`Error::NotTheTables`]: `pending` or `relocation` is of other tables; nothing has changed.
    /// [`Error::Malformed`]; [`Error::Occupied`]: a page is in the way, against the safety
    /// conditions. The pages before it have moved; it and up to 63 behind it are in no table.
    ///
    /// # Safety
    /// - *Addresses*: both ranges are the caller's to change. No page was added to either of them
    ///   since `relocation` was made, and the target has none. No page outside of the target, in a
    ///   table that it shares, was removed.
    /// - *Flush*: until `pending` is flushed, an access by an old address may still reach its page,
    ///   and no frame is given back.
    pub unsafe fn relocate<'p>(
        &'p self,
        relocation: Relocation<'p, M, F, G>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        let Relocation { mut spare, from, to } = relocation;
        if !pending.is_of(self) || !spare.is_of(self) {
            return Err(Error::NotTheTables);
        }
        let _published = self.publish(to);
        let mut next = Some(from.start());
        while let Some(at) = next {
            let mut batch = [None; BATCH];
            let end = self.take_pages(at, from, to, &mut batch, pending);
            // Also after an error: these pages are in no table.
            for page in batch.iter().flatten() {
                self.put_page(page, &mut spare, pending)?;
            }
            next = end?;
        }
        // Unlinks the tables that are empty now.
        // SAFETY: passed on. It changes no page.
        unsafe { self.sweep(from, pending, |_| SweepChange::Keep) }.map(drop)
    }

    /// Takes pages out of their tables, from `at` on, as many as `batch` has room for. Returns the
    /// address to go on from. An error leaves in `batch` the pages that were taken before it.
    fn take_pages<'p>(
        &'p self,
        at: VirtAddr,
        from: VirtRange,
        to: VirtRange,
        batch: &mut [Option<MovingPage>; BATCH],
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<Option<VirtAddr>, Error> {
        let mut free = batch.iter_mut();
        let mut cursor = self.cursor(rest(from, at).unwrap_or(from), Locking::Everywhere, pending);
        // A table that becomes empty may be the target's, too.
        cursor.unlinks = false;
        while let Some(mut table) = cursor.next_table()? {
            while let Some((found, mut page)) = table.next_page()? {
                let Mapping { page: at, size, .. } = found;
                let Some(place) = free.next() else { return Ok(Some(at)) };
                if size != F::PAGE && !(size == F::LARGE && moves_whole::<F>(from, to, at)) {
                    return Err(Error::Malformed(at));
                }
                page.part();
                // A swap: it includes the bits that hardware has set since.
                *place = Some(MovingPage { at: moved(from, to, at), size, value: page.swap_out() });
                page.drop_cached();
            }
        }
        Ok(None)
    }

    fn put_page<'p>(
        &'p self,
        &MovingPage { at, size, value }: &MovingPage,
        spare: &mut Spare<'p, M, F, G>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        let level = F::level_of(size).ok_or(Error::Malformed(at))?;
        let page = VirtRange::new(at, size.bytes()).ok_or(Error::Empty)?;
        loop {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let mut source = TableSource::Spare(spare);
            let mut locked =
                self.table_from(&walk, at, level, &mut self.no_flush(), &mut source)?;
            let entry =
                walk.entry(locked.table, F::index(at, level)).ok_or(Error::Malformed(at))?;
            let found = F::decode(entry.load(), level);
            if found == Decoded::Absent {
                self.break_way(at, level);
                entry.store(value);
                locked.count += 1;
                return Ok(());
            }
            drop(locked);
            if !matches!(found, Decoded::Table(_)) || self.walk(&guard).pages(page).next().is_some()
            {
                return Err(Error::Occupied(at));
            }
            drop(guard);
            // SAFETY: it changes no page. It unlinks the empty table, unless the fault has.
            unsafe { self.sweep(page, pending, |_| SweepChange::Keep) }?;
        }
    }
}

/// The new address of a page.
fn moved(from: VirtRange, to: VirtRange, page: VirtAddr) -> VirtAddr {
    VirtAddr::new(page.get() - from.start().get() + to.start().get())
}

/// Whether the large page at `page` moves by its entry.
fn moves_whole<F: Format>(from: VirtRange, to: VirtRange, page: VirtAddr) -> bool {
    let apart = from.start().get() ^ to.start().get();
    apart.is_multiple_of(F::LARGE.bytes()) && covers(from, page, F::LARGE)
}
