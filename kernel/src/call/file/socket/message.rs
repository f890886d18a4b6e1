//! Calls that send and receive: sendto, sendmsg, recvfrom, recvmsg; reads and writes of sockets.

use super::super::buffer::Buffer;
use super::super::iovec::Parts;
use super::{BAD, Call, Outcome, control, of, put_name, target, tell_name, wait};
use crate::call::{Stop, fail};
use crate::errno::Errno;
use crate::file::open::Open;
use crate::file::socket::message::Credentials;
use crate::file::socket::{Extra, Name, Socket, Taken, Type};
use crate::task::signal;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EAGAIN, EFAULT, EMSGSIZE, ENOBUFS, EOPNOTSUPP, EPIPE};
use linux_raw_sys::general::SIGPIPE;

const OOB: u32 = 1;
const PEEK: u32 = 2;
const CTRUNC: u32 = 8;
const TRUNC: u32 = 0x20;
const DONTWAIT: u32 = 0x40;
const WAITALL: u32 = 0x100;
const NOSIGNAL: u32 = 0x4000;
const WAITFORONE: u32 = 0x10000;
const CMSG_CLOEXEC: u32 = 0x4000_0000;
/// The bytes of `struct msghdr` and `struct mmsghdr`.
const HEADER: u64 = 56;
const MANY: u64 = 64;
/// The most bytes of control messages (net.core.optmem_max).
const CONTROL: u64 = 131_072;
/// The most messages of sendmmsg and recvmmsg.
const MESSAGES: u64 = 1024;

/// `struct msghdr`.
struct Header {
    name: u64,
    name_len: u64,
    parts: Parts,
    control: u64,
    control_len: u64,
}

impl Header {
    fn read(call: &Call<'_>, at: u64) -> Result<Header, Errno> {
        let [name, name_len, vector, count, control, control_len, _]: [u64; 7] =
            call.user().read(at)?;
        if count > 1024 {
            return Err(Errno(EMSGSIZE));
        }
        let name_len = name_len & 0xffff_ffff;
        if name != 0 && (name_len as u32 as i32) < 0 {
            return Err(Errno(linux_raw_sys::errno::EINVAL));
        }
        let parts = Parts::read(call.user(), vector, count)?;
        Ok(Header { name, name_len, parts, control, control_len })
    }
}

/// Sends the bytes of the parts.
fn send(
    call: &mut Call<'_>,
    (fd, open): (u64, &Arc<Open>),
    to: Option<Arc<Socket>>,
    parts: &Parts,
    mut extra: Extra,
    flags: u32,
) -> Outcome {
    let socket = of(open)?;
    if flags & OOB != 0 {
        return fail(EOPNOTSUPP);
    }
    let waits = !open.is_nonblocking() && flags & DONTWAIT == 0;
    let micros = socket.options.timeout(true);
    if socket.kind != Type::Stream {
        let mut bytes = Vec::new();
        if parts.total as usize > crate::file::socket::ROOM {
            return fail(EMSGSIZE);
        }
        let room = bytes.try_reserve_exact(parts.total as usize);
        room.map_err(|_| Errno(ENOBUFS))?;
        bytes.resize(parts.total as usize, 0);
        if parts.gather(call.user(), 0, &mut bytes) < bytes.len() {
            return fail(EFAULT);
        }
        let mut attempt = || socket.send(to.as_ref(), &bytes, &mut extra);
        if let Some(sent) = attempt()? {
            return Ok(sent as u64);
        }
        if !waits {
            return fail(EAGAIN);
        }
        // Room comes at the target; a close is told of here, too.
        let target = to.clone().or_else(|| socket.peer());
        let changed = target.as_ref().map_or(&socket.changed, |target| &target.changed);
        return Ok(wait(call, (fd, open), changed, micros, attempt)? as u64);
    }
    // The bytes that the call has sent before it had to wait; the files went with the first.
    let mut done = call.moved();
    if done > 0 {
        extra.files.clear();
    }
    let mut buffer = Buffer::new(parts.total)?;
    while done < parts.total {
        let piece = buffer.part(parts.total - done);
        let wanted = piece.len();
        if parts.gather(call.user(), done, piece) < wanted {
            return if done > 0 { Ok(done) } else { fail(EFAULT) };
        }
        let piece = &*piece;
        let mut attempt = || socket.send(None, piece, &mut extra);
        let sent = match attempt() {
            Ok(Some(sent)) => Ok(sent),
            Ok(None) if !waits => Err(Stop::Errno(Errno(EAGAIN))),
            Ok(None) => wait(call, (fd, open), &socket.changed, micros, attempt),
            Err(error) => Err(error.into()),
        };
        match sent {
            Ok(sent) => {
                done += sent as u64;
                call.own.resume.done = done as usize;
            }
            Err(Stop::Errno(error)) => {
                if error == Errno(EPIPE) && flags & NOSIGNAL == 0 {
                    signal::raise(call.thread, SIGPIPE as u8);
                }
                return if done > 0 { Ok(done) } else { Err(error.into()) };
            }
            Err(Stop::Interrupted) if done > 0 => return Ok(done),
            Err(stop) => return Err(stop),
        }
        if done < parts.total && !call.goes_on(done, [(fd, open)])? {
            break;
        }
    }
    Ok(done)
}

