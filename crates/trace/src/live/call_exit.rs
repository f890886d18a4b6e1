//! Handles calls that have returned: reports their effects in the order in which these took place.

use std::{os::fd::AsFd, time::Duration};

use super::{
    calls::{self, CallKind, Changed},
    files::{self, Identity},
    follower::Follower,
    image::Area,
    sys::{
        self, Tid,
        ptrace::{self},
    },
    tasks::{CallInFlight, EntryData, Space, TaskStage},
    tmpfs_huge,
};
use crate::{
    abi::MAP_HUGETLB,
    observer::Event,
    record::{self, Call, FileId, FileKind, InitialVma, MmId, Op, Record},
};

fn is_shared(flags: usize) -> bool {
    matches!(flags as i32 & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
}

impl Follower<'_> {
    /// A thread stopped at the exit of a call.
    pub(super) fn on_exit(&mut self, tid: Tid, timed: Option<Duration>) {
        let Some(task) = self.tasks.get_mut(&tid) else { return self.run(tid) };
        let space = task.space;
        let TaskStage::Flying(flight) = std::mem::replace(&mut task.stage, TaskStage::Running)
        else {
            return self.run(tid);
        };
        if let EntryData::Calibration = flight.load {
            self.overhead.sample(timed.unwrap_or_else(|| flight.since.elapsed()));
            return self.run(tid);
        }
        let Some(mm) = space else { return self.run(tid) };
        // Without a result, it was killed here. Its end is reported next and completes the call.
        let Ok(result) = ptrace::result(tid) else {
            self.set_stage(tid, TaskStage::Flying(flight));
            return self.run(tid);
        };
        let memory = flight.call.memory().is_some();
        if let Some(op) = flight.call.memory() {
            self.check_exposed(mm, tid, op, &flight.exposed);
        }
        self.tell_call(mm, tid, flight, result, timed);
        self.observer.event(Event::CallReported);
        self.land(mm, tid, memory);
        self.run(tid);
        self.resume_paused(mm);
        self.next_in_queue(mm);
    }

    /// Ends the operation of `tid`. Reads a listing if it is due and nothing else is in flight.
    pub(super) fn land(&mut self, mm: MmId, tid: Tid, listing: bool) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        space.landed(tid);
        if listing {
            space.calls += 1;
            let due = self.options.every != 0
                && space.calls.is_multiple_of(self.options.every)
                && space.affords_listing(self.options.lines_per_call);
            let alone = space.flying.is_empty();
            if due && alone {
                self.compare(mm);
            } else if self.options.around && alone {
                self.compare_changed(mm);
            }
        }
    }

    /// Records the effect of a call.
    pub(super) fn tell_call(
        &mut self,
        mm: MmId,
        tid: Tid,
        flight: CallInFlight,
        result: isize,
        timed: Option<Duration>,
    ) {
        if flight.call.kind == CallKind::Ring && result >= 0 {
            self.doubt(mm, record::Doubt::Ring);
        }
        // fork and execve return here only if they failed, without an effect.
        let CallKind::Memory(op) = flight.call.kind else { return };
        let args = flight.call.args;
        let kernel = timed.map(|time| self.overhead.kernel_share(time));
        if let Some(place) = calls::chosen(op, &args, result) {
            self.tell_touches(mm, tid, place);
        }
        let mut call = Call::new(mm, tid as u32, op, &args[..op.arity()], result);
        call.stack = flight.stack;
        match flight.load {
            EntryData::Ranges(ranges) => return self.tell_ranges(call, &ranges, kernel),
            EntryData::Memory(words) if op == Op::Prctl => {
                return self.tell_marks(call, words, kernel);
            }
            EntryData::Memory(words) => {
                call.memory = Some(words);
                if op == Op::Ioctl {
                    self.tell_userfault(&mut call, tid, words);
                }
            }
            EntryData::File(copy) => call.file = self.mapped_file(tid, &call, Identity::Copy(copy)),
            EntryData::None if op == Op::Mmap => {
                call.file = self.mapped_file(tid, &call, Identity::Unique);
            }
            EntryData::None | EntryData::EndingSpace(_) | EntryData::Calibration => {}
        }
        if op == Op::Mmap {
            // A descriptor is an int. The upper half of the register does not matter.
            call.args[4] &= 0xffff_ffff;
        }
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.changed = Changed::by(&call, space.brk);
            // A thread was killed in this call after the listing was read.
            space.last = None;
        }
        if op == Op::Brk
            && let Some(space) = self.spaces.get_mut(&mm)
        {
            space.brk = result as usize;
        }
        if let Some(brk) = calls::brk_set(op, &args)
            && result == 0
            && let Some(space) = self.spaces.get_mut(&mm)
        {
            space.brk = brk;
        }
        let (op, args, served) = (call.op, call.args, call.mm);
        self.recheck_growing(&call);
        self.observer.record(Record::Call(call), kernel);
        self.settle(mm, tid, op, result);
        if served != mm && self.spaces.get(&served).is_some_and(|space| space.flying.is_empty()) {
            self.compare(served);
        }
        match op {
            Op::Shmat if result > 0 => self.adopt(mm, tid, result as usize),
            // The context that io_setup returns is the address of its ring.
            Op::IoSetup if result == 0 => {
                if let Ok([ring]) = sys::read_words::<1>(tid, args[1]) {
                    self.adopt(mm, tid, ring);
                }
            }
            _ => {}
        }
        self.release_files();
    }

    /// Records PR_SET_MM_MAP as the calls that set the same marks one by one.
    fn tell_marks(&mut self, call: Call, marks: [usize; 3], kernel: Option<Duration>) {
        if call.result != 0 {
            return self.observer.record(Record::Call(call), kernel);
        }
        if let Some(space) = self.spaces.get_mut(&call.mm) {
            space.brk = marks[1];
        }
        for args in calls::marks_one_by_one(marks) {
            self.observer.record(Record::Call(Call { args, ..call.clone() }), None);
        }
    }

    /// Records process_madvise on the own address space as a madvise of each range, up to the one
    /// where it stopped. Its result is the number of bytes.
    fn tell_ranges(&mut self, call: Call, ranges: &[(usize, usize)], kernel: Option<Duration>) {
        if ranges.is_empty() {
            return self.observer.record(Record::Call(call), kernel);
        }
        let mut left = usize::try_from(call.result).unwrap_or(0);
        for &(start, length) in ranges {
            let done = length <= left;
            left = left.saturating_sub(length);
            let args = [start, length, call.args[3], 0, 0, 0];
            // If it stopped after complete ranges, the result does not contain the error.
            let result = match done {
                true => 0,
                false if call.result < 0 => call.result,
                false => -(libc::EINVAL as isize),
            };
            self.observer
                .record(Record::Call(Call { op: Op::Madvise, args, result, ..call.clone() }), None);
            if !done {
                // The error is unknown, so its effect is read from the kernel.
                self.settle(call.mm, call.tid as Tid, Op::Madvise, result);
                break;
            }
        }
    }

    /// A failed call may have changed something before it failed, and some others depend on what no
    /// record shows. The kernel's VMAs show the effect.
    fn settle(&mut self, mm: MmId, tid: Tid, op: Op, result: isize) {
        let limited = result == -(libc::ENOMEM as isize) && sys::is_limited(tid);
        let ranges = self.observer.undetermined(mm, limited);
        if ranges.is_empty() {
            return;
        }
        // Such a comparison shows the changes of these calls.
        let plain = matches!(op, Op::Mmap | Op::Munmap | Op::Mprotect | Op::Mremap);
        if plain && result < 0 && self.has_no_effect(mm, &ranges) {
            return;
        }
        let Ok((areas, unknown)) = super::image::read(tid) else { return };
        self.strange_flags(unknown);
        let vmas: Vec<_> = areas.into_iter().map(|area| (area.range, area.flags)).collect();
        for range in ranges {
            self.observer.event(Event::Settled { mm, range, vmas: &vmas });
        }
    }

    /// The file behind a new map, which is reported first if it is new; 0 for private anonymous
    /// memory.
    fn mapped_file(&mut self, tid: Tid, call: &Call, identity: Identity) -> FileId {
        let flags = call.args[3];
        let anonymous = flags as i32 & libc::MAP_ANONYMOUS != 0;
        if anonymous && !is_shared(flags) && flags & MAP_HUGETLB == 0 {
            return 0;
        }
        let Ok(start) = usize::try_from(call.result) else {
            // The call failed, so the file matters only if it is known already.
            let Identity::Copy(copy) = &identity else { return 0 };
            return files::inode_of(copy)
                .and_then(|inode| self.files.find(inode, &identity))
                .unwrap_or(0);
        };
        let Some(area) = self.covering(call.mm, start) else { return 0 };
        let inode = (area.dev, area.inode);
        if !self.files.is_named(inode, &area.name) {
            // Other files of that inode may have been renamed to this name, or to another. That is
            // reported before this file is known.
            let _read_for_its_names = self.read_settled(call.mm);
        }
        let identity = match identity {
            Identity::Unique if !anonymous => {
                let doubted = |space: &Space| space.doubted.contains(&record::Doubt::Files);
                if self.facilities.identity && !self.spaces.get(&call.mm).is_some_and(doubted) {
                    self.notice(
                        "a program's descriptors cannot be copied, because it is not dumpable; its \
                         files are told apart by device and inode",
                    );
                }
                Identity::Inode
            }
            other => other,
        };
        let sealed = is_shared(flags)
            && matches!(&identity, Identity::Copy(copy) if sys::is_sealed(copy.as_fd()));
        let known = self.files.find(inode, &identity);
        let file = known.unwrap_or_else(|| {
            self.admit_mapped(call, &area, identity, anonymous, is_shared(flags))
        });
        // The rights that a map of a sealed memfd may ever have are determined when it is made.
        if (sealed || self.files.is_device(file))
            && let Some(area) = self.covering_with_flags(tid, start)
        {
            self.observer.record(Record::DriverFlags { mm: call.mm, flags: area.flags }, None);
        }
        file
    }

    fn admit_mapped(
        &mut self,
        call: &Call,
        area: &Area,
        identity: Identity,
        anonymous: bool,
        shared: bool,
    ) -> FileId {
        let facts = match &identity {
            Identity::Copy(copy) => files::examine(call.tid as Tid, copy, shared),
            _ if anonymous && call.args[3] & MAP_HUGETLB != 0 => {
                Some((FileKind::Huge, true, false))
            }
            _ if anonymous && tmpfs_huge::in_memory() => Some((FileKind::ShmemThp, true, false)),
            _ if anonymous => Some((FileKind::ShmAnon, true, false)),
            // Without a copy, a path that the tracer can open gives the same facts, except the
            // mode.
            _ => files::examine_path(call.tid as Tid, &area.name, shared),
        };
        let facts = facts.unwrap_or((FileKind::Regular, false, false));
        let identity = match facts.0 {
            _ if anonymous => Identity::Unique,
            FileKind::ShmAnon => Identity::Unique,
            _ => identity,
        };
        self.tell_file((area.dev, area.inode), facts, area.name.clone(), identity)
    }

    /// Numbers a file and reports it.
    pub(super) fn tell_file(
        &mut self,
        inode: files::Inode,
        (kind, writable, noexec): (FileKind, bool, bool),
        path: String,
        identity: Identity,
    ) -> FileId {
        let id = self.files.admit(inode, path.clone(), identity, kind);
        let (dev, inode) = inode;
        let desc = record::FileDesc { id, dev, inode, kind, writable, noexec, path };
        self.observer.record(Record::File(desc), None);
        id
    }

    /// Reports a VMA that the call's arguments do not describe.
    fn adopt(&mut self, mm: MmId, tid: Tid, start: usize) {
        let Some(area) = self.covering_with_flags(tid, start) else { return };
        let facts = (FileKind::Adopted, true, false);
        let file =
            self.tell_file((area.dev, area.inode), facts, area.name.clone(), Identity::Unique);
        let vma = InitialVma {
            start: area.range.start,
            end: area.range.end,
            flags: area.flags,
            pgoff: area.offset / 4096,
            file,
            name: None,
        };
        self.observer.record(Record::Adopt { mm, vma }, None);
    }
}
