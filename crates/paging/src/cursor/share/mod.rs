//! Tables that spaces share after a fork, and the ways in which a space gets its own again.
//!
//! [`fork`](PageTables::fork) gives the child the parent's tables: each entry of the top-level
//! table then leads to the same lower table in both spaces. It is a *shared* entry: it lacks
//! [`Format::OWN`], so hardware lets no write pass, and the lower table counts one share more.
//! Lower entries stay untouched, so a fork costs the same however much is mapped. A space that
//! wants to change an entry below makes the way there its own first, one table per level: the last
//! sharer takes the table over, any other copies it.
//!
//! Where upper entries cannot forbid writing ([`Format::SHARED_IS_READ_ONLY`]), the fork copies
//! the upper tables, shares the lowest ones, and takes the right to write from their pages.
//!
//! # Frames
//! In tables that fork, each entry of a page whose frame has [`Owner::User`] holds one reference
//! to the frame. Sharing a table shares its references; copying it takes one more for each page;
//! the end of its last share drops them. Frames of other owners are not counted.
//!
//! # Why it is right
//! - *A space changes entries only in tables of its own.* [`own_way`](PageTables::own_way) makes
//!   the way its own. With the lock of the table held, [`leads_to`](PageTables::leads_to) checks
//!   that the way from the top still leads there: another CPU of the space may have replaced the
//!   table by a copy meanwhile.
//! - *Entries of a shared table never change*, with four exceptions. Three are such that no sharer
//!   can notice.
//!   Hardware sets accessed bits. A copy takes from the table's own pages the right to write, and
//!   the mark of an exclusive page: no sharer could use either. And a fault that was under way
//!   when its space forked may still store a page of zeros, or rights that the shared entry above
//!   withholds: both spaces had the same VMA there at the fork, and a space whose VMA has changed
//!   since has left the table, or copied it with this lock held. The fourth is noticed by all: an
//!   object takes a page back ([`take_back`](PageTables::take_back)), and all CPUs flush.
//! - *A space that leaves a table flushes before its share ends*: its CPUs may walk the table from
//!   a cached upper entry. The flush and the share wait in the [`PendingFlush`]. So the last sharer
//!   finds itself alone only when no other CPU, in hardware, can reach the table. Walks in
//!   software read the way again before they rely on a page.
//! - *The copy and its link are one step*, with the locks of both tables held. So no change of the
//!   old table by a fault of this space is missed: it comes before the copy, or its check fails.
//! - *Faults during a fork*: the fork marks the top-level entries first, with the table's lock. A
//!   fault that finds such a mark while the fork is under way gets [`Error::Fork`], and waits. A
//!   fault that has come so far that it replaces or splits a page in a table that is shared by now
//!   makes all CPUs flush (`flush_during_fork`): the child has the new page, too.
//!
//! # Cost
//! Making a way one's own: for each shared table two locks, and if it is copied, a locked
//! instruction for each of its pages and tables; then one flush.

mod copy;
mod fork;
mod leave;
mod take_back;

