//! eventfd(2), and reads and writes of files that count.

use super::iovec::Parts;
use super::{Call, Outcome, check_flags};
use crate::call::fail;
use crate::file::eventfd::EventFd;
use crate::file::inode::InodeKind;
use crate::file::open::{Mode, Open};
use crate::file::ready::Changed;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EAGAIN, EFAULT, EINVAL};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};

/// The bytes of a count.
const COUNT: usize = 8;

/// eventfd(2), of old.
pub(in crate::call) fn eventfd(call: &mut Call<'_>) -> Outcome {
    call.args[1] = 0;
    eventfd2(call)
}

/// eventfd2(2).
pub(in crate::call) fn eventfd2(call: &mut Call<'_>) -> Outcome {
    const SEMAPHORE: u32 = 1;
    let [count, flags, ..] = call.args;
    check_flags(flags, SEMAPHORE | O_CLOEXEC | O_NONBLOCK)?;
    let flags = flags as u32;
    let event = EventFd::new(count, flags & SEMAPHORE != 0);
    Ok(call.descriptor(InodeKind::Event(event), Mode::READ_WRITE, flags & !SEMAPHORE)?.into())
}

/// Reads the count of an eventfd, or of a timerfd.
pub(super) fn read(call: &mut Call<'_>, file: (u64, &Arc<Open>), parts: &Parts) -> Outcome {
    if parts.total < COUNT as u64 {
        return fail(EINVAL);
    }
    let count = match &file.1.node.kind {
        InodeKind::Event(event) => take(call, file, &event.changed, || event.take()),
        InodeKind::Timer(timer) => take(call, file, &timer.changed, || timer.take()),
        _ => fail(EINVAL),
    }?;
    match parts.scatter(call.user(), 0, &count.to_ne_bytes()) {
        COUNT => Ok(COUNT as u64),
        _ => fail(EFAULT),
    }
}

/// Takes a count, and waits for one unless the file does not block.
fn take<T>(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    changed: &Changed,
    mut attempt: impl FnMut() -> Option<T>,
) -> Result<T, crate::call::Stop> {
    match attempt() {
        Some(taken) => Ok(taken),
        None if open.is_nonblocking() => fail(EAGAIN),
        None => call.wait_on([(fd, open)], changed, |_| attempt()),
    }
}

/// Adds a count to an eventfd.
pub(super) fn write(
    call: &mut Call<'_>,
    file: (u64, &Arc<Open>),
    event: &EventFd,
    parts: &Parts,
) -> Outcome {
    let mut count = [0; COUNT];
    if parts.total != COUNT as u64 {
        return fail(EINVAL);
    }
    if parts.gather(call.user(), 0, &mut count) < COUNT {
        return fail(EFAULT);
    }
    let count = u64::from_ne_bytes(count);
    if count == u64::MAX {
        return fail(EINVAL);
    }
    take(call, file, &event.changed, || event.add(count))?;
    Ok(COUNT as u64)
}
