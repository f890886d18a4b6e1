//! PAGEMAP_SCAN: finds pages by what is known of them, and write-protects them in the same step.
//!
//! # Correctness
//! A page's state is read and its mark is set in one step, with the table's lock. So each write is
//! told of once: by this scan, or by the next. An absent page that is to be marked gets its mark
//! after that: if a fault brings it in between, it has no mark, and the next scan tells of it.

use alloc::vec::Vec;
use core::ops::Range;

use bitflags::bitflags;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{Flags, Format, Mapping, SweepChange};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error,
    change::page_host::PageHost,
    entry_marks::{CLEAN, POISON, WP, is_mark, marked},
    fault::frame_ref::is_counted,
};

bitflags! {
    /// The categories of a page, with the bits of PAGEMAP_SCAN.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct PageCategories: u64 {
        /// PAGE_IS_WPALLOWED: the VMA is registered for write-protection that needs no monitor.
        const WPALLOWED = 1;
        /// PAGE_IS_WRITTEN: not write-protected.
        const WRITTEN = 1 << 1;
        /// PAGE_IS_FILE: a page of an object.
        const FILE = 1 << 2;
        /// PAGE_IS_PRESENT.
        const PRESENT = 1 << 3;
        /// PAGE_IS_SWAPPED: kept elsewhere by the host, lost, or a guard page.
        const SWAPPED = 1 << 4;
        /// PAGE_IS_PFNZERO: the zero page.
        const PFNZERO = 1 << 5;
        /// PAGE_IS_HUGE: a part of a huge page.
        const HUGE = 1 << 6;
        /// PAGE_IS_SOFT_DIRTY.
        const SOFT_DIRTY = 1 << 7;
        /// PAGE_IS_GUARD.
        const GUARD = 1 << 8;
    }
}

/// The arguments of [`AddressSpace::scan`], with the names of PAGEMAP_SCAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// All of these must be set, after the inversion.
    pub category_mask: PageCategories,
    /// One of these must be set, after the inversion, if any is given.
    pub category_anyof_mask: PageCategories,
    /// These are inverted before the comparison.
    pub category_inverted: PageCategories,
    /// The categories that the result shows.
    pub return_mask: PageCategories,
    /// PM_SCAN_WP_MATCHING: the pages that match are write-protected in the same step. VMAs that do
    /// not allow it are left out.
    pub wp_matching: bool,
    /// PM_SCAN_CHECK_WPASYNC: a VMA that does not allow write-protection is an error.
    pub check_wp_async: bool,
    /// The most pages to report; 0 for no limit.
    pub max_pages: usize,
    /// The most regions to report; 0 for no limit.
    pub max_regions: usize,
}

impl Scan {
    fn matches(&self, page: PageCategories) -> bool {
        let page = page ^ self.category_inverted;
        page.contains(self.category_mask)
            && (self.category_anyof_mask.is_empty() || page.intersects(self.category_anyof_mask))
    }
}

/// Consecutive pages of the same categories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRegion {
    /// The address of the first byte.
    pub start: usize,
    /// The address after the last byte.
    pub end: usize,
    /// The categories of each page, as far as they were asked for.
    pub categories: PageCategories,
}

/// The result of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// The regions that match, in ascending order.
    pub regions: Vec<PageRegion>,
    /// The address at which the scan has ended: the end of the range, where `max_pages` were found,
    /// or where memory ran out.
    pub walk_end: usize,
}

impl Scanned {
    /// Adds pages, as far as there are regions left. Returns whether it did.
    fn add(
        &mut self,
        at: usize,
        end: usize,
        categories: PageCategories,
        regions: usize,
    ) -> Result<bool, vma::Error> {
        if let Some(last) = self.regions.last_mut()
            && last.end == at
            && last.categories == categories
        {
            last.end = end;
            return Ok(true);
        }
        if self.regions.len() == regions {
            return Ok(false);
        }
        self.regions.try_reserve(1).map_err(|_| vma::Error::OutOfMemory)?;
        self.regions.push(PageRegion { start: at, end, categories });
        Ok(true)
    }
}

/// A scan that is under way.
struct Progress<'a> {
    what: &'a Scan,
    found: Scanned,
    /// The pages and the regions for which there is room.
    left: usize,
    regions: usize,
    /// Why the scan ends, if it does.
    ended: Option<Result<(), Error>>,
    /// The huge page at which it has ended, of which a part is to be protected.
    to_split: Option<usize>,
    /// The end of the part that was scanned last.
    passed: usize,
    /// Whether a page was protected, or marked where it is absent.
    protected: bool,
}

