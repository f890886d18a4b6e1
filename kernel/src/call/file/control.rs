//! fcntl, flock and ioctl.

use super::{Call, Outcome, userfaultfd};
use crate::call::{Stop, fail};
use crate::errno::Errno;
use crate::file::device::Device;
use crate::file::epoll::Pollable;
use crate::file::inode::InodeKind;
use crate::file::locks::{FileLock, LockScope};
use crate::file::open::Open;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EAGAIN, EBADF, EINVAL, ENOTTY, EOVERFLOW, EPERM};
use linux_raw_sys::general::*;
use mm::Seals;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Calls of fcntl that `general` does not name.
const F_DUPFD_CLOEXEC: u32 = 1030;
const F_SETPIPE_SZ: u32 = 1031;
const F_GETPIPE_SZ: u32 = 1032;
const F_ADD_SEALS: u32 = 1033;
const F_GET_SEALS: u32 = 1034;
/// The end of a file, for locks.
const END: u64 = u64::MAX;

/// `struct flock`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    _unused: u32,
    start: i64,
    len: i64,
    pid: i32,
    _rest: u32,
}

/// fcntl(2).
pub(in crate::call) fn fcntl(call: &mut Call<'_>) -> Outcome {
    let [fd, command, argument, ..] = call.args;
    let command = command as u32;
    let open = call.any_open(fd)?;
    let files = call.files()?;
    if open.mode.path && !matches!(command, F_DUPFD | F_DUPFD_CLOEXEC | F_GETFD | F_SETFD | F_GETFL)
    {
        return fail(EBADF);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            if argument as u32 as usize >= crate::file::DESCRIPTORS {
                return fail(EINVAL);
            }
            Ok(files.insert(open, command == F_DUPFD_CLOEXEC, argument as u32)?.into())
        }
        F_GETFD => Ok(files.with_mark(fd as u32, |mark| *mark)?.into()),
        F_SETFD => {
            let new = argument & u64::from(FD_CLOEXEC) != 0;
            files.with_mark(fd as u32, |mark| *mark = new)?;
            Ok(0)
        }
        F_GETFL => {
            let access = match (open.mode.read, open.mode.write) {
                (_, false) => O_RDONLY,
                (false, true) => O_WRONLY,
                (true, true) => O_RDWR,
            };
            // Every file that was opened by a name is a large one here.
            let named = open.changed().is_none() || matches!(open.node.kind, InodeKind::Device(_));
            let large = if named && !open.mode.path { O_LARGEFILE } else { 0 };
            Ok(u64::from(open.flags() | access | large))
        }
        F_SETFL => {
            open.set_flags(argument as u32);
            Ok(0)
        }
        F_GETLK | F_OFD_GETLK => get_lock(call, &open, command == F_OFD_GETLK, argument),
        F_SETLK | F_OFD_SETLK => set_lock(call, &open, command == F_OFD_SETLK, false, argument),
        F_SETLKW | F_OFD_SETLKW => set_lock(call, &open, command == F_OFD_SETLKW, true, argument),
        F_GETPIPE_SZ => Ok(open.pipe_of().ok_or(Errno(EBADF))?.capacity() as u64),
        F_SETPIPE_SZ => {
            let pipe = open.pipe_of().ok_or(Errno(EBADF))?;
            let bytes = argument as u32 as usize;
            if bytes > crate::file::pipe::MOST {
                return fail(if bytes > i32::MAX as usize { EINVAL } else { EPERM });
            }
            Ok(pipe.set_capacity(bytes)? as u64)
        }
        F_GET_SEALS => Ok(open.memory().ok_or(Errno(EINVAL))?.seals().0.into()),
        F_ADD_SEALS => {
            const KNOWN: u32 = 0x3f;
            let memory = open.memory().ok_or(Errno(EINVAL))?;
            if !open.mode.write {
                return fail(EPERM);
            }
            if argument as u32 & !KNOWN != 0 {
                return fail(EINVAL);
            }
            let mut new = argument as u32;
            if new & Seals::EXEC.0 != 0 && open.node.mode() & 0o111 != 0 {
                // As in Linux, the seal of an executable file also seals its contents and its size.
                new |= KNOWN & !Seals::SEAL.0;
            }
            memory.add_seals(Seals(new)).map_err(|_| {
                let sealed = memory.seals().intersects(Seals::SEAL);
                // A map that may write is in the way.
                Errno(if sealed { EPERM } else { linux_raw_sys::errno::EBUSY })
            })?;
            Ok(0)
        }
        F_GETOWN | F_GETSIG => Ok(0),
        _ => fail(EINVAL),
    }
}

