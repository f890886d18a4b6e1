//! The pages of anonymous memory and of objects, and the copies of pages that others share.
//!
//! A read of untouched memory finds the [zero frame](crate::fault::zero_page). A write to it, or to
//! a page that a forked space shares, puts a frame of the page's own in its place:
//!
//! 1. The fault takes a reference to the old frame, reads the entry again, and copies the frame
//!    without a lock. As long as the entry is shared for copying, the contents do not change: a
//!    page is written in place only while it has one reference.
//! 2. With the table's lock it checks that the entry is still the one whose frame it has copied.
//!    It stores the new frame *without the right to write*, marked [`Share::Flushing`].
//! 3. It flushes. Until then another CPU may read the old frame, whose contents are the same.
//! 4. With the lock again, it makes the page exclusive and writable.
//!
//! A fault that finds the mark flushes by itself, and goes on with step 4, so that it waits for no
//! other CPU.
//!
//! A page of an object is not writable in a private map. Its contents do change, by shared maps of
//! the object; the copy then has words of different moments, as in Linux. The object holds a
//! reference, so the page is copied before it is written.
//!
//! In a shared map, the mark for copying means that the object counts writes, and has not been told
//! of one: a write tells it, and makes the page an object's writable one.
//!
//! A page whose frame has one reference is not copied: no other entry leads there, so the fault
//! makes it exclusive. Its table is this space's own, so the reference is this entry's
//! (`paging::cursor::share`).

use grace::Concurrent;
use machine::{Frame, Machine};
use paging::{EntryChange, Format, Mapping, Share};
use vma::Vma;

use crate::{
    AddressSpace, Backing,
    entry_marks::{WP, marked},
    fault::attempt::{FaultStep, FirstLook},
    fault::frame_ref::is_alone,
    fault::new_frame::NewFrame,
    fault::rights::{self, WantedAccess},
    object::HeldPage,
};

/// The frames that a fault has prepared for the entry.
pub(crate) struct PreparedEntry<'a, 'm, M: Machine> {
    pub(crate) machine: &'a M,
    pub(crate) fresh: &'a NewFrame<'m, M>,
    /// The page of the VMA's object, if it has one and the entry was absent.
    pub(crate) object: Option<HeldPage<'a, M>>,
    /// Whether a write to a write-protected page is a monitor's to resolve.
    pub(crate) write_protected: bool,
}

impl<M: Machine> PreparedEntry<'_, '_, M> {
    /// Whether no other entry leads to the frame.
    fn is_alone(&self, frame: Frame) -> bool {
        is_alone(self.machine, frame)
    }

    /// The preparation that the entry needs before it can change, by the page that a walk has
    /// found.
    pub(crate) fn needs<B>(
        &self,
        vma: &Vma<B>,
        want: WantedAccess,
        found: Option<Mapping>,
    ) -> Option<FaultStep> {
        match found {
            None => {
                let copies = want.writes() && vma.is_private();
                let page = self.object.as_ref().filter(|_| copies)?;
                self.needs_copy(page.frame())
            }
            Some(page) => {
                let copies = want.writes()
                    && vma.is_private()
                    && page.attrs.share() == Share::CopyOnWrite
                    && !self.is_alone(page.frame);
                copies.then(|| self.needs_copy(page.frame))?
            }
        }
    }

    fn needs_copy(&self, of: Frame) -> Option<FaultStep> {
        if self.fresh.copy_of(of).is_some() {
            return None;
        }
        let held = self.fresh.want_copy(of);
        Some(if held { FaultStep::NeedsFrame } else { FaultStep::Again })
    }
}

