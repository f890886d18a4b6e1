//! The first touch of a page of anonymous memory.

use grace::Concurrent;
use machine::Machine;
use paging::{EntryChange, Format, Found, Share};

use crate::{
    AddressSpace, FaultError, HugePages,
    addresses::huge_around,
    entry_marks::marked,
    fault::attempt::{FaultStep, FirstLook, flushed},
    fault::new_frame::{NewFrame, NewHuge},
    fault::rights::{self, WantedAccess},
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// The fault at an absent page of anonymous memory: a huge page, a block of pages, or one.
    #[inline]
    pub(super) fn touch_absent(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &Found<'_>,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, FaultError> {
        let policy = self.core.huge.policy();
        if policy != HugePages::Never
            && !place.has_table()
            && fresh.huge() != NewHuge::Denied
            && policy.allows(look.vma)
            && let Some(huge) = huge_around(look.addr, &look.range)
        {
            // Also for a read, as in Linux.
            if !self.core.vmas.first_write(look.guard, look.addr, look.vma) {
                return Ok(FaultStep::NeedsLock);
            }
            return self.huge_first_touch(look, &huge, want, fresh);
        }
        if want.writes() && self.fill_groups(look, want) {
            return Ok(FaultStep::Mapped);
        }
        let step = self.first_touch(look, place, want, fresh, None)?;
        if step == FaultStep::MappedFresh {
            self.fill_block(look);
        }
        Ok(step)
    }

    /// The fault at an absent page of anonymous memory that the VMA allows: a write gets a frame of
    /// zeros, a read the zero frame. The VMA of a write has an anon_vma. With `marks`, the entry is
    /// that of an absent page with a mark (`monitor/wp_unpopulated`), and the page gets these
    /// marks.
    #[inline]
    pub(crate) fn first_touch(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &Found<'_>,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
        marks: Option<u16>,
    ) -> Result<FaultStep, FaultError> {
        let (frame, share, step) = if want.writes() {
            fresh.want_zeros();
            // With memory at hand, this attempt goes on. Without, the guard must go first: a
            // reclaim waits for it.
            if fresh.prepare().is_err() {
                return Ok(FaultStep::NeedsFrame);
            }
            (fresh.zeros(), Share::Exclusive, FaultStep::MappedFresh)
        } else {
            (self.core.zero_frame.get(), Share::CopyOnWrite, FaultStep::Mapped)
        };
        let Some(frame) = frame else { return Ok(FaultStep::NeedsZeroFrame) };
        // SAFETY: the space owns its lower half. The frame is ours until it is mapped, and then the
        // page's until it is unmapped and flushed; the zero frame outlives the tables. A range is
        // flushed before it gets another VMA.
        let done = unsafe {
            self.core.tables.with_found(look.guard, place, |now| {
                let same = match marks {
                    None => now.is_none(),
                    Some(_) => now.is_some_and(|page| self.core.is_mark(&page)),
                };
                if !same || !self.is_current(look) {
                    return (EntryChange::Keep, FaultStep::Again);
                }
                let mut attrs = rights::attrs(look.vma.flags, share);
                attrs.flags |= want.leaves();
                match marks {
                    None => (EntryChange::Set(frame, attrs), step),
                    Some(marks) => (EntryChange::Replace(frame, marked(attrs, marks)), step),
                }
            })
        };
        flushed(done, look.at)
    }
}
