//! Anonymous pages leave memory for the host's swap, and come back.
//!
//! # Why no write is lost
//! A page is written to swap without a lock, in three steps, each for a batch of pages:
//!
//! 1. with the mmap lock, its entry gets the mark [`AWAY`], which takes the right to write, and a
//!    flush; the frame is held (`reclaim`);
//! 2. its contents are copied and written, with nothing held;
//! 3. with the mmap lock and the table's lock, the entry becomes a swap entry, if it still has
//!    the mark, and its frame has no other reference than this one and ours. One flush follows for
//!    the batch.
//!
//! A write between the first step and the third faults, and takes the mark away; a fork takes a
//! reference. Then the slot is given up, and the page stays. A pin for writing faults, too, unless
//! it was taken before the mark was stored: the second step looks for it, and gives the page up. A
//! pin for reading is a snapshot ([`crate::UserPins`]).
//!
//! # Why all CPUs see one page
//! Between the third step and its flush, a CPU may still read the old frame. If another one brought
//! the page back meanwhile, and wrote, the two would see different pages. So a fault at a swap
//! entry waits for the mmap lock while a flush of the third step is pending. Nothing is cached of
//! a swap entry itself, so that bringing a page back needs no flush.
//!
//! Cost: for each page a copy, a write of swap and two locks of its table; for each batch the mmap
//! lock twice, and two flushes.

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::Ordering;

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{Attrs, EntryChange, Format, Paging, Share};
use vma::{PAGE_SIZE, VmFlags};

use crate::{
    AddressSpace, Error,
    change::locked_call::Calls,
    change::release::release,
    entry_marks::{AWAY, marked},
    fault::attempt::{FaultStep, FirstLook, flushed},
    fault::frame_contents::read_words,
    fault::frame_ref::{Reference, block_of},
    fault::new_frame::NewFrame,
    fault::rights,
    thresholds::SLOT_REFUSALS,
};