impl Progress<'_> {
    fn end(&mut self, at: usize) {
        (self.found.walk_end, self.ended) = (at, Some(Ok(())));
    }

    /// The scan fails at the page where it has ended. If memory is missing behind pages that were
    /// protected, it tells of what it has found: the next scan would not.
    fn fail(&mut self, error: Error) {
        let is_memory = matches!(
            error,
            Error::Vma(vma::Error::OutOfMemory) | Error::Tables(paging::Error::Frames(_))
        );
        let tells = is_memory && self.protected;
        self.ended = Some(if tells { Ok(()) } else { Err(error) });
    }

    /// Takes the pages, if they match, as far as there is room. Returns their end.
    fn take(&mut self, at: usize, end: usize, page: PageCategories) -> usize {
        let pages = (end - at) / PAGE_SIZE;
        if !self.what.matches(page) || pages == 0 || self.ended.is_some() {
            return at;
        }
        let some = pages.min(self.left);
        let is_part = 0 < some && some < pages;
        if is_part && self.what.wp_matching && page.contains(PageCategories::HUGE) {
            // A part cannot be protected alone: the pages are told of when they are small.
            self.to_split = Some(at);
            self.end(at);
            return at;
        }
        let end = at + some * PAGE_SIZE;
        // The scan ends at the first page for which there is no room, not before it.
        let added = match some {
            0 => Ok(false),
            _ => self.found.add(at, end, page & self.what.return_mask, self.regions),
        };
        match added {
            Ok(true) => self.left -= some,
            Ok(false) => {
                self.end(at);
                return at;
            }
            Err(error) => {
                self.end(at);
                self.fail(error.into());
                return at;
            }
        }
        if some < pages {
            self.end(end);
        }
        end
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// PAGEMAP_SCAN: finds pages by what is known of them, and write-protects them in the same step
    /// if it is asked to.
    ///
    /// ```
    /// # use machine::{Asid, PageSize};
    /// # use mm::*;
    /// # use paging::{Paging, X86_64L4};
    /// # use sim::{Config, Grace, Sim};
    /// struct Asynchronous;
    ///
    /// impl UserFaultHandler for Asynchronous {
    ///     fn handle(&self, _: UserFault) -> bool {
    ///         false
    ///     }
    ///
    ///     fn is_write_protect_async(&self, _: u64) -> bool {
    ///         true
    ///     }
    /// }
    /// # let sim = Sim::new(Config::default()).unwrap();
    /// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// # sim.on_cpu(0, || {
    /// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
    /// # let profile = Profile::LINUX_6_18;
    /// # let tag = Asid(1);
    /// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, tag, None, profile, layout)?;
    /// # let mut space = space;
    /// space.set_userfault_handler(std::sync::Arc::new(Asynchronous));
    /// let at = space.mmap(0, 0x4000, 3, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    /// space.userfault_register(at, 0x4000, UserFaultModes::WP, Uffd::new(1))?;
    /// let written = Scan {
    ///     category_mask: PageCategories::WRITTEN | PageCategories::PRESENT,
    ///     return_mask: PageCategories::WRITTEN,
    ///     wp_matching: true,
    ///     ..Scan::default()
    /// };
    /// space.write(at + 0x1000, b"x").unwrap();
    /// let found = space.scan(at..at + 0x4000, &written)?;
    /// assert_eq!((found.regions[0].start, found.regions[0].end), (at + 0x1000, at + 0x2000));
    /// // Nothing was written since.
    /// assert!(space.scan(at..at + 0x4000, &written)?.regions.is_empty());
    /// # Ok::<(), Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// Cost: O(pages); with `wp_matching` one flush.
    ///
    /// # Errors
    /// [`Error::NotSupported`] as [`clear_soft_dirty`](Self::clear_soft_dirty), for `wp_matching`;
    /// [`vma::Error::Unaligned`], [`vma::Error::BadRange`]; [`Error::NotAsync`]:
    /// `check_wp_async`, and a VMA of the range does not allow write-protection;
    /// [`vma::Error::OutOfMemory`]. If memory runs out behind pages that were protected, the
    /// scan ends there, and tells of what it has found.
    pub fn scan(&self, range: Range<usize>, what: &Scan) -> Result<Scanned, Error> {
        if !range.start.is_multiple_of(PAGE_SIZE) {
            return Err(vma::Error::Unaligned.into());
        }
        if range.end < range.start {
            return Err(vma::Error::BadRange.into());
        }
        if what.wp_matching {
            Self::check_marks()?;
        }
        let range = range.start..range.end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(range.end);
        let unlimited = |limit| if limit == 0 { usize::MAX } else { limit };
        let mut progress = Progress {
            what,
            found: Scanned { regions: Vec::new(), walk_end: range.end },
            left: unlimited(what.max_pages),
            regions: unlimited(what.max_regions),
            ended: None,
            to_split: None,
            passed: range.start,
            protected: false,
        };
        let mut rest = range;
        while !rest.is_empty() {
            let done = self.change_with_host(rest.clone(), |host, part, vma| {
                let end = part.end;
                self.scan_part(host, part, vma, &mut progress);
                progress.passed = end;
            });
            // The scan may have ended before the part that failed.
            if let Err(error) = done
                && progress.ended.is_none()
            {
                progress.found.walk_end = progress.passed;
                progress.fail(error);
            }
            let Some(at) = progress.to_split.take() else { break };
            if let Err(error) = self.split_huge(VirtAddr::new(at as u64)) {
                progress.fail(error.into());
                break;
            }
            (progress.found.walk_end, progress.ended) = (rest.end, None);
            (rest.start, progress.passed) = (at, at);
        }
        progress.ended.unwrap_or(Ok(())).map(|()| progress.found)
    }

    /// Scans a part of one VMA.
    fn scan_part(
        &self,
        host: &mut PageHost<'_, M, F, G>,
        part: Range<usize>,
        vma: &Vma<Backing<M>>,
        progress: &mut Progress<'_>,
    ) {
        if progress.ended.is_some() {
            return;
        }
        let what = progress.what;
        let allowed = self.is_write_protect_async(vma);
        if !allowed && what.check_wp_async {
            progress.ended = Some(Err(Error::NotAsync));
        }
        if !allowed && (what.wp_matching || what.check_wp_async) {
            return;
        }
        // Absent pages count as written, unless they have a mark.
        let of_vma = if allowed { PageCategories::WPALLOWED } else { PageCategories::empty() };
        let empty = of_vma | PageCategories::WRITTEN;
        let marks = what.wp_matching && self.marks_absent(vma);
        let (mut to_mark, mut no_memory) = (Vec::new(), false);
        let mut absent = |progress: &mut Progress<'_>, at, end| {
            let end = progress.take(at, end, empty);
            if marks && at < end {
                no_memory |= to_mark.try_reserve(1).is_err();
                if !no_memory {
                    to_mark.push(at..end);
                }
            }
        };
        let known = Known {
            machine: host.core.tables.machine(),
            guard: host.core.guard_frame.get(),
            vma,
            of_vma,
        };
        let (zero, paging) = (self.core.zero_frame.get(), host.core.tables.paging());
        let mut next = part.start;
        host.sweep_pages(part.clone(), |page| {
            let at = page.page.get() as usize;
            // The sweep has begun again, because a huge page came that the range cuts.
            if at < next {
                return SweepChange::Keep;
            }
            let end = at + page.size.bytes() as usize;
            let is_guard = Some(page.frame) == known.guard;
            // A mark that is left of an earlier registration is no page.
            if is_guard && is_mark(page.attrs) && !vma.flags.contains(VmFlags::UFFD_WP) {
                return SweepChange::Keep;
            }
            absent(progress, next, at);
            next = end;
            let is_swap = paging.slot_of(page.frame).is_some();
            let taken = progress.take(at, end, known.categories(page, zero, is_swap));
            match what.wp_matching && taken == end && !is_guard {
                true => {
                    progress.protected = true;
                    SweepChange::Set(marked(page.attrs, page.attrs.soft | WP))
                }
                false => SweepChange::Keep,
            }
        });
        absent(progress, next, part.end);
        for range in to_mark {
            progress.protected |= host.mark_absent(range.clone(), vma);
            // A read may have brought a page in since the sweep. One that was written is left, as
            // if the write came after the scan.
            host.sweep_pages(range, |page| match page.attrs.flags.contains(Flags::DIRTY) {
                true => SweepChange::Keep,
                false => SweepChange::Set(marked(page.attrs, page.attrs.soft | WP)),
            });
        }
        if no_memory && progress.ended.is_none() {
            progress.end(part.end);
            progress.fail(vma::Error::OutOfMemory.into());
        }
    }
}

