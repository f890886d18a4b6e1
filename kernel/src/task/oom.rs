//! Memory that runs out: which program ends, and how its pages come back.
//!
//! `mm` asks when a fault, or a copy to a program, finds no frame. First comes memory that is on
//! its way back: pages that wait in any space for a grace period, and those of processes that are
//! ending. Only then a process is killed: the one with the most resident pages, `oom_score_adj`
//! counted.
//! The CPU that asks takes the pages of the victim back by itself, so it need not wait until the
//! victim has left all CPUs, nor for the turn of a thread.
//!
//! A fork or an execve does not ask. It fails with ENOMEM. A fork fails already while the last
//! hundredth of memory is left: otherwise the first faults of the child would kill a process. But
//! it waits for processes that are ending.
//!
//! # Why it ends
//! Each time that `mm` is told to try again, frames were given back or a process was marked as
//! ending. A process is marked once. If none is left to choose, the fault fails, and its own
//! process ends. One that is ending already gets room once: a call that fills memory would
//! otherwise live on pages that are taken back from itself.

use super::pid::Exit;
use super::process;
use super::signal::SIGKILL;
use super::{Process, Space};
use crate::cpu::area;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::println;
use crate::stats::frames_at_start;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::FrameSource;
use mm::OnLimit;
use spin::mutex::SpinMutex;

/// Whether a new process would find too little memory. Cost: a load for each CPU.
pub(crate) fn is_near() -> bool {
    (Kernel.free_frames() as u64) < frames_at_start() / 100
}

/// Whether memory is on its way back: a process is ending. Takes back its pages, and those that
/// wait for a grace period.
pub(crate) fn is_passing() -> bool {
    let ends = |process: &Arc<Process>| {
        lock(&process.exiting).is_some() && lock(&process.handle.ended).is_none()
    };
    let _one = lock(&MAKES_ROOM);
    // Before the rest, which takes long: a process that ends meanwhile has given its memory back.
    let is_passing = process::next(0, ends).is_some();
    take_back();
    is_passing
}

/// Makes room when no frame is free.
pub(crate) struct Shortage;

/// Held by the CPU that makes room.
static MAKES_ROOM: SpinMutex<()> = SpinMutex::new(());
/// The number of times that a CPU has made room.
static MADE: AtomicU64 = AtomicU64::new(0);

impl OnLimit for Shortage {
    fn make_room(&self, _: usize) -> bool {
        // Relaxed, here and below: the lock orders it.
        let made = MADE.load(Ordering::Relaxed);
        let _one = lock(&MAKES_ROOM);
        // While this CPU waited for the lock, another one has made room.
        if made != MADE.load(Ordering::Relaxed) {
            return true;
        }
        let own = process::process(area::here().process.get());
        let ends = own.as_ref().filter(|own| lock(&own.exiting).is_some());
        if ends.is_some_and(|own| own.had_room.swap(true, Ordering::Relaxed)) {
            return false;
        }
        let again = take_back() || kill(own);
        if again {
            MADE.fetch_add(1, Ordering::Relaxed);
        }
        again
    }
}

/// Takes back pages that wait for a grace period in any space, and those of processes that are
/// ending. Returns whether there were any.
fn take_back() -> bool {
    let mut taken = 0;
    let waits = |process: &Arc<Process>| lock(&process.memory).is_some();
    let mut at = process::next(0, waits);
    while let Some(process) = at {
        if let Some(space) = process.space() {
            taken += space.purge();
            if lock(&process.exiting).is_some() && is_ending(&space) {
                taken += space.reap(usize::MAX);
            }
        }
        at = process::next(process.pid + 1, waits);
    }
    taken > 0
}

/// Whether all processes that use the space are ending. None joins them later: a process that is
/// ending makes no other ([`Process::new`]).
fn is_ending(space: &Arc<Space>) -> bool {
    let uses = |process: &Arc<Process>| {
        lock(&process.exiting).is_none()
            && lock(&process.memory)
                .as_ref()
                .is_some_and(|memory| Arc::ptr_eq(&memory.space, space))
    };
    process::next(0, uses).is_none()
}

/// Kills the process that holds the most, with those that share its memory. Returns whether the
/// fault is to be tried again: not if it is the own process that ends.
fn kill(own: Option<Arc<Process>>) -> bool {
    if own.as_ref().is_some_and(|own| lock(&own.exiting).is_some()) {
        return false;
    }
    let asks = own.as_ref().map_or_else(String::new, |own| own.shown());
    let Some((victim, space)) = victim() else {
        println!("samara: out of memory: {asks} ends; no other program may be killed");
        return false;
    };
    println!(
        "samara: out of memory: killed {}, which held {} KiB (oom_score_adj {}); {asks} needed a \
         page, {} KiB of {} KiB are free",
        victim.shown(),
        space.totals().resident >> 10,
        // Relaxed: only the number.
        victim.oom_score_adj.load(Ordering::Relaxed),
        Kernel.free_frames() << 2,
        frames_at_start() << 2,
    );
    process::for_each(|process| {
        let shares =
            lock(&process.memory).as_ref().is_some_and(|memory| Arc::ptr_eq(&memory.space, &space));
        if shares {
            process.end(Exit::Signal(SIGKILL));
        }
    });
    // The own process goes on to its end when the fault fails.
    let is_own = own.is_some_and(|own| lock(&own.exiting).is_some());
    if !is_own {
        space.reap(usize::MAX);
    }
    !is_own
}

/// The process with the most points; of two, the younger one.
fn victim() -> Option<(Arc<Process>, Arc<Space>)> {
    let mut most: Option<(i64, Arc<Process>, Arc<Space>)> = None;
    let may_end = |process: &Arc<Process>| lock(&process.exiting).is_none();
    let mut at = process::next(0, may_end);
    while let Some(process) = at {
        let next = process.pid + 1;
        if let Some(space) = process.space()
            && let Some(points) = points(&process, &space)
            && most.as_ref().is_none_or(|(most, ..)| points >= *most)
        {
            most = Some((points, process, space));
        }
        at = process::next(next, may_end);
    }
    most.map(|(_, process, space)| (process, space))
}

/// The resident pages of a process, and a thousandth of memory for each point of `oom_score_adj`.
/// None: it is never killed for memory.
fn points(process: &Process, space: &Space) -> Option<i64> {
    // Relaxed: only the number.
    let adjust = i64::from(process.oom_score_adj.load(Ordering::Relaxed));
    let resident = (space.totals().resident >> 12) as i64;
    (adjust > -1000).then(|| resident + adjust * frames_at_start() as i64 / 1000)
}

/// The number in `/proc/PID/oom_score`: 0 for a process that is never killed. If `oom_score_adj`
/// is 0, it is 666 for a process without pages, and 1333 for one that has all memory.
pub(crate) fn score(process: &Process) -> i64 {
    let points = process.space().and_then(|space| points(process, &space));
    let total = (frames_at_start() as i64).max(1);
    points.map_or(0, |points| ((1000 + points * 1000 / total) * 2 / 3).max(0))
}
