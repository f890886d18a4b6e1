//! Blocks of pages: a write to anonymous memory brings in several pages of 4 KiB at once, where the
//! host lets it. Linux calls it multi-size THP.
//!
//! The block around an address is aligned to its size. It comes in if it lies in the VMA and the
//! page table, and no page of it is there yet. Otherwise the next smaller size is tried. A read
//! finds the zero frame, as ever.
//!
//! Each page has a frame and an entry of its own. So nothing has to be split when a part of the
//! block is unmapped, protected, moved or copied. The frames need not be neighbours: page tables of
//! x86-64 gain nothing from that. Where hardware can cache neighbours as one translation
//! ([`Format::GROUP`]), the frames of each such group of the block are neighbours, if there are as
//! many: all of its pages are mapped in one step, accessed and dirty, as in Linux.
//!
//! # Why it is right
//! The fault maps its own page first. Then it maps each other page as that page's own fault would:
//! with the lock of its table, if the entry is absent and the VMA of the first look is still the
//! one there ([`crate::protocol`]). A group comes in one step, with the same second look for all of
//! its range; the first is that of the fault's own page. It stops where another fault or a call
//! came first, or where memory runs out; it makes no room, and never fails.

use core::ops::{Range, RangeInclusive};

use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::{EntryChange, Format, Share};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error, HugePages,
    fault::attempt::FirstLook,
    fault::frame_ref::Reference,
    fault::rights,
    fault::rights::WantedAccess,
    fault::zero_page::{zero, zero_block},
};

/// The sizes of blocks that writes to anonymous memory bring in. Bit `n` stands for blocks of
/// 2^`n` pages, where `n` is one of [`ORDERS`](Self::ORDERS).
///
/// ```
/// // 64 KiB where a program asks for huge pages by madvise(2).
/// let blocks = mm::FaultBlocks { madvise: 1 << 4, ..mm::FaultBlocks::default() };
/// assert!(blocks.is_valid());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultBlocks {
    /// In all memory but that under MADV_NOHUGEPAGE.
    pub always: u16,
    /// In memory under MADV_HUGEPAGE.
    pub madvise: u16,
}

impl FaultBlocks {
    /// The base-2 logarithms of the sizes in pages: 16 KiB to 1 MiB. Pages of 2 MiB are
    /// [`HugePages`].
    pub const ORDERS: RangeInclusive<u8> = 2..=8;

    /// Whether all sizes are among [`ORDERS`](Self::ORDERS).
    pub fn is_valid(self) -> bool {
        let known = Self::ORDERS.fold(0, |known, order| known | 1 << order);
        (self.always | self.madvise) & !known == 0
    }

    /// The sizes for a VMA.
    fn of<M: Machine>(self, vma: &Vma<Backing<M>>) -> u16 {
        match vma.file.is_some() || vma.flags.contains(VmFlags::NOHUGEPAGE) {
            true => 0,
            // A monitor resolves each of its faults.
            false if vma.flags.intersects(VmFlags::UFFD) => 0,
            false if vma.flags.contains(VmFlags::HUGEPAGE) => self.always | self.madvise,
            false => self.always,
        }
    }
}

/// The block of 2^`order` pages around an address, if it lies in the range.
fn block_around(addr: usize, order: u8, range: &Range<usize>) -> Option<Range<usize>> {
    let bytes = PAGE_SIZE << order;
    let start = addr & !(bytes - 1);
    let block = start..start + bytes;
    (range.start <= block.start && block.end <= range.end).then_some(block)
}

