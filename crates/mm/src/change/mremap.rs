//! mremap: the call by name. `move_pages` moves the pages.

use core::ops::Range;

use grace::Concurrent;
use machine::Machine;
use paging::Format;
use vma::{PAGE_SIZE, RemapRequest};

use crate::{AddressSpace, Error, addresses::pages_of};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// mremap(2): resizes a map, moves it with its pages, or both. Returns the new address. When it
    /// returns, no CPU has a translation of the old range.
    ///
    /// # Errors
    /// As [`vma::Writer::mremap`]. If there is no memory for the page tables of the new place,
    /// nothing has changed.
    pub fn mremap(&self, request: RemapRequest) -> Result<usize, Error> {
        let at = self.change_and_tell(
            |_, events| self.add_remap(&request, events),
            |calls, events| {
                let at = calls.mremap(request)?;
                calls.host().check_unmapped(left_by(&request, at));
                Self::finish_remap(&request, at, events);
                Ok(at)
            },
        )?;
        let kept = request.old_len.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
        let end = at.saturating_add(request.new_len.next_multiple_of(PAGE_SIZE));
        self.bring_in_locked(at.saturating_add(kept)..end);
        Ok(at)
    }
}

/// The part of the old range that an mremap to `at` has unmapped.
fn left_by(request: &RemapRequest, at: usize) -> Range<usize> {
    let old = pages_of(request.addr, request.old_len);
    match request.dont_unmap {
        Some(_) => old.end..old.end,
        None if at == request.addr => pages_of(at, request.new_len).end.min(old.end)..old.end,
        None => old,
    }
}
