//! poll and select.
//!
//! The thread waits at all files that the call names and that can change. A wake-up makes the call
//! again, which looks at all of them. It keeps the files while it waits.

use super::{Call, Outcome};
use crate::call::{Stop, fail, timespec};
use crate::clock;
use crate::errno::Errno;
use crate::file::DESCRIPTORS;
use crate::file::epoll::Pollable;
use crate::file::poll::{PolledFile, look};
use crate::task::signal;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem::offset_of;
use linux_raw_sys::errno::{EBADF, EINVAL, ENOMEM};
use linux_raw_sys::general::{
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Nanoseconds of a millisecond.
pub(super) const MILLISECOND: u64 = 1_000_000;
/// The words of a set of descriptors.
const WORDS: usize = DESCRIPTORS / 64;

/// `struct pollfd`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct PollFd {
    fd: i32,
    events: u16,
    found: u16,
}

/// Waits until an entry is ready, or until the deadline. Returns the entries, and how many are
/// ready. `begin` makes the entries when the call begins.
fn wait_for(
    call: &mut Call<'_>,
    deadline: Option<u64>,
    begin: impl FnOnce(&Call<'_>) -> Result<Vec<PolledFile>, Stop>,
) -> Result<(Vec<PolledFile>, u64), Stop> {
    let entries = match call.own.resume.polled.take() {
        Some(entries) => entries,
        None => begin(call)?,
    };
    let queues = entries.iter().filter_map(|entry| Some(&entry.open.as_ref()?.changed()?.threads));
    match call.wait_until(queues, deadline, || Some(look(&entries)).filter(|ready| *ready > 0)) {
        Ok(ready) => Ok((entries, ready.unwrap_or(0))),
        Err(stop) => {
            if matches!(stop, Stop::Wait | Stop::Interrupted) {
                call.own.resume.polled = Some(entries);
            }
            Err(stop)
        }
    }
}

/// The time at which a call stops waiting, computed when it is made first.
pub(super) fn deadline(call: &mut Call<'_>, nanos: Option<u64>) -> Option<u64> {
    let nanos = nanos?;
    let until = || clock::now().saturating_add(nanos);
    Some(*call.own.resume.deadline.get_or_insert_with(until))
}

/// As [`deadline`], from a timespec of the program; a null pointer is none. It is read once:
/// another thread may change it, and a failure while the call waits would lose the mask to restore.
pub(super) fn deadline_at(call: &mut Call<'_>, at: u64) -> Result<Option<u64>, Stop> {
    if call.own.resume.deadline.is_some() {
        return Ok(call.own.resume.deadline);
    }
    let nanos = if at == 0 { None } else { Some(timespec(call, at)?) };
    Ok(deadline(call, nanos))
}

/// poll(2).
pub(in crate::call) fn poll(call: &mut Call<'_>) -> Outcome {
    let [at, count, timeout, ..] = call.args;
    let timeout = u64::try_from(timeout as i32).ok();
    let deadline = deadline(call, timeout.map(|timeout| timeout * MILLISECOND));
    poll_until(call, at, count, deadline)
}

/// ppoll(2).
pub(in crate::call) fn ppoll(call: &mut Call<'_>) -> Outcome {
    let [at, count, timeout, mask, mask_len, _] = call.args;
    let deadline = deadline_at(call, timeout)?;
    with_mask(call, mask, mask_len, |call| poll_until(call, at, count, deadline))
}

/// Makes a call with other signals blocked while it waits; a null pointer changes none. If a signal
/// interrupts it, the delivery restores the mask.
pub(super) fn with_mask(
    call: &mut Call<'_>,
    mask: u64,
    len: u64,
    make: impl FnOnce(&mut Call<'_>) -> Outcome,
) -> Outcome {
    if mask != 0 && call.own.resume.mask.is_none() {
        if len != 8 {
            return fail(EINVAL);
        }
        let mask: u64 = call.user().read(mask)?;
        call.own.resume.mask = Some(signal::set_mask(call.thread, mask));
    }
    let outcome = make(call);
    if !matches!(outcome, Err(Stop::Wait | Stop::Interrupted | Stop::Turn))
        && let Some(before) = call.own.resume.mask.take()
    {
        signal::set_mask(call.thread, before);
    }
    outcome
}

fn poll_until(call: &mut Call<'_>, at: u64, count: u64, deadline: Option<u64>) -> Outcome {
    /// The bytes of `struct pollfd`, and the place of the events that were found (`revents`).
    const SIZE: u64 = size_of::<PollFd>() as u64;
    const FOUND: u64 = offset_of!(PollFd, found) as u64;
    if count as usize > DESCRIPTORS {
        return fail(EINVAL);
    }
    let (entries, ready) = wait_for(call, deadline, |call| polled(call, at, count as usize))?;
    for entry in &entries {
        let at = at + SIZE * entry.place as u64 + FOUND;
        call.user().write(at, &(entry.found.get() as u16))?;
    }
    Ok(ready)
}

/// The entries of poll. One with a negative number stands for no descriptor.
fn polled(call: &Call<'_>, at: u64, count: usize) -> Result<Vec<PolledFile>, Stop> {
    let mut asked: Vec<PollFd> = Vec::new();
    asked.try_reserve_exact(count).map_err(|_| Errno(ENOMEM))?;
    asked.resize(count, PollFd { fd: -1, events: 0, found: 0 });
    call.user().read_bytes(at, asked.as_mut_slice().as_mut_bytes())?;
    let files = call.files()?;
    let mut entries = Vec::new();
    entries.try_reserve_exact(count).map_err(|_| Errno(ENOMEM))?;
    for (place, asked) in asked.iter().enumerate() {
        let open = files.get(asked.fd as u32).ok().filter(|open| !open.mode.path);
        let events = u32::from(asked.events) | POLLERR | POLLHUP;
        entries.push(PolledFile { place, open, none: asked.fd < 0, events, found: Cell::new(0) });
    }
    Ok(entries)
}

/// select(2).
pub(in crate::call) fn select(call: &mut Call<'_>) -> Outcome {
    let at = call.args[4];
    let nanos = match at {
        0 => None,
        at => {
            let [seconds, micros]: [i64; 2] = call.user().read(at)?;
            if seconds < 0 || !(0..1_000_000).contains(&micros) {
                return fail(EINVAL);
            }
            let nanos = (seconds as u64).saturating_mul(1000 * MILLISECOND);
            Some(nanos.saturating_add(micros as u64 * 1000))
        }
    };
    let deadline = deadline(call, nanos);
    let ready = select_until(call, deadline)?;
    if let Some(deadline) = deadline {
        let left = deadline.saturating_sub(clock::now());
        let left = [left / (1000 * MILLISECOND), left % (1000 * MILLISECOND) / 1000];
        // As in Linux, a bad address does not lose the result.
        let _ = call.user().write(at, &left);
    }
    Ok(ready)
}

/// pselect6(2).
pub(in crate::call) fn pselect6(call: &mut Call<'_>) -> Outcome {
    let [.., timeout, mask] = call.args;
    let deadline = deadline_at(call, timeout)?;
    let is_set = mask == 0 || call.own.resume.mask.is_some();
    let [mask, len] = if is_set { [0; 2] } else { call.user().read(mask)? };
    with_mask(call, mask, len, |call| select_until(call, deadline))
}

fn select_until(call: &mut Call<'_>, deadline: Option<u64>) -> Outcome {
    /// The events that make a descriptor ready, for each set.
    const EVENTS: [u32; 3] = [
        POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR,
        POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR,
        POLLPRI,
    ];
    let [count, sets @ ..] = call.args;
    let sets = [sets[0], sets[1], sets[2]];
    if (count as i32) < 0 {
        return fail(EINVAL);
    }
    let count = (count as usize).min(DESCRIPTORS);
    let words = count.div_ceil(64);
    let mut asked = [[0_u64; WORDS]; 3];
    for (set, at) in asked.iter_mut().zip(sets) {
        if at != 0 {
            call.user().read_bytes(at, set[..words].as_mut_bytes())?;
        }
    }
    let has = |set: &[u64; WORDS], fd: usize| set[fd / 64] >> (fd % 64) & 1 != 0;
    let (entries, _) = wait_for(call, deadline, |call| {
        let files = call.files()?;
        let mut entries = Vec::new();
        entries.try_reserve(count).map_err(|_| Errno(ENOMEM))?;
        for fd in 0..count {
            let wanted = asked.iter().zip(EVENTS).filter(|(set, _)| has(set, fd));
            let events = wanted.fold(0, |all, (_, events)| all | events);
            if events != 0 {
                let open = files.get(fd as u32)?;
                if open.mode.path {
                    return fail(EBADF);
                }
                let (open, found) = (Some(open), Cell::new(0));
                entries.push(PolledFile { place: fd, open, none: false, events, found });
            }
        }
        Ok(entries)
    })?;
    let mut found = [[0_u64; WORDS]; 3];
    let mut ready = 0;
    for entry in &entries {
        let fd = entry.place;
        for ((found, set), events) in found.iter_mut().zip(&asked).zip(EVENTS) {
            if has(set, fd) && entry.found.get() & events != 0 {
                found[fd / 64] |= 1 << (fd % 64);
                ready += 1;
            }
        }
    }
    for (set, at) in found.iter().zip(sets) {
        if at != 0 {
            call.user().write_bytes(at, set[..words].as_bytes())?;
        }
    }
    Ok(ready)
}
