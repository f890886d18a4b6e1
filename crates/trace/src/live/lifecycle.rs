//! The start and end of address spaces: fork, execve, exit, and sudden death.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, Read},
    mem,
    os::unix::fs::MetadataExt,
};

use super::{
    calls::CallKind,
    files::{self, Identity},
    follower::Follower,
    image::{self, Area},
    inspect,
    sys::{
        self, Tid,
        ptrace::{self, Resume},
    },
    tasks::{CallInFlight, EntryData, LastListing, Space, Task, TaskStage},
};
use crate::{
    listing::Line,
    observer::Event,
    record::{FileKind, InitialVma, Listing, MmId, Record},
    span::Span,
};

impl Follower<'_> {
    /// A thread made another one, which shares its address space or got a copy of it.
    pub(super) fn on_child(&mut self, tid: Tid, vfork: bool) {
        let Ok(child) = ptrace::message(tid) else { return self.run(tid) };
        let child = child as Tid;
        let (space, flight) = match self.tasks.get_mut(&tid) {
            Some(task) => match mem::replace(&mut task.stage, TaskStage::Running) {
                TaskStage::Flying(flight) => (task.space, Some(flight)),
                other => {
                    task.stage = other;
                    (task.space, None)
                }
            },
            None => (None, None),
        };
        let mut newborn = Task { stage: TaskStage::Fresh, ..Task::new(None) };
        if let Some(mm) = space {
            // The filter stops each clone that copies. So one that was not stopped shares.
            let told =
                if self.facilities.compare { sys::same_space(tid, child).ok() } else { None };
            let shares = told.unwrap_or(flight.is_none());
            newborn.space = if shares {
                self.observer.record(
                    Record::Share { mm, tid: tid as u32, child_tid: child as u32, vfork },
                    None,
                );
                if let Some(space) = self.spaces.get_mut(&mm) {
                    space.users.insert(child);
                }
                Some(mm)
            } else if !self.options.children {
                // The filter still stops it, so it stays traced and is only resumed.
                None
            } else {
                if flight.is_none() {
                    // The filter did not stop this fork. Look now, before the child has run.
                    self.tell_touches(mm, tid, Span::ALL);
                }
                self.copied(mm, tid, child)
            };
        }
        let early = self.early.remove(&child);
        if early.is_some() {
            newborn.stage = TaskStage::Running;
        }
        self.tasks.insert(child, newborn);
        if let Some((_, signal)) = early {
            self.go_on(child, signal);
        }
        if flight.is_some()
            && let Some(mm) = space
        {
            self.land(mm, tid, false);
            self.run(tid);
            self.resume_paused(mm);
            self.next_in_queue(mm);
        } else {
            self.run(tid);
        }
    }

    /// `child` got a copy of `mm`, which is its own address space from now on.
    fn copied(&mut self, mm: MmId, tid: Tid, child: Tid) -> Option<MmId> {
        let brk = self.spaces.get(&mm).map_or(0, |space| space.brk);
        let space = match Space::open(child, brk) {
            Ok(space) => space,
            Err(error) => {
                self.unfollowed(
                    child,
                    &format!(
                        "a child is not followed, because its listing cannot be opened: {error}"
                    ),
                );
                return None;
            }
        };
        self.last_mm += 1;
        let new = self.last_mm;
        self.spaces.insert(new, space);
        let record = Record::Fork { mm, child: new, tid: tid as u32, child_tid: child as u32 };
        self.observer.record(record, None);
        self.watch_child(mm, new);
        if let Some(stacks) = &mut self.stacks {
            stacks.forked(mm, new);
        }
        self.compare(new);
        Some(new)
    }

    /// A process executed another program. `pid` is the process. The calling thread may have had
    /// another id, which it lost together with its siblings.
    pub(super) fn on_exec(&mut self, pid: Tid) {
        let former = ptrace::message(pid).map_or(pid, |former| former as Tid);
        let mut task = self.tasks.remove(&former).unwrap_or_else(|| Task::new(None));
        // A pidfd belongs to the thread's former id.
        task.pidfd = None;
        let old = task.space.take();
        let image = match mem::replace(&mut task.stage, TaskStage::Running) {
            TaskStage::Flying(CallInFlight { load: EntryData::EndingSpace(image), .. }) => {
                Some(image)
            }
            _ => None,
        };
        let (siblings, last) = image.map_or((BTreeSet::new(), None), |i| (i.siblings, i.last));
        if former != pid {
            // The first thread ended without an event, and the calling thread took its id.
            self.leave(pid);
            self.tasks.remove(&pid);
        }
        for sibling in siblings {
            self.leave(sibling);
        }
        self.tasks.insert(pid, task);
        if let Some(mm) = old {
            let empty = self.spaces.get_mut(&mm).is_some_and(|space| {
                space.left(former);
                space.users.is_empty()
            });
            if empty {
                self.end_space(mm, former, true, last);
            }
        }
        if pid == self.root {
            self.started = true;
        }
        let wanted = pid == self.root || self.options.children;
        let image = if wanted { self.new_image(pid) } else { Ok(None) };
        let new = match image {
            Ok(new) => new,
            Err(error) => {
                self.unfollowed(
                    pid,
                    &format!(
                        "a program is not followed, because its memory cannot be read: {error}"
                    ),
                );
                None
            }
        };
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.space = new;
        }
        if let Some(mm) = new {
            self.tell_touches(mm, pid, Span::ALL);
            self.compare(mm);
        }
        self.run(pid);
        if let Some(mm) = old {
            self.next_in_queue(mm);
        }
    }

    /// Registers the address space that execve just made. `Ok(None)`: the program cannot be
    /// followed.
    pub(super) fn new_image(&mut self, pid: Tid) -> io::Result<Option<MmId>> {
        let link = format!("/proc/{pid}/exe");
        let mut header = [0u8; 20];
        let exe = File::open(&link).and_then(|mut file| {
            file.read_exact(&mut header)?;
            file.metadata()
        });
        // e_ident[EI_CLASS] 2 is 64-bit, e_machine 62 is x86-64.
        if exe.is_ok() && (header[4] != 2 || header[18..] != [62, 0]) {
            self.unfollowed(pid, "a program is not an x86-64 one; it runs, but is not followed");
            return Ok(None);
        }
        let (mode, inode) = exe.map_or((0, 0), |meta| (meta.mode(), meta.ino()));
        if mode & 0o6000 != 0 && gains_nothing(pid) {
            self.notice(
                "a set-uid or set-gid program runs without its privilege, because an unprivileged \
                 seccomp filter requires no_new_privs",
            );
        }
        let exe = image::text(fs::read_link(&link)?.into_os_string().into_encoded_bytes());
        let marks = image::marks(pid)?;
        let (areas, unknown) = image::read(pid)?;
        self.strange_flags(unknown);
        let mut mmap_base = image::mmap_base(&areas, inode, marks.start_stack);
        if image::is_bottom_up(pid) {
            mmap_base = 0;
            self.notice(
                "a program's addresses are chosen bottom-up (its personality asks for the legacy \
                 layout), which is not predicted",
            );
        }
        // A program that ran already has a heap.
        let heap = areas.iter().filter(|area| self.attached.is_some() && area.name == "[heap]");
        let brk = heap.map(|area| area.range.end).max().unwrap_or(marks.start_brk);
        let space = Space::open(pid, brk)?;
        self.last_mm += 1;
        let mm = self.last_mm;
        let vsyscall =
            self.tell_image(mm, pid, &areas, ImageHead { marks, brk, mmap_base, exe, space });
        if let Some(line) = vsyscall {
            self.observer.record(Record::Vsyscall(line), None);
        }
        Ok(Some(mm))
    }

    /// Reports a new image: the address space, its files, its VMAs. Returns the line of the
    /// vsyscall page.
    fn tell_image(
        &mut self,
        mm: MmId,
        tid: Tid,
        areas: &[Area],
        heads: ImageHead,
    ) -> Option<String> {
        let ImageHead { marks, brk, mmap_base, exe, space } = heads;
        let text = inspect::read_text(&space);
        self.spaces.insert(mm, space);
        self.observer.record(
            Record::Exec {
                mm,
                tid: tid as u32,
                vmas: areas.len(),
                brk,
                start_brk: marks.start_brk,
                start_stack: marks.start_stack,
                mmap_base,
                exe,
            },
            None,
        );
        let mut numbers = HashMap::new();
        for area in areas.iter().filter(|area| area.inode != 0) {
            let inode = (area.dev, area.inode);
            if let std::collections::hash_map::Entry::Vacant(new) = numbers.entry(inode) {
                let kind = files::kind_of_program(tid, inode, &area.name);
                let facts = (kind.unwrap_or(FileKind::Exec), false, false);
                new.insert(self.tell_file(inode, facts, area.name.clone(), Identity::Unique));
            }
        }
        for area in areas {
            let file = numbers.get(&(area.dev, area.inode)).copied().unwrap_or(0);
            // The listing derives [heap] and [stack]. Other names in brackets belong to the VMA.
            let named = file == 0 && area.name.starts_with('[');
            let worked_out = matches!(area.name.as_str(), "[heap]" | "[stack]");
            // Without a file, the offset that counts for merging is the address.
            let pgoff = if file == 0 { area.range.start } else { area.offset } / 4096;
            let vma = InitialVma {
                start: area.range.start,
                end: area.range.end,
                flags: area.flags,
                pgoff,
                file,
                name: (named && !worked_out).then(|| area.name.clone()),
            };
            self.observer.record(Record::Vma(vma), None);
        }
        text.ok()?.lines().last().filter(|line| Line::is_vsyscall(line)).map(str::to_owned)
    }

    /// A thread is about to end. Its memory still exists.
    pub(super) fn on_dying(&mut self, tid: Tid) {
        let (space, stage) = match self.tasks.get_mut(&tid) {
            Some(task) => (task.space, mem::replace(&mut task.stage, TaskStage::Running)),
            None => (None, TaskStage::Running),
        };
        if let Some(mm) = space {
            let mut last = None;
            if let TaskStage::Flying(flight) = stage {
                match flight.load {
                    // exit_group; or execve failed after its point of no return, and the old memory
                    // has ended already.
                    EntryData::EndingSpace(image) => last = image.last,
                    _ => self.tell_killed(mm, tid, flight),
                }
            }
            if let Some(space) = self.spaces.get_mut(&mm) {
                space.last = last.or(space.last.take());
                if space.last.is_none() && self.is_last_user(mm, tid) {
                    let last = self.last_listing(mm, tid);
                    if let Some(space) = self.spaces.get_mut(&mm) {
                        space.last = last;
                    }
                }
            }
            self.depart(mm, tid);
        }
        self.resume_anyway(tid, Resume::Freely(0));
        if let Some(mm) = space {
            self.proceed(mm);
        }
    }

    /// Whether no other thread runs in an address space. Users that died from a second kill,
    /// without a stop at their end, are removed. So this takes constant time on average.
    fn is_last_user(&mut self, mm: MmId, tid: Tid) -> bool {
        let compares = self.facilities.compare;
        let Some(space) = self.spaces.get_mut(&mm) else { return false };
        while let Some(&other) = space.users.iter().find(|&&user| user != tid) {
            if !compares || sys::same_space(tid, other).unwrap_or(false) {
                return false;
            }
            space.users.remove(&other);
        }
        true
    }

    /// Reports a call in which a thread was killed. The result register holds its result: -ENOSYS
    /// if the call never began.
    fn tell_killed(&mut self, mm: MmId, tid: Tid, flight: CallInFlight) {
        if !matches!(flight.call.kind, CallKind::Memory(_)) {
            return;
        }
        match ptrace::result_register(tid) {
            Ok(result) if result == -(libc::ENOSYS as isize) => {}
            Ok(result) => {
                self.tell_call(mm, tid, flight, result, None);
                self.observer.event(Event::CallReported);
            }
            Err(_) => self.notice(
                "a thread was killed inside a memory call, and the effect of the call is unknown",
            ),
        }
    }

    /// Removes a thread from its address space without an event of its end.
    pub(super) fn leave(&mut self, tid: Tid) {
        if let Some(mm) = self.tasks.get_mut(&tid).and_then(|task| task.space.take()) {
            self.depart(mm, tid);
            self.proceed(mm);
        }
    }

    fn depart(&mut self, mm: MmId, tid: Tid) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.space = None;
        }
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        space.left(tid);
        if space.users.is_empty() {
            let last = space.last.take();
            self.end_space(mm, tid, false, last);
        }
    }

    /// If nothing is in flight any more, the next waiting thread may begin.
    fn proceed(&mut self, mm: MmId) {
        if self.spaces.get(&mm).is_some_and(|space| !space.is_busy()) {
            self.resume_paused(mm);
            self.next_in_queue(mm);
        }
    }

    pub(super) fn end_space(&mut self, mm: MmId, tid: Tid, exec: bool, last: Option<LastListing>) {
        match last {
            Some(LastListing { text, flags, usage }) => {
                self.observer.event(Event::Used { mm, usage });
                let lines = text.lines().map(str::to_owned).collect();
                let listing = Listing { mm, tid: tid as u32, exec, lines, flags };
                self.observer.record(Record::Listing(listing), None);
            }
            None => self.notice(
                "an address space ended without a last listing: its threads were killed, or \
                 it cannot be read",
            ),
        }
        self.resume_paused(mm);
        self.spaces.remove(&mm);
        if let Some(stacks) = &mut self.stacks {
            stacks.ended(mm);
        }
        self.observer.record(Record::ExitMmap { mm }, None);
        self.release_files();
    }
}

/// The first facts that [`Follower::tell_image`] reports.
struct ImageHead {
    marks: image::SegmentStarts,
    /// The end of the heap.
    brk: usize,
    mmap_base: usize,
    exe: String,
    space: Space,
}

/// Whether a process has no_new_privs set.
fn gains_nothing(pid: Tid) -> bool {
    image::proc_text(pid, "status")
        .is_ok_and(|status| status.lines().any(|line| line == "NoNewPrivs:\t1"))
}
