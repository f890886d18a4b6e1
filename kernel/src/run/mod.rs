//! `run`: runs a program of the archive, and all that it starts, on all CPUs. `cpu` is the loop of
//! each.

mod cpu;

use crate::archive::Archive;
use crate::call::{process, table};
use crate::cpu::area;
use crate::file::{self, Files};
use crate::grace::quiet;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::space::tables;
use crate::task::pid::Exit;
use crate::{clock, export, smp, stats};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use linux_raw_sys::errno::{E2BIG, EACCES, ELIBBAD, ELOOP, ENOENT, ENOMEM};
use machine::{Cpus, FrameSource};
use mm::Access;

/// The end of a run. It is displayed as the record for the host, which is JSON: the ending, then
/// the statistics.
#[derive(Debug)]
pub(crate) struct Outcome {
    ending: Exit,
    /// Members of a JSON object, with commas between them: numbers, or objects of them.
    statistics: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ending {
            Exit::Code(code) => write!(f, "{{\"exit\":{code}")?,
            Exit::Signal(signal) => write!(f, "{{\"signal\":{signal}")?,
        }
        write!(f, ",{}}}", self.statistics)
    }
}

/// Runs the program of the archive with its arguments and environment, and waits for its end, and
/// for that of all processes. `out`: there is a folder for files that the host gets. Call it on the
/// boot CPU, with interrupts on.
///
/// # Errors
/// The program cannot be run: the cause and the cure, for people.
pub(crate) fn run(archive: &Archive, out: bool) -> Result<Outcome, String> {
    file::start().map_err(|errno| {
        format!("no memory for files ({errno:?}): give the machine more (--memory)")
    })?;
    for entry in archive.files() {
        let path = [b"/", entry.path].concat();
        file::add(&path, entry.mode, entry.data).map_err(|errno| {
            let path = String::from_utf8_lossy(&path).into_owned();
            format!("no memory for the file {path} ({errno:?}): give the machine more (--memory)")
        })?;
    }
    if out {
        export::start().map_err(|errno| format!("/out cannot be made ({errno:?})"))?;
    }
    drain();
    stats::start();
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let mut argv = words(&archive.argv);
    let Some(path) = argv.first_mut() else { return Err("there is no program".into()) };
    if !path.starts_with(b"/") {
        path.insert(0, b'/');
    }
    let path = path.clone();
    let files = Files::standard();
    let process = files.and_then(|files| process::first(&path, argv, &words(&archive.env), files));
    let process = process.map_err(|errno| {
        let path = String::from_utf8_lossy(&path).into_owned();
        let why = match errno.0 {
            ENOENT => "it, its interpreter or its script's program is not there",
            EACCES => "it, its interpreter or its script's program may not be executed",
            ELIBBAD => "its interpreter is no program of x86-64",
            ELOOP => "links or scripts lead in a circle",
            ENOMEM => "there is too little memory: --memory gives the machine more",
            E2BIG => "its arguments and environment are too long",
            _ => "a program of x86-64 Linux is needed",
        };
        format!("{path} does not start ({errno:?}): {why}")
    })?;
    smp::host().on_each(Kernel.count(), |_| cpu::run());
    let ending = lock(&process.handle.ended).unwrap_or(Exit::Code(0));
    drop(process);
    settle();
    Ok(Outcome { ending, statistics: statistics() })
}

/// Waits until all is given back that waits for a grace period, and that CPUs keep for later. Files
/// that programs have left keep their frames.
fn settle() {
    /// Rounds, of a tick each, after which nothing more comes back.
    const ROUNDS: usize = 50;
    const TICK: u64 = 4_000_000;
    for _ in 0..ROUNDS {
        drain();
        if Kernel.free_frames() as u64 >= stats::frames_at_start() {
            return;
        }
        clock::wait(TICK);
    }
}

/// Gives back the frames that CPUs keep for later.
fn drain() {
    smp::host().on_each(Kernel.count(), |_| {
        quiet();
        tables().paging().quick().drain();
    });
}

/// The statistics of the run, as members of a JSON object: calls, faults, frames, IPIs of
/// shootdowns, and flushes.
fn statistics() -> String {
    let mut text = String::from("\"calls\":{");
    let mut comma = "";
    for (number, count) in stats::calls() {
        let _ = match table::name(number) {
            Some(name) => write!(text, "{comma}\"{name}\":{count}"),
            None => write!(text, "{comma}\"call {number}\":{count}"),
        };
        comma = ",";
    }
    let [read, write, execute] = [Access::Read, Access::Write, Access::Execute].map(stats::faults);
    let (before, now) = (stats::frames_at_start(), Kernel.free_frames() as u64);
    let peak = before.saturating_sub(stats::least_free().min(now));
    let held = before as i64 - now as i64;
    let interrupts = area::total(|stats| &stats.shootdowns);
    let flushes = area::total(|stats| &stats.flushes);
    let _ = write!(
        text,
        "}},\"faults\":{{\"read\":{read},\"write\":{write},\"execute\":{execute}}},\
         \"frames\":{{\"peak\":{peak},\"left\":{held}}},\"interrupts\":{interrupts},\
         \"flushes\":{flushes}"
    );
    text
}
