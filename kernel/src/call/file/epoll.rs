//! epoll_create(2), epoll_ctl(2), epoll_wait(2).

use super::poll::{MILLISECOND, deadline, deadline_at, with_mask};
use super::{Call, Outcome, check_flags};
use crate::call::fail;
use crate::clock;
use crate::errno::Errno;
use crate::file::epoll::{Epoll, Event, Pollable, Wanted};
use crate::file::inode::InodeKind;
use crate::file::open::Mode;
use crate::user::END;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EFAULT, EINVAL, ENOMEM, EPERM};
use linux_raw_sys::general::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP,
    EPOLLIN, EPOLLOUT, EPOLLWAKEUP, O_CLOEXEC,
};

/// The bytes of `struct epoll_event`: events and data, without a gap.
const EVENT: u64 = 12;

/// epoll_create(2).
pub(in crate::call) fn epoll_create(call: &mut Call<'_>) -> Outcome {
    if (call.args[0] as i32) <= 0 {
        return fail(EINVAL);
    }
    call.args[0] = 0;
    epoll_create1(call)
}

/// epoll_create1(2).
pub(in crate::call) fn epoll_create1(call: &mut Call<'_>) -> Outcome {
    let flags = call.args[0];
    check_flags(flags, O_CLOEXEC)?;
    Ok(call.descriptor(InodeKind::Epoll(Epoll::new()), Mode::READ_WRITE, flags as u32)?.into())
}

/// epoll_ctl(2).
pub(in crate::call) fn epoll_ctl(call: &mut Call<'_>) -> Outcome {
    /// The events and flags that an exclusive item may have.
    const EXCLUSIVE: u32 =
        EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
    let [epoll, operation, fd, event, ..] = call.args;
    let operation = operation as u32;
    let mut words = [0_u32; 3];
    if operation != EPOLL_CTL_DEL {
        words = call.user().read(event)?;
    }
    let [mask, low, high] = words;
    let wanted = Wanted { mask, data: u64::from(high) << 32 | u64::from(low) };
    let of = call.open(epoll)?;
    let open = call.open(fd)?;
    if open.changed().is_none() {
        return fail(EPERM);
    }
    let epoll = of.epoll().filter(|_| !Arc::ptr_eq(&of, &open)).ok_or(Errno(EINVAL))?;
    let open: Arc<dyn Pollable> = open;
    let exclusive = mask & EPOLLEXCLUSIVE != 0;
    let fd = fd as u32;
    match operation {
        EPOLL_CTL_ADD if exclusive && (open.epoll().is_some() || mask & !EXCLUSIVE != 0) => {
            return fail(EINVAL);
        }
        EPOLL_CTL_ADD => epoll.add(fd, &open, wanted)?,
        EPOLL_CTL_MOD if exclusive => return fail(EINVAL),
        EPOLL_CTL_MOD => epoll.modify(fd, &*open, wanted)?,
        EPOLL_CTL_DEL => epoll.remove(fd, &*open)?,
        _ => return fail(EINVAL),
    }
    Ok(0)
}

/// epoll_wait(2).
pub(in crate::call) fn epoll_wait(call: &mut Call<'_>) -> Outcome {
    let timeout = u64::try_from(call.args[3] as i32).ok();
    let deadline = deadline(call, timeout.map(|timeout| timeout * MILLISECOND));
    wait(call, deadline)
}

/// epoll_pwait(2).
pub(in crate::call) fn epoll_pwait(call: &mut Call<'_>) -> Outcome {
    let [_, _, _, _, mask, len] = call.args;
    with_mask(call, mask, len, epoll_wait)
}

/// epoll_pwait2(2).
pub(in crate::call) fn epoll_pwait2(call: &mut Call<'_>) -> Outcome {
    let [_, _, _, timeout, mask, len] = call.args;
    let deadline = deadline_at(call, timeout)?;
    with_mask(call, mask, len, |call| wait(call, deadline))
}

fn wait(call: &mut Call<'_>, deadline: Option<u64>) -> Outcome {
    let [fd, into, most, ..] = call.args;
    let open = call.moving(fd)?;
    let bytes = EVENT * most;
    if most == 0 || bytes > i32::MAX as u64 {
        return fail(EINVAL);
    }
    if into.checked_add(bytes).is_none_or(|end| end > END) {
        return fail(EFAULT);
    }
    let epoll = open.epoll().ok_or(Errno(EINVAL))?;
    // The items that a round has left to another turn.
    let mut left = core::mem::take(&mut call.own.resume.done);
    loop {
        let done = report(call, epoll, into, most as usize, &mut left)?;
        if done > 0 {
            return Ok(done);
        }
        // Changes may keep the list full.
        if left == 0 && deadline.is_some_and(|deadline| clock::now() >= deadline) {
            return Ok(0);
        }
        // Other threads of this CPU come in between.
        if !call.goes_on(left as u64, [(fd, &open)])? {
            return Ok(0);
        }
        if left > 0 {
            continue;
        }
        let queue = core::iter::once(&epoll.changed.threads);
        let queued = || epoll.has_queued().then_some(());
        match call.wait_until(queue, deadline, queued) {
            Ok(Some(())) => {}
            Ok(None) => return Ok(0),
            Err(stop) => {
                call.keep([(fd, &open)]);
                return Err(stop);
            }
        }
    }
}

/// Reports the items that are ready, as many as the program has room for and the turn has time for.
/// A round looks at those that are in the list when it begins; `left` of them are to come.
fn report(call: &Call<'_>, epoll: &Epoll, into: u64, most: usize, left: &mut usize) -> Outcome {
    let mut reported: Vec<Event> = Vec::new();
    let queued = epoll.begin();
    *left = if *left > 0 { *left } else { queued };
    let mut failed = None;
    // The first item of a turn is looked at in any case.
    let mut first = true;
    while *left > 0 && reported.len() < most && (first || !call.own.is_turn_over()) {
        first = false;
        let Some(next) = epoll.next() else {
            *left = 0;
            break;
        };
        *left -= 1;
        let Some(event) = next else { continue };
        let words = [event.events, event.data as u32, (event.data >> 32) as u32];
        let room = reported.try_reserve(1).map_err(|_| Errno(ENOMEM));
        let at = into + EVENT * reported.len() as u64;
        if let Err(error) = room.and_then(|()| call.user().write(at, &words)) {
            epoll.take_back(&event);
            failed = Some(error);
            break;
        }
        reported.push(event);
    }
    epoll.give_back(&reported);
    match failed {
        Some(error) if reported.is_empty() => Err(error.into()),
        _ => Ok(reported.len() as u64),
    }
}