/// The count of received bytes, and the files, the sender and the flags that come with them.
#[derive(Default)]
struct Received {
    count: u64,
    files: Vec<Arc<Open>>,
    from: Option<Name>,
    of: Option<Credentials>,
    flags: u32,
}

/// Receives into the parts.
fn receive(
    call: &mut Call<'_>,
    file: (u64, &Arc<Open>),
    parts: &Parts,
    flags: u32,
) -> Result<Received, Stop> {
    let open = file.1;
    let socket = of(open)?;
    if flags & OOB != 0 {
        return fail(EOPNOTSUPP);
    }
    let look = flags & PEEK != 0;
    let waits = !open.is_nonblocking() && flags & DONTWAIT == 0;
    let micros = socket.options.timeout(false);
    let stream = socket.kind == Type::Stream;
    let mut buffer = Buffer::new(if stream { parts.total } else { 0 })?;
    let mut got = Received { count: call.moved(), ..Received::default() };
    loop {
        let piece = buffer.part(if stream { parts.total - got.count } else { 0 });
        if stream && piece.is_empty() {
            break;
        }
        let mut attempt = || socket.take(piece, look);
        let taken = match attempt() {
            Ok(Some(taken)) => Ok(taken),
            Ok(None) if !waits => Err(Stop::Errno(Errno(EAGAIN))),
            Ok(None) if got.count > 0 && flags & WAITALL == 0 => break,
            Ok(None) => wait(call, file, &socket.changed, micros, attempt),
            Err(error) => Err(error.into()),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(stop @ (Stop::Wait | Stop::Turn)) => return Err(stop),
            Err(_) if got.count > 0 => break,
            Err(stop) => return Err(stop),
        };
        let Taken { count, whole, files, from, of, message } = taken;
        if stream {
            let copied = parts.scatter(call.user(), got.count, &piece[..count]);
            got.count += copied as u64;
            if copied < count {
                if !look {
                    socket.untake(&piece[copied..count], of.unwrap_or(Credentials::of(0)));
                }
                if got.count == 0 {
                    return fail(EFAULT);
                }
            }
            let full = count == piece.len() && copied == count;
            let ends = count == 0 || copied < count || !files.is_empty();
            got = Received { count: got.count, files, from, of: of.or(got.of), flags: 0 };
            if ends || look || !full && flags & WAITALL == 0 {
                break;
            }
            call.own.resume.done = got.count as usize;
            if got.count < parts.total && !call.goes_on(got.count, [file])? {
                break;
            }
            continue;
        }
        let bytes = message.as_ref().map_or(&[][..], |message| message.bytes());
        let fits = bytes.len().min(parts.total as usize);
        if parts.scatter(call.user(), 0, &bytes[..fits]) < fits {
            return fail(EFAULT);
        }
        let cut = if fits < whole { TRUNC } else { 0 };
        let told = if flags & TRUNC != 0 { whole } else { fits };
        return Ok(Received { count: told as u64, files, from, of, flags: cut });
    }
    Ok(got)
}

/// The files and credentials of a message without control messages.
fn plain(call: &Call<'_>) -> Extra {
    Extra { files: Vec::new(), of: Credentials::of(call.process().pid) }
}

/// A write of a socket.
pub(in super::super) fn write(
    call: &mut Call<'_>,
    file: (u64, &Arc<Open>),
    parts: &Parts,
) -> Outcome {
    let extra = plain(call);
    send(call, file, None, parts, extra, 0)
}

/// A read of a socket.
pub(in super::super) fn read(
    call: &mut Call<'_>,
    file: (u64, &Arc<Open>),
    parts: &Parts,
) -> Outcome {
    Ok(receive(call, file, parts, 0)?.count)
}

/// sendto(2).
pub(in crate::call) fn sendto(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len, flags, name, name_len] = call.args;
    let parts = Parts::one(at, len)?;
    let open = call.moving(fd)?;
    let to = target(call, of(&open)?, name, name_len)?;
    let extra = plain(call);
    send(call, (fd, &open), to, &parts, extra, flags as u32)
}