/// The bytes of a lock.
fn bytes(open: &Open, lock: &Flock) -> Result<Range<u64>, Errno> {
    let base = match lock.whence {
        0 => 0,
        1 => open.seek(0, 1)?,
        2 => open.node.size(),
        _ => return Err(Errno(EINVAL)),
    };
    let start = i64::try_from(base).ok().and_then(|base| base.checked_add(lock.start));
    let start = start.ok_or(Errno(EOVERFLOW))?;
    let (start, end) = match lock.len {
        0 => (start, None),
        len if len > 0 => (start, Some(start.checked_add(len - 1).ok_or(Errno(EOVERFLOW))? + 1)),
        len => (start.checked_add(len).ok_or(Errno(EINVAL))?, Some(start)),
    };
    let start = u64::try_from(start).map_err(|_| Errno(EINVAL))?;
    Ok(start..end.map_or(END, |end| end as u64))
}

/// The lock that a program asks for; none to give one up.
fn wanted(
    call: &Call<'_>,
    open: &Open,
    of_description: bool,
    at: u64,
) -> Result<(Flock, Option<FileLock>, usize, Range<u64>), Errno> {
    let flock: Flock = call.user().read(at)?;
    if of_description && flock.pid != 0 {
        return Err(Errno(EINVAL));
    }
    let bytes = bytes(open, &flock)?;
    let (owner, pid) = match of_description {
        true => (open.owner(), 0),
        false => (call.files()?.owner(), call.process().pid),
    };
    let lock = |exclusive| Some(FileLock { owner, pid, exclusive, bytes: bytes.clone() });
    let lock = match flock.kind as u32 {
        F_RDLCK => lock(false),
        F_WRLCK => lock(true),
        F_UNLCK => None,
        _ => return Err(Errno(EINVAL)),
    };
    Ok((flock, lock, owner, bytes))
}

fn get_lock(call: &Call<'_>, open: &Open, of_description: bool, at: u64) -> Outcome {
    let (mut flock, lock, ..) = wanted(call, open, of_description, at)?;
    let lock = lock.ok_or(Errno(EINVAL))?;
    match open.node.locks.conflict(LockScope::Ranges, &lock) {
        None => flock.kind = F_UNLCK as i16,
        Some(other) => {
            let end = if other.bytes.end == END { 0 } else { other.bytes.end - other.bytes.start };
            flock = Flock {
                kind: if other.exclusive { F_WRLCK } else { F_RDLCK } as i16,
                whence: 0,
                start: other.bytes.start as i64,
                len: end as i64,
                pid: if other.pid == 0 { -1 } else { other.pid as i32 },
                ..flock
            };
        }
    }
    call.user().write(at, &flock)?;
    Ok(0)
}

fn set_lock(
    call: &mut Call<'_>,
    open: &Arc<Open>,
    of_description: bool,
    waits: bool,
    at: u64,
) -> Outcome {
    let (_, lock, owner, bytes) = wanted(call, open, of_description, at)?;
    let Some(lock) = lock else {
        open.node.locks.release(LockScope::Ranges, owner, bytes)?;
        return Ok(0);
    };
    if lock.exclusive && !open.mode.write || !lock.exclusive && !open.mode.read {
        return fail(EBADF);
    }
    take(call, open, LockScope::Ranges, &lock, waits)
}

