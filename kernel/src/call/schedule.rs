//! Calls on priorities and scheduling policies. `task/schedule.rs` has their effect.
//!
//! The kernel cannot keep the promises of SCHED_FIFO, SCHED_RR and SCHED_DEADLINE. They fail with
//! EPERM, as in Linux for a program without the right to them.

use super::{Call, Outcome, fail};
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::schedule::{BATCH, DEADLINE, FIFO, IDLE, OTHER, RESET, RR};
use crate::task::{Process, Thread, process};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{E2BIG, EINVAL, EPERM, ESRCH};
use zerocopy::IntoBytes;

/// Calls `each` with the threads that getpriority(2) and setpriority(2) mean.
fn each_of(call: &Call<'_>, mut each: impl FnMut(&Thread)) -> Result<(), Errno> {
    let [which, who, ..] = call.args;
    let who = who as u32;
    let mut any = false;
    let mut each = |thread: &Thread| {
        any = true;
        each(thread);
    };
    // Relaxed: only the number.
    let group = |process: &Process| process.group.load(Ordering::Relaxed);
    let user = |process: &Process| lock(&process.identity).user[0];
    match which as i32 {
        0 if who == 0 => each(call.thread),
        0 => process::thread(who).iter().for_each(|thread| each(thread)),
        1 | 2 => {
            let own = if which == 1 { group(call.process()) } else { user(call.process()) };
            let wanted = if who == 0 { own } else { who };
            process::for_each(|process| {
                let found = if which == 1 { group(process) } else { user(process) };
                if found == wanted {
                    lock(&process.threads).iter().for_each(|thread| each(thread));
                }
            });
        }
        _ => return Err(Errno(EINVAL)),
    }
    if any { Ok(()) } else { Err(Errno(ESRCH)) }
}

/// getpriority(2): 20 minus the least nice value.
pub(super) fn getpriority(call: &mut Call<'_>) -> Outcome {
    let mut least = i32::MAX;
    each_of(call, |thread| least = least.min(thread.schedule.nice()))?;
    Ok((20 - least) as u64)
}

/// setpriority(2).
pub(super) fn setpriority(call: &mut Call<'_>) -> Outcome {
    let nice = call.args[2] as i32;
    each_of(call, |thread| thread.schedule.set_nice(nice))?;
    Ok(0)
}

fn find(call: &Call<'_>, tid: u64) -> Result<Arc<Thread>, Errno> {
    match tid as i32 {
        ..0 => Err(Errno(EINVAL)),
        0 => Ok(Arc::clone(call.thread)),
        tid => process::thread(tid as u32).ok_or(Errno(ESRCH)),
    }
}

/// Checks a policy and its priority.
fn check(policy: u32, priority: u32) -> Result<(), Errno> {
    match policy & !RESET {
        OTHER | BATCH | IDLE if priority == 0 => Ok(()),
        FIFO | RR if (1..=99).contains(&priority) => Err(Errno(EPERM)),
        _ => Err(Errno(EINVAL)),
    }
}

/// sched_getscheduler(2).
pub(super) fn sched_getscheduler(call: &mut Call<'_>) -> Outcome {
    Ok(find(call, call.args[0])?.schedule.policy().into())
}

/// sched_setscheduler(2).
pub(super) fn sched_setscheduler(call: &mut Call<'_>) -> Outcome {
    let [tid, policy, parameter, ..] = call.args;
    if (policy as i32) < 0 {
        return fail(EINVAL);
    }
    set(call, tid, Some(policy as u32), parameter)
}

/// sched_setparam(2).
pub(super) fn sched_setparam(call: &mut Call<'_>) -> Outcome {
    let [tid, parameter, ..] = call.args;
    set(call, tid, None, parameter)
}

fn set(call: &Call<'_>, tid: u64, policy: Option<u32>, parameter: u64) -> Outcome {
    if parameter == 0 || (tid as i32) < 0 {
        return fail(EINVAL);
    }
    let priority: u32 = call.user().read(parameter)?;
    let thread = find(call, tid)?;
    let policy = policy.unwrap_or_else(|| thread.schedule.policy());
    check(policy, priority)?;
    thread.schedule.set_policy(policy);
    Ok(0)
}

