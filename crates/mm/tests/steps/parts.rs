//! Steps that are parts of calls, carried out without the rest of the call.

use crate::{
    apply::Hand,
    common::*,
    ops::*,
    out::{Failed, OpResult, done},
};
use mm::*;
use sim::Sim;
use vma::VmFlags;

impl<'w> Hand<'w> {
    pub(crate) fn flags_at(&self, page: u8) -> Option<VmFlags> {
        let mut found = None;
        self.space().for_each_vma(|range, flags| {
            if range.contains(&at(page)) {
                found = Some(flags);
            }
        });
        found
    }

    /// The object that is mapped at a page, and the page of the object.
    fn place(&self, page: u8) -> Option<(Backing<Sim>, u64)> {
        let place = self.space().with_vmas(|calls| {
            let area = calls.area_at(at(page));
            let place = |area: vma::Area<_>| {
                let vma: &vma::Vma<Backing<Sim>> = &area.vma;
                Some((vma.file.clone()?, vma.offset_at(at(page)) as u64))
            };
            Ok(area.and_then(place))
        });
        place.unwrap()
    }

    /// Lets the object behind a page get the page, as a fault would.
    pub(crate) fn object_in(&self, page: u8, writes: bool) {
        let right = if writes { VmFlags::WRITE } else { VmFlags::ACCESS };
        let allowed = self
            .flags_at(page)
            .is_some_and(|flags| flags.intersects(right) && !flags.contains(VmFlags::UFFD_MISSING));
        if let Some((file, index)) = self.place(page).filter(|_| allowed) {
            let _beyond = file.object().bring_in(index);
        }
    }

    pub(crate) fn find_to_remove(&mut self, page: u8, pages: u8) -> OpResult {
        self.to_remove.clear();
        let checked = self
            .space()
            .with_vmas(|calls| calls.madvise(at(page), len(page, pages), Advice::Remove));
        if checked.is_ok() {
            self.to_remove = (page..page + pages).filter_map(|page| self.place(page)).collect();
        }
        done(checked)
    }

    /// Brings a page in as a locked map does.
    pub(crate) fn bring_in(&self, page: u8) -> OpResult {
        let (space, found) = (self.space(), self.flags_at(page));
        // A hole between is left out, as by mlockall.
        let Some(flags) = found else { return OpResult::default() };
        let access = match flags {
            _ if flags.contains(VmFlags::LOCKONFAULT) => return OpResult::default(),
            _ if flags & (VmFlags::WRITE | VmFlags::SHARED) == VmFlags::WRITE => Access::Write,
            _ if flags.intersects(VmFlags::ACCESS) => Access::Read,
            _ => return OpResult::default(),
        };
        let mut pages = (at(page)..end(page)).step_by(PAGE);
        let touched = pages.try_for_each(|at| {
            let at = machine::VirtAddr::new(at as u64);
            space.handle_fault(at, access).map(drop)
        });
        // The error of mlock.
        let fails = |error| match error {
            FaultError::OutOfMemory(_) => Failed::Errno(11),
            _ => Failed::Errno(12),
        };
        OpResult { words: Vec::new(), error: touched.err().map(fails) }
    }
}
