//! Calls that copy from one file to another.
//!
//! If an error comes after some bytes, the result is their count, as in Linux. Only EFAULT for the
//! new place, which is stored at the end, hides it.

use super::buffer::Buffer;
use super::iovec::MOST;
use super::{Call, Outcome};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::InodeKind;
use crate::file::open::Open;
use crate::file::socket::Extra;
use crate::file::socket::message::Credentials;
use crate::task::signal;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EAGAIN, EBADF, EINVAL, EISDIR, EPIPE};
use linux_raw_sys::general::{O_APPEND, SIGPIPE};

/// One file of a copy. It reads or writes at a place that the program's memory gives, or at the
/// position.
struct Side {
    fd: u64,
    open: Arc<Open>,
    /// The address of the place; 0 for the position.
    at: u64,
    place: u64,
}

impl Side {
    fn new(call: &Call<'_>, fd: u64, at: u64) -> Result<Side, Errno> {
        let open = call.moving(fd)?;
        let place = match at {
            0 if open.is_seekable() => open.seek(0, 1)?,
            0 => 0,
            at => call.user().read(at)?,
        };
        if place > i64::MAX as u64 {
            return Err(Errno(EINVAL));
        }
        Ok(Side { fd, open, at, place })
    }

    /// Stores the place after `count` bytes.
    fn finish(&self, call: &Call<'_>, count: u64) -> Result<(), Errno> {
        match self.at {
            0 if self.open.is_seekable() => {
                self.open.seek((self.place + count) as i64, 0)?;
            }
            0 => {}
            at => call.user().write(at, &(self.place + count))?,
        }
        Ok(())
    }
}

/// sendfile(2).
pub(in crate::call) fn sendfile(call: &mut Call<'_>) -> Outcome {
    let [fd, from, at, count, ..] = call.args;
    let from = Side::new(call, from, at)?;
    let to = call.moving(fd)?;
    from.open.check_read()?;
    to.check_write()?;
    let is_source = matches!(
        from.open.node.kind,
        InodeKind::File(_) | InodeKind::Device(_) | InodeKind::Proc(_)
    );
    if !is_source || !from.open.is_seekable() || to.flags() & O_APPEND != 0 {
        return fail(EINVAL);
    }
    let count = count.min(MOST);
    let files = [(from.fd, &from.open), (fd, &to)];
    let mut buffer = Buffer::new(count)?;
    let mut done = call.moved();
    let mut failed = None;
    while done < count {
        let piece = buffer.part(count - done);
        let found = match from.open.read_at(from.place + done, piece) {
            Ok(0) => break,
            Ok(found) => found,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        let piece = &piece[..found];
        let written = match (&to.node.kind, to.socket()) {
            (InodeKind::Pipe(pipe), _) => match pipe.put(piece, false) {
                Ok(0) if done > 0 => break,
                Ok(0) if to.is_nonblocking() => return fail(EAGAIN),
                Ok(0) => call.wait_on(files, &pipe.changed, |_| match pipe.put(piece, false) {
                    Ok(0) => None,
                    put => Some(put),
                })?,
                put => put,
            },
            (_, Some(socket)) => {
                let pid = call.process().pid;
                let mut extra = Extra { files: Vec::new(), of: Credentials::of(pid) };
                match socket.send(None, piece, &mut extra) {
                    Ok(None) if done > 0 => break,
                    Ok(None) if to.is_nonblocking() => return fail(EAGAIN),
                    Ok(None) => call.wait_on(files, &socket.changed, |_| {
                        socket.send(None, piece, &mut extra).transpose()
                    })?,
                    sent => sent.map(|sent| sent.unwrap_or(0)),
                }
            }
            _ => to.write(piece),
        };
        match written {
            Ok(written) => done += written as u64,
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        if !call.goes_on(done, files)? {
            break;
        }
    }
    if let (Some(error), 0) = (failed, done) {
        if error == Errno(EPIPE) {
            signal::raise(call.thread, SIGPIPE as u8);
        }
        return Err(error.into());
    }
    from.finish(call, done)?;
    Ok(done)
}

/// copy_file_range(2).
pub(in crate::call) fn copy_file_range(call: &mut Call<'_>) -> Outcome {
    let [from, from_at, to, to_at, count, flags] = call.args;
    if flags != 0 {
        return fail(EINVAL);
    }
    let from = Side::new(call, from, from_at)?;
    let to = Side::new(call, to, to_at)?;
    let sides = [&from, &to];
    if sides.iter().any(|side| side.open.node.is_folder()) {
        return fail(EISDIR);
    }
    if sides.iter().any(|side| side.open.memory().is_none()) {
        return fail(EINVAL);
    }
    if !from.open.mode.read || !to.open.mode.write || to.open.flags() & O_APPEND != 0 {
        return fail(EBADF);
    }
    let count = count.min(MOST);
    let overlap = from.place < to.place + count && to.place < from.place + count;
    if Arc::ptr_eq(&from.open.node, &to.open.node) && overlap {
        return fail(EINVAL);
    }
    let mut buffer = Buffer::new(count)?;
    let mut done = call.moved();
    while done < count {
        let piece = buffer.part(count - done);
        let found = match from.open.read_at(from.place + done, piece) {
            Ok(0) => break,
            Ok(found) => found,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        };
        match to.open.write_at(to.place + done, &piece[..found]) {
            Ok(written) => done += written as u64,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
        if !call.goes_on(done, sides.map(|side| (side.fd, &side.open)))? {
            break;
        }
    }
    if done > 0 {
        from.finish(call, done)?;
        to.finish(call, done)?;
    }
    Ok(done)
}
