//! Timers of a process that send signals: timer_create(2) and its kin. There are none that measure
//! the time of a program.

use super::{Call, Outcome, due, fail, timespec, write_itimerspec};
use crate::errno::Errno;
use crate::task::process::{self, Process};
use crate::task::signal::SIGALRM;
use crate::task::signal::timers::Target;
use crate::task::thread::Thread;
use alloc::sync::{Arc, Weak};
use linux_raw_sys::errno::{EFAULT, EINVAL, EOPNOTSUPP};

/// timer_create(2).
pub(super) fn timer_create(call: &mut Call<'_>) -> Outcome {
    const SIGNAL: u32 = 0;
    const NONE: u32 = 1;
    const THREAD: u32 = 2;
    const THREAD_ID: u32 = 4;
    let [clock, event, into, ..] = call.args;
    let process: Weak<Process> = Arc::downgrade(call.process());
    let event = match event {
        0 => None,
        event => {
            // The value; the signal and the kind; the thread. The rest is read, and is no matter.
            let [value, signal, thread, ..]: [u64; 8] = call.user().read(event)?;
            Some((value, signal as u32, (signal >> 32) as u32, thread as u32))
        }
    };
    let real_time = match clock {
        // REALTIME, TAI
        0 | 11 => true,
        // MONOTONIC, BOOTTIME
        1 | 7 => false,
        2..=6 | 8 | 9 => return fail(EOPNOTSUPP),
        _ => return fail(EINVAL),
    };
    let (signal, target): (_, Option<Weak<dyn Target>>) = match event {
        None => ((SIGALRM, None), Some(process)),
        Some((value, signal, kind, tid)) => {
            let target: Option<Weak<dyn Target>> = match kind {
                NONE => None,
                SIGNAL | THREAD => Some(process),
                THREAD_ID => {
                    let thread = process::thread(tid);
                    let ours = |thread: &_| Arc::ptr_eq(thread, call.process());
                    let thread = thread.filter(|thread| ours(&thread.process));
                    let thread: Weak<Thread> = Arc::downgrade(&thread.ok_or(Errno(EINVAL))?);
                    Some(thread)
                }
                _ => return fail(EINVAL),
            };
            if kind != NONE && !(1..=64).contains(&signal) {
                return fail(EINVAL);
            }
            ((signal as u8, Some(value)), target)
        }
    };
    let timers = &call.process().timers;
    let id = timers.create(real_time, signal, target)?;
    let written = call.user().write(into, &id);
    if written.is_err() {
        timers.delete(id);
    }
    written?;
    Ok(0)
}

/// timer_settime(2).
pub(super) fn timer_settime(call: &mut Call<'_>) -> Outcome {
    const ABSOLUTE: u64 = 1;
    let [id, flags, new, old, ..] = call.args;
    if new == 0 {
        return fail(EINVAL);
    }
    // The whole value is read before it is looked at.
    call.user().read::<[u64; 4]>(new)?;
    let interval = timespec(call, new)?;
    let value = timespec(call, new.checked_add(16).ok_or(Errno(EFAULT))?)?;
    let timer = call.process().timers.find(id as u32).ok_or(Errno(EINVAL))?;
    let due = due(value, flags & ABSOLUTE != 0, timer.real_time);
    let before = timer.set(Some((due, interval)));
    if old != 0 {
        write_itimerspec(call, old, before)?;
    }
    Ok(0)
}

/// timer_gettime(2).
pub(super) fn timer_gettime(call: &mut Call<'_>) -> Outcome {
    let [id, into, ..] = call.args;
    let timer = call.process().timers.find(id as u32).ok_or(Errno(EINVAL))?;
    write_itimerspec(call, into, timer.set(None))?;
    Ok(0)
}

/// timer_getoverrun(2).
pub(super) fn timer_getoverrun(call: &mut Call<'_>) -> Outcome {
    let timer = call.process().timers.find(call.args[0] as u32).ok_or(Errno(EINVAL))?;
    Ok(timer.overrun().into())
}

/// timer_delete(2).
pub(super) fn timer_delete(call: &mut Call<'_>) -> Outcome {
    match call.process().timers.delete(call.args[0] as u32) {
        true => Ok(0),
        false => fail(EINVAL),
    }
}