// A block never leaves its page table. Models have short tables, and no blocks.
#[cfg(not(loom))]
const _: () = assert!(1 << *FaultBlocks::ORDERS.end() <= machine::ENTRIES);

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Sets the sizes of blocks that writes to anonymous memory bring in. Pages that are there stay
    /// as they are. A forked child starts with its parent's sizes. [`HugePages::Disabled`] forbids
    /// blocks, too. Constant time; may be called while the space is in use.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: not [`FaultBlocks::is_valid`].
    pub fn set_fault_blocks(&self, blocks: FaultBlocks) -> Result<(), Error> {
        if !blocks.is_valid() {
            return Err(Error::NotSupported("a block of pages of this size"));
        }
        self.core.huge.set_blocks(blocks);
        Ok(())
    }

    /// The sizes of blocks that writes to anonymous memory bring in. One load.
    pub fn fault_blocks(&self) -> FaultBlocks {
        self.core.huge.blocks()
    }

    /// The sizes for a VMA at this moment.
    fn blocks_of(&self, vma: &Vma<Backing<M>>) -> u16 {
        match self.core.huge.blocks() {
            FaultBlocks { always: 0, madvise: 0 } => 0,
            _ if self.core.huge.policy() == HugePages::Disabled => 0,
            blocks => blocks.of(vma),
        }
    }

    /// Whether a block can come in somewhere in a VMA.
    pub(crate) fn may_have_block(&self, range: &Range<usize>, vma: &Vma<Backing<M>>) -> bool {
        let orders = self.blocks_of(vma);
        FaultBlocks::ORDERS.filter(|order| orders & 1 << order != 0).any(|order| {
            let first = range.start.next_multiple_of(PAGE_SIZE << order);
            block_around(first, order, range).is_some()
        })
    }

    /// Maps the pages around one that a write has mapped just now, if a block may come in.
    ///
    /// Cost: a load, if there are no blocks. Otherwise, for each page, a walk, a frame and its
    /// zeroing, and the locked instruction of its table. The guard is held meanwhile: for 1 MiB,
    /// some 100 µs.
    #[inline]
    pub(crate) fn fill_block(&self, look: &FirstLook<'_, M, G>) {
        let orders = self.blocks_of(look.vma);
        if orders != 0 {
            self.fill_largest(look, orders);
        }
    }

    #[cold]
    fn fill_largest(&self, look: &FirstLook<'_, M, G>, orders: u16) {
        let Some(block) = self.absent_block(look, orders, |page| page != look.addr) else {
            return;
        };
        let pages = block.step_by(PAGE_SIZE).filter(|page| *page != look.addr);
        let _stopped = pages
            .map(|page| VirtAddr::new(page as u64))
            .try_for_each(|page| self.fill_one(look, page));
    }

    /// The largest block of these sizes around an address that lies in the range, and has none of
    /// the `wanted` pages.
    fn absent_block(
        &self,
        look: &FirstLook<'_, M, G>,
        orders: u16,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<Range<usize>> {
        let walk = self.core.tables.walk(look.guard);
        let is_absent = |page| !wanted(page) || walk.get(VirtAddr::new(page as u64)).is_none();
        FaultBlocks::ORDERS
            .rev()
            .filter(|order| orders & 1 << order != 0)
            .filter_map(|order| block_around(look.addr, order, &look.range))
            .find(|block| block.clone().step_by(PAGE_SIZE).all(is_absent))
    }

    /// Maps the pages around one to which a write has found none, if a block may come in that has
    /// their group, and the other groups of the block. Returns whether the page is mapped.
    ///
    /// Cost: nothing for formats without groups; otherwise a load, if there are no blocks.
    #[inline]
    pub(crate) fn fill_groups(&self, look: &FirstLook<'_, M, G>, want: WantedAccess) -> bool {
        let Some(order) = F::GROUP.map(|size| size.order()) else { return false };
        let orders = self.blocks_of(look.vma) & u16::MAX << order;
        orders != 0 && self.fill_groups_of(look, (orders, order), want).is_some()
    }

    #[cold]
    fn fill_groups_of(
        &self,
        look: &FirstLook<'_, M, G>,
        (orders, order): (u16, u8),
        want: WantedAccess,
    ) -> Option<()> {
        let block = self.absent_block(look, orders, |_| true)?;
        let own = block_around(look.addr, order, &block)?;
        self.map_group(look, &own, order, want)?;
        let _stopped = block
            .step_by(own.len())
            .filter(|start| *start != own.start)
            .try_for_each(|start| self.map_group(look, &(start..start + own.len()), order, want));
        Some(())
    }

    /// Maps a group of 2^`order` pages of zeros. `None`: memory has run out, or something else came
    /// first.
    fn map_group(
        &self,
        look: &FirstLook<'_, M, G>,
        group: &Range<usize>,
        order: u8,
        want: WantedAccess,
    ) -> Option<()> {
        let (machine, at) = (self.core.tables.machine(), VirtAddr::new(group.start as u64));
        let new = Reference::alloc_page(machine, self.core.group(), order).ok()?;
        // SAFETY: the block was just allocated, and only this call knows it.
        let split = |frame| unsafe { machine.split(frame) };
        zero_block(machine, new.frame(), order).and_then(|()| split(new.frame())).ok()?;
        let first = new.keep();
        let decide = || {
            let is_current = self.is_current_in(look, group);
            is_current.then(|| (first, rights::attrs_for::<M, F>(look.vma, Share::Exclusive, want)))
        };
        // SAFETY: as in `first_touch`: the space owns its lower half. The frames are ours until
        // they are mapped, and then the pages'.
        let done = unsafe { self.core.tables.with_group(look.guard, at, decide) };
        let mapped = done.is_ok_and(|(mapped, pending)| {
            pending.flush();
            mapped
        });
        if !mapped {
            // Each frame has one reference since the split.
            for frame in (0..1 << order).filter_map(|number| first.checked_add(number)) {
                // SAFETY: it is ours.
                drop(unsafe { Reference::new(machine, frame) });
            }
        }
        mapped.then_some(())
    }

    /// Maps a page of zeros. `None`: memory has run out, or something else came first.
    fn fill_one(&self, look: &FirstLook<'_, M, G>, page: VirtAddr) -> Option<()> {
        let machine = self.core.tables.machine();
        let new = Reference::alloc_page(machine, self.core.group(), 0).ok()?;
        zero(machine, new.frame()).ok()?;
        let (addr, range) = (page.get() as usize, look.range.clone());
        let look = FirstLook { at: page, addr, range, ..*look };
        // SAFETY: as in `first_touch`: the space owns its lower half. The frame is ours until it is
        // mapped, and then the page's.
        let done = unsafe {
            self.core.tables.with_entry(look.guard, page, |now| {
                let fits = now.is_none() && self.is_current(&look);
                match fits {
                    true => {
                        let attrs = rights::attrs(look.vma.flags, Share::Exclusive);
                        (EntryChange::Set(new.frame(), attrs), true)
                    }
                    false => (EntryChange::Keep, false),
                }
            })
        };
        let (mapped, pending) = done.ok()?;
        pending.flush();
        mapped.then(|| {
            new.keep();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_aligned_and_lies_in_the_range() {
        let page = |number: usize| number * PAGE_SIZE;
        let of = |at, order, range: Range<usize>| {
            let found = block_around(page(at), order, &(page(range.start)..page(range.end)))?;
            Some(found.start / PAGE_SIZE..found.end / PAGE_SIZE)
        };
        assert_eq!(of(21, 2, 20..24), Some(20..24));
        assert_eq!(of(21, 2, 21..24), None);
        assert_eq!(of(21, 2, 20..23), None);
        assert_eq!(of(300, 8, 0..512), Some(256..512));
    }

    #[test]
    fn no_other_sizes_are_valid() {
        for order in 0..16 {
            let one = FaultBlocks { always: 1 << order, madvise: 0 };
            assert_eq!(one.is_valid(), FaultBlocks::ORDERS.contains(&order));
        }
    }
}
