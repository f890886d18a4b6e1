//! The child: it allows tracing, sets up, warms up, and executes the measured runs.

use std::{hint::black_box, ops::DerefMut, panic, time::Duration};

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
    },
};

use super::marker::{MarkerKind, counted, encode, mark};
use crate::operation::Plan;

/// Aligned to a cache line, so that the counts do not depend on its neighbours.
#[repr(align(64))]
struct OwnLines<T>(T);

/// Signals that the child receives at once: those that its own instructions raise, and the time
/// limit.
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

/// The time until the child must reach its first marker. Only the panic hook's lock can delay it,
/// if another thread of the parent held the lock at the fork. The child has not run any of the
/// caller's code then, so the tracer forks again.
const PATIENCE: Duration = Duration::from_millis(50);

/// The child's program. The tracer kills it after the last run.
pub(super) fn live<T, S, O>(plan: Plan<'_, T>, setup: S, op: O)
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let Plan { mut prepare, regions, warm_up, runs, time_limit } = plan;
    if let Err(refused) = be_traced() {
        // SAFETY: ends this process, which is ours. The tracer reads the reason from the exit code.
        unsafe { libc::_exit(refused as i32) };
    }
    // Hangs if a thread that this process does not have was panicking: see `PATIENCE`.
    panic::set_hook(Box::new(|panic| mark(MarkerKind::Panicked, panic.to_string().as_bytes())));
    alarm(time_limit.max(Duration::from_micros(1)));
    mark(MarkerKind::Hello, &[]);

    let mut state = Box::new(OwnLines(setup()));
    let mut op = Box::new(OwnLines(op));
    let (op, state) = (&raw mut op.deref_mut().0, &raw mut state.deref_mut().0);
    let mut prepare = || {
        // SAFETY: the box lives to the end of this function, and no other reference to the state
        // exists now.
        prepare(unsafe { &mut *state });
    };
    let run: unsafe extern "C" fn(*mut O, *mut T) = black_box(run::<T, O>);
    for _ in 0..warm_up {
        prepare();
        // SAFETY: both boxes live to the end of this function, and only this call uses them.
        unsafe { run(op, state) };
    }
    // SAFETY: as in `prepare`.
    let regions = regions(unsafe { &*state });
    mark(MarkerKind::Regions, &encode(&regions));
    for _ in 0..runs {
        prepare();
        // SAFETY: as for the warm-up. A panic ends in the hook or, at the latest, at `extern "C"`.
        unsafe { counted(run, op, state) };
    }
}

/// Runs the operation once. The instructions of this function are counted.
///
/// # Safety
/// Both pointers must be valid, and no other code uses them during the call.
unsafe extern "C" fn run<T, O: FnMut(&mut T)>(op: *mut O, state: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { (*op)(&mut *state) }
}

/// Allows the tracer to trace this process, at first for no longer than [`PATIENCE`].
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

/// Orders a SIGALRM after this time, and cancels an earlier one.
fn alarm(after: Duration) {
    let once = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_usec: after.subsec_micros().into(),
        },
    };
    // SAFETY: `once` is valid, and the old value is not requested. The kernel accepts every such
    // time.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const once, std::ptr::null_mut()) };
}
