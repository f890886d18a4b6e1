//! The VMAs of an address space in the range tree: converts bytes to indices, and counts the VMAs.
//!
//! Every change is one store or one erase of a byte range. So a reader without a lock sees all of
//! it or nothing (I1), and a failed allocation leaves everything unchanged (I7). A change that
//! takes two writes (a move) allocates the memory for both before the first.
//!
//! A write changes the number of VMAs by what it overlaps. A call that has looked at these VMAs
//! knows the difference and passes it on ([`Vmas::write_known`]); otherwise one more walk finds it
//! ([`Vmas::store`]).

use core::ops::{Range, RangeInclusive};

use grace::Reclaim;
use maple::{Nodes, RefCountedRef, SoleTree, SoleWriter};

use crate::{
    Error, MappedFile, Profile, RefCounted, VmFlags, Vma, anon_vma::AnonSlot,
    space_state::SpaceState, vma_counts::VmaCounts,
};

/// The tree of an address space, keyed by address in bytes.
pub(crate) type Tree<F, R> = SoleTree<RefCounted<Vma<F>>, R, Nodes>;

/// A VMA with its range.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let area = writer.area_at(at + 0x1234).unwrap();
/// assert_eq!((area.start, area.end), (at, at + 0x4000));
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Area<F> {
    /// The address of the first byte.
    pub start: usize,
    /// The address after the last byte.
    pub end: usize,
    /// The contents, which all pages share.
    pub vma: RefCounted<Vma<F>>,
}

/// A VMA with its range, borrowed from the tree until it changes. Unlike an [`Area`] it costs no
/// reference count.
pub(crate) struct VmaRef<'a, F> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) vma: &'a Vma<F>,
    counted: RefCountedRef<'a, Vma<F>>,
}

impl<F> Clone for VmaRef<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for VmaRef<'_, F> {}

impl<'a, F> VmaRef<'a, F> {
    pub(crate) fn of((range, vma): (RangeInclusive<usize>, RefCountedRef<'a, Vma<F>>)) -> Self {
        VmaRef { start: *range.start(), end: range.end() + 1, vma: vma.get(), counted: vma }
    }

    /// An owned copy, which may be kept while the tree changes. Cost: one atomic increment.
    pub(crate) fn keep(self) -> Area<F> {
        Area { start: self.start, end: self.end, vma: self.counted.to_ref_counted() }
    }
}

/// A VMA that is about to change, in whole or in part.
#[derive(Clone, Copy)]
pub(crate) struct VmaPart {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) flags: VmFlags,
    /// Its share of the counts of the space.
    pub(crate) counts: VmaCounts,
}

impl VmaPart {
    fn of<F>(start: usize, end: usize, vma: &Vma<F>) -> Self {
        VmaPart { start, end, flags: vma.flags, counts: VmaCounts::of(vma) }
    }

    /// The effect of a write over all of it on the counts, without the new VMA.
    pub(crate) fn gone(&self) -> VmaCounts {
        self.counts.times(-1).size(self.flags, self.end - self.start, -1)
    }
}

impl<F> VmaRef<'_, F> {
    pub(crate) fn middle(&self) -> VmaPart {
        VmaPart::of(self.start, self.end, self.vma)
    }
}

impl<F> Area<F> {
    pub(crate) fn middle(&self) -> VmaPart {
        VmaPart::of(self.start, self.end, &self.vma)
    }
}

/// The VMAs that a range overlaps.
#[derive(Default)]
pub(crate) struct Overlap {
    /// Whether one is sealed.
    pub(crate) sealed: bool,
    /// Whether one is not private anonymous memory.
    pub(crate) objects: bool,
    /// Whether pages may be there. Only [`clear_way`](crate::Writer) sets it.
    pub(crate) touched: bool,
    /// Whether one reaches beyond the range on both sides.
    pub(crate) splits: bool,
    /// The effect of a write over the range on the counts: a VMA that it covers is gone, and a VMA
    /// that it cuts in two counts twice.
    pub(crate) gone: VmaCounts,
}

/// One write: contents for `start..end`, or `None` for a hole.
pub(crate) struct TreeWrite<F> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) vma: Option<RefCounted<Vma<F>>>,
}

