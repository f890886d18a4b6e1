//! Files of `/proc` that tell of a process.

use super::listing::Listing;
use super::{Content, ProcEntry};
use crate::errno::Errno;
use crate::file::pseudo::Target;
use crate::lock::lock;
use crate::task::process as processes;
use crate::task::program::shown;
use crate::task::usage::Used;
use crate::task::{Process, Space, Thread, oom};
use crate::text::text;
use crate::time::ticks;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{ENOENT, ENOMEM, ESRCH};
use mm::Totals;

macro_rules! files {
    ($($what:ident $name:literal $mode:literal,)*) => {
        /// An entry of the folder of a process.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum ProcessFile {
            $(#[doc = $name] $what,)*
        }

        const FILES: &[(&str, ProcessFile, u32)] = &[$(($name, ProcessFile::$what, $mode),)*];
    };
}

files! {
    ClearRefs "clear_refs" 0o200,
    Cmdline "cmdline" 0o444,
    Comm "comm" 0o644,
    Cwd "cwd" 0o777,
    Exe "exe" 0o777,
    Limits "limits" 0o444,
    Maps "maps" 0o444,
    Mem "mem" 0o600,
    Mounts "mounts" 0o444,
    OomScore "oom_score" 0o444,
    OomScoreAdj "oom_score_adj" 0o644,
    PageMap "pagemap" 0o400,
    Root "root" 0o777,
    Smaps "smaps" 0o444,
    SmapsRollup "smaps_rollup" 0o444,
    Stat "stat" 0o444,
    Statm "statm" 0o444,
    Status "status" 0o444,
}

impl ProcessFile {
    pub(super) fn all() -> impl Iterator<Item = ProcessFile> {
        FILES.iter().map(|(_, what, _)| *what)
    }

    pub(super) fn find(name: &[u8]) -> Option<ProcessFile> {
        FILES.iter().find(|(known, ..)| known.as_bytes() == name).map(|(_, what, _)| *what)
    }

    pub(super) fn name(self) -> &'static [u8] {
        FILES[self as usize].0.as_bytes()
    }

    pub(super) fn mode(self) -> u32 {
        FILES[self as usize].2
    }

    pub(super) fn is_link(self) -> bool {
        matches!(self, ProcessFile::Cwd | ProcessFile::Exe | ProcessFile::Root)
    }

    /// The target of a link.
    pub(super) fn target(self, process: &Process) -> Result<Target, Errno> {
        match self {
            ProcessFile::Cwd => Ok(Target::Inode(lock(&process.place).folder())),
            ProcessFile::Root => Ok(Target::Path(b"/".into())),
            ProcessFile::Exe => {
                let path = lock(&process.program).path.clone();
                if path.is_empty() { Err(Errno(ENOENT)) } else { Ok(Target::Path(path)) }
            }
            _ => Err(Errno(ENOENT)),
        }
    }

    /// The contents of this file for a new description, of the process or of its thread `only`.
    pub(super) fn open(self, process: &Arc<Process>, only: Option<u32>) -> Result<Content, Errno> {
        let entry = ProcEntry::Of(process.pid, only, self);
        let tid = only.unwrap_or(process.pid);
        let thread = thread(tid);
        let space = process.space();
        let weak = || space.as_ref().map(Arc::downgrade).ok_or(Errno(ESRCH));
        match self {
            ProcessFile::Mem => return Ok(Content::Memory(weak()?)),
            ProcessFile::ClearRefs => return Ok(Content::ClearRefs(weak()?)),
            ProcessFile::PageMap => return Ok(Content::PageMap(weak()?)),
            ProcessFile::Maps | ProcessFile::Smaps => {
                let listing = Listing::new(weak().unwrap_or_default(), self == ProcessFile::Smaps);
                return Ok(Content::Vmas(listing?));
            }
            ProcessFile::OomScoreAdj => return Ok(Content::OomScoreAdj(Arc::downgrade(process))),
            ProcessFile::Comm => {
                if let Some(thread) = &thread {
                    return Ok(Content::Name(Arc::downgrade(thread)));
                }
            }
            ProcessFile::Cmdline => {
                let arguments = Arc::clone(&lock(&process.program).arguments);
                let mut text = Vec::new();
                text.try_reserve_exact(arguments.len()).map_err(|_| Errno(ENOMEM))?;
                text.extend_from_slice(&arguments);
                return Content::of(entry, text);
            }
            _ => {}
        }
        let space = space.as_deref();
        // The name of a process outlives its threads.
        let name = *lock(thread.as_ref().map_or(&process.name, |thread| thread.name()));
        let name = shown(&name);
        let text = text(|out| match self {
            ProcessFile::SmapsRollup => space.map_or(Ok(()), |space| space.write_smaps_rollup(out)),
            ProcessFile::Comm => writeln!(out, "{name}"),
            ProcessFile::Limits => limits(space, out),
            ProcessFile::Mounts => mounts(out),
            ProcessFile::OomScore => writeln!(out, "{}", oom::score(process)),
            ProcessFile::Stat => {
                let one = thread.as_ref().filter(|_| only.is_some());
                let used = one.map_or(&process.used, |thread| &thread.used).get();
                stat(process, (tid, &name, used), space, out)
            }
            ProcessFile::Statm => statm(space, out),
            ProcessFile::Status => status(process, (tid, &name), space, out),
            _ => Ok(()),
        })?;
        Content::of(entry, text)
    }
}

/// The number of the parent; 0 for none.
fn parent(process: &Process) -> u32 {
    lock(&process.parent).upgrade().map_or(0, |parent| parent.pid)
}

fn totals(space: Option<&Space>) -> Totals {
    space.map(Space::totals).unwrap_or_default()
}