/// sched_getparam(2): without real-time policies, the priority is 0.
pub(super) fn sched_getparam(call: &mut Call<'_>) -> Outcome {
    let [tid, into, ..] = call.args;
    if into == 0 {
        return fail(EINVAL);
    }
    find(call, tid)?;
    call.user().write(into, &0_u32)?;
    Ok(0)
}

/// sched_get_priority_max(2), and with `least` sched_get_priority_min(2).
pub(super) fn priority_range(call: &mut Call<'_>, least: bool) -> Outcome {
    match call.args[0] as u32 {
        FIFO | RR => Ok(if least { 1 } else { 99 }),
        // SCHED_EXT is the last.
        OTHER | BATCH | IDLE | DEADLINE | 7 => Ok(0),
        _ => fail(EINVAL),
    }
}

/// sched_rr_get_interval(2): the length of a turn.
pub(super) fn sched_rr_get_interval(call: &mut Call<'_>) -> Outcome {
    let [tid, into, ..] = call.args;
    let turn = find(call, tid)?.schedule.turn();
    call.user().write(into, &[0, turn])?;
    Ok(0)
}

/// The bytes of the first sched_attr, and of that of today.
const FIRST: u32 = 48;
const TODAY: u32 = 56;

/// sched_getattr(2).
pub(super) fn sched_getattr(call: &mut Call<'_>) -> Outcome {
    let [tid, into, size, flags, ..] = call.args;
    let size = size as u32;
    if into == 0 || !(FIRST..=4096).contains(&size) || flags as u32 != 0 {
        return fail(EINVAL);
    }
    let thread = find(call, tid)?;
    let (policy, nice) = (thread.schedule.policy(), thread.schedule.nice());
    let size = size.min(TODAY);
    let resets = u32::from(policy & RESET != 0);
    let turn = thread.schedule.turn();
    // Size, policy, flags, nice, priority; runtime, deadline, period; the range of the frequency.
    let mut words = [size, policy & !RESET, resets, 0, nice as u32, 0, 0, 0, 0, 0, 0, 0, 0, 1024];
    (words[6], words[7]) = (turn as u32, (turn >> 32) as u32);
    call.user().write_bytes(into, &words.as_bytes()[..size as usize])?;
    Ok(0)
}

/// sched_setattr(2).
pub(super) fn sched_setattr(call: &mut Call<'_>) -> Outcome {
    const RESETS: u64 = 1;
    const KEEP_POLICY: u64 = 8;
    const KEEP_PARAMETERS: u64 = 16;
    let [tid, from, flags, ..] = call.args;
    if from == 0 || (tid as i32) < 0 || flags as u32 != 0 {
        return fail(EINVAL);
    }
    let user = call.user();
    let size = match user.read::<u32>(from)? {
        0 => FIRST,
        size => size,
    };
    let too_large = || user.write(from, &TODAY).map_or_else(|errno| errno, |()| Errno(E2BIG));
    if !(FIRST..=4096).contains(&size) {
        return Err(too_large().into());
    }
    for place in u64::from(TODAY)..u64::from(size) {
        if user.read::<u8>(from.wrapping_add(place))? != 0 {
            return Err(too_large().into());
        }
    }
    let [_, policy, flags, high, nice, priority]: [u32; 6] = user.read(from)?;
    let flags = u64::from(high) << 32 | u64::from(flags);
    if (policy as i32) < 0 || flags & !0x7f != 0 {
        return fail(EINVAL);
    }
    let thread = find(call, tid)?;
    let reset = if flags & RESETS != 0 { RESET } else { 0 };
    let kept = thread.schedule.policy() & !RESET;
    let policy = if flags & KEEP_POLICY != 0 { kept } else { policy };
    check(policy, priority)?;
    thread.schedule.set_policy(policy | reset);
    if flags & KEEP_PARAMETERS == 0 {
        thread.schedule.set_nice(nice as i32);
    }
    Ok(0)
}
