//! Handles a thread at the entry of a call: gathers all that must be known before the call takes
//! effect.

use std::{collections::BTreeSet, fs, ops::Range, os::fd::RawFd, time::Instant};

use super::{
    attach::Attached,
    calls::{self, CallKind},
    filter::{FOREIGN, NATIVE},
    follower::Follower,
    sys::{
        self, Tid,
        ptrace::{self, Entry, Resume},
    },
    tasks::{CallInFlight, EndingSpace, EntryData, PendingCall, Space, TaskStage},
    userfault,
};
use crate::{
    record::{Doubt, MmId, Op, StackId},
    span::Span,
};

impl Follower<'_> {
    /// The filter stopped a thread.
    pub(super) fn on_entry(&mut self, tid: Tid) {
        // It may have been killed just now. Then its end is reported next.
        let Ok(entry) = ptrace::entry(tid) else { return self.run(tid) };
        self.entered(tid, entry);
    }

    /// A thread is at the entry of a call that the filter does not let through.
    pub(super) fn entered(&mut self, tid: Tid, entry: Entry) {
        let Some(task) = self.tasks.get(&tid) else { return self.run(tid) };
        let space = task.space;
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.paused = 0;
        }
        if entry.rule == FOREIGN {
            if let Some(mm) = space {
                self.unfollow(
                    mm,
                    "a program makes memory calls through another ABI (i386 or x32); it runs on, \
                     but is not followed from here on",
                );
            }
            return self.run(tid);
        }
        if entry.rule != NATIVE {
            return self.refuse(tid);
        }
        // A program that ran already has no filter of ours, so its own filters work as ever.
        let ours = self.attached.is_none();
        if ours && self.look_at_seccomp(tid, entry.number, &entry.args) {
            return self.run(tid);
        }
        let Some(kind) = calls::kind(entry.number) else { return self.run(tid) };
        let mut call = PendingCall { kind, args: entry.args };
        if ours {
            self.trace_clone(tid, entry.number, &mut call.args);
        }
        match (kind, space) {
            (CallKind::Ptrace, _) => {
                self.notice(
                    "a program uses ptrace itself; its ptrace calls fail, because a thread can \
                     have only one tracer (ASAN_OPTIONS=detect_leaks=0 turns LeakSanitizer off)",
                );
                self.run(tid);
            }
            // A calibration call of the child, before it becomes the program.
            (CallKind::Memory(Op::Munmap), None) if tid == self.root && !self.started => {
                self.take_off(tid, call, EntryData::Calibration, Vec::new(), 0);
            }
            (CallKind::Exec, None) => {
                self.take_off(tid, call, EntryData::None, Vec::new(), 0);
            }
            (_, None) => self.run(tid),
            (CallKind::Fork, Some(_)) if !self.copies(tid, entry.number, &call.args) => {
                self.run(tid)
            }
            (CallKind::Memory(Op::Ioctl), Some(mm)) if userfault::fills(call.args[1]) => {
                self.tell_fill(mm, tid, &call.args);
                self.run(tid);
            }
            (_, Some(mm)) => {
                // Threads begin in the order in which they came.
                let busy = self
                    .spaces
                    .get(&mm)
                    .is_some_and(|space| space.is_busy() || !space.queue.is_empty())
                    || self.attached.as_ref().is_some_and(Attached::is_leaving);
                if busy {
                    self.hurry = true;
                    self.set_stage(tid, TaskStage::Held(call));
                    if let Some(space) = self.spaces.get_mut(&mm) {
                        space.queue.push_back(tid);
                    }
                    // If nothing is in flight, the first thread in the queue begins.
                    self.next_in_queue(mm);
                } else {
                    self.begin(mm, tid, call);
                }
            }
        }
    }

    /// Whether a clone copies the address space. clone3 has its flags in memory. fork always
    /// copies.
    fn copies(&self, tid: Tid, number: i64, args: &[usize; 6]) -> bool {
        const CLONE_VM: usize = libc::CLONE_VM as usize;
        match number {
            libc::SYS_clone => args[0] & CLONE_VM == 0,
            libc::SYS_clone3 => {
                sys::read_words::<1>(tid, args[0]).is_ok_and(|[flags]| flags & CLONE_VM == 0)
            }
            _ => true,
        }
    }

    pub(super) fn set_stage(&mut self, tid: Tid, stage: TaskStage) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.stage = stage;
        }
    }

    /// Starts the operation of the next thread in the queue.
    pub(super) fn next_in_queue(&mut self, mm: MmId) {
        // Resuming other threads may have started one already.
        let leaving = self.attached.as_ref().is_some_and(Attached::is_leaving);
        if leaving || self.spaces.get(&mm).is_some_and(Space::is_busy) {
            return;
        }
        while let Some(tid) = self.spaces.get_mut(&mm).and_then(|space| space.queue.pop_front()) {
            let Some(task) = self.tasks.get_mut(&tid) else { continue };
            if let TaskStage::Held(call) = task.stage {
                return self.begin(mm, tid, call);
            }
        }
    }

    /// Starts the operation of `tid`: gathers the state that its call depends on, and resumes it.
    fn begin(&mut self, mm: MmId, tid: Tid, call: PendingCall) {
        self.tell_growth(mm, None);
        self.tell_closed_watchers(mm, tid);
        self.tell_resident(mm, tid, &call);
        let stack = if call.memory().is_some() { self.capture_stack(mm, tid) } else { 0 };
        let load = match call.kind {
            CallKind::Memory(op) => self.prepare(mm, tid, op, &call.args),
            CallKind::Fork => {
                self.tell_touches(mm, tid, Span::ALL);
                EntryData::None
            }
            // The last listing would not have the later effects of a call in flight.
            CallKind::Exit
                if self.spaces.get(&mm).is_some_and(|space| !space.flying.is_empty()) =>
            {
                EntryData::None
            }
            CallKind::Exec | CallKind::Exit => EntryData::EndingSpace(self.image(mm, tid)),
            CallKind::Ring | CallKind::Ptrace => EntryData::None,
        };
        let alone = self.spaces.get(&mm).is_some_and(|space| space.flying.is_empty());
        let mut exposed = Vec::new();
        if !alone {
            self.doubt(mm, Doubt::Overlap);
        } else if !matches!(call.kind, CallKind::Exec | CallKind::Exit | CallKind::Ring) {
            exposed = self.stand_still(mm, tid, &call);
        }
        if let Some(space) = self.spaces.get_mut(&mm) {
            space.flying.push(tid);
            space.since = Instant::now();
            space.asleep = 0;
            self.hurry |= space.is_waited_for();
        }
        self.take_off(tid, call, load, exposed, stack);
    }

    fn take_off(
        &mut self,
        tid: Tid,
        call: PendingCall,
        load: EntryData,
        exposed: Vec<Range<usize>>,
        stack: StackId,
    ) {
        let since = Instant::now();
        self.set_stage(tid, TaskStage::Flying(CallInFlight { call, since, load, exposed, stack }));
        self.timed = Some((tid, Instant::now()));
        self.resume(tid, Resume::ToSyscallExit);
    }

    /// Reports first writes in the call's reach, and reads the call's arguments in memory.
    fn prepare(&mut self, mm: MmId, tid: Tid, op: Op, args: &[usize; 6]) -> EntryData {
        let brk = self.spaces.get(&mm).map_or(0, |space| space.brk);
        for place in calls::places(op, args, brk).into_iter().flatten() {
            self.tell_touches(mm, tid, place);
        }
        match op {
            Op::Mmap if args[3] as i32 & libc::MAP_ANONYMOUS == 0 => self
                .copy_descriptor(mm, tid, args[4] as RawFd)
                .map_or(EntryData::None, EntryData::File),
            Op::Mbind => {
                // The first word of the node mask. A null mask has no bits.
                let mask = if args[3] == 0 { Ok([0]) } else { sys::read_words::<1>(tid, args[3]) };
                EntryData::Memory([mask.map_or(0, |[word]| word), 0, 0])
            }
            Op::Prctl if calls::sets_whole_map(args) => {
                // Of struct prctl_mm_map, take the words that listings and brk depend on.
                let map = sys::read_words::<7>(tid, args[2]);
                map.map_or(EntryData::None, |[_, _, _, _, start_brk, brk, start_stack]| {
                    EntryData::Memory([start_brk, brk, start_stack])
                })
            }
            Op::Ioctl => self.prepare_userfault(mm, tid, args),
            Op::ProcessMadvise => {
                let ranges = self.own_ranges(tid, args);
                for &(start, length) in &ranges {
                    self.tell_touches(mm, tid, Span::of(start, length));
                }
                EntryData::Ranges(ranges)
            }
            _ => EntryData::None,
        }
    }

    /// The ranges of process_madvise, if it acts on the caller's own address space. On another one
    /// it changes no VMA.
    fn own_ranges(&mut self, tid: Tid, args: &[usize; 6]) -> Vec<(usize, usize)> {
        const MOST: usize = 1024;
        let [pidfd, vector, count, ..] = *args;
        // Linux 6.13 has the special numbers PIDFD_SELF_THREAD and PIDFD_SELF.
        let own = matches!(pidfd as i32, -10000 | -20000)
            || fs::read_to_string(format!("/proc/{tid}/fdinfo/{}", pidfd as i32)).is_ok_and(
                |info| {
                    let target = info.lines().find_map(|line| line.strip_prefix("Pid:"));
                    target.and_then(|pid| pid.trim().parse().ok()).is_some_and(|pid: Tid| {
                        self.tasks.get(&pid).map(|task| task.space)
                            == self.tasks.get(&tid).map(|task| task.space)
                    })
                },
            );
        if !own || count > MOST {
            return Vec::new();
        }
        let at = |i: usize| sys::read_words::<2>(tid, vector.wrapping_add(16 * i));
        (0..count).map_while(|i| at(i).ok()).map(|[start, length]| (start, length)).collect()
    }

    /// The address space that an execve or exit_group is about to end. If no other process uses it,
    /// this is the time for its last listing.
    fn image(&mut self, mm: MmId, tid: Tid) -> EndingSpace {
        let users = self.spaces.get(&mm).map(|space| space.users.clone()).unwrap_or_default();
        let mut siblings = BTreeSet::new();
        if users.len() > 1
            && let Ok(threads) = fs::read_dir(format!("/proc/{tid}/task"))
        {
            let name = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<Tid>().ok();
            siblings.extend(threads.flatten().filter_map(name).filter(|&other| other != tid));
        }
        let ends = users.iter().all(|user| *user == tid || siblings.contains(user));
        let last = if ends { self.last_listing(mm, tid) } else { None };
        EndingSpace { siblings, last }
    }
}
