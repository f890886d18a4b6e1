//! Reads an address space while no operation is in flight: listings, first writes, stack growth.
//!
//! First writes and stack growth are no system calls, but they affect later calls. The tracer looks
//! for both right before the call that they can affect, in the VMAs that the call can reach, and
//! reports them before the call.

use std::{io, mem, ops::Range, os::unix::fs::FileExt};

use super::{
    calls, descriptors,
    files::escape,
    follower::Follower,
    image::{self, Area},
    peak::Outlook,
    sys::{self, Tid, pages},
    tasks::{LastListing, Space},
    usage,
};
use crate::{
    observer::{Event, Wanted},
    record::{Call, FileId, MmId, Op, Record},
    span::Span,
};

/// Reads a whole listing. The kernel returns it page by page. Nothing changes in between, because
/// no operation is in flight. But the memory may end, when the last thread is killed, and the
/// listing with it: then the text is empty.
pub(super) fn read_text(space: &Space) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(16 * 1024);
    loop {
        let had = bytes.len();
        bytes.resize(had + 8 * 1024, 0);
        match space.maps.read_at(&mut bytes[had..], had as u64) {
            Ok(0) => {
                bytes.truncate(if has_ended(space)? { 0 } else { had });
                return Ok(image::text(bytes));
            }
            Ok(got) => bytes.truncate(had + got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => bytes.truncate(had),
            Err(error) => return Err(error),
        }
    }
}

/// Whether the memory has ended. If not, each listing that was read before is whole.
fn has_ended(space: &Space) -> io::Result<bool> {
    Ok(space.maps.read_at(&mut [0], 0)? == 0)
}

/// More VMAs than this are checked by one scan of the whole address space: that of a fork, which
/// goes through the same page tables.
const MANY: usize = 8;

/// Whether one of the ranges, which are in order, has a page of `vma`.
fn overlaps(ranges: &[Range<usize>], vma: &Range<usize>) -> bool {
    let next = ranges.partition_point(|range| range.end <= vma.start);
    ranges.get(next).is_some_and(|range| range.start < vma.end)
}

/// The current start of the VMA that ends at `end`, from a listing. The search goes backwards,
/// because growing VMAs have high addresses.
fn start_of(listing: &str, end: usize) -> Option<usize> {
    let at = listing.rfind(&format!("-{end:08x} "))?;
    let line = listing[..at].rfind('\n').map_or(0, |newline| newline + 1);
    usize::from_str_radix(&listing[line..at], 16).ok()
}

