//! Bits of an entry of `/proc/PID/pagemap`; the frame is in bits 0 to 54.

use grace::Concurrent;
use machine::{Machine, VirtAddr};
use paging::{Format, Mapping};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing,
    entry_marks::{CLEAN, POISON, WP, is_mark},
    listing::mapcount::MapCount,
};

/// The page is present.
pub const PRESENT: u64 = 1 << 63;
/// The page was written since the last
/// [`clear_soft_dirty`](crate::AddressSpace::clear_soft_dirty), or it or its VMA is new.
pub const SOFT_DIRTY: u64 = 1 << 55;
/// The page is write-protected by a userfaultfd.
pub const WRITE_PROTECTED: u64 = 1 << 57;
/// The page is in swap; bits 5 to 54 are its slot.
pub const SWAPPED: u64 = 1 << 62;
/// The page belongs to an object.
pub const OF_OBJECT: u64 = 1 << 61;
/// A guard page, which is not present.
pub const GUARD: u64 = 1 << 58;
/// The page is mapped once.
pub const EXCLUSIVE: u64 = 1 << 56;

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The entries of `/proc/PID/pagemap` for the pages from `addr` on. [`pagemap`](crate::pagemap)
    /// has their bits. Waits for [`clear_soft_dirty`](Self::clear_soft_dirty), and for a call that
    /// changes the VMA of a page; takes the mmap lock once for each hole. Otherwise it takes no
    /// lock.
    pub fn pagemap(&self, addr: usize, into: &mut [u64]) {
        let mut mapcount = self.mapcount();
        let first = addr & !(PAGE_SIZE - 1);
        // The hole that was found last.
        let mut hole = 0..0;
        for (entry, number) in into.iter_mut().zip(0_usize..) {
            let at = first.wrapping_add(number.wrapping_mul(PAGE_SIZE));
            if hole.contains(&at) {
                *entry = 0;
                continue;
            }
            *entry = self.when_still(at, |vma, page| match vma {
                Some(vma) => self.pagemap_entry(&mut mapcount, vma, page, at),
                None => {
                    // With the mmap lock: no VMA comes.
                    hole = at..self.next_vma(at).map_or(usize::MAX, |(next, _)| next.start);
                    0
                }
            });
            if *entry & SOFT_DIRTY == 0 && self.is_clearing() {
                // No call changes a VMA now.
                *entry = self.when_locked(at, |vma, page| {
                    vma.map_or(0, |vma| self.pagemap_entry(&mut mapcount, vma, page, at))
                });
            }
        }
    }

    /// The entry of one page.
    fn pagemap_entry(
        &self,
        mapcount: &mut MapCount<M>,
        vma: &Vma<Backing<M>>,
        page: Option<Mapping>,
        at: usize,
    ) -> u64 {
        let tracks = Self::check_marks().is_ok();
        let mark = |dirty| if tracks && dirty { SOFT_DIRTY } else { 0 };
        let mut entry = mark(self.is_new(vma));
        let Some(page) = page else { return entry };
        if self.core.is_guard(page.frame) {
            let protected = is_mark(page.attrs) && vma.flags.contains(VmFlags::UFFD_WP);
            entry |= match (protected, page.attrs.soft & (WP | POISON)) {
                (true, _) => WRITE_PROTECTED,
                (false, 0) => GUARD,
                _ => 0,
            };
            return entry;
        }
        entry |= mark(page.attrs.soft & CLEAN == 0);
        let is_protected =
            tracks && page.attrs.soft & WP != 0 && vma.flags.contains(VmFlags::UFFD_WP);
        let protected = if is_protected { WRITE_PROTECTED } else { 0 };
        if let Some(slot) = self.core.tables.paging().slot_of(page.frame) {
            entry |= SWAPPED | (slot & ((1 << 50) - 1)) << 5 | protected;
            return entry;
        }
        let frame = page.frame_of(VirtAddr::new(at as u64)).unwrap_or(page.frame);
        entry |= PRESENT | frame.number() | protected;
        if let Some(known) = self.look_at(mapcount, &page, vma) {
            entry |= if known.is_anonymous() { 0 } else { OF_OBJECT };
            entry |= if known.is_mapped_once() { EXCLUSIVE } else { 0 };
        }
        entry
    }
}
