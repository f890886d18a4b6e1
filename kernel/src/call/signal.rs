//! Calls on signals.

use super::time;
use super::{Call, Outcome, Stop, fail};
use crate::clock;
use crate::errno::Errno;
use crate::task::signal::{self, Action, AltStack, Info, SI_TKILL, SI_USER, WholeInfo, bit};
use crate::task::{Process, Thread, process};
use crate::time::SECOND;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{E2BIG, EAGAIN, EINVAL, EPERM, ESRCH};

/// The bytes of a set of signals.
const SET: u64 = 8;

/// A number that a program gives; 0 where only the existence of a target is asked for.
pub(super) fn number(of: u64) -> Result<Option<u8>, Errno> {
    match of as u32 {
        0 => Ok(None),
        number @ 1..=64 => Ok(Some(number as u8)),
        _ => Err(Errno(EINVAL)),
    }
}

/// rt_sigaction(2).
pub(super) fn rt_sigaction(call: &mut Call<'_>) -> Outcome {
    let [of, new, old, size, ..] = call.args;
    if size != SET {
        return fail(EINVAL);
    }
    let new = if new == 0 { None } else { Some(call.user().read::<Action>(new)?) };
    let Some(number) = number(of)? else { return fail(EINVAL) };
    if new.is_some() && signal::UNCATCHABLE & bit(number) != 0 {
        return fail(EINVAL);
    }
    let before = signal::change_action(call.process(), number, new);
    if old != 0 {
        call.user().write(old, &before)?;
    }
    Ok(0)
}

/// rt_sigprocmask(2).
pub(super) fn rt_sigprocmask(call: &mut Call<'_>) -> Outcome {
    let [how, new, old, size, ..] = call.args;
    if size != SET {
        return fail(EINVAL);
    }
    let before = signal::mask(call.thread);
    if new != 0 {
        let set: u64 = call.user().read(new)?;
        let mask = match how as u32 {
            0 => before | set,
            1 => before & !set,
            2 => set,
            _ => return fail(EINVAL),
        };
        signal::set_mask(call.thread, mask);
    }
    if old != 0 {
        call.user().write(old, &before)?;
    }
    Ok(0)
}

/// rt_sigpending(2).
pub(super) fn rt_sigpending(call: &mut Call<'_>) -> Outcome {
    let [into, size, ..] = call.args;
    if size > SET {
        return fail(EINVAL);
    }
    let set = signal::blocked(call.thread).to_le_bytes();
    call.user().write_bytes(into, &set[..size as usize])?;
    Ok(0)
}

/// rt_sigsuspend(2).
pub(super) fn rt_sigsuspend(call: &mut Call<'_>) -> Outcome {
    let [set, size, ..] = call.args;
    if size != SET {
        return fail(EINVAL);
    }
    if call.own.resume.mask.is_none() {
        let set: u64 = call.user().read(set)?;
        call.own.resume.mask = Some(signal::set_mask(call.thread, set));
    }
    pause(call)
}

/// pause(2).
pub(super) fn pause(call: &mut Call<'_>) -> Outcome {
    call.thread.begin_wait();
    Err(call.rest())
}

/// rt_sigtimedwait(2).
pub(super) fn rt_sigtimedwait(call: &mut Call<'_>) -> Outcome {
    let [set, info, time, size, ..] = call.args;
    if size != SET {
        return fail(EINVAL);
    }
    let set = call.user().read::<u64>(set)? & !signal::UNCATCHABLE;
    if time != 0 && call.own.resume.deadline.is_none() {
        let nanos = time::timespec(call, time)?;
        call.own.resume.deadline = Some(clock::now().saturating_add(nanos));
    }
    call.thread.begin_wait();
    if let Some(found) = signal::take_awaited(call.thread, set) {
        call.thread.end_wait();
        if info != 0 {
            call.user().write(info, &found.whole())?;
        }
        return Ok(found.number().into());
    }
    let stop = match call.own.resume.deadline {
        Some(deadline) if clock::now() >= deadline => {
            call.thread.end_wait();
            Stop::Errno(Errno(EAGAIN))
        }
        deadline => {
            if let Some(deadline) = deadline {
                call.own.resume.wake_at(deadline, call.thread);
            }
            call.rest()
        }
    };
    if stop != Stop::Wait {
        signal::end_awaiting(call.thread);
    }
    Err(stop)
}