impl<F> TreeWrite<F> {
    /// An unmapping.
    pub(crate) fn hole(start: usize, end: usize) -> Self {
        TreeWrite { start, end, vma: None }
    }

    /// Its effect on the counts. `gone` is that on the VMAs that it overlaps.
    pub(crate) fn effect(&self, mut gone: VmaCounts) -> VmaCounts {
        let Some(vma) = &self.vma else { return gone };
        gone.count(&**vma, 1);
        gone.size(vma.flags, self.end - self.start, 1)
    }
}

impl<F> From<Area<F>> for TreeWrite<F> {
    fn from(Area { start, end, vma }: Area<F>) -> Self {
        TreeWrite { start, end, vma: Some(vma) }
    }
}

/// The VMAs of an address space, for the holder of the mmap lock.
pub(crate) struct Vmas<'a, F: MappedFile, R: Reclaim> {
    pub(crate) profile: &'a Profile,
    pub(crate) tree: SoleWriter<'a, RefCounted<Vma<F>>, R, Nodes>,
    pub(crate) state: &'a SpaceState,
}

impl<F: MappedFile, R: Reclaim> Vmas<'_, F, R> {
    /// The VMA that contains `addr`.
    pub(crate) fn covering(&self, addr: usize) -> Option<Area<F>> {
        self.look_at(addr).map(VmaRef::keep)
    }

    /// The VMA that contains `addr`, borrowed.
    pub(crate) fn look_at(&self, addr: usize) -> Option<VmaRef<'_, F>> {
        self.tree.lookup(addr).map(VmaRef::of)
    }

    /// The first VMA that ends above `addr`.
    pub(crate) fn at_or_after(&self, addr: usize) -> Option<VmaRef<'_, F>> {
        self.tree.find(addr..=usize::MAX).map(VmaRef::of)
    }

    /// The last VMA that starts below `addr`.
    pub(crate) fn before(&self, addr: usize) -> Option<VmaRef<'_, F>> {
        self.tree.find_rev(0..=addr.checked_sub(1)?).map(VmaRef::of)
    }

    /// The first VMA with a part in `at..end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Option<VmaRef<'_, F>> {
        if at >= end {
            return None;
        }
        self.tree.find(at..=end - 1).map(VmaRef::of)
    }

    /// Visits the VMAs with a part in `start..end` in order.
    ///
    /// Most ranges overlap at most one VMA, which one search finds. An iterator costs more to begin
    /// and less for each further VMA.
    fn each_part(&self, start: usize, end: usize, mut visit: impl FnMut(VmaRef<'_, F>)) {
        let Some(first) = self.part(start, end) else { return };
        visit(first);
        if first.end < end {
            self.tree.iter(first.end..=end - 1).map(VmaRef::of).for_each(visit);
        }
    }

    /// The start of the highest free run of `len` bytes inside `low..high`.
    pub(crate) fn highest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree.empty_area_rev(bounds, len, 1).ok()
    }

    /// The start of the lowest free run of `len` bytes inside `low..high`.
    pub(crate) fn lowest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree.empty_area(bounds, len, 1).ok()
    }

    /// Stores a VMA over `start..end`. It replaces existing VMAs there.
    ///
    /// Cost: one walk of the overlapping VMAs, and one store.
    pub(crate) fn store(
        &mut self,
        start: usize,
        end: usize,
        vma: RefCounted<Vma<F>>,
    ) -> Result<(), Error> {
        self.write(Area { start, end, vma }.into())
    }

    /// One write, all or nothing (I7).
    pub(crate) fn write(&mut self, change: TreeWrite<F>) -> Result<(), Error> {
        let Overlap { gone, splits, .. } = self.overlap(change.start, change.end);
        if splits {
            self.close_at(change.start);
        }
        self.write_known(change, gone)
    }

    /// The VMA at `addr` is cut in two: both parts stay one object, whose slot no fault fills.
    pub(crate) fn close_at(&self, addr: usize) {
        if let Some(look) = self.look_at(addr) {
            look.vma.anon.close();
        }
    }

    /// Replaces the contents of a VMA.
    pub(crate) fn replace(
        &mut self,
        middle: VmaPart,
        vma: RefCounted<Vma<F>>,
    ) -> Result<(), Error> {
        let VmaPart { start, end, .. } = middle;
        self.write_known(Area { start, end, vma }.into(), middle.gone())
    }

    /// One write to the tree and to the counts. `gone` is the effect of the write on the VMAs that
    /// it overlaps, without the new VMA.
    pub(crate) fn write_known(
        &mut self,
        change: TreeWrite<F>,
        gone: VmaCounts,
    ) -> Result<(), Error> {
        let more = change.effect(gone);
        self.check_known(&change, more);
        self.put(change.start..change.end, change.vma)?;
        self.state.count_more(more);
        Ok(())
    }

    /// In debug builds, checks what a call says of a write. If it splits a VMA, that VMA has an
    /// anon_vma [of its own](Self::own_anon), or none.
    pub(crate) fn check_known(&self, change: &TreeWrite<F>, more: VmaCounts) {
        let TreeWrite { start, end, .. } = *change;
        let counted = || change.effect(self.overlap(start, end).gone);
        debug_assert_eq!(more, counted(), "another count of VMAs overlapped");
        debug_assert!(self.look_at(start).is_none_or(|look| {
            let split = look.start < start && look.end > end;
            !(split && look.vma.anon.get().is_implied(self.state.generation()))
        }));
    }

    /// As [`put`](Self::put), but the VMA stays where it is if it is not stored.
    pub(crate) fn put_from(
        &mut self,
        range: Range<usize>,
        vma: &mut Option<RefCounted<Vma<F>>>,
    ) -> Result<(), Error> {
        let all = range.start..=range.end - 1;
        match vma.take() {
            Some(new) => self.tree.store_range(all, new).map_err(|refused| {
                *vma = Some(refused.entry);
                refused.error
            })?,
            None => self.tree.erase_range(all)?,
        }
        Ok(())
    }

    /// One write to the tree. The caller counts.
    pub(crate) fn put(
        &mut self,
        range: Range<usize>,
        mut vma: Option<RefCounted<Vma<F>>>,
    ) -> Result<(), Error> {
        self.put_from(range, &mut vma)
    }

    /// Looks at the VMAs that a write over `start..end` changes. If it splits one, its slot has to
    /// be [closed](Self::close_at).
    pub(crate) fn overlap(&self, start: usize, end: usize) -> Overlap {
        self.overlap_with(start, end, |_| ())
    }

    /// As [`overlap`](Self::overlap), with `visit` called for each of these VMAs.
    pub(crate) fn overlap_with(
        &self,
        start: usize,
        end: usize,
        mut visit: impl FnMut(&Vma<F>),
    ) -> Overlap {
        let mut all = Overlap::default();
        self.each_part(start, end, |look| {
            visit(look.vma);
            let (left, right) = (look.start < start, look.end > end);
            all.sealed |= look.vma.flags.contains(VmFlags::SEALED);
            let special = VmFlags::SPECIAL | VmFlags::HUGETLB;
            all.objects |= look.vma.file.is_some()
                || !look.vma.is_private()
                || look.vma.flags.intersects(special);
            all.splits |= left && right;
            let len = look.end.min(end) - look.start.max(start);
            all.gone.count(look.vma, isize::from(left) + isize::from(right) - 1);
            all.gone = all.gone.size(look.vma.flags, len, -1);
        });
        all
    }

    /// Gives the VMA that contains `addr` an anon_vma of its own, if it only inherited one. Code
    /// that splits the VMA, or stores its contents elsewhere, calls this first, so that all parts
    /// have the same one. No call can observe the difference, so it needs no undoing.
    pub(crate) fn own_anon(&mut self, addr: usize) -> Result<(), Error> {
        let Some(look) = self.look_at(addr) else { return Ok(()) };
        if !look.vma.anon.get().is_implied(self.state.generation()) {
            return Ok(());
        }
        let anon = AnonSlot::filled(self.state.inherited_anon());
        let vma = Vma { anon, ..Vma::clone(look.vma) };
        self.replace(look.middle(), RefCounted::new(vma)?)
    }
}
