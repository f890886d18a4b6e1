//! timerfd_create(2), timerfd_settime(2), timerfd_gettime(2).

use super::{Call, Outcome, check_flags};
use crate::call::{due, fail, timespec, write_itimerspec};
use crate::errno::Errno;
use crate::file::inode::InodeKind;
use crate::file::open::Mode;
use crate::file::timerfd::TimerFd;
use alloc::sync::Arc;
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};

/// timerfd_create(2).
pub(in crate::call) fn timerfd_create(call: &mut Call<'_>) -> Outcome {
    let [clock, flags, ..] = call.args;
    check_flags(flags, O_CLOEXEC | O_NONBLOCK)?;
    let real_time = match clock {
        // REALTIME, REALTIME_ALARM
        0 | 8 => true,
        // MONOTONIC, BOOTTIME, BOOTTIME_ALARM
        1 | 7 | 9 => false,
        _ => return fail(EINVAL),
    };
    let timer = InodeKind::Timer(TimerFd::new(real_time));
    Ok(call.descriptor(timer, Mode::READ_WRITE, flags as u32)?.into())
}

/// The timer of a descriptor.
fn timer(call: &Call<'_>, fd: u64) -> Result<Arc<TimerFd>, Errno> {
    match &call.open(fd)?.node.kind {
        InodeKind::Timer(timer) => Ok(Arc::clone(timer)),
        _ => Err(Errno(EINVAL)),
    }
}

/// timerfd_settime(2). No call sets a clock, so TFD_TIMER_CANCEL_ON_SET has no effect.
pub(in crate::call) fn timerfd_settime(call: &mut Call<'_>) -> Outcome {
    const ABSOLUTE: u64 = 1;
    const CANCEL_ON_SET: u64 = 2;
    let [fd, flags, new, old, ..] = call.args;
    let interval = timespec(call, new);
    let value = new.checked_add(16).ok_or(Errno(linux_raw_sys::errno::EFAULT));
    let value = value.and_then(|at| timespec(call, at));
    // The whole value is read before it is looked at.
    let (interval, value) = match (interval, value) {
        (Err(Errno(EINVAL)), Err(fault)) => return Err(fault.into()),
        (interval, value) => (interval?, value?),
    };
    check_flags(flags, (ABSOLUTE | CANCEL_ON_SET) as u32)?;
    let timer = timer(call, fd)?;
    let due = due(value, flags & ABSOLUTE != 0, timer.real_time);
    let before = timer.set(Some((due, interval)));
    if old != 0 {
        write_itimerspec(call, old, before)?;
    }
    Ok(0)
}

/// timerfd_gettime(2).
pub(in crate::call) fn timerfd_gettime(call: &mut Call<'_>) -> Outcome {
    let [fd, into, ..] = call.args;
    let left = timer(call, fd)?.set(None);
    write_itimerspec(call, into, left)?;
    Ok(0)
}
