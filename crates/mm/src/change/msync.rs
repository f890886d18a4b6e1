//! msync: writing the pages of objects to where the objects keep them.

use core::ops::Range;

use bitflags::bitflags;
use grace::Concurrent;
use machine::Machine;
use paging::Format;
use vma::{PAGE_SIZE, VmFlags};

use crate::{AddressSpace, Backing, Error};

bitflags! {
    /// The flags of msync.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SyncFlags: u32 {
        /// MS_ASYNC: the pages are written some time later, as always.
        const ASYNC = 1;
        /// MS_INVALIDATE: other maps of the object see the contents. They always do.
        const INVALIDATE = 2;
        /// MS_SYNC: the pages are written before the call returns.
        const SYNC = 4;
    }
}

/// A VMA as msync sees it.
struct ToSync<M: Machine> {
    range: Range<usize>,
    /// Its object, if it is a shared map, and the first page.
    of_object: Option<(Backing<M>, u64)>,
    locked: bool,
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// msync(2). Waits for the objects with nothing held.
    ///
    /// # Errors
    /// [`vma::Error::BadFlags`]; [`vma::Error::Unaligned`]; [`vma::Error::Unmapped`]: there is a
    /// hole, and the rest has been written; [`Error::Locked`]; [`Error::Object`].
    pub fn msync(&self, addr: usize, len: usize, flags: SyncFlags) -> Result<(), Error> {
        if flags.contains(SyncFlags::ASYNC | SyncFlags::SYNC)
            || flags.bits() & !SyncFlags::all().bits() != 0
        {
            return Err(vma::Error::BadFlags.into());
        }
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(vma::Error::Unaligned.into());
        }
        // As in Linux, a length within a page of the largest number is rounded up to 0.
        let len = len.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
        let end = addr.checked_add(len).ok_or(vma::Error::Unmapped)?;
        let (mut at, mut hole) = (addr, false);
        while at < end {
            let is_here = |found: &ToSync<M>| found.range.start <= at;
            // A hole may be a moment of a call.
            let found = self.to_sync(at).filter(is_here).or_else(|| {
                let _lock = self.core.writer();
                self.to_sync(at)
            });
            let Some(ToSync { range, of_object, locked }) = found else {
                return Err(vma::Error::Unmapped.into());
            };
            if range.start > at {
                hole = true;
                if range.start >= end {
                    break;
                }
                at = range.start;
            }
            if flags.contains(SyncFlags::INVALIDATE) && locked {
                return Err(Error::Locked);
            }
            let stop = range.end.min(end);
            if let Some((file, first)) = of_object.filter(|_| flags.contains(SyncFlags::SYNC)) {
                let from = first + ((at - range.start) / PAGE_SIZE) as u64;
                if let Some(cached) = file.object().cached() {
                    cached.sync(from..from + ((stop - at) / PAGE_SIZE) as u64)?;
                }
            }
            at = stop;
        }
        if hole { Err(vma::Error::Unmapped.into()) } else { Ok(()) }
    }

    /// The first VMA that ends above `at`.
    fn to_sync(&self, at: usize) -> Option<ToSync<M>> {
        let guard = G::pin();
        let (range, vma) = self.core.vmas.find(&guard, at)?;
        let shared = vma.file.clone().filter(|_| vma.flags.contains(VmFlags::SHARED));
        let first = vma.offset_at(range.start) as u64;
        let locked = vma.flags.contains(VmFlags::LOCKED);
        Some(ToSync { range, of_object: shared.map(|file| (file, first)), locked })
    }
}
