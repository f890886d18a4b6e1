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

/// Everything that the child does. Its tracer ends it after the last run.
pub(super) fn live<T, S, O>(plan: Plan<'_, T>, setup: S, op: O)
where
    S: FnOnce() -> T,
    O: FnMut(&mut T),
{
    let Plan { mut prepare, regions, warm_up, runs, time_limit } = plan;
    if let Err(refused) = be_traced(time_limit) {
        // SAFETY: ends this process, which is ours. The tracer reads the reason from the code.
        unsafe { libc::_exit(refused as i32) };
    }
    panic::set_hook(Box::new(|panic| mark(Kind::Panicked, panic.to_string().as_bytes())));
    mark(Kind::Hello, &[]);

    let mut state = Box::new(OwnLines(setup()));
    let mut op = Box::new(OwnLines(op));
    let (op, state) = (&raw mut op.deref_mut().0, &raw mut state.deref_mut().0);
    let mut prepare = || {
        // SAFETY: the box lives to the end of this function, and no other reference to the state does now.
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

fn be_traced(time_limit: Duration) -> Result<(), Errno> {
    let mut blocked = SigSet::all();
    for signal in TAKEN {
        blocked.remove(signal);
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None)?;
    ptrace::traceme()?;
    // A part of a second counts as one, and no limit at all is one second: zero would mean never.
    let seconds = time_limit.as_secs() + u64::from(time_limit.subsec_nanos() > 0);
    // SAFETY: takes a number.
    unsafe { libc::alarm(seconds.clamp(1, u32::MAX.into()) as u32) };
    Ok(())
}