/// recvfrom(2).
pub(in crate::call) fn recvfrom(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len, flags, name, name_len] = call.args;
    let parts = Parts::one(at, len)?;
    let open = call.moving(fd)?;
    of(&open)?;
    let got = receive(call, (fd, &open), &parts, flags as u32)?;
    if name != 0 {
        tell_name(call, got.from.as_ref(), name, name_len, 0)?;
    }
    Ok(got.count)
}

fn send_message(call: &mut Call<'_>, fd: u64, at: u64, flags: u32) -> Outcome {
    let open = call.moving(fd)?;
    let socket = of(&open)?;
    let header = Header::read(call, at)?;
    let mut extra = plain(call);
    if header.control != 0 && header.control_len > 0 {
        if header.control_len > CONTROL {
            return fail(ENOBUFS);
        }
        control::read(call, header.control, header.control_len, &mut extra)?;
    }
    let to = target(call, socket, header.name, header.name_len)?;
    send(call, (fd, &open), to, &header.parts, extra, flags)
}

fn receive_message(call: &mut Call<'_>, fd: u64, at: u64, flags: u32) -> Outcome {
    let open = call.moving(fd)?;
    let socket = of(&open)?;
    let header = Header::read(call, at)?;
    let got = receive(call, (fd, &open), &header.parts, flags)?;
    let user = call.user();
    if header.name != 0 {
        let len = put_name(call, got.from.as_ref(), header.name, header.name_len as u32, 0)?;
        user.write(at + 8, &len)?;
    }
    let close_on_exec = flags & CMSG_CLOEXEC != 0;
    let room = (header.control, if header.control == 0 { 0 } else { header.control_len });
    let credentials = socket.options.credentials().then_some(got.of).flatten();
    let told = control::write(call, room, credentials, &got.files, close_on_exec)?;
    let cut = if told.1 { CTRUNC } else { 0 };
    user.write(at + 40, &told.0)?;
    user.write(at + 48, &(got.flags | cut | flags & CMSG_CLOEXEC))?;
    Ok(got.count)
}

/// sendmsg(2).
pub(in crate::call) fn sendmsg(call: &mut Call<'_>) -> Outcome {
    let [fd, at, flags, ..] = call.args;
    send_message(call, fd, at, flags as u32)
}

/// recvmsg(2).
pub(in crate::call) fn recvmsg(call: &mut Call<'_>) -> Outcome {
    let [fd, at, flags, ..] = call.args;
    receive_message(call, fd, at, flags as u32)
}

/// Makes a call for each of several messages, and returns how many it has made. Only the first
/// waits: callers of both calls expect a smaller result.
fn many(call: &mut Call<'_>, one: impl Fn(&mut Call<'_>, u64, u64, u32) -> Outcome) -> Outcome {
    let [fd, at, count, flags, ..] = call.args;
    let flags = flags as u32 & !WAITFORONE;
    let mut done = 0;
    while done < count.min(MESSAGES) {
        let here = at.checked_add(MANY * done).ok_or(BAD)?;
        let waits = if done == 0 { 0 } else { DONTWAIT };
        let mut outcome = one(call, fd, here, flags | waits);
        let moved = core::mem::take(&mut call.own.resume.done);
        let over = done > 0 && outcome == Err(Stop::Turn);
        if over {
            // The call is not made again for the messages before: a part of this one is the last.
            outcome = Ok(moved as u64);
        } else if outcome == Err(Stop::Turn) || outcome == Err(Stop::Wait) {
            call.own.resume.done = moved;
        }
        let told = outcome.and_then(|len| Ok(call.user().write(here + HEADER, &(len as u32))?));
        match told {
            Ok(()) if over => return Ok(done + 1),
            Ok(()) => done += 1,
            Err(Stop::Errno(_) | Stop::Interrupted) if done > 0 => break,
            Err(stop) => return Err(stop),
        }
        if call.is_ending() {
            break;
        }
    }
    Ok(done)
}

/// sendmmsg(2).
pub(in crate::call) fn sendmmsg(call: &mut Call<'_>) -> Outcome {
    many(call, send_message)
}

/// recvmmsg(2). The time limit is looked at between messages in Linux; here none waits then.
pub(in crate::call) fn recvmmsg(call: &mut Call<'_>) -> Outcome {
    let limit = call.args[4];
    if limit != 0 && !call.own.resume.again {
        crate::call::timespec(call, limit)?;
    }
    many(call, receive_message)
}
