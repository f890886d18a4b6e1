//! Reclaim: pages that a program has not used for a while leave memory.
//!
//! A hand goes round the VMAs, as of a clock. A page that was used since the hand came by last
//! loses its accessed bit, and stays. Otherwise:
//!
//! - the page of an object is unmapped; the object may evict it ([`Object::evict`]);
//! - an anonymous page is written to the host's swap ([`paging::Swap`]), and a swap entry takes its
//!   place. The next touch reads it back.
//!
//! Locked memory, pinned pages, and pages that a fork shares stay. A huge page is split first.
//!
//! # Why no write is lost
//! A page is written to swap without a lock, in three steps:
//!
//! 1. with the write right, its entry gets the mark [`AWAY`], which takes the right to write, and a
//!    flush; the frame is held;
//! 2. its contents are copied and written, with nothing held;
//! 3. with the write right and the table's lock, the entry becomes a swap entry, if it still has
//!    the mark, and its frame has no other reference than this one and ours.
//!
//! A write between the first step and the third faults, and takes the mark away; a fork takes a
//! reference. Then the slot is given up, and the page stays. A pin for writing faults, too. A pin
//! for reading is a snapshot ([`crate::UserPins`]).

use alloc::{boxed::Box, vec::Vec};
use core::{ops::Range, sync::atomic::Ordering};

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{Attrs, EntryChange, Flags, Format, Mapping, Paging, Share, Swap, SweepChange};
use vma::{PAGE_SIZE, PageWork, Pages, VmFlags, Vma};

#[expect(unused_imports, reason = "for links")]
use crate::Object;
use crate::{
    AddressSpace, Backing, Error,
    fault::Step,
    fresh::{Fresh, read_words},
    hook::Hook,
    reference::{Reference, block_of, hold, is_counted},
    rights,
    touch::{Look, refused},
    track::{AWAY, marked},
};

/// The bytes that are looked at with the write right held once.
const PART: usize = 512 * PAGE_SIZE;
/// The anonymous pages that are written in one go.
const BATCH: usize = 32;

/// What a reclaim has done, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimed {
    /// Anonymous pages that were written to swap.
    pub swapped: usize,
    /// Pages of objects that were unmapped.
    pub unmapped: usize,
    /// Those of them that their objects have evicted.
    pub evicted: usize,
    /// Pages that the hand has passed.
    pub scanned: usize,
}

impl Reclaimed {
    /// The pages that are no more in this space's memory.
    pub fn taken(&self) -> usize {
        self.swapped + self.unmapped
    }
}