/// rt_sigreturn(2).
pub(super) fn rt_sigreturn(call: &mut Call<'_>) -> Outcome {
    let user = call.user();
    if signal::restore(call.thread, call.own, user).is_err() {
        signal::force(call.thread, call.own, signal::SIGSEGV, signal::SI_KERNEL, 0);
    }
    Err(Stop::Registers)
}

/// sigaltstack(2).
pub(super) fn sigaltstack(call: &mut Call<'_>) -> Outcome {
    let [new, old, ..] = call.args;
    let rsp = call.own.registers.rsp;
    let before = call.own.stack.told(rsp);
    if new != 0 {
        let new: AltStack = call.user().read(new)?;
        call.own.stack.set(new, rsp)?;
    }
    if old != 0 {
        call.user().write(old, &before)?;
    }
    Ok(0)
}

/// The process of a number, which may be that of any of its threads.
fn find_process(pid: u32) -> Result<Arc<Process>, Errno> {
    let of_thread = || process::thread(pid).map(|thread| Arc::clone(&thread.process));
    process::process(pid).or_else(of_thread).ok_or(Errno(ESRCH))
}

/// The thread of a number, in a process if one is named.
fn find_thread(group: Option<i32>, tid: i32) -> Result<Arc<Thread>, Errno> {
    if tid <= 0 || group.is_some_and(|group| group <= 0) {
        return Err(Errno(EINVAL));
    }
    process::thread(tid as u32)
        .filter(|thread| group.is_none_or(|group| thread.process.pid == group as u32))
        .ok_or(Errno(ESRCH))
}

/// kill(2).
pub(super) fn kill(call: &mut Call<'_>) -> Outcome {
    let [pid, of, ..] = call.args;
    let own = call.process();
    let send = |process: &Process| match number(of)? {
        None => Ok(()),
        Some(number) => signal::send(process, Info::sent(number, SI_USER, own.pid)),
    };
    // Relaxed: only the number.
    let group_of = |process: &Process| process.group.load(Ordering::Relaxed);
    let group = match pid as i32 {
        pid @ 1.. => {
            let process = find_process(pid as u32)?;
            send(&process)?;
            return Ok(0);
        }
        i32::MIN => return fail(ESRCH),
        0 => Some(group_of(own)),
        -1 => None,
        group => Some(group.unsigned_abs()),
    };
    let is_target = |process: &Arc<Process>| match group {
        Some(group) => group_of(process) == group,
        None => process.pid != process::FIRST && !Arc::ptr_eq(process, own),
    };
    let mut result = Err(Errno(ESRCH));
    process::for_each(|process| {
        if is_target(process) {
            let sent = send(process);
            if result.is_err() {
                result = sent;
            }
        }
    });
    result?;
    Ok(0)
}

/// tkill(2).
pub(super) fn tkill(call: &mut Call<'_>) -> Outcome {
    let [tid, of, ..] = call.args;
    send_to(call, &find_thread(None, tid as i32)?, of)
}

/// tgkill(2).
pub(super) fn tgkill(call: &mut Call<'_>) -> Outcome {
    let [group, tid, of, ..] = call.args;
    send_to(call, &find_thread(Some(group as i32), tid as i32)?, of)
}

fn send_to(call: &Call<'_>, thread: &Arc<Thread>, of: u64) -> Outcome {
    if let Some(number) = number(of)? {
        signal::send_to_thread(thread, Info::sent(number, SI_TKILL, call.process().pid))?;
    }
    Ok(0)
}

