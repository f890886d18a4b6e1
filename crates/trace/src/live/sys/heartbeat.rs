//! The heartbeat: a timer that periodically interrupts the waiting tracer. At a beat, the tracer
//! notices a signal to end, and a call that blocks while others wait for it. Also the handler of
//! these signals.
//!
//! The timer signals the calling thread, so several tracers in one process are independent. A beat
//! right before the wait begins is lost, which is harmless: the next one follows.

use std::{
    io, mem, ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    time::Duration,
};

use super::{Tid, check};

/// The period of the beats. Cost: one return from `waitpid` per beat.
pub(in crate::live) const PERIOD: Duration = Duration::from_millis(50);

/// The period while a thread waits for another one's call, which may in turn wait for that thread.
pub(in crate::live) const SOON: Duration = Duration::from_millis(1);

fn beat_signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

extern "C" fn ignore(_: libc::c_int) {}

fn handler(
    signal: libc::c_int,
    run: libc::sighandler_t,
    flags: libc::c_int,
) -> io::Result<libc::sigaction> {
    // SAFETY: both structs are plain data for which zeroes are valid. `run` is a handler of the
    // kind that `flags` declares, and both handlers here call only async-signal-safe functions.
    unsafe {
        let mut new: libc::sigaction = mem::zeroed();
        let mut old: libc::sigaction = mem::zeroed();
        new.sa_sigaction = run;
        new.sa_flags = flags;
        libc::sigemptyset(&mut new.sa_mask);
        check(libc::sigaction(signal, &new, &mut old) as _)?;
        Ok(old)
    }
}

/// The running timer. Dropping it stops the beats.
pub(in crate::live) struct Heartbeat(libc::timer_t);

impl Heartbeat {
    /// Starts the beats for the calling thread.
    pub(in crate::live) fn start() -> io::Result<Self> {
        // Without SA_RESTART, so that the wait returns. The handler is never removed: a late beat
        // must not meet the default action.
        handler(beat_signal(), ignore as *const () as libc::sighandler_t, 0)?;
        // SAFETY: `event` is plain data, the thread id is this thread's, and `timer` is filled
        // before use.
        unsafe {
            let mut event: libc::sigevent = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = beat_signal();
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = mem::zeroed();
            check(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) as _)?;
            let beat = Heartbeat(timer);
            beat.every(PERIOD)?;
            Ok(beat)
        }
    }

    /// Changes the period.
    pub(in crate::live) fn every(&self, period: Duration) -> io::Result<()> {
        let nanos = libc::timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        let every = libc::itimerspec { it_interval: nanos, it_value: nanos };
        // SAFETY: the timer is ours, and `every` lives through the call.
        check(unsafe { libc::timer_settime(self.0, 0, &every, ptr::null_mut()) } as _).map(drop)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // SAFETY: the timer is ours and deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// The signals that ask a program to end: from the keyboard, from other processes, and because its
/// terminal closed.
const WISHES_TO_END: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The process that these are forwarded to; 0 for none.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// The number of signals that came.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// The newest of them, negative if it came from the terminal.
static NEWEST: AtomicI32 = AtomicI32::new(0);
/// Whether a tracer in this process forwards them now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Stops forwarding to `program`, which has ended. Its process id may soon be reused.
pub(in crate::live) fn program_ended(program: Tid) {
    // Relaxed: a single number that publishes nothing. An exchange, so that another tracer's
    // program stays.
    let _other = PROGRAM.compare_exchange(program, 0, Ordering::Relaxed, Ordering::Relaxed);
}

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO.
    let from_terminal = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let newest = if from_terminal { -signal } else { signal };
    // Relaxed: single numbers that publish nothing. The tracer polls on its thread, and may find
    // the signal of the next wish with this one.
    NEWEST.store(newest, Ordering::Relaxed);
    WISHES.fetch_add(1, Ordering::Relaxed);
    let program = PROGRAM.load(Ordering::Relaxed);
    if program > 0 {
        pass_to(program, newest);
    }
}

/// Sends a signal to a process, unless it came from the terminal (negative) and the process has it
/// already. Async-signal-safe.
fn pass_to(process: Tid, signal: libc::c_int) {
    // SAFETY: no memory is passed but errno's place, which is this thread's. It is restored for the
    // code that a handler interrupts.
    unsafe {
        let errno = *libc::__errno_location();
        // The terminal signals its whole foreground group.
        let has_it = signal < 0 && libc::getpgid(process) == libc::getpgrp();
        if !has_it {
            libc::kill(process, signal.abs());
        }
        *libc::__errno_location() = errno;
    }
}

/// While it exists, signals to end go to the program, as often as they come.
pub(in crate::live) struct Forwarding {
    /// The former action of each signal.
    old: Vec<(libc::c_int, libc::sigaction)>,
}

impl Forwarding {
    /// `Ok(None)` if another tracer in this process forwards the signals.
    pub(in crate::live) fn start(program: Tid) -> io::Result<Option<Self>> {
        // Acquire pairs with the Release in `drop`, so the former owner's handlers are removed.
        if TAKEN.swap(true, Ordering::Acquire) {
            return Ok(None);
        }
        // Relaxed: the handler runs only after `sigaction` below, a system call of this thread, and
        // sees both.
        WISHES.store(0, Ordering::Relaxed);
        PROGRAM.store(program, Ordering::Relaxed);
        let run = pass_on as *const () as libc::sighandler_t;
        // On failure, dropping it restores the actions that it has replaced so far.
        let mut forwarding = Forwarding { old: Vec::with_capacity(WISHES_TO_END.len()) };
        for signal in WISHES_TO_END {
            let old = handler(signal, run, libc::SA_SIGINFO)?;
            forwarding.old.push((signal, old));
            if signal == libc::SIGHUP && old.sa_sigaction == libc::SIG_IGN {
                // nohup: the program ignores the signal, and so does the tracer.
                // SAFETY: restores the former action.
                unsafe { libc::sigaction(signal, &old, ptr::null_mut()) };
            }
        }
        Ok(Some(forwarding))
    }

    /// Passes the newest signal on to a process that the program has left.
    pub(in crate::live) fn pass_on(&self, process: Tid) {
        // Relaxed: a single number, stored before the count that the tracer has read.
        pass_to(process, NEWEST.load(Ordering::Relaxed));
    }

    /// The number of signals so far.
    pub(in crate::live) fn wishes(&self) -> u32 {
        // Relaxed: a single counter that is polled.
        WISHES.load(Ordering::Relaxed)
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        for (signal, old) in &self.old {
            // SAFETY: restores the action that `start` found.
            unsafe { libc::sigaction(*signal, old, ptr::null_mut()) };
        }
        // Relaxed: the handlers are removed. The Release on `TAKEN` pairs with the Acquire in
        // `start`.
        PROGRAM.store(0, Ordering::Relaxed);
        TAKEN.store(false, Ordering::Release);
    }
}