fn thread(tid: u32) -> Option<Arc<Thread>> {
    processes::thread(tid)
}

/// The state of a thread. The first thread of a process may have ended before the others.
fn state(tid: u32) -> &'static str {
    match thread(tid) {
        None => "Z (zombie)",
        Some(thread) => match thread.waits() {
            None => "R (running)",
            Some(true) => "S (sleeping)",
            Some(false) => "D (disk sleep)",
        },
    }
}

fn mounts(out: &mut dyn Write) -> fmt::Result {
    out.write_str(
        "none / tmpfs rw 0 0\nnone /dev tmpfs rw 0 0\nnone /dev/shm tmpfs rw 0 0\n\
         none /tmp tmpfs rw 0 0\nproc /proc proc rw 0 0\n",
    )
}

fn limits(space: Option<&Space>, out: &mut dyn Write) -> fmt::Result {
    let limits = space.map(Space::limits).unwrap_or_default();
    writeln!(out, "{:25} {:20} {:20} {:10}", "Limit", "Soft Limit", "Hard Limit", "Units")?;
    let files = crate::file::DESCRIPTORS;
    writeln!(out, "{:25} {files:<20} {files:<20} {:10}", "Max open files", "files")?;
    let stack = crate::task::memory::STACK;
    writeln!(out, "{:25} {stack:<20} {:20} {:10}", "Max stack size", "unlimited", "bytes")?;
    for (name, most) in
        [("Max locked memory", limits.locked), ("Max address space", limits.address_space)]
    {
        let most = if most == usize::MAX { "unlimited".into() } else { format!("{most}") };
        writeln!(out, "{name:25} {most:20} {:20} {:10}", "unlimited", "bytes")?;
    }
    Ok(())
}

fn statm(space: Option<&Space>, out: &mut dyn Write) -> fmt::Result {
    let totals = totals(space);
    let of_files = totals.resident - totals.anonymous.min(totals.resident);
    writeln!(
        out,
        "{} {} {} {} 0 {} 0",
        totals.size >> 12,
        totals.resident >> 12,
        of_files >> 12,
        totals.executable >> 12,
        (totals.data + totals.stack) >> 12
    )
}

/// `used`: CPU time and faults of the process, or of one thread.
fn stat(
    process: &Process,
    (tid, name, used): (u32, &str, Used),
    space: Option<&Space>,
    out: &mut dyn Write,
) -> fmt::Result {
    let totals = totals(space);
    // Relaxed, here and below: numbers only.
    let of_children = process.used_by_children.get();
    let times = |used: Used| format!("{} {}", ticks(used.user()), ticks(used.system));
    let (faults, child_faults) = (used.faults, of_children.faults);
    let threads = lock(&process.threads).len();
    let nice = thread(tid).map_or(0, |thread| thread.schedule.nice());
    write!(
        out,
        "{} ({}) {} {} {} {} 0 -1 0 {faults} {child_faults} 0 0 {} {} {} {nice} {threads} \
         0 0 {} {}",
        tid,
        name,
        &state(tid)[..1],
        parent(process),
        process.group.load(Ordering::Relaxed),
        process.session.load(Ordering::Relaxed),
        times(used),
        times(of_children),
        20 + nice,
        totals.size,
        totals.resident >> 12
    )?;
    // The limit of resident memory, addresses, signals, and more that is not kept.
    writeln!(out, " 18446744073709551615{}", " 0".repeat(27))
}

fn status(
    process: &Process,
    (tid, name): (u32, &str),
    space: Option<&Space>,
    out: &mut dyn Write,
) -> fmt::Result {
    let totals = totals(space);
    let pid = process.pid;
    writeln!(out, "Name:\t{name}")?;
    writeln!(out, "Umask:\t{:04o}", lock(&process.place).umask)?;
    writeln!(out, "State:\t{}", state(tid))?;
    writeln!(out, "Tgid:\t{pid}\nNgid:\t0\nPid:\t{tid}\nPPid:\t{}", parent(process))?;
    let identity = lock(&process.identity).clone();
    writeln!(out, "TracerPid:\t0")?;
    for (name, [real, effective, saved, files]) in [("Uid", identity.user), ("Gid", identity.group)]
    {
        writeln!(out, "{name}:\t{real}\t{effective}\t{saved}\t{files}")?;
    }
    out.write_str("Groups:\t")?;
    identity.groups.iter().try_for_each(|group| write!(out, "{group} "))?;
    out.write_str("\n")?;
    writeln!(out, "FDSize:\t{}", crate::file::DESCRIPTORS)?;
    if space.is_some() {
        let of_files = totals.resident - totals.anonymous.min(totals.resident);
        for (name, bytes) in [
            ("VmPeak", totals.size),
            ("VmSize", totals.size),
            ("VmLck", totals.locked),
            ("VmPin", 0),
            ("VmHWM", totals.resident),
            ("VmRSS", totals.resident),
            ("RssAnon", totals.anonymous),
            ("RssFile", 0),
            ("RssShmem", of_files),
            ("VmData", totals.data),
            ("VmStk", totals.stack),
            ("VmExe", totals.executable),
            ("VmLib", 0),
            ("VmSwap", totals.swap),
        ] {
            writeln!(out, "{name}:\t{:8} kB", bytes >> 10)?;
        }
    }
    let cpus = machine::Cpus::count(&crate::machine::Kernel);
    writeln!(out, "Threads:\t{}", lock(&process.threads).len())?;
    writeln!(out, "Cpus_allowed_list:\t0-{}", cpus - 1)?;
    writeln!(out, "Mems_allowed_list:\t0")
}
