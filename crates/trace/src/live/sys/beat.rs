//! A heartbeat: a timer that interrupts the waiting tracer some times a second, so that it notices
//! a wish to end and a call that blocks while others wait for it. Also the handler of such wishes.
//!
//! The timer signals this very thread, so several tracers in one process keep apart. A beat that
//! comes just before the wait begins is lost without harm: the next one follows.

use std::{
    io, mem, ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    time::Duration,
};

use super::{Tid, check};

/// How often a waiting tracer looks up. Costs one return from `waitpid` each.
pub(in crate::live) const PERIOD: Duration = Duration::from_millis(50);

/// The same while a thread waits for another one's call, which may in turn wait for it.
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
    // SAFETY: both structs are plain data for which zeroes are valid; `run` is a handler of the
    // kind that `flags` announces, and both handlers here only call async-signal-safe functions.
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

/// The running timer; dropping it stops the beats.
pub(in crate::live) struct Heartbeat(libc::timer_t);

impl Heartbeat {
    /// Starts to interrupt the calling thread.
    pub(in crate::live) fn start() -> io::Result<Self> {
        // Without SA_RESTART, so that the wait returns. The handler stays installed for good:
        // a late beat must never meet the default action.
        handler(beat_signal(), ignore as *const () as libc::sighandler_t, 0)?;
        // SAFETY: `event` is plain data; the thread id is our own; `timer` is filled before use.
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

    /// Changes the time from one beat to the next, from now on.
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

/// What asks a program to end: from the keyboard, from others, and because its terminal went away.
const WISHES_TO_END: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The process that these are passed to; 0 while nobody wants them.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// How many of them came.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// Whether some tracer of this process has them now.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The program has ended: its number may soon be somebody else's.
pub(in crate::live) fn program_ended(program: Tid) {
    // Relaxed: a lone number. An exchange, because another tracer's program must stay.
    let _other = PROGRAM.compare_exchange(program, 0, Ordering::Relaxed, Ordering::Relaxed);
}

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // Relaxed: both are lone numbers, nothing else is read on their word; the tracer polls.
    let before = WISHES.fetch_add(1, Ordering::Relaxed);
    let program = PROGRAM.load(Ordering::Relaxed);
    // SAFETY: the kernel hands a valid siginfo to a handler installed with SA_SIGINFO; getpgrp,
    // getpgid and kill are async-signal-safe, and errno is put back for whom this interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        // The terminal signals its whole foreground group: then the program has its own already.
        let from_terminal = (*info).si_code == libc::SI_KERNEL;
        let has_its_own = from_terminal && libc::getpgid(program) == libc::getpgrp();
        if program > 0 && !(before == 0 && has_its_own) {
            libc::kill(program, if before == 0 { signal } else { libc::SIGKILL });
        }
        *libc::__errno_location() = errno;
    }
}

/// While it lives, signals that ask to end go to the program; the second one kills it.
pub(in crate::live) struct Forwarding {
    /// What was there before, by signal.
    old: Vec<(libc::c_int, libc::sigaction)>,
}

impl Forwarding {
    /// `Ok(None)` if another tracer of this process has the signals.
    pub(in crate::live) fn start(program: Tid) -> io::Result<Option<Self>> {
        // Acquire pairs with the Release in `drop`: the former owner's handlers are put back.
        if TAKEN.swap(true, Ordering::Acquire) {
            return Ok(None);
        }
        // Relaxed: `sigaction` below is a system call of this thread; the handler sees both.
        WISHES.store(0, Ordering::Relaxed);
        PROGRAM.store(program, Ordering::Relaxed);
        let run = pass_on as *const () as libc::sighandler_t;
        // Dropped on failure, it puts back what it has taken so far.
        let mut forwarding = Forwarding { old: Vec::with_capacity(WISHES_TO_END.len()) };
        for signal in WISHES_TO_END {
            let old = handler(signal, run, libc::SA_SIGINFO)?;
            forwarding.old.push((signal, old));
            if signal == libc::SIGHUP && old.sa_sigaction == libc::SIG_IGN {
                // nohup: the program ignores it, and so do we.
                // SAFETY: puts back what was there.
                unsafe { libc::sigaction(signal, &old, ptr::null_mut()) };
            }
        }
        Ok(Some(forwarding))
    }

    /// How many signals came so far.
    pub(in crate::live) fn wishes(&self) -> u32 {
        // Relaxed: a lone counter that is polled.
        WISHES.load(Ordering::Relaxed)
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        for (signal, old) in &self.old {
            // SAFETY: puts back what `start` found.
            unsafe { libc::sigaction(*signal, old, ptr::null_mut()) };
        }
        // Relaxed: the handlers are gone. Release on the owner's flag pairs with `start`.
        PROGRAM.store(0, Ordering::Relaxed);
        TAKEN.store(false, Ordering::Release);
    }
}
