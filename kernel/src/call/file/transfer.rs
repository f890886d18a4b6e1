//! Calls that move bytes: the forms of read(2) and write(2), and vmsplice(2).
//!
//! Bytes go by a buffer of the kernel, in pieces. If an error comes after some bytes, the result is
//! their count, as in Linux. No lock is held while a program's memory is copied.

use super::buffer::Buffer;
use super::iovec::Parts;
use super::{Call, Outcome, eventfd, socket};
use crate::call::{Stop, fail};
use crate::errno::Errno;
use crate::file::inode::InodeKind;
use crate::file::open::Open;
use crate::file::pipe::{PIPE_BUF, Pipe};
use crate::file::userfaultfd::{MESSAGE, Monitor};
use crate::task::signal;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EAGAIN, EBADF, EFAULT, EINVAL, EISDIR, EPIPE};
use linux_raw_sys::general::{O_APPEND, SIGPIPE};
use zerocopy::IntoBytes;

/// Reads, at a place or at the position, of a file that may be read.
fn read_into(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    at: Option<u64>,
    parts: &Parts,
) -> Outcome {
    if open.node.is_folder() {
        return fail(EISDIR);
    }
    if let InodeKind::Event(_) | InodeKind::Timer(_) = &open.node.kind {
        return eventfd::read(call, (fd, open), parts);
    }
    if parts.total == 0 {
        return Ok(0);
    }
    if open.socket().is_some() {
        return socket::message::read(call, (fd, open), parts);
    }
    let mut buffer = Buffer::new(parts.total)?;
    if let InodeKind::Pipe(pipe) = &open.node.kind {
        return read_pipe(call, (fd, open), pipe, parts, &mut buffer);
    }
    if let InodeKind::Monitor(monitor) = &open.node.kind {
        return read_messages(call, (fd, open), monitor, parts);
    }
    let mut done = call.moved();
    while done < parts.total {
        let piece = buffer.part(parts.total - done);
        let found = match at {
            Some(at) => open.read_at(at.saturating_add(done), piece),
            None => open.read(piece),
        };
        let count = match found {
            Ok(count) => count,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        };
        let copied = parts.scatter(call.user(), done, &piece[..count]);
        done += copied as u64;
        if copied < count {
            if at.is_none() {
                open.unread(count - copied);
            }
            if done == 0 {
                return fail(EFAULT);
            }
            break;
        }
        if count < piece.len() || !call.goes_on(done, [(fd, open)])? {
            break;
        }
    }
    Ok(done)
}

fn read_pipe(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    pipe: &Arc<Pipe>,
    parts: &Parts,
    buffer: &mut Buffer,
) -> Outcome {
    let mut done = 0;
    while done < parts.total {
        let piece = buffer.part(parts.total - done);
        let count = match pipe.take(piece) {
            Some(count) => count,
            None if done > 0 => break,
            None if open.is_nonblocking() => return fail(EAGAIN),
            None => call.wait_on([(fd, open)], &pipe.changed, |_| pipe.take(piece))?,
        };
        let copied = parts.scatter(call.user(), done, &piece[..count]);
        done += copied as u64;
        if copied < count {
            pipe.put_back(&piece[copied..count]);
            if done == 0 {
                return fail(EFAULT);
            }
            break;
        }
        if count < piece.len() {
            break;
        }
    }
    Ok(done)
}

/// Reads messages, as many as there are and fit.
fn read_messages(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    monitor: &Arc<Monitor>,
    parts: &Parts,
) -> Outcome {
    if !monitor.is_ready() || parts.total < MESSAGE as u64 {
        return fail(EINVAL);
    }
    let mut done = 0;
    while parts.total - done >= MESSAGE as u64 {
        let message = match monitor.take() {
            Some(next) => next,
            None if done > 0 => break,
            None if open.is_nonblocking() => return fail(EAGAIN),
            None => call.wait_on([(fd, open)], &monitor.changed, |_| monitor.take())?,
        };
        let mut words = message.words();
        let child = message.child().cloned();
        let new = match child.map(|child| super::userfaultfd::descriptor(call, child)).transpose() {
            Ok(new) => new,
            Err(_) if done > 0 => {
                monitor.put_back(message);
                break;
            }
            Err(error) => {
                monitor.put_back(message);
                return Err(error.into());
            }
        };
        words[1] = new.map_or(words[1], u64::from);
        if parts.scatter(call.user(), done, words.as_bytes()) < MESSAGE {
            monitor.put_back(message);
            if let Some(new) = new {
                call.files()?.close(new)?;
            }
            if done == 0 {
                return fail(EFAULT);
            }
            break;
        }
        message.finish();
        done += MESSAGE as u64;
    }
    Ok(done)
}