/// Takes a lock, and waits for it.
fn take(call: &mut Call<'_>, open: &Open, of: LockScope, lock: &FileLock, waits: bool) -> Outcome {
    let locks = &open.node.locks;
    if of == LockScope::Whole || lock.pid == 0 {
        // Relaxed: the description is dropped after this call.
        open.has_locks.store(true, Ordering::Relaxed);
    }
    let attempt = || match locks.take(of, lock.clone()) {
        Ok(true) => Some(Ok(0)),
        Ok(false) => None,
        Err(error) => Some(Err(Stop::Errno(error))),
    };
    if waits {
        call.wait(&locks.freed, |_| attempt())?
    } else {
        attempt().unwrap_or_else(|| fail(EAGAIN))
    }
}

/// flock(2).
pub(in crate::call) fn flock(call: &mut Call<'_>) -> Outcome {
    const SHARED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    const NO_WAIT: u32 = 4;
    const UNLOCK: u32 = 8;
    /// LOCK_MAND, which Linux ignores.
    const MANDATORY: u32 = 32;
    let [fd, what, ..] = call.args;
    if what as u32 & MANDATORY != 0 {
        return Ok(0);
    }
    let open = call.open(fd)?;
    let waits = what as u32 & NO_WAIT == 0;
    let exclusive = match what as u32 & !NO_WAIT {
        SHARED => false,
        EXCLUSIVE => true,
        UNLOCK => {
            open.node.locks.release(LockScope::Whole, open.owner(), 0..END)?;
            return Ok(0);
        }
        _ => return fail(EINVAL),
    };
    let lock = FileLock { owner: open.owner(), pid: call.process().pid, exclusive, bytes: 0..END };
    take(call, &open, LockScope::Whole, &lock, waits)
}

/// ioctl(2): requests of files, pipes, sockets, userfaultfd and `pagemap`. There are no terminals.
pub(in crate::call) fn ioctl(call: &mut Call<'_>) -> Outcome {
    const FIONREAD: u64 = 0x541b;
    const FIONBIO: u64 = 0x5421;
    const FIONCLEX: u64 = 0x5450;
    const FIOCLEX: u64 = 0x5451;
    let [fd, request, argument, ..] = call.args;
    let open = call.open(fd)?;
    match request & 0xffff_ffff {
        userfaultfd::SCAN => userfaultfd::scan(call, &open, argument),
        userfaultfd::NEW if matches!(open.node.kind, InodeKind::Device(Device::Monitors)) => {
            userfaultfd::new(call, argument)
        }
        FIOCLEX | FIONCLEX => {
            let new = request & 0xffff_ffff == FIOCLEX;
            call.files()?.with_mark(fd as u32, |mark| *mark = new)?;
            Ok(0)
        }
        FIONBIO => {
            let on: u32 = call.user().read(argument)?;
            let others = open.flags() & !O_NONBLOCK;
            open.set_flags(if on != 0 { others | O_NONBLOCK } else { others });
            Ok(0)
        }
        FIONREAD => {
            let bytes = match &open.node.kind {
                InodeKind::Pipe(pipe) => pipe.ready().bytes as u64,
                InodeKind::Socket => {
                    open.socket().map_or(Ok(0), |socket| socket.readable())? as u64
                }
                InodeKind::File(memory) => memory.size().saturating_sub(open.seek(0, 1)?),
                InodeKind::Device(Device::Console | Device::Errors) => 0,
                _ => return fail(ENOTTY),
            };
            call.user().write(argument, &(bytes.min(i32::MAX as u64) as u32))?;
            Ok(0)
        }
        request => match userfaultfd::of(&open) {
            Some(of) => userfaultfd::ioctl(call, of, request, argument),
            None => fail(ENOTTY),
        },
    }
}
