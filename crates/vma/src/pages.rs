//! The pages behind the VMAs, as far as VMAs have to know of them.
//!
//! This crate manages no pages. A crate that does gives the [`Writer`] a [`Pages`]
//! ([`Writer::with_pages`]), and each call then says which pages to remove, move or protect. The
//! order of stores and page work is this crate's part of the protocol:
//!
//! - *Unmapping*: the hole is stored first, then the pages of the range are removed. A page fault
//!   that comes later sees the hole. After munmap of private anonymous memory the host may let the
//!   addresses *wait* until no CPU has a translation of them. Maps without an address are placed
//!   beside what waits; any other VMA that is stored there claims it first. If all VMAs of the
//!   range are untouched, there are no pages ([`Vma::mark_touched`]).
//! - *Protection*: the new VMA is stored first, then the rights of its pages change.
//! - *A range that changes hands* (a fixed map over another one, a move): it must be empty before
//!   it is new. Otherwise a fault would find an old page in the new VMA, or bring in a page that
//!   the call then removes. So the new VMA is stored *busy* first ([`Vma::is_busy`]), which makes
//!   faults wait; then the pages are removed; then the same VMA is stored without the mark. The two
//!   stores are prepared beforehand, so the second one cannot fail (I7). A reader of the listing
//!   sees the old VMA or the new one, never a hole.
//!
//! All of it happens with the write right held.

use core::ops::Range;

use crate::{
    Advice, Area, Error, RefCounted, VmFlags, Vma, space::Writer, state::VmaCounts, tree::Change,
};

/// The pages behind the VMAs of an address space. Its methods run with the write right held, so
/// they must not call the address space.
///
/// What needs memory in them must be prepared before: only methods that return a `Result` may fail.
///
/// If a method panics, the VMA that the call was storing may stay busy, because its range may still
/// have old pages. It merges with no other VMA. The host unmaps or replaces it.
pub trait Pages<F> {
    /// Prepares the `work` on the pages of a range, so that it cannot fail. Nothing has changed
    /// yet. By default there is nothing to prepare.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn prepare(&mut self, range: Range<usize>, work: PageWork) -> Result<(), Error> {
        let _ = (range, work);
        Ok(())
    }

    /// A VMA of a file is about to be stored over a range where it was not before: a new map, a VMA
    /// that the host describes, or, if it is not `new`, the target of a move. The call may still
    /// fail, and the VMA may join its neighbours. By default there is nothing to do.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::NotHere`]; those of a file that refuses the map.
    fn map(&mut self, range: Range<usize>, vma: &Vma<F>, new: bool) -> Result<(), Error> {
        let _ = (range, vma, new);
        Ok(())
    }

    /// Whether [`promise`](Self::promise) may refuse. If not, calls spare a search.
    fn promises(&self) -> bool {
        false
    }

    /// The call will need memory for `bytes` more ([`VmFlags::ACCOUNT`]). What the VMAs need when
    /// the call has ended is in [`Sizes`](crate::Sizes): the call may have failed since.
    ///
    /// # Errors
    /// [`Error::Overcommit`]; the call fails, and nothing has changed.
    fn promise(&self, bytes: usize) -> Result<(), Error> {
        let _unlimited = bytes;
        Ok(())
    }

    /// The range maps nothing any more, or its new VMA is busy: removes its pages. When it returns,
    /// no CPU has a translation of them.
    fn empty(&mut self, range: Range<usize>);

    /// The range maps nothing any more, by munmap(2), and had private anonymous memory only:
    /// removes its pages. Unlike after [`empty`](Self::empty), CPUs may have translations of them
    /// when it returns, while [`waiting`](Self::waiting) names the range. By default there are
    /// none.
    fn unmap(&mut self, range: Range<usize>) {
        self.empty(range);
    }

    /// Whether the host brings in the pages of a call that populates, after the call. Then its
    /// faults are the first writes of the VMAs, and they may end early, at a page that a
    /// userfaultfd's monitor must resolve. Otherwise the call counts as the first write.
    fn brings_in(&self) -> bool {
        false
    }

    /// Whether a first touch of this VMA may bring in a huge page, which has one right for all of
    /// its 2 MiB. Then a call that changes rights joins a neighbour only after the pages.
    fn may_be_huge(&self, vma: &Vma<F>) -> bool {
        let _ = vma;
        false
    }

    /// A range that overlaps this one and waits: some CPU may have a translation of a page that was
    /// unmapped there. `None` if none does. The answer may be longer than what waits. Maps without
    /// an address are placed elsewhere.
    fn waiting(&self, range: Range<usize>) -> Option<Range<usize>> {
        let _none = range;
        None
    }

    /// A VMA is about to be stored over the range, or the range is wanted for one. When it returns,
    /// nothing in it waits any more. By default nothing does.
    fn claim(&mut self, range: Range<usize>) {
        let _none = range;
    }

    /// Whether the host marks a VMA before each page that it brings in ([`Vma::mark_touched`]).
    /// Then unmapping a VMA without the mark removes no pages. By default it does not.
    fn marks_touched(&self) -> bool {
        false
    }

    /// Debug hook: the range maps nothing any more, and its VMAs were untouched, so there are no
    /// pages to remove. By default it does nothing.
    fn check_untouched(&mut self, range: Range<usize>) {
        let _ = range;
    }

    /// The VMA over the range has other rights now. Its flags were `old`. When it returns, no CPU
    /// has a translation with a right that the VMA has lost.
    fn protect(&mut self, range: Range<usize>, now: &Vma<F>, old: VmFlags);

    /// madvise on a part of one VMA with advice that concerns pages. The VMA stays.
    ///
    /// # Errors
    /// Those of madvise, such as [`Error::WrongKind`].
    fn advise(&mut self, range: Range<usize>, vma: &Vma<F>, advice: Advice) -> Result<(), Error>;

    /// Prepares a move of the pages of `from` to the range of the same length at `to`, so that
    /// [`move_pages`](Self::move_pages) cannot fail. The VMA of `from` is busy, so no page appears
    /// there any more; nothing else has changed yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn prepare_move(&mut self, from: Range<usize>, to: usize) -> Result<(), Error>;

    /// Moves the pages. The VMAs of both ranges are busy. When it returns, no CPU has a translation
    /// of `from`.
    fn move_pages(&mut self, from: Range<usize>, to: usize);
}