/// Writes, at a place or at the position, to a file that may be written.
fn write_from(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    at: Option<u64>,
    parts: &Parts,
) -> Outcome {
    if let InodeKind::Event(event) = &open.node.kind {
        return eventfd::write(call, (fd, open), event, parts);
    }
    if open.socket().is_some() {
        return socket::message::write(call, (fd, open), parts);
    }
    if parts.total == 0 {
        return Ok(0);
    }
    let mut buffer = Buffer::new(parts.total)?;
    if let InodeKind::Pipe(pipe) = &open.node.kind {
        return write_pipe(call, (fd, open), pipe, parts, &mut buffer);
    }
    // As in Linux, O_APPEND comes before the place of a pwrite.
    let appends = open.flags() & O_APPEND != 0 && open.memory().is_some();
    let mut done = call.moved();
    while done < parts.total {
        let piece = buffer.part(parts.total - done);
        let wanted = piece.len();
        let count = parts.gather(call.user(), done, piece);
        if count == 0 {
            if done == 0 {
                return fail(EFAULT);
            }
            break;
        }
        let written = match at {
            Some(at) if !appends => open.write_at(at.saturating_add(done), &piece[..count]),
            _ => open.write(&piece[..count]),
        };
        match written {
            Ok(written) => {
                done += written as u64;
                if written < wanted || !call.goes_on(done, [(fd, open)])? {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

fn write_pipe(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    pipe: &Arc<Pipe>,
    parts: &Parts,
    buffer: &mut Buffer,
) -> Outcome {
    let whole = parts.total <= PIPE_BUF as u64;
    // The bytes that the call has written before it had to wait.
    let mut done = call.moved();
    while done < parts.total {
        let piece = buffer.part(parts.total - done);
        let wanted = piece.len();
        let count = parts.gather(call.user(), done, piece);
        let fault = count < wanted;
        if count == 0 || whole && fault {
            return if done > 0 { Ok(done) } else { fail(EFAULT) };
        }
        let piece = &piece[..count];
        let attempt = || match pipe.put(piece, whole) {
            Ok(0) => None,
            Ok(count) => Some(Ok(count)),
            Err(error) => Some(Err(error)),
        };
        let put = match attempt() {
            Some(put) => put,
            None if open.is_nonblocking() => {
                return if done > 0 { Ok(done) } else { fail(EAGAIN) };
            }
            None => match call.wait_on([(fd, open)], &pipe.changed, |_| attempt()) {
                Ok(put) => put,
                Err(Stop::Interrupted) if done > 0 => return Ok(done),
                Err(stop) => return Err(stop),
            },
        };
        match put {
            Ok(count) => {
                done += count as u64;
                call.own.resume.done = done as usize;
            }
            Err(error) => {
                if error == Errno(EPIPE) {
                    signal::raise(call.thread, SIGPIPE as u8);
                }
                return if done > 0 { Ok(done) } else { Err(error.into()) };
            }
        }
        if fault {
            break;
        }
    }
    Ok(done)
}

/// vmsplice(2): copies. So later writes to the memory do not show in the pipe, as they may in
/// Linux.
pub(in crate::call) fn vmsplice(call: &mut Call<'_>) -> Outcome {
    const NONBLOCK: u64 = 2;
    const KNOWN: u64 = 15;
    let [fd, at, count, flags, ..] = call.args;
    if flags & !KNOWN != 0 {
        return fail(EINVAL);
    }
    let open = call.moving(fd)?;
    let pipe = Arc::clone(open.pipe_of().ok_or(Errno(EBADF))?);
    let parts = Parts::read(call.user(), at, count)?;
    if open.mode.read {
        return read_into(call, (fd, &open), None, &parts);
    }
    // It waits for room, and fills only that.
    let mut buffer = Buffer::new(parts.total)?;
    let piece = buffer.part(parts.total);
    let count = parts.gather(call.user(), 0, piece);
    if count == 0 {
        return if parts.total == 0 { Ok(0) } else { fail(EFAULT) };
    }
    let attempt = || match pipe.put(&piece[..count], false) {
        Ok(0) => None,
        put => Some(put),
    };
    let put = match attempt() {
        Some(put) => put,
        None if open.is_nonblocking() || flags & NONBLOCK != 0 => return fail(EAGAIN),
        None => call.wait_on([(fd, &open)], &pipe.changed, |_| attempt())?,
    };
    if put == Err(Errno(EPIPE)) {
        signal::raise(call.thread, SIGPIPE as u8);
    }
    Ok(put? as u64)
}

/// The form of a read or a write: its arguments name one part of memory or a vector of them, and
/// a place in the file or the position of the descriptor.
pub(in crate::call) struct Form {
    pub(in crate::call) vector: bool,
    pub(in crate::call) placed: bool,
}

impl Form {
    pub(in crate::call) const ONE: Form = Form { vector: false, placed: false };
    pub(in crate::call) const VECTOR: Form = Form { vector: true, placed: false };
    pub(in crate::call) const ONE_AT: Form = Form { vector: false, placed: true };
    pub(in crate::call) const VECTOR_AT: Form = Form { vector: true, placed: true };

    /// The open file, after the check of its mode, the place, and the parts of memory.
    fn of(
        self,
        call: &Call<'_>,
        check: fn(&Open) -> Result<(), Errno>,
    ) -> Result<(Arc<Open>, Option<u64>, Parts), Errno> {
        let [fd, at, count, offset, ..] = call.args;
        if self.placed && offset > i64::MAX as u64 {
            return Err(Errno(EINVAL));
        }
        let place = self.placed.then_some(offset);
        let open = call.moving(fd)?;
        open.check_place(place)?;
        check(&open)?;
        let parts = match self.vector {
            true => Parts::read(call.user(), at, count)?,
            false => Parts::one(at, count)?,
        };
        Ok((open, place, parts))
    }
}

/// read(2), pread64(2), readv(2), preadv(2).
pub(in crate::call) fn read(call: &mut Call<'_>, form: Form) -> Outcome {
    let (open, place, parts) = form.of(call, Open::check_read)?;
    read_into(call, (call.args[0], &open), place, &parts)
}

/// write(2), pwrite64(2), writev(2), pwritev(2).
pub(in crate::call) fn write(call: &mut Call<'_>, form: Form) -> Outcome {
    let (open, place, parts) = form.of(call, Open::check_write)?;
    write_from(call, (call.args[0], &open), place, &parts)
}
