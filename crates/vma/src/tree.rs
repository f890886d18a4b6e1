//! The VMAs of an address space in the range tree: converts bytes to indices, and keeps the counts
//! of anon_vmas.
//!
//! Every change is one store or one erase of a byte range. So a reader without a lock sees all of
//! it or nothing (I1), and a failed allocation leaves everything unchanged (I7). The VMAs that a
//! write overlaps are known before the write. So their anon_vma links are counted before it, too.
//! If the write fails, the tree is unchanged, so the same walk undoes the counts. A change that
//! takes two writes (a move) allocates the memory for both before the first.

use core::ops::RangeInclusive;

use grace::Reclaim;
use maple::{MapleTree, NodeAlloc, OwnerLock, RefCountedRef};

use crate::{
    Error, MappedFile, RefCounted, Vma,
    space::{TreeWriter, VmaCounts, Writer},
};

/// The tree of an address space, keyed by address in bytes.
pub(crate) type Tree<F, R, A> = MapleTree<RefCounted<Vma<F>>, R, A, OwnerLock>;

/// A VMA with its range.
///
/// ```
/// # use vma::*;
/// # #[derive(Clone, PartialEq)]
/// # struct File;
/// # impl MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn segment_size(&self) -> Option<usize> { Some(0x4000) }
/// #     fn device(&self) -> (u32, u32) { (8, 1) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
/// #         out.write_str("/file")
/// #     }
/// # }
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<File, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
/// # let request = MapRequest {
/// #     addr: 0, len: 0x4000, prot: 3, flags, file: None, offset: 0, driver_flags: None,
/// # };
/// # let at = writer.mmap(request.clone())?;
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
pub(crate) struct Look<'a, F> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) vma: &'a Vma<F>,
    counted: RefCountedRef<'a, Vma<F>>,
}

impl<F> Clone for Look<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Look<'_, F> {}

impl<'a, F> Look<'a, F> {
    pub(crate) fn of((range, vma): (RangeInclusive<usize>, RefCountedRef<'a, Vma<F>>)) -> Self {
        Look { start: *range.start(), end: range.end() + 1, vma: vma.get(), counted: vma }
    }

    /// An owned copy, which may be kept while the tree changes. Cost: one atomic increment.
    pub(crate) fn keep(self) -> Area<F> {
        Area { start: self.start, end: self.end, vma: self.counted.to_ref_counted() }
    }
}

/// One write: contents for `start..end`, or `None` for a hole.
pub(crate) struct Change<F> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) vma: Option<RefCounted<Vma<F>>>,
}

/// The effect of a write over a byte range on a VMA that it overlaps.
enum Fate {
    /// Both ends remain: one VMA becomes two.
    Split,
    /// One end remains.
    Shrunk,
    /// Nothing remains.
    Removed,
}

