//! Which pages were written or read since a moment: soft-dirty and referenced pages
//! (`/proc/PID/clear_refs`), and write-protected ones (userfaultfd's WP, PAGEMAP_SCAN).
//!
//! Software bits of an entry are marks. Each takes the right to write from the page:
//!
//! - [`CLEAN`]: the page was not written since [`AddressSpace::clear_soft_dirty`];
//! - [`WP`]: it was not written since it was write-protected.
//!
//! The next write faults, and gives the page its rights back without marks. So a page is
//! *soft-dirty* if it is present without `CLEAN`, and *written* if it is present without `WP`.
//!
//! # Correctness
//! The marks are set by a sweep, whose flush ends before the call returns: no write by an old
//! translation is missed after it. A mark is read and set in one step, with the table's lock, so
//! each write is told of once: by this scan, or by the next.
//!
//! Formats with two software bits (RISC-V) have no marks.

use alloc::vec::Vec;
use core::{ops::Range, sync::atomic::Ordering};

use bitflags::bitflags;
use grace::Concurrent;
use machine::{Machine, PageSize};
use paging::{Attrs, Flags, Format, Mapping, SweepChange};
use vma::{PAGE_SIZE, PageWork, Pages, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error,
    hook::{Hook, virt},
    reference::is_counted,
    rights,
};

/// The page is write-protected.
pub(crate) const WP: u16 = 4;
/// The page was not written since soft-dirty was cleared.
pub(crate) const CLEAN: u16 = 8;
/// The page is on its way to swap ([`crate::AddressSpace::reclaim`]).
pub(crate) const AWAY: u16 = 16;
/// The marks that take the right to write.
pub(crate) const MARKS: u16 = WP | CLEAN | AWAY;
/// A guard page that stands for lost contents (`guard`). The same bit as `AWAY`: a guard page does
/// not go to swap.
pub(crate) const POISON: u16 = 16;
/// Whether a guard page stands for lost contents.
pub(crate) fn is_poison(attrs: Attrs) -> bool {
    attrs.soft & POISON != 0
}

/// The software bits that the marks need.
const BITS: u32 = 5;

/// The attributes with these marks.
pub(crate) fn marked(attrs: Attrs, marks: u16) -> Attrs {
    let marks = marks & MARKS;
    let lost = if marks == 0 { Flags::empty() } else { Flags::WRITE };
    Attrs { flags: attrs.flags - lost, soft: attrs.soft | marks, ..attrs }
}

