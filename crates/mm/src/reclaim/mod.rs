//! Reclaim: pages that a program has not used for a while leave memory.
//!
//! A hand goes round the VMAs, as of a clock. A page that was used since the hand came by last
//! loses its accessed bit, and stays. Otherwise:
//!
//! - the page of an object is unmapped; the object may evict it
//!   ([`CachedPages::evict`](crate::CachedPages::evict));
//! - an anonymous page is written to the host's swap ([`paging::Swap`]), and a swap entry takes its
//!   place. The next touch reads it back.
//!
//! Locked memory, pinned pages, and pages that a fork shares stay. A huge page is split first.
//!
//! The hand gives cold anonymous pages the mark [`AWAY`], which takes the right to write. `swap`
//! says how they go, and why no write is lost.

pub(crate) mod swap;

use alloc::vec::Vec;
use core::{ops::Range, sync::atomic::Ordering};

use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr};
use paging::{Attrs, EntryChange, Flags, Format, Mapping, Share, SweepChange};
use vma::{VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error,
    addresses::virt,
    change::page_host::{PageHost, TableWork},
    entry_marks::{AWAY, clear_of_object, marked},
    fault::frame_ref::{Reference, block_of, hold, is_counted},
    fault::rights,
    thresholds::{RECLAIM_BYTES, RECLAIM_PAGES},
};

/// The result of a reclaim, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Anonymous pages that were written to swap.
    pub swapped: usize,
    /// Pages of objects that were unmapped.
    pub unmapped: usize,
    /// Those of them that their objects have evicted.
    pub evicted: usize,
    /// Pages that were unmapped before, and waited for a TLB grace period
    /// ([`UnmapPolicy::Grace`](crate::UnmapPolicy::Grace)).
    pub purged: usize,
    /// Pages that the hand has passed.
    pub scanned: usize,
}

impl Reclaimed {
    /// The pages that are no more in this space's memory.
    pub fn taken(&self) -> usize {
        self.swapped + self.unmapped + self.purged
    }
}

