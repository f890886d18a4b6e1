//! The child's life: it lets itself be traced, sets up, warms up, and runs the measured runs.

use std::{hint::black_box, ops::DerefMut, panic, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
};

use super::marker::{Kind, counted, encode, mark};
use crate::operation::Plan;

/// At a cache line of its own, so that counts do not depend on its neighbours.
#[repr(align(64))]
struct OwnLines<T>(T);

/// Signals that the child takes at once: those that its own instructions raise, and the time limit.
const TAKEN: [Signal; 8] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGILL,
    Signal::SIGFPE,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGABRT,
    Signal::SIGALRM,
];

/// How long the child may take to its first marker. Only one thing can hold it up: the panic hook's
/// lock, if another thread of the parent held it at the fork. Nothing of the caller's has run by
/// then, so the tracer just forks again.
const PATIENCE: Duration = Duration::from_millis(50);

/// Everything that the child does. Its tracer ends it after the last run.
pub(super) fn live<T, S, O>(plan: Plan<'_, T>, setup: S, op: O)
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let Plan { mut prepare, regions, warm_up, runs, time_limit } = plan;
    if let Err(refused) = be_traced() {
        // SAFETY: ends this process, which is ours. The tracer reads the reason from the code.
        unsafe { libc::_exit(refused as i32) };
    }
    // Waits for ever if a thread that this process does not have was panicking: see `PATIENCE`.
    panic::set_hook(Box::new(|panic| mark(Kind::Panicked, panic.to_string().as_bytes())));
    alarm(time_limit.max(Duration::from_micros(1)));
    mark(Kind::Hello, &[]);

    let mut state = Box::new(OwnLines(setup()));
    let mut op = Box::new(OwnLines(op));
    let (op, state) = (&raw mut op.deref_mut().0, &raw mut state.deref_mut().0);
    let mut prepare = || {
        // SAFETY: the box lives to the end of this function, and no other reference to the state
        // does now.
        prepare(unsafe { &mut *state });
    };
    let run: unsafe extern "C" fn(*mut O, *mut T) = black_box(run::<T, O>);
    for _ in 0..warm_up {
        prepare();
        // SAFETY: both boxes live to the end of this function and are used by this call alone.
        unsafe { run(op, state) };
    }
    // SAFETY: as in `prepare`.
    let regions = regions(unsafe { &*state });
    mark(Kind::Regions, &encode(&regions));
    for _ in 0..runs {
        prepare();
        // SAFETY: as for warm-up; a panic ends in the hook or, at the latest, at `extern "C"`.
        unsafe { counted(run, op, state) };
    }
}

/// Runs the operation once: the function whose instructions are counted.
///
/// # Safety
/// Both pointers must be valid and used by nobody else during the call.
unsafe extern "C" fn run<T, O: FnMut(&mut T)>(op: *mut O, state: *mut T) {
    // SAFETY: the caller vouches for both.
    unsafe { (*op)(&mut *state) }
}

/// Lets the tracer trace this process, for no longer than [`PATIENCE`] at first.
pub(super) fn be_traced() -> Result<(), Errno> {
    let mut blocked = SigSet::all();
    for signal in TAKEN {
        blocked.remove(signal);
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
    ptrace::traceme()?;
    alarm(PATIENCE);
    Ok(())
}

/// SIGALRM after this time, instead of any that was ordered before.
fn alarm(after: Duration) {
    let once = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_usec: after.subsec_micros().into(),
        },
    };
    // SAFETY: `once` is valid, and the old value is not asked for. The kernel refuses no such time.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, std::ptr::null_mut()) };
}