/// The change of a page's entry at a fault in a VMA that allows the access, with the lock of the
/// table held. A write makes the page exclusive: the VMA has an anon_vma by now.
pub(crate) fn decide<M: Machine, F: Format>(
    vma: &Vma<Backing<M>>,
    want: WantedAccess,
    now: Option<Mapping>,
    prepared: &PreparedEntry<'_, '_, M>,
) -> (EntryChange, FaultStep) {
    let set = |frame, share, step| {
        (EntryChange::Set(frame, rights::attrs_for::<M, F>(vma, share, want)), step)
    };
    let keep = |step| (EntryChange::Keep, step);
    let Some(page) = now else {
        // Another CPU has unmapped a page of anonymous memory: the fault becomes a first touch.
        return match vma.file {
            Some(_) => decide_absent_of_object::<M, F>(vma, want, prepared),
            None => keep(FaultStep::Again),
        };
    };
    let share = page.attrs.share();
    match share {
        _ if want.is_met(page.attrs) => keep(FaultStep::Spurious),
        _ if !want.writes() => (
            EntryChange::Set(page.frame, rights::attrs_kept::<M, F>(vma, page.attrs)),
            FaultStep::Mapped,
        ),
        // Write-protected since the first look.
        _ if prepared.write_protected && page.attrs.soft & WP != 0 => keep(FaultStep::Again),
        Share::Exclusive | Share::Object => set(page.frame, share, FaultStep::Mapped),
        Share::Flushing => keep(FaultStep::Flushing),
        Share::CopyOnWrite if !vma.is_private() => match &prepared.object {
            Some(held) if held.frame() == page.frame && held.is_current() => {
                held.dirtied();
                set(page.frame, Share::Object, FaultStep::Mapped)
            }
            _ => keep(FaultStep::Again),
        },
        Share::CopyOnWrite if prepared.is_alone(page.frame) => {
            set(page.frame, Share::Exclusive, FaultStep::Mapped)
        }
        Share::CopyOnWrite => match prepared.fresh.copy_of(page.frame) {
            Some(copy) => {
                let attrs = rights::attrs_for::<M, F>(vma, Share::Flushing, want);
                (EntryChange::Replace(copy, attrs), FaultStep::Replaced(page.frame))
            }
            // It was exclusive, in a table that is this space's own only now.
            None => keep(FaultStep::Again),
        },
    }
}

/// The same for an absent entry of an object's map. A shared map gets the object's frame; a private
/// one gets it for reading, and a copy for writing.
fn decide_absent_of_object<M: Machine, F: Format>(
    vma: &Vma<Backing<M>>,
    want: WantedAccess,
    prepared: &PreparedEntry<'_, '_, M>,
) -> (EntryChange, FaultStep) {
    let set = |frame, share, step| {
        (EntryChange::Set(frame, rights::attrs_for::<M, F>(vma, share, want)), step)
    };
    let again = (EntryChange::Keep, FaultStep::Again);
    // The object may have taken the page back since, or the entry was present at the first look.
    let Some(page) = prepared.object.as_ref().filter(|page| page.is_current()) else {
        return again;
    };
    match prepared.fresh.copy_of(page.frame()) {
        _ if !vma.is_private() => {
            let writes = want.writes();
            if writes && page.counts_writes() {
                page.dirtied();
            }
            let clean = !writes && page.counts_writes();
            let share = if clean { Share::CopyOnWrite } else { Share::Object };
            set(page.frame(), share, FaultStep::MappedObject)
        }
        _ if !want.writes() => set(page.frame(), Share::CopyOnWrite, FaultStep::MappedObject),
        Some(copy) => set(copy, Share::Exclusive, FaultStep::MappedFresh),
        None => again,
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Makes a page exclusive that has replaced another one, after the flush: no CPU reads the old
    /// frame any more. If the entry or the VMA has changed since, the fault begins again.
    pub(super) fn end_replacement(
        &self,
        look: &FirstLook<'_, M, G>,
        new: Option<Frame>,
    ) -> FaultStep {
        let FirstLook { guard, addr, vma, .. } = *look;
        // SAFETY: the space owns the page. The frame stays.
        let done = unsafe {
            self.core.tables.with_entry(guard, look.page(), |now| match now {
                Some(now)
                    if Some(now.frame) == new
                        && now.attrs.share() == Share::Flushing
                        && self.core.vmas.is_current(guard, addr, vma) =>
                {
                    self.replaced(vma, now)
                }
                _ => (EntryChange::Keep, FaultStep::Again),
            })
        };
        done.map_or(FaultStep::Again, |(step, pending)| {
            pending.flush();
            step
        })
    }

    /// The entry of a page that has replaced another one, after the flush. A monitor may have
    /// write-protected it before: then the fault asks the monitor.
    pub(crate) fn replaced(&self, vma: &Vma<Backing<M>>, now: Mapping) -> (EntryChange, FaultStep) {
        let attrs = rights::attrs(vma.flags, Share::Exclusive);
        match now.attrs.soft & WP != 0 && self.is_write_protected(vma) {
            true => (EntryChange::Set(now.frame, marked(attrs, now.attrs.soft)), FaultStep::Again),
            false => (EntryChange::Set(now.frame, attrs), FaultStep::Mapped),
        }
    }
}
