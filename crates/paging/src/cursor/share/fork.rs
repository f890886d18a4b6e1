//! fork: page tables for a child, in constant time.

use super::copy::{Pinned, add_share, share_page, unshare_page};
use crate::block::block_of;
use crate::cursor::{Changed, Error, Result as Outcome, SweepChange, rest};
use crate::format::{Decoded, Format, Geometry, Share, entry, lower_entries, start_at};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::sync::{AtomicU64, fence};
use crate::tables::PageTables;
use crate::tags::Tag;
use crate::walk::{Mapping, beyond};
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Frame, FrameError, Machine, NodePolicy, SharedAccess, VirtAddr, VirtRange};

/// Says that a fork is under way, while it exists.
struct UnderWay<'p>(&'p AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of a walk's first look at the count. A CPU that sees the
        // end sees the fork's changes.
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// A new frame for the copy of the page at an address; `None` if the child does not have the page.
pub(super) type Copies<'c> = dyn Fn(VirtAddr) -> Result<Option<Frame>, FrameError> + 'c;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Makes the tables of a forked child, with `tag` as in [`user`](Self::user): they map the same
    /// pages, and a write of either space leaves the other as it is. Both share their lower tables
    /// until they change something below.
    ///
    /// The flush that is returned takes the right to write from CPUs that use these tables. When it
    /// is done, the child is what these tables are at that moment.
    ///
    /// With `pinned`, exclusive pages that have pins are copied at once, so that writes through the
    /// pins are seen here. Without it, no page of these tables has been pinned for longer than a
    /// call.
    ///
    /// Cost: a lock for each used entry of the top-level table that is not the kernel's, and one
    /// flush of the space. Where [`Format::SHARED_IS_READ_ONLY`] is `false`: a copy of each upper
    /// table, and a load for each page. With `pinned`, a load for each page, and a copy for each
    /// pinned one.
    /// Deferred frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// As for [`user`](Self::user); [`Error::Kernel`]: these are the kernel's tables;
    /// [`Error::SupervisorFork`]: they have, or had, pages for the kernel alone;
    /// [`Error::Frames`]: no memory, or too many shares of a table. Nothing that a program can see
    /// has changed then.
    ///
    /// # Safety
    /// - *Frames*: each entry whose frame has [`machine::Owner::User`] holds a reference of its own
    ///   to the frame, for these tables and the child's. Other frames outlive both.
    /// - *Software bits*: the two lowest of each page are its [`Share`]. A page that is neither
    ///   exclusive nor an object's has no right to write, and an exclusive page has no other entry.
    /// - *Calls*: no other call than [`with_entry`](Self::with_entry), pins and walks runs
    ///   concurrently on these tables.
    /// - *Flush*: until the flush is done, the child's tables are not active on any CPU.
    pub unsafe fn fork(
        &self,
        tag: impl Into<Tag>,
        pinned: bool,
    ) -> Outcome<'_, Changed<'_, Self, M, F, G>, M, F, G> {
        let frame = |_| self.machine().alloc(F::PAGE.order(), NodePolicy::Local).map(Some);
        // SAFETY: passed on. The frame is new.
        unsafe { self.fork_with(tag, pinned.then_some(&frame)) }
    }

    /// As [`fork`](Self::fork); with `copies`, pages may be pinned, and the frames of their copies
    /// come from there. It gets a page's address; for `None`, the child does not have that page.
    ///
    /// # Errors
    /// Also those of `copies`.
    ///
    /// # Safety
    /// As for [`fork`](Self::fork). The frames of `copies` are new, and no other code uses them.
    /// Each begins a block of the size of [`Format::PAGE`].
    pub unsafe fn fork_with(
        &self,
        tag: impl Into<Tag>,
        copies: Option<&Copies<'_>>,
    ) -> Outcome<'_, Changed<'_, Self, M, F, G>, M, F, G> {
        let tag = tag.into();
        self.with_flush(|pending| self.fork_to(tag, copies, pending))
    }

    fn fork_to<'p>(
        &'p self,
        tag: Tag,
        copies: Option<&Copies<'_>>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> Result<Self, Error> {
        if self.space().is_none() {
            return Err(Error::Kernel(VirtAddr::new(0)));
        }
        if self.has_supervisor() {
            return Err(Error::SupervisorFork);
        }
        let child = Self::user(self.paging(), tag, self.kernel.clone())?;
        // Relaxed: no other CPU has the child.
        child.forks.store(2, Ordering::Relaxed);
        self.machine().step(SharedAccess::Other);
        // Release: pairs with the Acquire of `fork_count`. The lock under which a mark is stored
        // orders it for the CPUs that find the mark.
        self.forks.fetch_add(1, Ordering::Release);
        let _under_way = UnderWay(&self.forks);
        // SeqCst: pairs with the fence in `prune_during_fork`.
        fence(Ordering::SeqCst);
        self.machine().step(SharedAccess::Other);
        let bytes = 1u64 << F::LOWER_BITS;
        let lower = VirtRange::new(VirtAddr::new(0), bytes).ok_or(Error::Empty)?;
        // Everything may have been written by a cached right, and by a cached upper entry.
        pending.gather.add(lower, F::PAGE);
        pending.gather.drop_uppers();
        let shared = match F::SHARED_IS_READ_ONLY {
            true => self.share_top(&child),
            false => {
                let pinned = if copies.is_some() { Pinned::LeftOut } else { Pinned::Shared };
                self.share_lowest(self.root(), child.root(), F::LEVELS - 1, pinned)
            }
        };
        let copied = shared.and_then(|()| match copies {
            Some(copies) => self.copy_pinned(&child, lower, copies),
            None => Ok(()),
        });
        match copied {
            Ok(()) => Ok(child),
            Err(error) => {
                child.give_up(lower);
                Err(error)
            }
        }
    }

    /// Gives back the references of the pages in tables of this space's own, which no CPU has used,
    /// because the fork fails. Dropping the tables leaves the shared ones. Corrupt tables leak.
    fn give_up(&self, lower: VirtRange) {
        let rest = |next: Option<VirtAddr>| rest(lower, next?);
        let mut left = Some(lower);
        while let Some(range) = left {
            let mut pending = self.no_flush();
            // SAFETY: no other code has the child's tables.
            let next = unsafe { self.leave_shared(range, &mut pending) };
            left = rest(next.unwrap_or(None));
        }
        let mut left = Some(lower);
        while let Some(range) = left {
            let (mut frames, mut len) = ([Frame::default(); 64], 0);
            let mut pending = self.no_flush();
            let clear = |page: Mapping| match frames.get_mut(len) {
                Some(place) => {
                    (*place, len) = (page.frame, len + 1);
                    SweepChange::Clear
                }
                None => SweepChange::Stop,
            };
            // SAFETY: as above. The frames are given back after the flush.
            let next = unsafe { self.sweep(range, &mut pending, clear) };
            pending.flush();
            for &frame in &frames[..len] {
                // SAFETY: no CPU has used the entry, which held the reference.
                unsafe { self.paging().release_entry(frame) };
            }
            left = rest(next.unwrap_or(None));
        }
    }

    /// Shares the tables right below the top level.
    fn share_top(&self, child: &Self) -> Result<(), Error> {
        let (machine, at, level) = (self.machine(), VirtAddr::new(0), F::LEVELS - 1);
        let _locked = lock::<M, F>(machine, self.root(), at)?.ok_or(Error::Malformed(at))?;
        let mut count = 0;
        let shared = (0..lower_entries::<F>()).try_for_each(|index| {
            // SAFETY: both are top-level tables while their `PageTables` exist.
            let entries = unsafe {
                (
                    entry::<M, F>(machine, self.root(), index),
                    entry::<M, F>(machine, child.root(), index),
                )
            };
            let (Some(from), Some(to)) = entries else { return Err(Error::Malformed(at)) };
            match F::decode(from.load(), level) {
                Decoded::Absent => return Ok(()),
                Decoded::Table(lower) => {
                    let value = F::shared_table(lower)?;
                    add_share::<M, F>(machine, lower)?;
                    from.store(value);
                    to.store(value);
                }
                Decoded::Page(..) | Decoded::Malformed => return Err(Error::Malformed(at)),
            }
            count += 1;
            Ok(())
        });
        self.set_count(child.root(), count);
        shared
    }

    /// Copies the upper tables, and shares the lowest ones, whose pages lose the right to write.
    fn share_lowest(
        &self,
        table: Frame,
        to: Frame,
        level: u8,
        pinned: Pinned,
    ) -> Result<(), Error> {
        let (machine, at) = (self.machine(), VirtAddr::new(0));
        let own = if level == F::LEVELS - 1 { lower_entries::<F>() } else { F::ENTRIES };
        // At level 1 the entries get marks, so the table's lock is held. Above it, calls that would
        // unlink a table do not run, and faults unlink none (`prune_during_fork`).
        let _locked = (level == 1).then(|| lock::<M, F>(machine, table, at)).transpose()?;
        let mut count = 0;
        let shared = (0..own).try_for_each(|index| {
            // SAFETY: a table of this space, from which no call unlinks anything now; and one of
            // the child's, which no other CPU knows.
            let entries = unsafe {
                (entry::<M, F>(machine, table, index), entry::<M, F>(machine, to, index))
            };
            let (Some(from), Some(into)) = entries else { return Err(Error::Malformed(at)) };
            let value = from.load();
            match F::decode(value, level) {
                Decoded::Absent => return Ok(()),
                Decoded::Table(lower) if level == 1 => {
                    let value = F::shared_table(lower)?;
                    self.share_lowest_table(lower)?;
                    from.store(value);
                    into.store(value);
                }
                Decoded::Table(lower) => {
                    let new = self.with_memory(|| self.new_table(level - 1))?;
                    into.store(F::table(new)?);
                    let shared = self.share_lowest(lower, new, level - 1, pinned);
                    shared.inspect_err(|_| count += 1)?;
                }
                Decoded::Page(frame, attrs) => {
                    if !self.paging().hold_entry(frame) {
                        return Err(Error::Frames(FrameError::NotAllocated(frame)));
                    }
                    let shared = share_page::<M, F>(from, value, level)?;
                    // SeqCst: pairs with the fence of a pin before its second look. Either that
                    // look finds the page shared, or the pin is seen here.
                    fence(Ordering::SeqCst);
                    let is_pinned =
                        || block_of(machine, frame).is_some_and(|(_, info)| info.pins() != 0);
                    if pinned == Pinned::LeftOut && attrs.share() == Share::Exclusive && is_pinned()
                    {
                        // The lock keeps faults away. The child gets a copy later.
                        unshare_page::<M, F>(from, attrs, level)?;
                        // SAFETY: taken above, for an entry that was not stored.
                        unsafe { self.paging().release_entry(frame) };
                        return Ok(());
                    }
                    into.store(shared);
                }
                Decoded::Malformed => return Err(Error::Malformed(at)),
            }
            count += 1;
            Ok(())
        });
        self.set_count(to, count);
        shared
    }

    /// Sets the count of entries of a table that no other CPU knows.
    pub(super) fn set_count(&self, table: Frame, count: u32) {
        let info = self.machine().info(table);
        // SAFETY: the count of a table that is ours alone. Relaxed: the store that publishes it has
        // Release.
        info.inspect(|info| unsafe { info.word() }.store(count, Ordering::Relaxed));
    }

    /// Gives the child copies of the exclusive pages with pins. They stay exclusive here: the child
    /// copies their tables, and leaves them out.
    ///
    /// Pins come and go meanwhile. So the child gets copies of all pages that it lacks in such a
    /// table, not only of those that are pinned at the second look. A copied upper table may lack
    /// large pages; the child gets them in pieces of the smallest size.
    fn copy_pinned(
        &self,
        child: &Self,
        range: VirtRange,
        copies: &Copies<'_>,
    ) -> Result<(), Error> {
        let end = range.last().ok_or(Error::Empty)?;
        let lacks = |page: &Mapping| child.walk(&G::pin()).get(page.page).is_none();
        let mut from = Some(range.start());
        while let Some(rest) = from.and_then(|from| VirtRange::between(from, end)) {
            // A large page that `share_lowest` has left out is copied, though its pin has ended.
            let left_out =
                |page: &Mapping| !F::SHARED_IS_READ_ONLY && page.size != F::PAGE && lacks(page);
            let found = self.first_exclusive(rest, |page| {
                let block = block_of(self.machine(), page.frame);
                block.is_some_and(|(_, info)| info.pins() != 0) || left_out(page)
            });
            let Some(page) = found else { return Ok(()) };
            if page.size > F::LARGE {
                return Err(Error::TooLarge(page.page, page.size));
            }
            let copied = self.with_memory(|| child.own_for_copy(page.page))?;
            if copied > Some(0) {
                self.copy_lacking_large(child, page.page, copies)?;
            } else if page.size != F::PAGE {
                Self::copy_large(child, page, copies)?;
            }
            let after = beyond::<F>(page.page, 1).ok_or(Error::Empty)?;
            let small = |page: &Mapping| page.size == F::PAGE && lacks(page);
            let mut next = Some(page.page.align_down(F::LARGE));
            while let Some(page) = next
                .and_then(|next| VirtRange::between(next, after))
                .and_then(|rest| self.first_exclusive(rest, small))
            {
                child.map_copy(page.page, page.frame, page.attrs, copies)?;
                next = beyond::<F>(page.page, 0);
            }
            from = Some(after);
        }
        Ok(())
    }

    /// Gives the child copies of the exclusive large pages that it lacks in the upper table for
    /// `at`, which was just copied.
    fn copy_lacking_large(
        &self,
        child: &Self,
        at: VirtAddr,
        copies: &Copies<'_>,
    ) -> Result<(), Error> {
        let mut next = Some(start_at::<F>(at, 2));
        let end = beyond::<F>(at, 2);
        while let Some(at) = next.filter(|at| Some(*at) != end) {
            next = beyond::<F>(at, 1);
            let page = self
                .walk(&G::pin())
                .get(at)
                .filter(|page| page.size == F::LARGE && page.attrs.share() == Share::Exclusive);
            page.map_or(Ok(()), |page| Self::copy_large(child, page, copies))?;
        }
        Ok(())
    }

    /// Gives the child copies of the pieces of a large page that it lacks.
    fn copy_large(child: &Self, page: Mapping, copies: &Copies<'_>) -> Result<(), Error> {
        let pieces = (0..F::ENTRIES as u64).filter_map(|piece| {
            let at = page.page.checked_add(piece * F::PAGE.bytes())?;
            Some((at, page.frame.checked_add(piece * F::PAGE.frames())?))
        });
        for (at, frame) in pieces {
            if child.walk(&G::pin()).get(at).is_none() {
                child.map_copy(at, frame, page.attrs, copies)?;
            }
        }
        Ok(())
    }

    /// The first exclusive page of a range that `wanted` accepts.
    fn first_exclusive(
        &self,
        range: VirtRange,
        wanted: impl Fn(&Mapping) -> bool,
    ) -> Option<Mapping> {
        let guard = G::pin();
        let is_exclusive = |page: &Mapping| page.attrs.share() == Share::Exclusive;
        self.walk(&guard).pages(range).find(|page| is_exclusive(page) && wanted(page))
    }

    /// Makes the way to `at` this space's own, without the pages that have pins. Returns the
    /// highest level of a table that was shared.
    fn own_for_copy(&self, at: VirtAddr) -> Result<Option<u8>, Error> {
        let mut highest = None;
        self.own_at(at, Pinned::LeftOut, |level| {
            highest = highest.max(Some(level - 1));
            true
        })?;
        Ok(highest)
    }
}