impl<F: MappedFile, R: Reclaim, A: NodeAlloc> Writer<'_, F, R, A> {
    /// The VMA that contains `addr`.
    pub(crate) fn covering(&self, addr: usize) -> Option<Area<F>> {
        self.look_at(addr).map(Look::keep)
    }

    /// The VMA that contains `addr`, borrowed.
    pub(crate) fn look_at(&self, addr: usize) -> Option<Look<'_, F>> {
        self.tree().lookup(self.guard(), addr).map(Look::of)
    }

    /// The first VMA that ends above `addr`.
    pub(crate) fn at_or_after(&self, addr: usize) -> Option<Look<'_, F>> {
        self.tree().find(self.guard(), addr..=usize::MAX).map(Look::of)
    }

    /// The last VMA that starts below `addr`.
    pub(crate) fn before(&self, addr: usize) -> Option<Look<'_, F>> {
        self.tree().find_rev(self.guard(), 0..=addr.checked_sub(1)?).map(Look::of)
    }

    /// The first VMA with a part in `at..end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Option<Look<'_, F>> {
        if at >= end {
            return None;
        }
        self.tree().find(self.guard(), at..=end - 1).map(Look::of)
    }

    /// The start of the highest free run of `len` bytes inside `low..high`.
    pub(crate) fn highest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree().empty_area_rev(self.guard(), bounds, len, 1).ok()
    }

    /// The start of the lowest free run of `len` bytes inside `low..high`.
    pub(crate) fn lowest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree().empty_area(self.guard(), bounds, len, 1).ok()
    }

    /// Stores a VMA over `start..end`. It replaces existing VMAs there.
    ///
    /// Cost: one walk of the overlapping VMAs, and the allocations of one store.
    pub(crate) fn store(
        &mut self,
        start: usize,
        end: usize,
        vma: RefCounted<Vma<F>>,
    ) -> Result<(), Error> {
        self.change(Change { start, end, vma: Some(vma) })
    }

    /// Unmaps `start..end`.
    pub(crate) fn erase(&mut self, start: usize, end: usize) -> Result<(), Error> {
        self.change(Change { start, end, vma: None })
    }

    /// One write, all or nothing (I7).
    pub(crate) fn change(&mut self, change: Change<F>) -> Result<(), Error> {
        let more = self.with_tree(|tree| carry_out(tree, change))?;
        self.count_more(more);
        Ok(())
    }

    /// Two writes, one after the other, together all or nothing (I7). Readers may see the first one
    /// alone.
    ///
    /// Cost: two writes. The nodes of the worst case are allocated beforehand.
    pub(crate) fn change_twice(
        &mut self,
        first: Change<F>,
        second: Change<F>,
    ) -> Result<(), Error> {
        let more = self.with_tree(|tree| {
            tree.preallocate_writes(2)?;
            let first = carry_out(tree, first)?;
            let second = carry_out(tree, second);
            debug_assert!(
                second.is_ok(),
                "the memory of both writes was allocated before the first"
            );
            Ok::<_, Error>([first, second?])
        })?;
        more.into_iter().for_each(|more| self.count_more(more));
        Ok(())
    }
}

/// One write to the tree and to the counts of anon_vmas. Returns the change of the VMA counts.
fn carry_out<F: MappedFile, R: Reclaim, A: NodeAlloc>(
    tree: &mut TreeWriter<'_, F, R, A>,
    change: Change<F>,
) -> Result<VmaCounts, Error> {
    let Change { start, end, vma } = change;
    let range = start..=end - 1;
    let mut more = relink(tree, &range, false);
    let Some(vma) = vma else {
        return match tree.erase_range(range.clone()) {
            Ok(()) => Ok(more),
            Err(error) => {
                relink(tree, &range, true);
                Err(error.into())
            }
        };
    };
    vma.anon.link();
    more.add(&*vma, 1);
    match tree.store_range(range.clone(), vma) {
        Ok(()) => Ok(more),
        Err(refused) => {
            relink(tree, &range, true);
            refused.entry.anon.unlink();
            Err(refused.error.into())
        }
    }
}

/// Updates the anon_vma links of the VMAs that a write over `range` splits or removes, or with
/// `back` undoes that. Returns the change of the VMA counts.
fn relink<F: MappedFile, R: Reclaim, A: NodeAlloc>(
    tree: &TreeWriter<'_, F, R, A>,
    write: &RangeInclusive<usize>,
    back: bool,
) -> VmaCounts {
    let mut more = VmaCounts::default();
    // Most writes overlap at most one VMA, which one search finds. An iterator costs more to begin
    // and less for each further VMA.
    let first = tree.find(write.clone());
    let rest = first.as_ref().and_then(|(range, _)| {
        (range.end() < write.end()).then(|| tree.iter(range.end() + 1..=*write.end()))
    });
    for (range, vma) in first.into_iter().chain(rest.into_iter().flatten()) {
        let vma = vma.get();
        let anon = &vma.anon;
        let fate = match (range.start() < write.start(), range.end() > write.end()) {
            (true, true) => Fate::Split,
            (false, false) => Fate::Removed,
            _ => Fate::Shrunk,
        };
        match (fate, back) {
            (Fate::Shrunk, _) => {}
            (Fate::Split, false) | (Fate::Removed, true) => {
                more.add(vma, 1);
                anon.link();
            }
            (Fate::Removed, false) | (Fate::Split, true) => {
                more.add(vma, -1);
                anon.unlink();
            }
        }
    }
    more
}
