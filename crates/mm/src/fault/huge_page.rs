//! Huge pages of anonymous memory: 2 MiB at a fault, where the VMA, the alignment and the policy
//! allow it.
//!
//! A huge page is one entry of a level-1 table. A fault brings it in where there is no table for
//! smaller pages: zeros for a write, the huge zero page for a read. It is split into 512 entries
//! where a part of it is unmapped, protected, moved or copied; nothing makes it huge again but
//! MADV_COLLAPSE.
//!
//! # Why it is right
//! The protocol is that of small pages ([`crate::protocol`]), with the lock of the level-1 table: a
//! sweep takes it wherever it finds no lower table, or a huge page. Two things are new.
//!
//! - *The second look covers 2 MiB.* A VMA may have become shorter, and still be the same one at
//!   the address of the fault. So the second look asks whether its range still has the whole page.
//! - *A call that cuts a huge page splits it first*, between its store and its sweep. After the
//!   store no fault brings another one in. The tables that the two ends may need are allocated
//!   before the store ([`PageTables::reserve_ends`](paging::PageTables::reserve_ends)), so nothing
//!   fails.
//!
//! A page that a fork shares is split by the write that copies a part of it, as in Linux. The last
//! holder takes the whole page over.
//!
//! # References
//! The entry of a huge page holds one reference to its block of 512 frames. When it is split, the
//! block becomes single frames if there is no other reference. Otherwise each small entry holds one
//! reference to the block, which is free when the last part is unmapped.

use core::ops::Range;

use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr};
use paging::{EntryChange, Error as TableError, Format, Mapping, Share};
use vma::{VmFlags, Vma};

use crate::{
    AddressSpace, Backing, FaultError,
    addresses::{HUGE, huge_around},
    change::release::release,
    entry_marks::WP,
    fault::attempt::{FaultStep, FirstLook, flushed},
    fault::frame_ref::{is_alone, is_counted},
    fault::new_frame::{NewFrame, NewHuge},
    fault::rights::{self, WantedAccess},
};

/// Where faults bring in huge pages, as `/sys/kernel/mm/transparent_hugepage/enabled` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum HugePages {
    /// Nowhere.
    #[default]
    Never,
    /// In memory under MADV_HUGEPAGE.
    Madvise,
    /// Everywhere but in memory under MADV_NOHUGEPAGE.
    Always,
    /// Nowhere, and MADV_COLLAPSE makes none: PR_SET_THP_DISABLE.
    Disabled,
}

