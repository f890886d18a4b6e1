//! Calls on time.

use super::{Call, Outcome, Stop, fail};
use crate::clock;
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::usage::Used;
use crate::time::{SECOND, SWITCHED_ON, real_time, ticks};
use linux_raw_sys::errno::{EFAULT, EINVAL};

/// Reads a timespec, in nanoseconds.
pub(crate) fn timespec(call: &Call<'_>, at: u64) -> Result<u64, Errno> {
    let [seconds, nanos]: [i64; 2] = call.user().read(at)?;
    if seconds < 0 || !(0..SECOND as i64).contains(&nanos) {
        return Err(Errno(EINVAL));
    }
    Ok((seconds as u64).saturating_mul(SECOND).saturating_add(nanos as u64))
}

/// The time at which a timer is due first, in that of the machine: `value` nanoseconds from now,
/// or at `value` if it is absolute, of the real time or of the machine's. 0 stops it.
pub(crate) fn due(value: u64, is_absolute: bool, real_time_counts: bool) -> Option<u64> {
    match (value, is_absolute) {
        (0, _) => None,
        (value, false) => Some(clock::now().saturating_add(value)),
        (value, true) if real_time_counts => Some(value.saturating_sub(real_time() - clock::now())),
        (value, true) => Some(value),
    }
}

/// Writes an itimerspec.
pub(crate) fn write_itimerspec(
    call: &Call<'_>,
    at: u64,
    (left, interval): (u64, u64),
) -> Result<(), Errno> {
    call.user().write(at, &[to_timespec(interval), to_timespec(left)])
}

pub(crate) fn to_timespec(nanos: u64) -> [u64; 2] {
    [nanos / SECOND, nanos % SECOND]
}

/// The reading of a clock.
fn read(call: &mut Call<'_>, clock: u64) -> Result<u64, Errno> {
    match clock {
        // REALTIME, REALTIME_COARSE, TAI
        0 | 5 | 11 => Ok(real_time()),
        // MONOTONIC, MONOTONIC_RAW, MONOTONIC_COARSE, BOOTTIME
        1 | 4 | 6 | 7 => Ok(clock::now()),
        // PROCESS_CPUTIME_ID
        2 => {
            call.thread.tell(call.own, false);
            Ok(call.process().used.get().nanos)
        }
        // THREAD_CPUTIME_ID
        3 => {
            call.thread.tell(call.own, false);
            Ok(call.thread.used.get().nanos)
        }
        _ => Err(Errno(EINVAL)),
    }
}

/// clock_gettime(2).
pub(super) fn clock_gettime(call: &mut Call<'_>) -> Outcome {
    let now = read(call, call.args[0])?;
    call.user().write(call.args[1], &to_timespec(now))?;
    Ok(0)
}

/// clock_getres(2).
pub(super) fn clock_getres(call: &mut Call<'_>) -> Outcome {
    read(call, call.args[0])?;
    if call.args[1] != 0 {
        call.user().write(call.args[1], &to_timespec(1))?;
    }
    Ok(0)
}

/// gettimeofday(2).
pub(super) fn gettimeofday(call: &mut Call<'_>) -> Outcome {
    let now = real_time();
    if call.args[0] != 0 {
        call.user().write(call.args[0], &[now / SECOND, now % SECOND / 1000])?;
    }
    if call.args[1] != 0 {
        call.user().write(call.args[1], &[0_u32; 2])?;
    }
    Ok(0)
}

/// time(2).
pub(super) fn time(call: &mut Call<'_>) -> Outcome {
    let seconds = real_time() / SECOND;
    if call.args[0] != 0 {
        call.user().write(call.args[0], &seconds)?;
    }
    Ok(seconds)
}

/// times(2).
pub(super) fn times(call: &mut Call<'_>) -> Outcome {
    let process = call.process();
    call.thread.tell(call.own, false);
    if call.args[0] != 0 {
        let (own, children) = (process.used.get(), process.used_by_children.get());
        let times = [own.user(), own.system, children.user(), children.system].map(ticks);
        call.user().write(call.args[0], &times)?;
    }
    Ok(ticks(clock::now()))
}

/// nanosleep(2).
pub(super) fn nanosleep(call: &mut Call<'_>) -> Outcome {
    let [time, rest, ..] = call.args;
    let nanos = timespec(call, time)?;
    sleep_until(call, || clock::now().saturating_add(nanos), rest)
}

/// clock_nanosleep(2).
pub(super) fn clock_nanosleep(call: &mut Call<'_>) -> Outcome {
    let [clock, flags, time, rest, ..] = call.args;
    if !matches!(clock, 0 | 1 | 7 | 11) {
        return fail(EINVAL);
    }
    let nanos = timespec(call, time)?;
    let absolute = flags & 1 != 0;
    let until = || match (absolute, clock) {
        (false, _) => clock::now().saturating_add(nanos),
        (true, 0 | 11) => nanos.saturating_sub(SWITCHED_ON),
        (true, _) => nanos,
    };
    sleep_until(call, until, if absolute { 0 } else { rest })
}

/// Sleeps until a time, which is computed once. If a signal comes, writes the time that is left to
/// `rest`.
fn sleep_until(call: &mut Call<'_>, until: impl FnOnce() -> u64, rest: u64) -> Outcome {
    let deadline = *call.own.resume.deadline.get_or_insert_with(until);
    match wait_until(call, deadline) {
        Err(Stop::Interrupted) if rest != 0 => {
            let left = deadline.saturating_sub(clock::now());
            call.user().write(rest, &to_timespec(left)).map_err(|_| Errno(EFAULT))?;
            Err(Stop::Interrupted)
        }
        outcome => outcome,
    }
}

/// Waits until a time, or until it is interrupted.
pub(crate) fn wait_until(call: &mut Call<'_>, deadline: u64) -> Outcome {
    if clock::now() >= deadline {
        return Ok(0);
    }
    call.thread.begin_wait();
    call.own.resume.wake_at(deadline, call.thread);
    Err(call.rest())
}

/// getrusage(2): times and page faults.
pub(super) fn getrusage(call: &mut Call<'_>) -> Outcome {
    let [of, into, ..] = call.args;
    let process = call.process();
    call.thread.tell(call.own, false);
    let used = match of as i32 {
        0 => process.used.get(),
        1 => call.thread.used.get(),
        -1 => process.used_by_children.get(),
        _ => return fail(EINVAL),
    };
    call.user().write(into, &rusage(used))?;
    Ok(0)
}

/// A rusage: ru_utime, ru_stime and ru_minflt.
pub(super) fn rusage(used: Used) -> [u64; 18] {
    let mut usage = [0; 18];
    let timeval = |nanos: u64| [nanos / SECOND, nanos % SECOND / 1000];
    usage[..2].copy_from_slice(&timeval(used.user()));
    usage[2..4].copy_from_slice(&timeval(used.system));
    usage[8] = used.faults;
    usage
}

/// sysinfo(2).
pub(super) fn sysinfo(call: &mut Call<'_>) -> Outcome {
    use machine::FrameSource;
    let mut words = [0_u64; 14];
    words[0] = clock::now() / SECOND;
    words[4] = crate::stats::frames_at_start() << 12;
    words[5] = (crate::machine::Kernel.free_frames() as u64) << 12;
    crate::task::process::for_each(|one| words[10] += lock(&one.threads).len() as u64);
    words[13] = 1;
    call.user().write(call.args[0], &words)?;
    Ok(0)
}