/// Work on the pages of a range; see [`Pages::prepare`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageWork {
    /// [`Pages::empty`] or [`Pages::unmap`].
    Empty,
    /// [`Pages::protect`].
    Protect,
}

/// What a change of VMAs means for the pages.
#[derive(Clone, Debug, Default)]
pub(crate) enum Work {
    /// Nothing.
    #[default]
    None,
    /// The range is unmapped, and no CPU uses its pages when the call returns.
    Empty(Range<usize>),
    /// The range is unmapped. It had private anonymous memory only, and its addresses may wait.
    Unmap(Range<usize>),
    /// The range is unmapped, and no page of it was ever there.
    Untouched(Range<usize>),
    /// The range gets a new map, and may have had others.
    Replace(Range<usize>),
    /// The range has other rights; its flags were these.
    Protect(Range<usize>, VmFlags),
}

impl Work {
    /// That of a change of a VMA's flags over a range.
    pub(crate) fn of_flags(range: Range<usize>, old: VmFlags, new: VmFlags) -> Work {
        match (old ^ new).intersects(VmFlags::ACCESS | VmFlags::PKEY) {
            true => Work::Protect(range, old),
            false => Work::None,
        }
    }
}

impl<'a, F: crate::MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'a, F, R, A> {
    /// From now on, calls tell `pages` which pages to remove, move or protect; see [`Pages`].
    ///
    /// ```
    /// # use core::ops::Range;
    /// # use vma::*;
    /// # #[derive(Clone, PartialEq)]
    /// # struct File;
    /// # impl MappedFile for File {
    /// #     fn writable(&self) -> bool { true }
    /// #     fn device(&self) -> (u32, u32) { (8, 1) }
    /// #     fn inode(&self) -> u64 { 1 }
    /// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
    /// #         out.write_str("/file")
    /// #     }
    /// # }
    /// /// Writes down what it is told.
    /// #[derive(Default)]
    /// struct Log(Vec<Range<usize>>);
    ///
    /// impl<F> Pages<F> for Log {
    ///     fn empty(&mut self, range: Range<usize>) { self.0.push(range) }
    ///     fn protect(&mut self, _: Range<usize>, _: &Vma<F>, _: VmFlags) {}
    ///     fn advise(&mut self, _: Range<usize>, _: &Vma<F>, _: Advice) -> Result<(), Error> {
    ///         Ok(())
    ///     }
    ///     fn prepare_move(&mut self, _: Range<usize>, _: usize) -> Result<(), Error> { Ok(()) }
    ///     fn move_pages(&mut self, _: Range<usize>, _: usize) {}
    /// }
    /// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
    /// # let mut space = AddressSpace::<File, grace::Single>::new(Profile::LINUX_6_18, layout);
    /// # let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
    /// # let request = MapRequest {
    /// #     addr: 0, len: 0x4000, prot: 3, flags, file: None, offset: 0, driver_flags: None,
    /// # };
    /// let mut log = Log::default();
    /// let mut writer = space.get_mut().with_pages(&mut log);
    /// let at = writer.mmap(request.clone())?;
    /// writer.munmap(at + 0x1000, 0x1000)?;
    /// drop(writer);
    /// assert_eq!(log.0, [at + 0x1000..at + 0x2000]);
    /// # Ok::<(), vma::Error>(())
    /// ```
    ///
    /// # Panics
    /// The writer has pages already: they would not hear of changes.
    #[must_use]
    pub fn with_pages(self, pages: &'a mut (dyn Pages<F> + 'a)) -> Self {
        assert!(self.pages.is_none(), "this writer has the pages of its space");
        Writer { pages: Some(pages), ..self }
    }

    /// Stores a VMA over a range that may have had others: busy first, then, when the range is
    /// empty, for good. Both hold the same contents.
    pub(crate) fn replace_pages(
        &mut self,
        start: usize,
        end: usize,
        vma: RefCounted<Vma<F>>,
        emptied: Range<usize>,
        more: VmaCounts,
    ) -> Result<(), Error> {
        let busy = self.busy(&vma)?;
        self.prepare_pages(emptied.clone(), PageWork::Empty)?;
        self.tree.preallocate_writes(2)?;
        self.tree.store_range(start..=end - 1, busy).map_err(|refused| refused.error)?;
        self.state.count_more(more);
        self.empty_pages(emptied);
        let done = self.tree.store_range(start..=end - 1, vma);
        debug_assert!(done.is_ok(), "the memory of both stores was allocated before the first");
        done.map_err(|refused| refused.error.into())
    }

    /// A copy of a VMA that makes faults wait. No fault fills its anon_vma: the copy is about to
    /// be replaced, so that first write would be lost.
    pub(crate) fn busy(&self, vma: &Vma<F>) -> Result<RefCounted<Vma<F>>, Error> {
        let busy = Vma { busy: true, ..Vma::clone(vma) };
        busy.anon.close();
        Ok(RefCounted::new(busy)?)
    }

    /// Calls `work` while these VMAs are busy, which stay as they are.
    ///
    /// Cost: two stores for each VMA.
    pub(crate) fn while_busy<E: From<Error>>(
        &mut self,
        areas: &[Area<F>],
        work: impl FnOnce(&mut (dyn Pages<F> + 'a)) -> Result<(), E>,
    ) -> Result<(), E> {
        self.tree.preallocate_writes(2 * areas.len()).map_err(Error::from)?;
        let mut done = Ok(());
        let mut stored = 0;
        for area in areas {
            let store = self.busy(&area.vma).and_then(|busy| self.store_known(area, busy));
            done = store.map_err(E::from);
            if done.is_err() {
                break;
            }
            stored += 1;
        }
        if let (Ok(()), Some(pages)) = (&done, &mut self.pages) {
            done = work(*pages);
        }
        for area in &areas[..stored] {
            let back = self.store_known(area, area.vma.clone());
            debug_assert!(back.is_ok(), "the memory of all stores was allocated before the first");
        }
        done
    }

    /// Stores contents over a VMA that count as its own.
    fn store_known(&mut self, area: &Area<F>, vma: RefCounted<Vma<F>>) -> Result<(), Error> {
        let stored = self.tree.store_range(area.start..=area.end - 1, vma);
        stored.map_err(|refused| refused.error.into())
    }

    /// UFFDIO_MOVE: moves the private pages of `from` to `to`. Both ranges lie in one VMA each, of
    /// private anonymous memory with the same rights. The VMAs stay. `check` is called while
    /// neither range changes, and may refuse.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::BadRange`], [`Error::OutOfMemory`], [`Error::Occupied`] if a
    /// page is in the way, and those of `check`. Nothing has moved.
    pub fn move_private<E: From<Error>>(
        &mut self,
        from: Range<usize>,
        to: usize,
        check: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let to_end = to.checked_add(from.len()).ok_or(Error::BadRange)?;
        if from.start < to_end && to < from.end {
            return Err(Error::BadRange.into());
        }
        self.first_write(to)?;
        let (source, target) = (self.covering(from.start), self.covering(to));
        let (source, target) = source.zip(target).ok_or(Error::WrongKind)?;
        let compared = VmFlags::ACCESS | VmFlags::LOCKED | VmFlags::PKEY;
        let plain = |area: &Area<F>| {
            area.vma.file.is_none() && area.vma.is_private() && !area.vma.is_busy()
        };
        let fit = plain(&source)
            && plain(&target)
            && from.end <= source.end
            && to_end <= target.end
            && (source.vma.flags ^ target.vma.flags) & compared == VmFlags::empty();
        if !fit {
            return Err(Error::WrongKind.into());
        }
        let both = [source, target];
        let areas = if both[0].start == both[1].start { &both[..1] } else { &both[..] };
        self.while_busy(areas, |pages| {
            pages.prepare_move(from.clone(), to)?;
            check()?;
            pages.move_pages(from, to);
            Ok(())
        })
    }

    pub(crate) fn prepare_pages(
        &mut self,
        range: Range<usize>,
        work: PageWork,
    ) -> Result<(), Error> {
        self.pages.as_mut().map_or(Ok(()), |pages| pages.prepare(range, work))
    }

    /// Says that a VMA is about to be stored over a range where it was not before.
    pub(crate) fn map_pages(
        &mut self,
        range: Range<usize>,
        vma: &Vma<F>,
        new: bool,
    ) -> Result<(), Error> {
        match &mut self.pages {
            Some(pages) if vma.file.is_some() => pages.map(range, vma, new),
            _ => Ok(()),
        }
    }

    pub(crate) fn empty_pages(&mut self, range: Range<usize>) {
        if let Some(pages) = &mut self.pages {
            pages.empty(range);
        }
    }

    pub(crate) fn unmap_pages(&mut self, range: Range<usize>) {
        if let Some(pages) = &mut self.pages {
            pages.unmap(range);
        }
    }

    /// Whether the host does what a call populates; see [`Pages::brings_in`].
    pub(crate) fn host_brings_in(&self) -> bool {
        self.pages.as_ref().is_some_and(|pages| pages.brings_in())
    }

    /// Whether a VMA may get huge pages; see [`Pages::may_be_huge`].
    pub(crate) fn may_be_huge(&self, vma: &Vma<F>) -> bool {
        self.pages.as_ref().is_some_and(|pages| pages.may_be_huge(vma))
    }

    /// A range that overlaps this one and waits; see [`Pages::waiting`].
    #[inline]
    pub(crate) fn waiting(&self, range: Range<usize>) -> Option<Range<usize>> {
        self.pages.as_ref()?.waiting(range)
    }

    /// Makes nothing wait in a range over which a VMA is stored.
    #[inline]
    pub(crate) fn claim_pages(&mut self, range: Range<usize>) {
        if let Some(pages) = &mut self.pages {
            pages.claim(range);
        }
    }

    /// Makes nothing wait any more, because a map has found no place.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if nothing has waited.
    pub(crate) fn claim_all(&mut self) -> Result<(), Error> {
        let all = 0..self.profile.task_size;
        self.waiting(all.clone()).ok_or(Error::NoSpace)?;
        self.claim_pages(all);
        Ok(())
    }

    pub(crate) fn marks_touched(&self) -> bool {
        self.pages.as_ref().is_some_and(|pages| pages.marks_touched())
    }

    pub(crate) fn check_untouched(&mut self, range: Range<usize>) {
        if let Some(pages) = &mut self.pages {
            pages.check_untouched(range);
        }
    }

    /// The writes of a move of the pages `moved`, a part of the VMA `area`, to `to`. Both ranges
    /// are busy while the pages are on their way; the old one from the start, so that what the move
    /// needs is known before anything else changes. `left_behind` is the write over the old range.
    /// No fault finds that range open before it.
    ///
    /// Cost: at most six stores. The nodes of the worst case are allocated beforehand.
    pub(crate) fn move_with_pages(
        &mut self,
        new: Area<F>,
        area: &Area<F>,
        left_behind: Change<F>,
        moved: Range<usize>,
        to: usize,
    ) -> Result<(), Error> {
        // Now, and not before a store: the flush of what waits may unlink tables on which the move
        // counts.
        self.claim_pages(new.start..new.end);
        let (busy_new, busy_old) = (self.busy(&new.vma)?, self.busy(&area.vma)?);
        self.tree.preallocate_writes(6)?;
        self.store(moved.start, moved.end, busy_old.clone())?;
        if let Some(pages) = &mut self.pages
            && let Err(error) = pages.prepare_move(moved.clone(), to)
        {
            // One VMA again. The memory for this store was allocated above.
            self.store(area.start, area.end, area.vma.clone())?;
            return Err(error);
        }
        // Nothing fails from here on.
        self.store(new.start, new.end, busy_new)?;
        // The new VMA may have merged with the old one.
        if moved.start < new.start || new.end < moved.end {
            self.store(moved.start, moved.end, busy_old)?;
        }
        if let Some(pages) = &mut self.pages {
            pages.move_pages(moved.clone(), to);
        }
        let covers = left_behind.start <= new.start && new.end <= left_behind.end;
        let hole = left_behind.vma.is_none();
        self.change(left_behind)?;
        if covers {
            return Ok(());
        }
        // What the new VMA keeps of its range: all, or the parts beside the hole.
        let (low, high) = (new.start.max(moved.end), new.end.min(moved.start));
        if hole && new.start < moved.end && moved.start < new.end {
            if new.start < high {
                self.store(new.start, high, new.vma.clone())?;
            }
            if low < new.end {
                self.store(low, new.end, new.vma)?;
            }
            return Ok(());
        }
        self.store(new.start, new.end, new.vma)
    }
}
