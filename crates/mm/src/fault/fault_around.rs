//! Fault-around: a read fault on a map of an object also maps the pages nearby that the object has
//! in memory, so that they do not fault later. As in Linux: up to 16 pages, within the VMA and the
//! page table.
//!
//! Each page is mapped as its own fault would map it, with both looks under the table's lock.

use core::ops::Range;

use grace::Concurrent;
use machine::{ENTRIES, Machine, VirtAddr};
use paging::{EntryChange, Format, Mapping, Share};
use vma::{PAGE_SIZE, VmFlags};

use crate::{
    AddressSpace, addresses::virt, entry_marks::over_mark, fault::attempt::FirstLook,
    fault::rights, object::HeldPage, thresholds::AROUND_PAGES,
};

const _: () = assert!(AROUND_PAGES <= u64::BITS as usize);

/// The addresses that a read fault at `addr` maps, in a VMA with this range.
fn window(addr: usize, vma: &Range<usize>) -> Range<usize> {
    let entry = addr / PAGE_SIZE % ENTRIES;
    let table = addr - entry * PAGE_SIZE;
    let aligned = table + (entry & !(AROUND_PAGES - 1)) * PAGE_SIZE;
    let start = aligned.max(vma.start);
    let end = start + AROUND_PAGES * PAGE_SIZE;
    start..end.min(table + ENTRIES * PAGE_SIZE).min(vma.end)
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Maps the pages around that of a fault. Best effort.
    pub(super) fn fault_around(&self, look: &FirstLook<'_, M, G>) {
        let FirstLook { guard, addr, range, vma, .. } = look;
        let (guard, vma, addr) = (*guard, *vma, *addr);
        let Some(file) = &vma.file else { return };
        // A monitor resolves each of its faults.
        if vma.flags.intersects(VmFlags::UFFD_WP | VmFlags::UFFD_MINOR) {
            return;
        }
        let (machine, object) = (self.core.tables.machine(), &**file.object());
        // `with_found_at` looks again.
        let walk = self.core.tables.walk(guard).as_hint();
        let read_only = vma.is_private() || object.cached().is_some();
        let share = if read_only { Share::CopyOnWrite } else { Share::Object };
        let window = window(addr, range);
        // A mark of an earlier registration means nothing. Without a guard page, there is none.
        let is_mark = |page: &Mapping| self.core.is_mark(page);
        let marks = self.core.guard_frame.get().map(|_| is_mark);
        // One look for all. A page that comes later is found below, with the lock.
        let mut absent = virt(window.clone()).map_or(0, |range| walk.absent(range, marks));
        let found = walk.look(VirtAddr::new(addr as u64));
        while absent != 0 {
            let at = window.start + absent.trailing_zeros() as usize * PAGE_SIZE;
            absent &= absent - 1;
            let (page, index) = (VirtAddr::new(at as u64), vma.offset_at(at) as u64);
            if at == addr || !object.is_present(index) {
                continue;
            }
            let Ok(held) = HeldPage::get(machine, object, index) else { continue };
            // SAFETY: as in `commit_small`: the space owns its lower half. The frame has a
            // reference for the entry.
            let done = unsafe {
                self.core.tables.with_found_at(guard, &found, page, |now| {
                    let fits = now.as_ref().is_none_or(is_mark)
                        && self.core.vmas.is_current(guard, at, vma)
                        && held.is_current();
                    let set = EntryChange::Set(held.frame(), rights::attrs_in::<M, F>(vma, share));
                    match (fits, now) {
                        (true, None) => (set, true),
                        (true, Some(_)) => (over_mark(set, false), true),
                        (false, _) => (EntryChange::Keep, false),
                    }
                })
            };
            match done {
                Ok((true, pending)) => {
                    pending.flush();
                    held.mapped();
                }
                Ok((false, _)) => {}
                // No memory, or a fork is under way.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_that_of_linux() {
        let page = |number: usize| number * PAGE_SIZE;
        let of = |at, vma: Range<usize>| {
            let found = window(page(at), &(page(vma.start)..page(vma.end)));
            found.start / PAGE_SIZE..found.end / PAGE_SIZE
        };
        assert_eq!(of(40, 0..100), 32..48);
        assert_eq!(of(40, 37..100), 37..53);
        assert_eq!(of(40, 37..42), 37..42);
        assert_eq!(of(511, 505..600), 505..512);
        assert_eq!(of(512, 505..600), 512..528);
    }
}