/// The facts that decide about the categories of a page.
struct Known<'a, M: Machine> {
    machine: &'a M,
    guard: Option<Frame>,
    vma: &'a Vma<Backing<M>>,
    of_vma: PageCategories,
}

impl<M: Machine> Known<'_, M> {
    /// The categories of a page that has an entry.
    fn categories(&self, page: &Mapping, zero: Option<Frame>, is_swap: bool) -> PageCategories {
        let (vma, of_vma) = (self.vma, self.of_vma);
        let when = |set, category| if set { category } else { PageCategories::empty() };
        if Some(page.frame) == self.guard {
            let marks = page.attrs.soft & (WP | POISON);
            return of_vma
                | PageCategories::SWAPPED
                | when(marks == 0, PageCategories::GUARD)
                | when(marks != WP, PageCategories::WRITTEN);
        }
        // Marks of an earlier registration mean nothing.
        let protected = page.attrs.soft & WP != 0 && vma.flags.contains(VmFlags::UFFD_WP);
        if is_swap {
            return of_vma
                | PageCategories::SWAPPED
                | when(!protected, PageCategories::WRITTEN)
                | when(page.attrs.soft & CLEAN == 0, PageCategories::SOFT_DIRTY);
        }
        let index = vma.offset_at(page.page.get() as usize) as u64;
        let of_object =
            vma.file.as_ref().is_some_and(|file| file.object().is_current(index, page.frame));
        let counted = is_counted(self.machine, page.frame);
        of_vma
            | PageCategories::PRESENT
            | when(!protected, PageCategories::WRITTEN)
            | when(page.attrs.soft & CLEAN == 0, PageCategories::SOFT_DIRTY)
            | when(of_object, PageCategories::FILE)
            | when(
                !counted && (vma.file.is_none() || Some(page.frame) == zero),
                PageCategories::PFNZERO,
            )
            | when(page.size != PageSize::Size4K, PageCategories::HUGE)
    }
}