impl HugePages {
    /// Whether a VMA with these flags may have huge pages.
    pub(crate) fn allows<M: Machine>(self, vma: &Vma<Backing<M>>) -> bool {
        let advised = match self {
            HugePages::Never | HugePages::Disabled => false,
            HugePages::Madvise => vma.flags.contains(VmFlags::HUGEPAGE),
            HugePages::Always => true,
        };
        advised && vma.file.is_none() && !vma.flags.contains(VmFlags::NOHUGEPAGE)
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Sets where faults bring in huge pages. Pages that are huge already stay so. A forked child
    /// starts with its parent's policy. Waits for the mmap lock.
    ///
    /// # Errors
    /// [`Error::NotSupported`](crate::Error::NotSupported): the machine has no pages of 2 MiB.
    pub fn set_huge_pages(&self, policy: HugePages) -> Result<(), crate::Error> {
        if self.core.tables.paging().largest() < PageSize::Size2M {
            return Err(crate::Error::NotSupported("a huge page on this machine"));
        }
        let _lock = self.core.writer();
        self.core.huge.set(policy);
        Ok(())
    }

    /// Where faults bring in huge pages. One load.
    pub fn huge_pages(&self) -> HugePages {
        self.core.huge.policy()
    }

    /// Whether a first touch brings in a huge page, if there is memory for it.
    pub(crate) fn may_be_huge(
        &self,
        at: VirtAddr,
        range: &Range<usize>,
        vma: &Vma<Backing<M>>,
    ) -> bool {
        self.core.huge.policy().allows(vma)
            && huge_around(at.get() as usize, range).is_some()
            && !self.core.tables.walk(&G::pin()).look(at.align_down(PageSize::Size4K)).has_table()
    }

    /// As [`is_current`](Self::is_current), for a part of the VMA.
    pub(crate) fn is_current_in(&self, look: &FirstLook<'_, M, G>, part: &Range<usize>) -> bool {
        let (machine, changes) = (self.core.tables.machine(), &self.core.changes);
        changes.is(machine, look.seen)
            || self.core.vmas.lookup(look.guard, look.addr).is_some_and(|(range, vma)| {
                core::ptr::eq(vma, look.vma) && range.start <= part.start && part.end <= range.end
            })
    }

    /// The fault at an address without a table for small pages, in a VMA that has the whole `huge`
    /// page.
    pub(crate) fn huge_first_touch(
        &self,
        look: &FirstLook<'_, M, G>,
        huge: &Range<usize>,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, FaultError> {
        let (frame, share, step) = if want.writes() {
            let NewHuge::Ready(frame) = fresh.huge() else { return Ok(FaultStep::NeedsHuge) };
            (frame, Share::Exclusive, FaultStep::MappedHuge)
        } else {
            let zero = self.core.huge.zero(self.core.tables.paging());
            let Some(frame) = zero.get() else { return Ok(FaultStep::NeedsHugeZero) };
            (frame, Share::CopyOnWrite, FaultStep::Mapped)
        };
        let at = VirtAddr::new(huge.start as u64);
        // SAFETY: the space owns its lower half. The block is ours until it is mapped, and then the
        // page's until it is unmapped and flushed; the zero frames outlive the tables.
        let done = unsafe {
            self.core.tables.with_large(look.guard, at, |now| {
                if now.is_some() || !self.is_current_in(look, huge) {
                    return (EntryChange::Keep, FaultStep::Again);
                }
                (EntryChange::Set(frame, rights::attrs_for::<M, F>(look.vma, share, want)), step)
            })
        };
        // Small pages came first.
        if done.as_ref().is_err_and(|failed| matches!(failed.error, TableError::Occupied(_))) {
            fresh.deny_huge();
        }
        let step = flushed(done, look.at)?;
        if step == FaultStep::MappedHuge {
            fresh.huge_mapped();
        }
        Ok(step)
    }

    /// The fault at a huge page that is present.
    pub(crate) fn huge_present(
        &self,
        look: &FirstLook<'_, M, G>,
        page: Mapping,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, FaultError> {
        let (machine, share) = (self.core.tables.machine(), page.attrs.share());
        if want.is_met(page.attrs) {
            return Ok(FaultStep::Spurious);
        }
        let is_alone = || is_alone(machine, page.frame);
        let mut new = None;
        match share {
            _ if want.writes()
                && page.attrs.soft & WP != 0
                && self.is_write_protected(look.vma) =>
            {
                return Ok(FaultStep::NeedsUser(crate::UserFaultKind::WriteProtected));
            }
            Share::Flushing => {
                self.flush_huge(page.page);
                return Ok(self.end_huge_replacement(look, page.page, page.frame));
            }
            Share::CopyOnWrite if want.writes() && !is_alone() => {
                let whole = huge_around(look.addr, &look.range).is_some();
                match fresh.huge() {
                    // The huge zero page is replaced as a whole.
                    _ if is_counted(machine, page.frame) || !whole => {
                        return Ok(FaultStep::NeedsSplit);
                    }
                    NewHuge::Denied => return Ok(FaultStep::NeedsSplit),
                    NewHuge::No => return Ok(FaultStep::NeedsHuge),
                    NewHuge::Ready(frame) => new = Some(frame),
                }
            }
            _ => {}
        }
        let huge = page.page.get() as usize..page.page.get() as usize + HUGE;
        let set =
            |share| EntryChange::Set(page.frame, rights::attrs_for::<M, F>(look.vma, share, want));
        // SAFETY: as in `huge_first_touch`.
        let done = unsafe {
            self.core.tables.with_large(look.guard, page.page, |now| {
                let same = now.is_some_and(|now| {
                    now.frame == page.frame && now.attrs.soft == page.attrs.soft
                });
                if !same || !self.is_current(look) {
                    return (EntryChange::Keep, FaultStep::Again);
                }
                match (share, new) {
                    (Share::CopyOnWrite, Some(_)) if !self.is_current_in(look, &huge) => {
                        (EntryChange::Keep, FaultStep::Again)
                    }
                    (Share::CopyOnWrite, Some(new)) => {
                        let attrs = rights::attrs_for::<M, F>(look.vma, Share::Flushing, want);
                        (EntryChange::Replace(new, attrs), FaultStep::Replaced(page.frame))
                    }
                    (Share::CopyOnWrite, None) if want.writes() => match is_alone() {
                        true => (set(Share::Exclusive), FaultStep::Mapped),
                        false => (EntryChange::Keep, FaultStep::Again),
                    },
                    _ if want.writes() => (set(share), FaultStep::Mapped),
                    _ => {
                        let attrs = rights::attrs_kept::<M, F>(look.vma, page.attrs);
                        (EntryChange::Set(page.frame, attrs), FaultStep::Mapped)
                    }
                }
            })
        };
        let step = flushed(done, look.at)?;
        let (FaultStep::Replaced(old), Some(new)) = (step, new) else { return Ok(step) };
        fresh.huge_mapped();
        // SAFETY: no CPU has a translation of it any more. (It is the zero page, which is not
        // counted.)
        unsafe { release(&self.core.tables, [old]) };
        Ok(self.end_huge_replacement(look, page.page, new))
    }

    /// Makes a huge page exclusive that has replaced the zero page, after the flush.
    fn end_huge_replacement(
        &self,
        look: &FirstLook<'_, M, G>,
        at: VirtAddr,
        new: machine::Frame,
    ) -> FaultStep {
        // SAFETY: the space owns the page. The frame stays.
        let done = unsafe {
            self.core.tables.with_large(look.guard, at, |now| match now {
                Some(now)
                    if now.frame == new
                        && now.attrs.share() == Share::Flushing
                        && self.is_current(look) =>
                {
                    self.replaced(look.vma, now)
                }
                _ => (EntryChange::Keep, FaultStep::Again),
            })
        };
        done.map_or(FaultStep::Again, |(step, pending)| {
            pending.flush();
            step
        })
    }

    /// Flushes a huge page on all CPUs that use the space.
    fn flush_huge(&self, at: VirtAddr) {
        self.core.tables.flush_page(at, PageSize::Size2M);
    }

    /// Splits the huge page at `at`, if there is one. No guard is held.
    pub(crate) fn split_huge(&self, at: VirtAddr) -> Result<(), TableError> {
        // SAFETY: the space owns the page, and its entries hold references. The pieces are changed
        // or used after the flush, or by the old translation, which is the same.
        match unsafe { self.core.tables.split_counted(at, PageSize::Size4K) } {
            Ok(pending) => {
                pending.flush();
                Ok(())
            }
            // The fork has the mmap lock: it ends.
            Err(failed) if failed.error == TableError::Fork => Ok(()),
            Err(failed) => Err(failed.error),
        }
    }
}