bitflags! {
    /// What is known of a page, with the bits of PAGEMAP_SCAN.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct PageCategories: u64 {
        /// PAGE_IS_WPALLOWED: the VMA is registered for write-protection that needs no monitor.
        const WPALLOWED = 1;
        /// PAGE_IS_WRITTEN: not write-protected. Absent pages count.
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

/// What [`AddressSpace::scan`] looks for, with the names of PAGEMAP_SCAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// All of these must be set, after the inversion.
    pub category_mask: PageCategories,
    /// One of these must be set, after the inversion, if any is given.
    pub category_anyof_mask: PageCategories,
    /// These are inverted before the comparison.
    pub category_inverted: PageCategories,
    /// What the result shows.
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

/// What a scan has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scanned {
    /// The regions that match, in ascending order.
    pub regions: Vec<PageRegion>,
    /// The address at which the scan has ended: the end of the range, or where `max_pages` were
    /// found.
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

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Whether the page tables can tell what was written.
    pub(crate) fn check_marks() -> Result<(), Error> {
        match F::SOFT_BITS >= BITS {
            true => Ok(()),
            false => Err(Error::NotSupported("tracking of writes in these page tables")),
        }
    }

    /// Makes all pages clean: [`pagemap::SOFT_DIRTY`](crate::pagemap::SOFT_DIRTY) says which are
    /// written from now on (`echo 4 > /proc/PID/clear_refs`). A page that comes later is dirty, and
    /// so is each page of a VMA that is made later, or joins one, also where it is absent.
    ///
    /// Cost: that of mprotect of all memory, and a fault for each page that is written.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the page tables have too few software bits. [`Error::Vma`]: no
    /// memory; a part may be clean.
    pub fn clear_soft_dirty(&self) -> Result<(), Error> {
        Self::check_marks()?;
        self.change(|calls| calls.clear_soft_dirty())?;
        // Release: pairs with the Acquire of `is_new`: the VMAs have lost the flag.
        self.core.tracks_new.store(true, Ordering::Release);
        self.sweep_all(|page| SweepChange::Set(marked(page.attrs, page.attrs.soft | CLEAN)))
    }

    /// Whether all pages of a VMA are soft-dirty, also absent ones.
    pub(crate) fn is_new(&self, vma: &Vma<Backing<M>>) -> bool {
        // Acquire: pairs with the Release of `clear_soft_dirty`.
        !self.core.tracks_new.load(Ordering::Acquire) || vma.flags.contains(VmFlags::SOFTDIRTY)
    }

    /// Makes all present pages unreferenced (`echo 1 > /proc/PID/clear_refs`): smaps shows which
    /// are used from now on. A CPU that has a translation of a page may use it for a while without
    /// a trace, as in Linux.
    ///
    /// # Errors
    /// [`Error::Vma`]: no memory; a part may be done.
    pub fn clear_referenced(&self) -> Result<(), Error> {
        self.sweep_all(|_| SweepChange::Age)
    }

    /// Sweeps the pages of all VMAs but guards, with the write right.
    fn sweep_all(&self, change: impl Fn(&Mapping) -> SweepChange) -> Result<(), Error> {
        let mut at = 0;
        while let Some((range, _)) = self.next_vma(at) {
            at = range.end;
            self.change_with_hook(range, |hook, range, _| hook.sweep_pages(range, &change))?;
        }
        Ok(())
    }

    /// Calls `change` for the parts of VMAs in a range, with the write right, when the tables are
    /// this space's own.
    pub(crate) fn change_with_hook(
        &self,
        range: Range<usize>,
        mut change: impl FnMut(&mut Hook<'_, M, F, G>, Range<usize>, &Vma<Backing<M>>),
    ) -> Result<(), Error> {
        let calls = self.core.right();
        let mut hook = Hook::new(&self.core, None);
        for area in calls.areas_from(range.start).take_while(|area| area.start < range.end) {
            let part = area.start.max(range.start)..area.end.min(range.end);
            hook.prepare(part.clone(), PageWork::Protect)?;
            change(&mut hook, part, &area.vma);
        }
        drop(calls);
        hook.failed.map_or(Ok(()), |error| Err(error.into()))
    }

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
    /// [`vma::Error::OutOfMemory`].
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
        let mut found = Scanned { regions: Vec::new(), walk_end: range.end };
        if range.is_empty() {
            return Ok(found);
        }
        let unlimited = |limit| if limit == 0 { usize::MAX } else { limit };
        let (mut left, regions) = (unlimited(what.max_pages), unlimited(what.max_regions));
        // Why the scan ends here, if it does.
        let mut ended = None;
        self.change_with_hook(range, |hook, part, vma| {
            if ended.is_some() {
                return;
            }
            let allowed = self.is_write_protect_async(vma);
            if !allowed && what.check_wp_async {
                ended = Some(Err(Error::NotAsync));
            }
            if !allowed && (what.wp_matching || what.check_wp_async) {
                return;
            }
            // Absent pages count as written: nothing says that they were not.
            let allowed = if allowed { PageCategories::WPALLOWED } else { PageCategories::empty() };
            let empty = allowed | PageCategories::WRITTEN;
            let mut next = part.start;
            let mut take = |at: usize, end: usize, page: PageCategories| {
                let pages = (end - at) / PAGE_SIZE;
                if !what.matches(page) || pages == 0 || ended.is_some() {
                    return false;
                }
                // A part of a huge page cannot be protected alone.
                let whole = what.wp_matching && page.contains(PageCategories::HUGE);
                let some = if whole && pages > left { 0 } else { pages.min(left) };
                let end = at + some * PAGE_SIZE;
                // The scan ends at the first page for which there is no room, not before it.
                let added = match some {
                    0 => Ok(false),
                    _ => found.add(at, end, page & what.return_mask, regions),
                };
                match added {
                    Ok(true) => left -= some,
                    Ok(false) => {
                        (found.walk_end, ended) = (at, Some(Ok(())));
                        return false;
                    }
                    Err(error) => ended = Some(Err(error.into())),
                }
                if some < pages && ended.is_none() {
                    (found.walk_end, ended) = (end, Some(Ok(())));
                }
                matches!(ended, None | Some(Ok(())))
            };
            let guard = hook.guard.get();
            let (machine, paging) = (hook.tables.machine(), hook.tables.paging());
            hook.sweep_pages(part.clone(), |page| {
                let at = page.page.get() as usize;
                take(next, at, empty);
                next = at + page.size.bytes() as usize;
                let taken = take(
                    at,
                    next,
                    categories(
                        machine,
                        page,
                        vma,
                        [guard, self.core.zero.get()],
                        allowed,
                        |frame| paging.slot_of(frame).is_some(),
                    ),
                );
                match what.wp_matching && taken && Some(page.frame) != guard {
                    true => SweepChange::Set(marked(page.attrs, page.attrs.soft | WP)),
                    false => SweepChange::Keep,
                }
            });
            take(next, part.end, empty);
        })?;
        ended.unwrap_or(Ok(())).map(|()| found)
    }
}