/// A page that was written to swap.
struct Written<'m, M: Machine> {
    at: usize,
    held: Reference<'m, M>,
    slot: u64,
    /// The entry of the page in swap.
    entry: Frame,
    has_gone: bool,
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The second and the third step, for marked pages whose frames are held. Returns how many have
    /// gone.
    pub(crate) fn swap_out(&self, cold: Vec<(usize, Reference<'_, M>)>) -> Result<usize, Error> {
        let (machine, paging) = (self.core.tables.machine(), self.core.tables.paging());
        let mut written = Vec::new();
        if cold.is_empty() {
            return Ok(0);
        }
        // Otherwise a write takes the marks away.
        let (Some(swap), Some(mut copy)) = (paging.swap(), buffer()) else { return Ok(0) };
        // The flush of the marks has a SeqCst fence (`AtomicCpuSet::targets`), which pairs with the
        // one of a pin before its second look (`paging`, `gup`). Either that look finds the mark,
        // and fails, or the pin is seen here.
        for (at, held) in cold {
            let pinned = block_of(machine, held.frame()).is_none_or(|(_, info)| info.pins() != 0);
            if pinned
                || written.try_reserve(1).is_err()
                || !read_words(machine, held.frame(), &mut copy[..])
            {
                continue;
            }
            let Some(slot) = swap.write(&copy) else { continue };
            match Paging::<M, F>::swap_frame(slot) {
                Some(entry) => written.push(Written { at, held, slot, entry, has_gone: false }),
                None => swap.release(slot),
            }
        }
        if written.is_empty() {
            return Ok(0);
        }
        let done = self.change(|calls| self.replace_written(calls, &mut written));
        let mut gone = 0;
        for page in written {
            if page.has_gone {
                gone += 1;
                // SAFETY: it is unmapped and flushed. The entry's reference.
                drop(unsafe { Reference::new(machine, page.held.frame()) });
            } else {
                swap.release(page.slot);
            }
        }
        done.map(|()| gone)
    }

    /// The third step.
    fn replace_written(
        &self,
        calls: &Calls<'_, '_, '_, M, F, G>,
        written: &mut [Written<'_, M>],
    ) -> Result<(), Error> {
        let tables = &self.core.tables;
        let (mut deferred, mut done) = (tables.deferred_flush(), Ok(()));
        // Relaxed: a fault that sees a swap entry has taken the lock of its table since.
        self.core.swapping.store(true, Ordering::Relaxed);
        for page in written {
            let area = calls.area_at(page.at);
            if area.is_none_or(|area| area.vma.flags.contains(VmFlags::LOCKED)) {
                continue;
            }
            let (guard, frame) = (G::pin(), page.held.frame());
            let alone =
                || block_of(tables.machine(), frame).is_some_and(|(_, info)| info.refs() == 2);
            // SAFETY: the space owns the page. Its frame is released after the flush; the slot's
            // reference is the entry's.
            let replaced = unsafe {
                tables.with_entry(&guard, VirtAddr::new(page.at as u64), |now| match now {
                    Some(now) if now.frame == frame && now.attrs.soft & AWAY != 0 && alone() => {
                        let soft = now.attrs.soft & !AWAY;
                        let attrs = Attrs { soft, ..Attrs::default() };
                        (EntryChange::Replace(page.entry, attrs), true)
                    }
                    _ => (EntryChange::Keep, false),
                })
            };
            match replaced {
                Ok((has_gone, pending)) => {
                    page.has_gone = has_gone;
                    pending.defer_to(&mut deferred);
                }
                // A huge page by now; or no memory to leave a shared table.
                Err(failed) => {
                    if matches!(failed.error, paging::Error::Malformed(_)) {
                        done = Err(Error::Tables(failed.error));
                    }
                    failed.pending.defer_to(&mut deferred);
                }
            }
        }
        tables.flush_deferred(deferred);
        // Release: the flush is done; pairs with the Acquire of `swap_in`.
        self.core.swapping.store(false, Ordering::Release);
        done
    }

    /// The fault at a page that is in swap.
    pub(crate) fn swap_in(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &paging::Found<'_>,
        entry: Frame,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, crate::FaultError> {
        let page = look.at.align_down(PageSize::Size4K);
        let Some(slot) = self.core.tables.paging().slot_of(entry) else {
            return Ok(FaultStep::Again);
        };
        let Some(frame) = fresh.page_of(slot) else {
            if !fresh.want_slot(slot) {
                let still = self.core.tables.walk(look.guard).get(page);
                let refusals = fresh.refusals.replace(fresh.refusals.get() + 1);
                return Ok(match still.filter(|page| page.frame == entry) {
                    // The entry still names it, so the slot is in use: it has too many references.
                    // Some are those of faults, which give them back.
                    Some(_) if refusals >= SLOT_REFUSALS => {
                        FaultStep::NeedsMemory(machine::FrameError::InUse {
                            frame: entry,
                            refs: u32::MAX,
                            pins: 0,
                        })
                    }
                    _ => FaultStep::Again,
                });
            }
            // The slot is held from here on. If the entry names it now, it has not been given to
            // another page in between.
            let still = self.core.tables.walk(look.guard).get(page);
            return Ok(match still.is_some_and(|page| page.frame == entry) {
                true => FaultStep::NeedsFrame,
                false => FaultStep::Again,
            });
        };
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped. Nothing is
        // cached of the page: its flush is done, and the swap entry has no rights.
        let done = unsafe {
            self.core.tables.with_found(look.guard, place, |now| match now {
                // Acquire: pairs with the Release of `replace_written`.
                Some(now) if now.frame == entry && self.core.swapping.load(Ordering::Acquire) => {
                    (EntryChange::Keep, FaultStep::NeedsLock)
                }
                Some(now) if now.frame == entry && self.is_current(look) => {
                    let attrs = rights::attrs(look.vma.flags, Share::Exclusive);
                    (
                        EntryChange::Replace(frame, marked(attrs, now.attrs.soft)),
                        FaultStep::MappedFresh,
                    )
                }
                _ => (EntryChange::Keep, FaultStep::Again),
            })
        };
        let step = flushed(done, look.at)?;
        if step == FaultStep::MappedFresh {
            // SAFETY: the reference of the old entry.
            unsafe { release(&self.core.tables, [entry]) };
        }
        Ok(step)
    }
}

/// Room for a page.
fn buffer() -> Option<Box<[u8; PAGE_SIZE]>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(PAGE_SIZE).ok()?;
    bytes.resize(PAGE_SIZE, 0);
    bytes.try_into().ok()
}