use super::{Error, covers_entry};
use crate::format::{Format, Geometry, span_at};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{FoundTable, SharedLink, Walk, beyond};
use copy::Pinned;
use core::sync::atomic::Ordering;
use grace::Concurrent;
#[expect(unused_imports, reason = "for links")]
use machine::Owner;
use machine::{Frame, Machine, SharedAccess, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Whether the tables have ever been shared with another space, by a fork. A load.
    #[inline]
    pub fn forks(&self) -> bool {
        self.fork_count() != 0
    }

    /// The beginnings and the ends of forks. A load.
    #[inline]
    fn fork_count(&self) -> u64 {
        self.machine().step(SharedAccess::Other);
        // Acquire: pairs with the Release of `fork`. A CPU that has seen anything that another
        // space did after it left, or took over, a table that these tables led to, sees the fork.
        self.forks.load(Ordering::Acquire)
    }

    /// Whether the way to `at` leads to `table` at this level, by tables of this space alone.
    /// Called with the table's lock held.
    pub(super) fn leads_to(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        table: Frame,
    ) -> bool {
        !self.forks() || self.is_way(walk, at, level, table, true)
    }

    /// As [`leads_to`](Self::leads_to), also if the tables have never been shared; `own` says
    /// whether the tables must be of this space alone.
    pub(crate) fn is_way(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        table: Frame,
        own: bool,
    ) -> bool {
        let found = walk.descend(at, level);
        found.is_some_and(|(entry, _, _, is_own)| entry.table() == table && (is_own || !own))
    }

    /// Makes the tables on the way to `at` this space's own, down to the table of level `stop`.
    pub(super) fn own_way<'p>(
        &'p self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        stop: u8,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        if self.forks() {
            while let Some(link) = walk.first_shared(at, stop) {
                self.own_table(walk, link, Pinned::Shared, pending)?;
            }
        }
        Ok(())
    }

    /// Makes the table of a shared entry this space's own, unless another CPU was faster: takes it
    /// over, or copies it.
    fn own_table<'p>(
        &'p self,
        walk: &Walk<'_, M, F>,
        link: SharedLink<'_, M>,
        pinned: Pinned,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<(), Error> {
        let level = link.level - 1;
        let mut new = None;
        let done = loop {
            match self.try_own(walk, &link, pinned, &mut new, pending) {
                // No table is allocated with a lock held.
                Ok(false) => match self.new_table(level) {
                    Ok(table) => new = Some(table),
                    Err(error) => break Err(error),
                },
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Some(unused) = new {
            self.discard_table(unused);
        }
        if pending.gather.is_full() {
            pending.flush_now();
        }
        done
    }

    /// One attempt, with the locks of both tables. Returns `false` if it needs a new table.
    fn try_own(
        &self,
        walk: &Walk<'_, M, F>,
        link: &SharedLink<'_, M>,
        pinned: Pinned,
        new: &mut Option<Frame>,
        pending: &mut PendingFlush<'_, M, F, G>,
    ) -> Result<bool, Error> {
        let (machine, at) = (self.machine(), link.at);
        let upper = link.entry.table();
        let Some(_upper) = lock::<M, F>(machine, upper, at)? else { return Ok(true) };
        if !self.leads_to(walk, at, link.level, upper)
            || link.entry.load() != F::shared_table(link.table)?
        {
            return Ok(true);
        }
        // The fork counted its beginning before it stored the shared entry, with this lock held.
        if !self.fork_count().is_multiple_of(2) {
            return Err(Error::Fork);
        }
        let lower = lock::<M, F>(machine, link.table, at)?.ok_or(Error::Malformed(at))?;
        if lower.shares == 0 {
            link.entry.store(F::table(link.table)?);
            return Ok(true);
        }
        let Some(table) = *new else { return Ok(false) };
        let own = F::table(table)?;
        self.copy_table(walk, &lower, table, link.level - 1, pinned)?;
        link.entry.store(own);
        *new = None;
        self.left(link, pending);
        Ok(true)
    }

    /// Notes that this space has left the table of an entry: a flush is pending, and the end of the
    /// share.
    fn left(&self, link: &SharedLink<'_, M>, pending: &mut PendingFlush<'_, M, F, G>) {
        if let Some(span) = span_at::<F>(link.at, link.level) {
            pending.gather.add(span, F::PAGE);
        }
        pending.gather.add_left(link.table, link.level - 1);
    }

    /// Makes all tables for a range this space's own, so that a call that follows needs no memory
    /// for that. Nothing that a program can see changes.
    ///
    /// Cost: nothing but a load if the tables were never shared. Otherwise a walk for each table,
    /// for each shared one as the module says, and a load for each absent entry above them. May
    /// reclaim: see [Context](Self#context).
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`],
    /// [`Error::Malformed`]; [`Error::Frames`]: no memory for a table; [`Error::Fork`].
    pub fn unshare(&self, range: VirtRange) -> Result<(), Error> {
        self.check(range)?;
        if !self.forks() {
            return Ok(());
        }
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            next = match self.beyond_own(at) {
                Some(next) => next,
                None => beyond::<F>(at, self.own_whole_way(at)?.max(1)),
            };
        }
        Ok(())
    }

    /// As [`unshare`](Self::unshare), for the tables that lie in the range only in part. Then
    /// [`leave_shared`](Self::leave_shared) and [`sweep`](Self::sweep) empty the range without
    /// memory.
    ///
    /// # Errors
    /// As for [`unshare`](Self::unshare).
    pub fn unshare_ends(&self, range: VirtRange) -> Result<(), Error> {
        self.check(range)?;
        if !self.forks() {
            return Ok(());
        }
        let (start, last) = (range.start(), range.last().unwrap_or(range.start()));
        // Within one lowest table, there is one way.
        let last = (start.align_down(F::LARGE) != last.align_down(F::LARGE)).then_some(last);
        for at in [Some(start), last].into_iter().flatten() {
            if self.beyond_own(at).is_none() {
                let cut = |level| !covers_entry::<F>(range, at, level);
                self.with_memory(|| self.own_at(at, Pinned::Shared, cut))?;
            }
        }
        Ok(())
    }

    /// If the way to `at` is this space's own: the address after the range that its last entry
    /// decides about, and after the absent entries behind it. The inner `None`: there is no such
    /// address.
    fn beyond_own(&self, at: VirtAddr) -> Option<Option<VirtAddr>> {
        let guard = G::pin();
        let walk = self.walk(&guard);
        let (entry, level, value, own) = walk.descend(at, 0)?;
        own.then(|| match value {
            0 if level > 0 => walk.beyond_absent(entry.table(), at, level),
            _ => beyond::<F>(at, level.max(1)),
        })
    }

    /// Makes the tables on the way to `at` this space's own. Returns the level at which the way
    /// ends.
    pub(super) fn own_whole_way(&self, at: VirtAddr) -> Result<u8, Error> {
        self.with_memory(|| self.own_at(at, Pinned::Shared, |_| true))
    }

    /// Makes the tables on the way to `at` this space's own, as long as `wanted` accepts the level
    /// of the entry that leads to the next one. Returns the level at which the way ends.
    fn own_at(
        &self,
        at: VirtAddr,
        pinned: Pinned,
        mut wanted: impl FnMut(u8) -> bool,
    ) -> Result<u8, Error> {
        let mut pending = self.no_flush();
        let guard = G::pin();
        let walk = self.walk(&guard);
        while let Some(link) = walk.first_shared(at, 0).filter(|link| wanted(link.level)) {
            self.own_table(&walk, link, pinned, &mut pending)?;
        }
        walk.find(at, 0).map(|spot| spot.level).ok_or(Error::Malformed(at))
    }

    /// Whether the table that this CPU has locked may be changed: the way leads to it, and no space
    /// shares it.
    pub(super) fn may_change(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
        locked: &Locked<'_, F>,
    ) -> bool {
        locked.shares == 0 && self.leads_to(walk, at, level, locked.table)
    }

    /// As [`may_change`](Self::may_change), for a table of the lowest level that an earlier look
    /// has found. If it was this space's own then, and no fork has begun since, a load.
    #[inline]
    pub(super) fn may_still_change(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        seen: FoundTable,
        locked: &Locked<'_, F>,
    ) -> bool {
        locked.shares == 0 && seen.is_own_at(self.fork_count())
            || self.may_change(walk, at, 0, locked)
    }
}