/// What is known of a present page.
fn categories<M: Machine>(
    machine: &M,
    page: &Mapping,
    vma: &Vma<Backing<M>>,
    [guard, zero]: [Option<machine::Frame>; 2],
    of_vma: PageCategories,
    is_swap: impl Fn(machine::Frame) -> bool,
) -> PageCategories {
    if Some(page.frame) == guard {
        let kind = match is_poison(page.attrs) {
            true => PageCategories::empty(),
            false => PageCategories::GUARD,
        };
        return of_vma | kind | PageCategories::SWAPPED | PageCategories::WRITTEN;
    }
    let when = |set, category| if set { category } else { PageCategories::empty() };
    // Marks of an earlier registration mean nothing.
    let protected = page.attrs.soft & WP != 0 && vma.flags.contains(VmFlags::UFFD_WP);
    if is_swap(page.frame) {
        return of_vma
            | PageCategories::SWAPPED
            | when(!protected, PageCategories::WRITTEN)
            | when(page.attrs.soft & CLEAN == 0, PageCategories::SOFT_DIRTY);
    }
    let index = vma.offset_at(page.page.get() as usize) as u64;
    let of_object =
        vma.file.as_ref().is_some_and(|file| file.object().is_current(index, page.frame));
    let counted = is_counted(machine, page.frame);
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

impl<M: Machine, F: Format, G: Concurrent> Hook<'_, M, F, G> {
    /// Sweeps the pages of a range whose tables were prepared. The VMAs stay. Guards and swap
    /// entries are shown to `change`, too, and keep their attributes.
    pub(crate) fn sweep_pages(
        &mut self,
        range: Range<usize>,
        mut change: impl FnMut(&Mapping) -> SweepChange,
    ) {
        self.count_change();
        self.split_ends(&range);
        let mut rest = range;
        while let Some(range) = virt(rest.clone()) {
            let mut pending = self.tables.no_flush();
            let each = |page: Mapping| match (change(&page), self.is_special(page.frame)) {
                (SweepChange::Set(_) | SweepChange::Age, true) => SweepChange::Keep,
                (change, _) => change,
            };
            // SAFETY: the space owns the pages. They lose rights at most, or get those that their
            // VMA allows. The flush is done here.
            let swept = unsafe { self.tables.sweep(range, &mut pending, |_| true, each) };
            pending.flush();
            if !self.goes_on(&mut rest, swept) {
                break;
            }
        }
    }

    /// Gives the pages of a range the mark of write-protection, or takes it from them.
    pub(crate) fn write_protect(
        &mut self,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        protect: bool,
    ) {
        self.sweep_pages(range, |page| {
            let soft = if protect { page.attrs.soft | WP } else { page.attrs.soft & !WP };
            SweepChange::Set(marked(rights::attrs_in(vma, page.attrs.share()), soft))
        });
    }
}
