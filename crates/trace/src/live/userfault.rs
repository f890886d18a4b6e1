//! Requests of userfaultfds, and their close, as calls on the address space that each one serves
//! (see `watchers`).

use std::ops::Range;

use vma::VmFlags;

use super::{
    follower::Follower,
    sys::{self, Tid},
    tasks::EntryData,
    watchers::{Closed, Userfault, inode_of},
};
use crate::{
    abi::{UFFDIO_API, UFFDIO_FILLS, UFFDIO_REGISTER, UFFDIO_UNREGISTER},
    observer::{Event, Wanted},
    record::{Call, MmId, Op, Record},
    span::Span,
};

const EVENT_FORK: usize = 1 << 1;
const PAGE: usize = 4096;

/// Whether a request fills pages.
pub(super) fn fills(request: usize) -> bool {
    UFFDIO_FILLS.iter().any(|&(fill, _)| fill == request as u32)
}

impl Follower<'_> {
    /// Reads the arguments of a request from memory, and reports the first writes that affect it.
    pub(super) fn prepare_userfault(&mut self, mm: MmId, tid: Tid, args: &[usize; 6]) -> EntryData {
        let words = match args[1] as u32 {
            UFFDIO_API => {
                sys::read_words::<2>(tid, args[2]).map(|[api, features]| [api, features, 0])
            }
            UFFDIO_REGISTER => sys::read_words::<3>(tid, args[2]),
            UFFDIO_UNREGISTER => sys::read_words::<2>(tid, args[2]).map(|[a, b]| [a, b, 0]),
            _ => return EntryData::None,
        };
        let Ok(words) = words else { return EntryData::Memory([0; 3]) };
        if args[1] as u32 != UFFDIO_API {
            let served = self.userfault(mm, tid, args[0]).mm;
            self.tell_touches(served, tid, Span::of(words[0], words[1]));
        }
        EntryData::Memory(words)
    }

    /// The userfaultfd behind a descriptor of `tid`. An unknown one was made by a fork if there is
    /// such a userfaultfd with an unused descriptor; then it is the oldest of these.
    fn userfault(&mut self, mm: MmId, tid: Tid, fd: usize) -> Userfault {
        let fd = fd & 0xffff_ffff;
        let unknown = Userfault { mm, id: fd as u64, features: 0 };
        let Some(inode) = inode_of(tid, fd) else { return unknown };
        if let Some(&known) = self.userfaults.get(&inode) {
            return known;
        }
        let mut spaces: Vec<_> = self.spaces.iter_mut().collect();
        spaces.sort_unstable_by_key(|(mm, _)| **mm);
        let adopted = spaces.into_iter().find_map(|(&mm, space)| {
            Some(Userfault {
                mm,
                id: space.watchers.adopt(inode, (tid, fd))?,
                features: EVENT_FORK,
            })
        });
        let Some(made) = adopted else { return Userfault { id: inode, ..unknown } };
        self.userfaults.insert(inode, made);
        made
    }

    /// Reports a request that returned, as a call on the address space that the userfaultfd serves.
    pub(super) fn tell_userfault(&mut self, call: &mut Call, tid: Tid, words: [usize; 3]) {
        let fd = call.args[0] & 0xffff_ffff;
        self.observer.event(Event::Descriptor(fd as u32));
        if call.args[1] as u32 == UFFDIO_API {
            let Some(inode) = inode_of(tid, fd) else { return };
            call.args[0] = inode as usize;
            if call.result == 0 {
                let made = Userfault { mm: call.mm, id: inode, features: words[1] };
                self.userfaults.insert(inode, made);
            }
            return;
        }
        let Userfault { mm, id, .. } = self.userfault(call.mm, tid, fd);
        (call.mm, call.args[0]) = (mm, id as usize);
        if call.result == 0
            && let Some(space) = self.spaces.get_mut(&mm)
        {
            let [start, length, _] = words;
            let range = start..start.saturating_add(length);
            space.watchers.note(id, (tid, fd), call.args[1] as u32, range);
        }
    }

    /// A userfaultfd of the parent with UFFD_FEATURE_EVENT_FORK also serves the child.
    pub(super) fn watch_child(&mut self, parent: MmId, child: MmId) {
        let Some(space) = self.spaces.get(&parent) else { return };
        let watchers = space.watchers.of_child(|inode| {
            let userfault = self.userfaults.get(&inode);
            userfault.is_some_and(|userfault| userfault.features & EVENT_FORK != 0)
        });
        if let Some(space) = self.spaces.get_mut(&child) {
            space.watchers = watchers;
        }
    }

    /// Reports a request that fills pages. Such a request first gives the VMA an anon_vma, even if
    /// it then fails; only invalid arguments are rejected before that. It is reported at its entry
    /// and never queued, because the operation in flight may wait for these pages.
    pub(super) fn tell_fill(&mut self, mm: MmId, tid: Tid, args: &[usize; 6]) {
        const LOWEST: usize = 0x1_0000;
        const HIGHEST: usize = 0x7fff_ffff_f000;
        let request = args[1] as u32;
        let Some(&(_, modes)) = UFFDIO_FILLS.iter().find(|&&(fill, _)| fill == request) else {
            return;
        };
        // The fields are dst, src, len, mode; or start, len, mode.
        let fields = match size_of_request(request) {
            0x28 => sys::read_words::<4>(tid, args[2])
                .map(|[dst, src, len, mode]| (dst, src, len, mode)),
            _ => sys::read_words::<3>(tid, args[2])
                .map(|[start, len, mode]| (start, start, len, mode)),
        };
        let Ok((start, source, length, mode)) = fields else { return };
        let end = start.checked_add(length).filter(|&end| end <= HIGHEST);
        let aligned = start.is_multiple_of(PAGE) && length.is_multiple_of(PAGE) && length > 0;
        let sound = end.is_some() && source.checked_add(length).is_some();
        if !aligned || !sound || start < LOWEST || mode & !modes != 0 {
            return;
        }
        let mm = self.userfault(mm, tid, args[0]).mm;
        // MOVE removes pages from the source, so afterwards their first writes could not be seen.
        self.tell_touches(mm, tid, Span::of(source, length));
        for vma in self.observer.ranges(mm, start..start + 1, Wanted::Untouched) {
            if vma.contains(&start) {
                self.tell_touches(mm, tid, Span::from(vma.clone()));
                self.observer.record(Record::Fault { mm, addr: vma.start }, None);
            }
        }
    }

    /// Reports closed userfaultfds. Closing one is no memory call, but it clears the userfaultfd
    /// flags of all its VMAs, which may merge them. It is noticed here, before the next call of
    /// that address space.
    pub(super) fn tell_closed_watchers(&mut self, mm: MmId, tid: Tid) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        if space.watchers.are_held(tid) {
            return;
        }
        // Another process may still hold it. The flags in smaps decide.
        let Ok((areas, _)) = super::image::read(tid) else { return };
        let watched = |range: &Range<usize>| {
            areas.iter().any(|area| {
                area.range.start < range.end
                    && range.start < area.range.end
                    && area.flags.intersects(VmFlags::UFFD)
            })
        };
        for Closed { id, inode, fd } in space.watchers.take_closed(tid, watched) {
            self.observer.event(Event::Descriptor(fd as u32));
            self.userfaults.remove(&inode);
            let call = Call::new(mm, tid as u32, Op::Close, &[id as usize], 0);
            self.observer.record(Record::Call(call), None);
        }
    }
}

/// The size of a request's struct in bytes, which is part of its number.
fn size_of_request(request: u32) -> u32 {
    request >> 16 & 0x3fff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_fill_are_told_by_their_size() {
        assert!(
            UFFDIO_FILLS.iter().all(|&(fill, _)| [0x28, 0x20].contains(&size_of_request(fill)))
        );
        assert!(fills(0xc028_aa03) && !fills(UFFDIO_REGISTER as usize));
    }
}