/// What the hand has found in a part of a VMA.
struct Found<M: Machine> {
    /// Anonymous pages, whose frames are held.
    cold: Vec<(usize, Frame)>,
    /// Pages of objects, with their objects' indices.
    of_objects: Vec<(Backing<M>, u64, Frame)>,
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
    /// Cost: a look at each page that the hand passes; a write of swap for each page taken.
    ///
    /// # Context
    /// As for [`handle_fault`](Self::handle_fault); waits for the host's swap.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the page tables have too few software bits. [`Error::Tables`]: they
    /// are corrupt.
    pub fn reclaim(&self, want: usize) -> Result<Reclaimed, Error> {
        Self::check_marks()?;
        let mut done = Reclaimed::default();
        // Relaxed: where the hand was; two that move it at once disturb nothing.
        let mut hand = self.core.hand.load(Ordering::Relaxed);
        let (start, mut rounds) = (hand, 0);
        while done.taken() < want {
            let part = self.next_vma(hand).map(|(vma, _)| {
                let from = vma.start.max(hand);
                from..vma.end.min((from & !(PART - 1)) + PART)
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
            hand = part.end;
            self.reclaim_part(part, want, &mut done)?;
        }
        self.core.hand.store(hand, Ordering::Relaxed);
        Ok(done)
    }

    fn reclaim_part(
        &self,
        part: Range<usize>,
        want: usize,
        done: &mut Reclaimed,
    ) -> Result<(), Error> {
        let mut from = part.start;
        while from < part.end && done.taken() < want {
            let mut found = Found { cold: Vec::new(), of_objects: Vec::new(), huge: None };
            let room = BATCH.min(want - done.taken());
            if found.cold.try_reserve(room).is_err() || found.of_objects.try_reserve(room).is_err()
            {
                return Ok(());
            }
            from = self.look_for_cold(from..part.end, room, &mut found, done)?;
            for (file, index, frame) in found.of_objects {
                // SAFETY: it is unmapped and flushed; this was its entry's reference.
                unsafe { self.core.tables.paging().release_entry(frame) };
                done.unmapped += 1;
                done.evicted += usize::from(file.object().evict(index));
            }
            for (at, frame) in found.cold {
                // SAFETY: `look_for_cold` has taken this reference.
                let held = unsafe { Reference::new(self.core.tables.machine(), frame) };
                done.swapped += usize::from(self.swap_out(at, held)?);
            }
            if let Some(huge) = found.huge {
                // Without memory for the table it stays huge.
                let _stays = self.split_huge(VirtAddr::new(huge as u64));
            }
        }
        Ok(())
    }

    /// The first step, for the pages from the start of the range on, until there is no more room.
    /// Returns where it stopped.
    fn look_for_cold(
        &self,
        range: Range<usize>,
        room: usize,
        found: &mut Found<M>,
        done: &mut Reclaimed,
    ) -> Result<usize, Error> {
        let calls = self.core.right();
        let mut hook = Hook::new(&self.core, None);
        let area = calls.areas_from(range.start).next().filter(|area| area.start <= range.start);
        let never = VmFlags::LOCKED | VmFlags::SPECIAL | VmFlags::HUGETLB;
        let Some(area) = area.filter(|area| !area.vma.flags.intersects(never)) else {
            return Ok(range.end);
        };
        let range = range.start..range.end.min(area.end);
        // Tables that a fork shares stay, if there is no memory for copies.
        if hook.prepare(range.clone(), PageWork::Protect).is_err() {
            return Ok(range.end);
        }
        let (machine, has_swap) =
            (self.core.tables.machine(), self.core.tables.paging().swap().is_some());
        let mut stop = range.end;
        hook.sweep_pages(range, |page| {
            let at = page.page.get() as usize;
            let index = area.vma.offset_at(at) as u64;
            if at >= stop || self.core.is_special(page.frame) || !is_counted(machine, page.frame) {
                return SweepChange::Keep;
            }
            if found.cold.len() == room || found.of_objects.len() == room {
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
                Some(file) => {
                    found.of_objects.push((file, index, page.frame));
                    SweepChange::Clear
                }
                None if page.size != PageSize::Size4K => {
                    found.huge = found.huge.or(has_swap.then_some(at));
                    SweepChange::Keep
                }
                None => self.mark_cold(page, &area.vma, has_swap, found),
            }
        });
        drop(calls);
        hook.failed.map_or(Ok(stop), |error| Err(error.into()))
    }

    /// Marks an anonymous page that no other entry leads to.
    fn mark_cold(
        &self,
        page: &Mapping,
        vma: &Vma<Backing<M>>,
        has_swap: bool,
        found: &mut Found<M>,
    ) -> SweepChange {
        let machine = self.core.tables.machine();
        let block = block_of(machine, page.frame);
        let alone = block.is_some_and(|(_, info)| info.refs() == 1 && info.order() == 0);
        if !has_swap || !alone || !hold(machine, page.frame) {
            return SweepChange::Keep;
        }
        found.cold.push((page.page.get() as usize, page.frame));
        let attrs = rights::attrs_in(vma, page.attrs.share());
        SweepChange::Set(marked(attrs, page.attrs.soft | AWAY))
    }

    /// The second and the third step. Returns whether the page has gone.
    fn swap_out(&self, at: usize, held: Reference<'_, M>) -> Result<bool, Error> {
        let (machine, paging) = (self.core.tables.machine(), self.core.tables.paging());
        let Some(swap) = paging.swap() else { return Ok(false) };
        let mut copy = Vec::new();
        if copy.try_reserve_exact(PAGE_SIZE).is_err() {
            return Ok(false);
        }
        copy.resize(PAGE_SIZE, 0);
        let Ok(mut copy) = <Box<[u8; PAGE_SIZE]>>::try_from(copy) else { return Ok(false) };
        if !read_words(machine, held.frame(), &mut copy[..]) {
            return Ok(false);
        }
        let slot = swap.write(&copy);
        let Some((slot, entry)) =
            slot.and_then(|slot| Some((slot, Paging::<M, F>::swap_frame(slot)?)))
        else {
            return Ok(false);
        };
        let frame = held.frame();
        let gone = self.change(|calls| {
            let locked =
                calls.area_at(at).is_none_or(|area| area.vma.flags.contains(VmFlags::LOCKED));
            let guard = G::pin();
            // SAFETY: the space owns the page. Its frame is released after the flush; the slot's
            // reference is the entry's.
            let done = unsafe {
                self.core.tables.with_entry(&guard, VirtAddr::new(at as u64), |now| match now {
                    Some(page)
                        if page.frame == frame
                            && page.attrs.soft & AWAY != 0
                            && !locked
                            && block_of(machine, frame)
                                .is_some_and(|(_, info)| info.refs() == 2) =>
                    {
                        let soft = page.attrs.soft & !AWAY;
                        (EntryChange::Replace(entry, Attrs { soft, ..Attrs::default() }), true)
                    }
                    _ => (EntryChange::Keep, false),
                })
            };
            match done {
                Ok((gone, pending)) => {
                    pending.flush();
                    Ok::<_, Error>(gone)
                }
                // A huge page, or no memory to leave a shared table.
                Err(_) => Ok(false),
            }
        })?;
        match gone {
            // SAFETY: it is unmapped and flushed. The entry's reference.
            true => drop(unsafe { Reference::new(machine, frame) }),
            false => swap.release(slot),
        }
        Ok(gone)
    }

    /// The fault at a page that is in swap.
    pub(crate) fn swap_in(
        &self,
        look: &Look<'_, M, G>,
        place: &paging::Found<'_>,
        entry: Frame,
        fresh: &Fresh<'_, M>,
    ) -> Result<Step, crate::FaultError> {
        let page = look.at.align_down(PageSize::Size4K);
        let Some(slot) = self.core.tables.paging().slot_of(entry) else { return Ok(Step::Again) };
        let Some(frame) = fresh.page_of(slot) else {
            if !fresh.want_slot(slot) {
                return Ok(Step::Again);
            }
            // The slot is held from here on. If the entry names it now, it has not been given to
            // another page in between.
            let still = self.core.tables.walk(look.guard).get(page);
            return Ok(match still.is_some_and(|page| page.frame == entry) {
                true => Step::NeedsFrame,
                false => Step::Again,
            });
        };
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped. Nothing was
        // cached of the entry, which has no rights.
        let done = unsafe {
            self.core.tables.with_found(look.guard, place, |now| match now {
                Some(now) if now.frame == entry && self.is_current(look) => {
                    let attrs = rights::attrs(look.vma.flags, Share::Exclusive);
                    (EntryChange::Replace(frame, marked(attrs, now.attrs.soft)), Step::MappedFresh)
                }
                _ => (EntryChange::Keep, Step::Again),
            })
        };
        match done {
            Ok((step, pending)) => {
                pending.flush();
                if step == Step::MappedFresh {
                    // SAFETY: the reference of the old entry.
                    unsafe { self.core.tables.paging().release_entry(entry) };
                }
                Ok(step)
            }
            Err(failed) => refused(failed, look.at),
        }
    }
}

/// Reads a slot into a frame of our own.
pub(crate) fn read_slot<M: Machine>(
    machine: &M,
    swap: Option<&dyn Swap>,
    slot: u64,
    into: Frame,
) -> bool {
    let (Some(swap), Some(at)) = (swap, machine.frame_ptr(into)) else { return false };
    // SAFETY: the frame is ours alone, and a page long.
    swap.read(slot, unsafe { &mut *at.cast::<[u8; PAGE_SIZE]>().as_ptr() })
}