/// The pages that the hand has found in a part of a VMA.
///
/// Its references are given up also if the host panics.
struct Found<'m, M: Machine> {
    /// Anonymous pages, which are marked, and whose frames are held.
    cold: Vec<(usize, Reference<'m, M>)>,
    /// Pages of objects, with their objects' indices. Their frames are held.
    of_objects: Vec<(Backing<M>, u64, Reference<'m, M>)>,
    huge: Option<usize>,
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Takes up to about `want` pages from memory that were not used since the hand passed them
    /// last: up to two rounds. Call it for spaces in turn while memory is short.
    ///
    /// ```
    /// # use mm::*;
    /// fn shrink<M, F, G>(space: &AddressSpace<M, F, G>) -> Result<usize, Error>
    /// where
    ///     M: machine::Machine,
    ///     F: paging::Format,
    ///     G: grace::Concurrent,
    /// {
    ///     Ok(space.reclaim(64)?.taken())
    /// }
    /// ```
    ///
    /// Cost: a look at each page that the hand passes, and at each absent entry of the tables on
    /// its way; a write of swap for each page taken.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault); waits for the host's swap.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the page tables have too few software bits. [`Error::Tables`]: they
    /// are corrupt.
    pub fn reclaim(&self, want: usize) -> Result<Reclaimed, Error> {
        Self::check_marks()?;
        let mut done = Reclaimed { purged: self.purge(), ..Reclaimed::default() };
        // Relaxed: where the hand was; two that move it at once disturb nothing.
        let mut hand = self.core.hand.load(Ordering::Relaxed);
        let (start, mut rounds) = (hand, 0);
        while done.taken() < want {
            let part = self.next_vma(hand).map(|(vma, _)| {
                let from = self.first_entry(vma.start.max(hand)..vma.end);
                from..vma.end.min((from & !(RECLAIM_BYTES - 1)) + RECLAIM_BYTES)
            });
            let passed_start = part.as_ref().is_none_or(|part| part.end > start && hand <= start);
            let Some(part) = part else {
                // Two rounds: the first one may only take accessed bits.
                rounds += 1;
                if rounds > 2 || hand == 0 {
                    break;
                }
                hand = 0;
                continue;
            };
            if rounds == 2 && passed_start {
                break;
            }
            hand = self.reclaim_part(part, want, &mut done)?;
        }
        self.core.hand.store(hand, Ordering::Relaxed);
        Ok(done)
    }

    /// Marks the page of an address as used, if it is present, for a host that uses pages in
    /// another way than by translating: by a device, or by [`walk`](Self::walk). A processor that
    /// translates marks pages itself. Returns whether the page is present.
    ///
    /// Cost: a walk, the lock of one table, and a compare-exchange; below a table that a fork
    /// shares also a copy of it.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault).
    pub fn mark_accessed(&self, at: VirtAddr) -> bool {
        let guard = G::pin();
        let mut is_present = false;
        let mut mark = |page: &Mapping| {
            is_present = !self.core.is_special(page.frame);
            let attrs = Attrs { flags: page.attrs.flags | Flags::ACCESSED, ..page.attrs };
            if is_present { EntryChange::Set(page.frame, attrs) } else { EntryChange::Keep }
        };
        let Some(found) = self.core.tables.walk(&guard).get(at) else { return false };
        let mut change = |now: Option<Mapping>| match now {
            Some(page) if page.frame == found.frame => (mark(&page), ()),
            _ => (EntryChange::Keep, ()),
        };
        // SAFETY: the page keeps its frame and its rights.
        let done = unsafe {
            match found.size {
                PageSize::Size4K => self.core.tables.with_entry(&guard, at, &mut change),
                _ => self.core.tables.with_large(&guard, at, &mut change),
            }
        };
        done.is_ok() && is_present
    }

    /// The first address of a range that has an entry, or the end of the range. So the hand passes
    /// memory that was never touched table by table, not part by part. A page that comes meanwhile
    /// is not cold.
    fn first_entry(&self, range: Range<usize>) -> usize {
        let guard = G::pin();
        let walk = self.core.tables.walk(&guard).as_hint();
        let first = virt(range.clone()).and_then(|addresses| walk.pages(addresses).next());
        first.map_or(range.end, |page| (page.page.get() as usize).max(range.start))
    }

    /// Returns where it has stopped.
    fn reclaim_part(
        &self,
        part: Range<usize>,
        want: usize,
        done: &mut Reclaimed,
    ) -> Result<usize, Error> {
        let mut from = part.start;
        while from < part.end && done.taken() < want {
            let mut found = Found { cold: Vec::new(), of_objects: Vec::new(), huge: None };
            let room = RECLAIM_PAGES.min(want - done.taken());
            if found.cold.try_reserve(room).is_err() || found.of_objects.try_reserve(room).is_err()
            {
                return Ok(part.end);
            }
            // Pages that were found before an error are settled, too.
            let stop = self.look_for_cold(from..part.end, room, &mut found, done);
            for (file, index, held) in found.of_objects {
                drop(held);
                done.unmapped += 1;
                let cached = file.object().cached();
                done.evicted += usize::from(cached.is_some_and(|cached| cached.evict(index)));
            }
            done.swapped += self.swap_out(found.cold)?;
            from = stop?;
            if let Some(huge) = found.huge {
                // Without memory for the table it stays huge.
                let _stays = self.split_huge(VirtAddr::new(huge as u64));
            }
        }
        Ok(from)
    }

    /// The first step, for the pages from the start of the range on, until there is no more room.
    /// Returns where it stopped.
    fn look_for_cold<'m>(
        &'m self,
        range: Range<usize>,
        room: usize,
        found: &mut Found<'m, M>,
        done: &mut Reclaimed,
    ) -> Result<usize, Error> {
        let calls = self.core.writer();
        let mut host = PageHost::new(&self.core, None);
        let area = calls.areas_from(range.start).next().filter(|area| area.start <= range.start);
        let never = VmFlags::LOCKED | VmFlags::SPECIAL | VmFlags::HUGETLB;
        let Some(area) = area.filter(|area| !area.vma.flags.intersects(never)) else {
            return Ok(range.end);
        };
        let range = range.start..range.end.min(area.end);
        // Tables that a fork shares stay, if there is no memory for copies.
        if host.prepare(range.clone(), TableWork::Protect).is_err() {
            return Ok(range.end);
        }
        let (machine, has_swap) =
            (self.core.tables.machine(), self.core.tables.paging().swap().is_some());
        let mut stop = range.end;
        host.sweep_pages(range, |page| {
            let at = page.page.get() as usize;
            let index = area.vma.offset_at(at) as u64;
            if at >= stop || self.core.is_special(page.frame) || !is_counted(machine, page.frame) {
                return SweepChange::Keep;
            }
            if found.cold.len() + found.of_objects.len() == room {
                stop = at;
                return SweepChange::Keep;
            }
            done.scanned += (page.size.bytes() / PageSize::Size4K.bytes()) as usize;
            if page.attrs.flags.contains(Flags::ACCESSED) {
                return SweepChange::Age;
            }
            let of_object =
                area.vma.file.clone().filter(|file| file.object().is_current(index, page.frame));
            let block = block_of(machine, page.frame);
            let pinned = block.is_none_or(|(_, info)| info.pins() != 0);
            match of_object {
                _ if pinned || page.attrs.share() == Share::Flushing => SweepChange::Keep,
                _ if of_object.is_some() && !hold(machine, page.frame) => SweepChange::Keep,
                Some(file) => {
                    // SAFETY: just taken.
                    let held = unsafe { Reference::new(machine, page.frame) };
                    found.of_objects.push((file, index, held));
                    clear_of_object(page, self.core.guard_frame.get())
                }
                None if page.size != PageSize::Size4K => {
                    found.huge = found.huge.or(has_swap.then_some(at));
                    SweepChange::Keep
                }
                None => self.mark_cold(page, &area.vma, has_swap, found),
            }
        });
        drop(calls);
        host.noted()?;
        Ok(stop)
    }

    /// Marks an anonymous page that no other entry leads to.
    fn mark_cold<'m>(
        &'m self,
        page: &Mapping,
        vma: &Vma<Backing<M>>,
        has_swap: bool,
        found: &mut Found<'m, M>,
    ) -> SweepChange {
        let machine = self.core.tables.machine();
        let block = block_of(machine, page.frame);
        let alone = block.is_some_and(|(_, info)| info.refs() == 1 && info.order() == 0);
        if !has_swap || !alone || !hold(machine, page.frame) {
            return SweepChange::Keep;
        }
        // SAFETY: just taken.
        let held = unsafe { Reference::new(machine, page.frame) };
        found.cold.push((page.page.get() as usize, held));
        let attrs = rights::attrs_in::<M, F>(vma, page.attrs.share());
        SweepChange::Set(marked(attrs, page.attrs.soft | AWAY))
    }
}