impl Follower<'_> {
    /// Reports the stacks that grew, from `listing` or by one PROCMAP_QUERY for each VMA that can
    /// grow.
    pub(super) fn tell_growth(&mut self, mm: MmId, listing: Option<&str>) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        let mut growing = space
            .growing
            .take()
            .unwrap_or_else(|| self.observer.ranges(mm, 0..usize::MAX, Wanted::Growing));
        for range in &mut growing {
            let start = match listing {
                Some(listing) => start_of(listing, range.end),
                None if self.facilities.query => pages::query(&space.maps, range.end - 1, false)
                    .ok()
                    .flatten()
                    .map(|found| found.vma.range)
                    .filter(|found| found.end == range.end)
                    .map(|found| found.start),
                None => read_text(space).ok().and_then(|text| start_of(&text, range.end)),
            };
            if let Some(start) = start.filter(|&start| start < range.start) {
                range.start = start;
                self.observer.record(Record::Grow { mm, end: range.end, start }, None);
            }
        }
        space.growing = Some(growing);
    }

    /// After a call, checks whether the set of growing VMAs may have changed. Asking the observer
    /// walks all of its VMAs, so it is asked only then.
    pub(super) fn recheck_growing(&mut self, call: &Call) {
        const MAP_GROWSDOWN: usize = 0x100;
        let Some(space) = self.spaces.get_mut(&call.mm) else { return };
        let Some(growing) = &space.growing else { return };
        let disturbed = growing.iter().any(|vma| {
            calls::places(call.op, &call.args, space.brk)
                .into_iter()
                .flatten()
                .any(|place| place.start < vma.end && vma.start < place.end)
        });
        if disturbed || call.op == Op::Mmap && call.args[3] & MAP_GROWSDOWN != 0 {
            space.growing = None;
        }
    }

    /// Reports the VMAs that had their first write, as far as a call at `around` can make them
    /// visible. Cost: one PAGEMAP_SCAN for each VMA without a known first write, or for many, one
    /// of the whole address space.
    ///
    /// A VMA may take its anon_vma from a neighbour at its first write. So these VMAs are checked:
    /// those in and next to `around`; the neighbours of those that turn out to be unwritten,
    /// because such a VMA may merge into the VMA that the call changes, and a first write to its
    /// other neighbour must be reported before; and the neighbours of those that turn out to be
    /// written, because their first write may have come first.
    pub(super) fn tell_touches(&mut self, mm: MmId, tid: Tid, around: Span) {
        let fresh = self.observer.ranges(mm, around.range(), Wanted::Untouched);
        let all = if fresh.len() > MANY { self.anonymous_ranges(mm, tid) } else { None };
        let mut to_look: Vec<_> = fresh.into_iter().map(|vma| (vma, true)).collect();
        let mut looked: Vec<(usize, bool)> = Vec::with_capacity(to_look.len());
        while let Some((vma, near)) = to_look.pop() {
            if looked.iter().any(|&(start, _)| start == vma.start) {
                continue;
            }
            let touched = match &all {
                Some(all) => overlaps(all, &vma),
                None => self.is_touched(mm, tid, vma.clone()),
            };
            looked.push((vma.start, touched));
            let reaches_out = vma.start < around.start || around.end < vma.end;
            if (near || touched) && reaches_out {
                let next = self.observer.ranges(mm, vma, Wanted::Untouched);
                to_look.extend(next.into_iter().map(|vma| (vma, false)));
            }
        }
        // Their order is unknown. A trace has them in ascending order.
        looked.sort_unstable();
        for (addr, _) in looked.into_iter().filter(|&(_, touched)| touched) {
            self.observer.record(Record::Fault { mm, addr }, None);
        }
    }

    /// The anonymous pages of an address space; `None` if the kernel cannot tell.
    fn anonymous_ranges(&mut self, mm: MmId, tid: Tid) -> Option<Vec<Range<usize>>> {
        if !self.facilities.scan || !self.opens_pagemap(mm, tid) {
            return None;
        }
        pages::anonymous_ranges(self.spaces.get(&mm)?.pagemap.as_ref()?.as_ref()?).ok()?
    }

    pub(super) fn is_touched(&mut self, mm: MmId, tid: Tid, range: Range<usize>) -> bool {
        if !self.opens_pagemap(mm, tid) {
            return false;
        }
        let Some(space) = self.spaces.get(&mm) else { return false };
        let Some(Some(pagemap)) = &space.pagemap else {
            self.notice(
                "pagemap cannot be opened: first writes are not seen, so merges may be \
                 mispredicted",
            );
            return false;
        };
        let found = if self.facilities.scan {
            pages::scan_anonymous(pagemap, range)
        } else {
            pages::read_anonymous(pagemap, range)
        };
        match found {
            Ok(found) => found,
            // The thread was killed, so the answer does not matter.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => false,
            Err(error) => {
                self.notice(&format!(
                    "pagemap cannot be read ({error}): first writes may be missed, so merges may \
                     be mispredicted"
                ));
                false
            }
        }
    }

    /// Opens the pagemap of an address space, if it can be opened. Returns false if descriptors ran
    /// out.
    pub(super) fn opens_pagemap(&mut self, mm: MmId, tid: Tid) -> bool {
        let Some(space) = self.spaces.get_mut(&mm) else { return false };
        if space.pagemap.is_none() {
            match sys::proc_file(tid, "pagemap") {
                Err(error) if descriptors::ran_out(&error) => {
                    self.lacks_descriptors(mm);
                    return false;
                }
                opened => space.pagemap = Some(opened.ok()),
            }
        }
        true
    }

    /// Passes the kernel's listing to the observer. Call only while no operation is in flight.
    pub(super) fn compare(&mut self, mm: MmId) {
        let Some(space) = self.spaces.get(&mm) else { return };
        let Some(&tid) = space.users.first() else { return };
        let alone = space.users.len() == 1;
        let text = match self.read_settled(mm) {
            Ok(text) => text,
            Err(error) => return self.lost_listing(&error),
        };
        // It is empty if the last thread was killed and the memory has ended.
        if text.is_empty() {
            return;
        }
        if self.options.lines_per_call != 0
            && let Some(space) = self.spaces.get_mut(&mm)
        {
            space.compared = (space.calls, text.lines().count());
        }
        // Another thread may have grown the stack since this call began.
        if !alone {
            self.tell_growth(mm, Some(&text));
        }
        let mut strange = 0;
        let mut differed = false;
        let mut smaps = || {
            differed = true;
            let (areas, unknown) = image::read(tid)?;
            strange += unknown;
            Ok(areas.into_iter().map(|area| (area.range.start, area.flags)).collect())
        };
        self.observer.listing(mm, &text, &mut smaps);
        self.strange_flags(strange);
        // After a mismatch, the observer may have taken over the kernel's VMAs.
        if differed && let Some(space) = self.spaces.get_mut(&mm) {
            space.growing = None;
        }
    }

    /// The last listing of an address space in full, read while the address space still exists.
    pub(super) fn last_listing(&mut self, mm: MmId, tid: Tid) -> Option<LastListing> {
        let text = match self.read_settled(mm) {
            Ok(text) if text.is_empty() => return None,
            Ok(text) => text,
            Err(error) => {
                self.lost_listing(&error);
                return None;
            }
        };
        self.tell_growth(mm, Some(&text));
        let smaps = match image::smaps(tid) {
            Ok(smaps) => smaps,
            Err(error) => {
                self.lost_listing(&error);
                return None;
            }
        };
        // The smaps of memory that has ended meanwhile lack VMAs.
        if self.spaces.get(&mm).is_none_or(|space| has_ended(space).unwrap_or(true)) {
            return None;
        }
        let (areas, unknown) = image::parse(&smaps);
        self.strange_flags(unknown);
        let before = self.spaces.get(&mm).map_or((0, 0), |space| space.faults);
        let vmas = usage::residency(&smaps);
        let usage = usage::read(tid, before, &vmas);
        self.tell_peak(mm, tid, usage.resident() as usize, Outlook::Releases, Some(&vmas));
        let flags = areas.into_iter().map(|area| (area.range.start, area.flags)).collect();
        Some(LastListing { text, flags, usage })
    }

    fn lost_listing(&mut self, error: &io::Error) {
        if error.raw_os_error() != Some(libc::ESRCH) {
            self.notice(&format!("a listing cannot be read, and is left out: {error}"));
        }
    }

    pub(super) fn strange_flags(&mut self, unknown: usize) {
        if unknown > 0 {
            self.notice("this kernel has unknown VmFlags, which are left out");
        }
    }

    /// A listing whose names were all reported. Files can be renamed at any moment, also between
    /// two lines. So after a new name the listing is read once more.
    pub(super) fn read_settled(&mut self, mm: MmId) -> io::Result<String> {
        // If files are renamed even faster, the listing is out of date.
        const TRIES: usize = 8;
        let mut text = String::new();
        for _ in 0..TRIES {
            let Some(space) = self.spaces.get(&mm) else { break };
            text = read_text(space)?;
            let observer = &*self.observer;
            let renamed = self.files.renamed(&text, &|addr| observer.file_at(mm, addr).0);
            if renamed.is_empty() {
                break;
            }
            self.tell_renames(renamed);
        }
        Ok(text)
    }

    pub(super) fn tell_renames(&mut self, renamed: Vec<(FileId, String)>) {
        for (file, path) in renamed {
            self.observer.record(Record::Rename { file, path }, None);
        }
    }

    /// The VMA that covers `address`, with its name as in the listing.
    pub(super) fn covering(&mut self, mm: MmId, address: usize) -> Option<Area> {
        let space = self.spaces.get(&mm)?;
        // A path of more than 4,095 bytes is an error there. The listing has it.
        let query = self.facilities.query.then(|| pages::query(&space.maps, address, true));
        if let Some(Ok(found)) = query {
            let pages::Covering { vma, name } = found?;
            return Some(Area {
                range: vma.range,
                flags: vma::VmFlags::empty(),
                offset: vma.offset,
                dev: vma.dev,
                inode: vma.inode,
                name: escape(image::text(name)),
            });
        }
        let text = read_text(space).ok()?;
        text.lines().filter_map(image::head).find(|area| area.range.contains(&address))
    }

    /// The VMA that covers `address`, with its flags. Reads all of smaps.
    pub(super) fn covering_with_flags(&mut self, tid: Tid, address: usize) -> Option<Area> {
        let (areas, unknown) = image::read(tid).ok()?;
        self.strange_flags(unknown);
        areas.into_iter().find(|area| area.range.contains(&address))
    }

    /// Releases the files that are no longer mapped.
    pub(super) fn release_files(&mut self) {
        for id in self.observer.released() {
            self.files.release(id);
        }
    }

    /// Shows the user a message. The observer shows it once.
    pub(super) fn notice(&mut self, text: &str) {
        self.observer.notice(text);
    }

    /// Reports that `tid` is not followed any longer. It runs on.
    pub(super) fn unfollowed(&mut self, tid: Tid, why: &str) {
        let first = tid == self.root && self.exit.is_none();
        self.observer.event(Event::Unfollowed { why, first });
    }

    /// Stops following an address space. Its threads run on.
    pub(super) fn unfollow(&mut self, mm: MmId, why: &str) {
        self.resume_paused(mm);
        let Some(mut space) = self.spaces.remove(&mm) else { return };
        if let Some(stacks) = &mut self.stacks {
            stacks.ended(mm);
        }
        // Threads of the first process count as that process.
        let first = space.users.contains(&self.root);
        self.observer.event(Event::Unfollowed { why, first });
        for tid in &space.users {
            if let Some(task) = self.tasks.get_mut(tid) {
                task.space = None;
            }
        }
        self.observer.record(Record::ExitMmap { mm }, None);
        self.release_files();
        for tid in mem::take(&mut space.queue) {
            self.run(tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_overlaps_a_vma_if_it_has_a_page_of_it() {
        let ranges = [0x1000..0x2000, 0x5000..0x8000];
        let is_in = |start, end| overlaps(&ranges, &(start..end));
        assert!(is_in(0x1000, 0x2000) && is_in(0x1000, 0x6000) && is_in(0x7000, 0x9000));
        assert!(!is_in(0x2000, 0x5000) && !is_in(0x8000, 0x9000) && !is_in(0, 0x1000));
    }

    #[test]
    fn a_vma_is_found_by_its_end() {
        let text = "00400000-00401000 r-xp 0\n7f0000001000-7f0000003000 rw-p 0\n";
        assert_eq!(start_of(text, 0x401000), Some(0x400000));
        assert_eq!(start_of(text, 0x7f0000003000), Some(0x7f0000001000));
        assert_eq!(start_of(text, 0x7f0000001000), None);
    }
}
