//! Files of `/proc` that tell of the machine.

use super::{ProcEntry, PseudoEntry};
use crate::lock::lock;
use crate::machine::Kernel;
use crate::task::memory::promises;
use crate::task::process as processes;
use crate::time::{SECOND, SWITCHED_ON, ticks};
use crate::{clock, stats};
use core::fmt::{self, Write};
use machine::{Cpus, FrameSource};

/// The release that the kernel says it is.
pub(crate) const RELEASE: &str = "6.18.0-samara";

type Writer = fn(&mut dyn Write) -> fmt::Result;

/// The files by their paths, those of a folder one after another.
const FILES: [(&str, Writer); 24] = [
    ("cpuinfo", cpuinfo),
    ("filesystems", |out| out.write_str("nodev\tproc\nnodev\ttmpfs\n")),
    ("loadavg", |out| {
        let count = processes::all().len();
        writeln!(out, "0.00 0.00 0.00 1/{count} {count}")
    }),
    ("meminfo", meminfo),
    ("stat", stat),
    ("swaps", |out| out.write_str("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")),
    ("uptime", |out| {
        let hundredths = clock::now() / 10_000_000;
        writeln!(out, "{}.{:02} 0.00", hundredths / 100, hundredths % 100)
    }),
    ("version", |out| writeln!(out, "Linux version {} (samara)", RELEASE)),
    ("sys/fs/file-max", |out| out.write_str("65536\n")),
    ("sys/fs/pipe-max-size", |out| writeln!(out, "{}", crate::file::pipe::MOST)),
    ("sys/kernel/hostname", |out| out.write_str("samara\n")),
    ("sys/kernel/ostype", |out| out.write_str("Linux\n")),
    ("sys/kernel/osrelease", |out| writeln!(out, "{}", RELEASE)),
    ("sys/kernel/pid_max", |out| out.write_str("4194304\n")),
    ("sys/kernel/randomize_va_space", |out| out.write_str("2\n")),
    ("sys/kernel/threads-max", |out| out.write_str("4194304\n")),
    ("sys/vm/drop_caches", |out| out.write_str("0\n")),
    ("sys/vm/legacy_va_layout", |out| out.write_str("0\n")),
    ("sys/vm/max_map_count", |out| out.write_str("65530\n")),
    ("sys/vm/mmap_min_addr", |out| out.write_str("65536\n")),
    ("sys/vm/nr_hugepages", |out| out.write_str("0\n")),
    ("sys/vm/overcommit_memory", |out| out.write_str("0\n")),
    ("sys/vm/overcommit_ratio", |out| out.write_str("50\n")),
    ("sys/vm/swappiness", |out| out.write_str("60\n")),
];

/// The path of a file.
pub(super) fn path(place: usize) -> &'static str {
    FILES[place].0
}

/// Writes a file.
pub(super) fn write(place: usize, out: &mut dyn Write) -> fmt::Result {
    FILES[place].1(out)
}

/// The entries of a folder.
pub(super) fn children(folder: &'static str) -> impl Iterator<Item = ProcEntry> {
    let mut before = "";
    (0..FILES.len()).filter_map(move |place| {
        let path = path(place);
        let start = if folder.is_empty() { 0 } else { folder.len() + 1 };
        let within = folder.is_empty()
            || path.starts_with(folder) && path.as_bytes().get(folder.len()) == Some(&b'/');
        if !within {
            return None;
        }
        match path[start..].find('/') {
            None => Some(ProcEntry::System(place)),
            Some(end) => {
                let inner = &path[..start + end];
                let new = before != inner;
                before = inner;
                new.then_some(ProcEntry::Folder(inner))
            }
        }
    })
}

/// The entry of a folder with this name.
pub(super) fn child(folder: &'static str, name: &[u8]) -> Option<ProcEntry> {
    children(folder).find(|entry| entry.name() == name)
}

fn meminfo(out: &mut dyn Write) -> fmt::Result {
    let total = stats::frames_at_start() * 4;
    let free = Kernel.free_frames() as u64 * 4;
    let promised = promises().map_or(0, |promises| promises.promised() as u64 / 1024);
    for (name, kib) in [
        ("MemTotal", total),
        ("MemFree", free),
        ("MemAvailable", free),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("CommitLimit", total / 2),
        ("Committed_AS", promised),
    ] {
        let after = 15 - name.len();
        writeln!(out, "{name}:{:after$}{kib:8} kB", "")?;
    }
    out.write_str("HugePages_Total:       0\nHugePages_Free:        0\n")?;
    out.write_str("Hugepagesize:       2048 kB\n")
}

fn cpuinfo(out: &mut dyn Write) -> fmt::Result {
    for cpu in 0..Kernel.count() {
        writeln!(
            out,
            "processor\t: {cpu}\nvendor_id\t: Samara\nmodel name\t: x86-64\nphysical id\t: 0\n\
             siblings\t: {0}\ncore id\t\t: {cpu}\ncpu cores\t: {0}\nflags\t\t: fpu fxsr sse sse2\n",
            Kernel.count()
        )?;
    }
    Ok(())
}

fn stat(out: &mut dyn Write) -> fmt::Result {
    let all = processes::all();
    let used: u64 = all.iter().map(|process| process.used.get().nanos).sum();
    let ticks = ticks(used);
    writeln!(out, "cpu  {ticks} 0 0 0 0 0 0 0 0 0")?;
    for cpu in 0..Kernel.count() {
        writeln!(out, "cpu{cpu} 0 0 0 0 0 0 0 0 0 0")?;
    }
    let since = SWITCHED_ON / SECOND;
    let threads: usize = all.iter().map(|process| lock(&process.threads).len()).sum();
    writeln!(out, "btime {since}\nprocesses {}\nprocs_running {threads}", all.len())
}