/// Reads the `siginfo_t` of a signal that a program sends. Only to itself, it may say that it
/// comes from the kernel, or from kill or tkill.
pub(super) fn read_info(
    call: &Call<'_>,
    at: u64,
    of: u64,
    itself: u32,
    target: i32,
) -> Result<Info, Errno> {
    let mut whole: WholeInfo = call.user().read(at)?;
    whole.info.number = of as i32;
    if !whole.is_complete() {
        return Err(Errno(E2BIG));
    }
    if (whole.info.code >= 0 || whole.info.code == SI_TKILL) && target as u32 != itself {
        return Err(Errno(EPERM));
    }
    Ok(whole.info.of_program())
}

/// rt_sigqueueinfo(2).
pub(super) fn rt_sigqueueinfo(call: &mut Call<'_>) -> Outcome {
    let [pid, of, info, ..] = call.args;
    let info = read_info(call, info, of, call.process().pid, pid as i32)?;
    let process = find_process(pid as u32)?;
    if number(of)?.is_some() {
        signal::send(&process, info)?;
    }
    Ok(0)
}

/// rt_tgsigqueueinfo(2).
pub(super) fn rt_tgsigqueueinfo(call: &mut Call<'_>) -> Outcome {
    let [group, tid, of, info, ..] = call.args;
    let (group, tid) = (group as i32, tid as i32);
    if group <= 0 || tid <= 0 {
        return fail(EINVAL);
    }
    let info = read_info(call, info, of, call.thread.tid(), tid)?;
    let thread = find_thread(Some(group), tid)?;
    if number(of)?.is_some() {
        signal::send_to_thread(&thread, info)?;
    }
    Ok(0)
}

/// alarm(2): in seconds.
pub(super) fn alarm(call: &mut Call<'_>) -> Outcome {
    let nanos = u64::from(call.args[0] as u32) * SECOND;
    let (left, _) = signal::set_alarm(call.process(), Some((nanos, 0)));
    // To the next second; but a timer that runs has at least one.
    let seconds = (left + SECOND / 2) / SECOND;
    Ok(if left != 0 { seconds.max(1) } else { 0 })
}

/// An `itimerval`, from nanoseconds.
fn itimerval((left, interval): (u64, u64)) -> [u64; 4] {
    // A timer that runs has a microsecond left at least.
    let micros = left.div_ceil(1000);
    [interval / SECOND, interval % SECOND / 1000, micros / 1_000_000, micros % 1_000_000]
}

/// A `timeval` in nanoseconds.
fn nanos(seconds: i64, micros: i64) -> Result<u64, Errno> {
    if seconds < 0 || !(0..1_000_000).contains(&micros) {
        return Err(Errno(EINVAL));
    }
    Ok((seconds as u64).saturating_mul(SECOND).saturating_add(micros as u64 * 1000))
}

/// setitimer(2), of ITIMER_REAL alone: the kernel does not measure the time of a program by ticks.
pub(super) fn setitimer(call: &mut Call<'_>) -> Outcome {
    let [which, new, old, ..] = call.args;
    // Without a new state it is stopped, as in Linux.
    let state = match new {
        0 => (0, 0),
        new => {
            let [interval, interval_micros, left, left_micros]: [i64; 4] = call.user().read(new)?;
            (nanos(left, left_micros)?, nanos(interval, interval_micros)?)
        }
    };
    if which as u32 != 0 {
        return fail(EINVAL);
    }
    let before = signal::set_alarm(call.process(), Some(state));
    if old != 0 {
        call.user().write(old, &itimerval(before))?;
    }
    Ok(0)
}

/// getitimer(2).
pub(super) fn getitimer(call: &mut Call<'_>) -> Outcome {
    let [which, into, ..] = call.args;
    if which as u32 != 0 {
        return fail(EINVAL);
    }
    call.user().write(into, &itimerval(signal::set_alarm(call.process(), None)))?;
    Ok(0)
}
