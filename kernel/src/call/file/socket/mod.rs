//! Calls on sockets.
//!
//! | module | contents |
//! |---|---|
//! | `message` | the forms of send and receive |
//! | `control` | the control messages that go with them: files and credentials |
//! | `option` | getsockopt, setsockopt |
//!
//! There is no network: AF_UNIX is the only family.

mod control;
pub(in crate::call) mod message;
pub(in crate::call) mod option;

use super::poll::deadline;
use super::{Call, HERE, Outcome, check_flags};
use crate::call::{Stop, fail};
use crate::errno::Errno;
use crate::file::open::Open;
use crate::file::ready::Changed;
use crate::file::socket::{Name, Socket, Type};
use crate::println;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::{
    EAFNOSUPPORT, EAGAIN, EFAULT, EINVAL, EISCONN, ENOTSOCK, EOPNOTSUPP, EPROTONOSUPPORT,
    EPROTOTYPE, ESOCKTNOSUPPORT,
};
use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};

const AF_UNSPEC: u64 = 0;
const AF_UNIX: u64 = 1;
/// The families that Linux may know are below this.
const AF_MAX: u64 = 46;
/// The bytes of `struct sockaddr_un`, and of its family.
const ADDRESS: u64 = 110;
const FAMILY: u64 = 2;
/// The bytes of the largest address of any family.
const ANY_ADDRESS: u64 = 128;

/// The socket of a description.
fn of(open: &Open) -> Result<&Arc<Socket>, Errno> {
    open.socket().ok_or(Errno(ENOTSOCK))
}

/// Waits at a socket, unless the description does not block, until `attempt` gives a value or
/// the time of SO_RCVTIMEO or SO_SNDTIMEO is over.
fn wait<T>(
    call: &mut Call<'_>,
    file: (u64, &Arc<Open>),
    changed: &Changed,
    micros: u64,
    mut attempt: impl FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Stop> {
    let until = deadline(call, (micros > 0).then_some(micros * 1000));
    let queue = core::iter::once(&changed.threads);
    match call.wait_until(queue, until, || attempt().transpose()) {
        Ok(Some(done)) => Ok(done?),
        Ok(None) => fail(EAGAIN),
        Err(stop) => {
            call.keep([file]);
            Err(stop)
        }
    }
}

/// The type of a new socket, and the flags of its descriptor.
fn kind(call: &Call<'_>) -> Result<(Type, u32), Errno> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let [family, kind, protocol, ..] = call.args;
    let (flags, kind) = (kind as u32 & !0xf, kind & 0xf);
    check_flags(flags.into(), O_CLOEXEC | O_NONBLOCK)?;
    if family >= AF_MAX {
        return Err(Errno(EAFNOSUPPORT));
    }
    if kind > 10 {
        return Err(Errno(EINVAL));
    }
    if family != AF_UNIX {
        // Relaxed: only the mark.
        if !TOLD.swap(true, Ordering::Relaxed) {
            println!("samara: a program asks for a socket of family {family}: there is no network");
        }
        return Err(Errno(EAFNOSUPPORT));
    }
    if protocol != 0 && protocol != AF_UNIX {
        return Err(Errno(EPROTONOSUPPORT));
    }
    let kind = match kind {
        1 => Type::Stream,
        // Raw ones, too.
        2 | 3 => Type::Datagram,
        5 => Type::Packets,
        _ => return Err(Errno(ESOCKTNOSUPPORT)),
    };
    Ok((kind, flags))
}

/// socket(2).
pub(in crate::call) fn socket(call: &mut Call<'_>) -> Outcome {
    let (kind, flags) = kind(call)?;
    let open = Socket::new(kind).open(flags & O_NONBLOCK)?;
    Ok(call.files()?.insert(open, flags & O_CLOEXEC != 0, 0)?.into())
}

/// socketpair(2).
pub(in crate::call) fn socketpair(call: &mut Call<'_>) -> Outcome {
    let into = call.args[3];
    let (kind, flags) = kind(call)?;
    let (one, other) = (Socket::new(kind), Socket::new(kind));
    let opens = [one.open(flags & O_NONBLOCK)?, other.open(flags & O_NONBLOCK)?];
    Socket::connect_pair(&one, &other, call.process().pid);
    call.insert_pair(opens, flags & O_CLOEXEC != 0, into)
}

/// The bytes of an address, without the family.
fn address(call: &Call<'_>, at: u64, len: u64) -> Result<(u64, Vec<u8>), Errno> {
    let len = len as u32 as i32;
    if len < 0 || len as u64 > ANY_ADDRESS {
        return Err(Errno(EINVAL));
    }
    let mut bytes = [0; ANY_ADDRESS as usize];
    let bytes = &mut bytes[..len as usize];
    call.user().read_bytes(at, bytes)?;
    let Some((family, name)) = bytes.split_first_chunk() else {
        return Ok((u64::MAX, Vec::new()));
    };
    Ok((u16::from_ne_bytes(*family).into(), name.to_vec()))
}

/// The name in an address.
fn name(call: &Call<'_>, at: u64, len: u64) -> Result<Vec<u8>, Errno> {
    match address(call, at, len)? {
        (AF_UNIX, name) if name.len() as u64 + FAMILY <= ADDRESS => Ok(name),
        _ => Err(Errno(EINVAL)),
    }
}

/// The socket with a name.
fn find(call: &Call<'_>, kind: Type, name: &[u8]) -> Result<Arc<Socket>, Errno> {
    if name.is_empty() {
        return Err(Errno(EINVAL));
    }
    Socket::find(kind, name, &call.path_start(HERE, b"")?)
}

/// Writes a name, as far as it fits, and its length: `at` and `len_at` are pointers.
fn tell_name(
    call: &Call<'_>,
    name: Option<&Name>,
    at: u64,
    len_at: u64,
    unnamed: u32,
) -> Result<(), Errno> {
    let room: u32 = call.user().read(len_at)?;
    if (room as i32) < 0 {
        return Err(Errno(EINVAL));
    }
    let len = put_name(call, name, at, room, unnamed)?;
    call.user().write(len_at, &len)
}

/// Writes a name, as far as it fits. Returns its length: `unnamed` of a socket without a name.
fn put_name(
    call: &Call<'_>,
    name: Option<&Name>,
    at: u64,
    room: u32,
    unnamed: u32,
) -> Result<u32, Errno> {
    let mut bytes = [0; ADDRESS as usize];
    bytes[..2].copy_from_slice(&(AF_UNIX as u16).to_ne_bytes());
    let mut len = unnamed as usize;
    if let Some(name) = name {
        // A name fits, and may have a zero more.
        let most = name.len().min(bytes.len() - 2);
        bytes[2..][..most].copy_from_slice(&name[..most]);
        len = 2 + name.len();
    }
    let copied = len.min(room as usize).min(bytes.len());
    call.user().write_bytes(at, &bytes[..copied])?;
    Ok(len as u32)
}

/// bind(2).
pub(in crate::call) fn bind(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len, ..] = call.args;
    let open = call.open(fd)?;
    let socket = of(&open)?;
    let name = name(call, at, len)?;
    socket.bind(&name, &call.path_start(HERE, b"")?, 0o777 & !call.umask())?;
    Ok(0)
}

/// listen(2).
pub(in crate::call) fn listen(call: &mut Call<'_>) -> Outcome {
    let [fd, most, ..] = call.args;
    let open = call.open(fd)?;
    let socket = of(&open)?;
    if socket.kind == Type::Datagram {
        return fail(EOPNOTSUPP);
    }
    socket.listen(most as u32 as usize, call.process().pid)?;
    Ok(0)
}

/// accept(2).
pub(in crate::call) fn accept(call: &mut Call<'_>) -> Outcome {
    call.args[3] = 0;
    accept4(call)
}

/// accept4(2).
pub(in crate::call) fn accept4(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len_at, flags, ..] = call.args;
    check_flags(flags, O_CLOEXEC | O_NONBLOCK)?;
    let open = call.moving(fd)?;
    let socket = of(&open)?;
    if socket.kind == Type::Datagram {
        return fail(EOPNOTSUPP);
    }
    let next = match socket.next_connection()? {
        Some(next) => next,
        None if open.is_nonblocking() => return fail(EAGAIN),
        None => {
            let micros = socket.options.timeout(false);
            wait(call, (fd, &open), &socket.changed, micros, || socket.next_connection())?
        }
    };
    let accepted = Arc::clone(of(&next)?);
    next.set_flags(flags as u32 & O_NONBLOCK);
    if at != 0 {
        let name = accepted.peer_name().ok().and_then(|(name, _)| name);
        // As in Linux, the connection is lost if its name cannot be told.
        tell_name(call, name.as_ref(), at, len_at, FAMILY as u32)?;
    }
    let inserted = call.files()?.insert(Arc::clone(&next), flags as u32 & O_CLOEXEC != 0, 0);
    match inserted {
        Ok(new) => {
            accepted.accepted();
            Ok(new.into())
        }
        Err(error) => {
            socket.put_back(next);
            Err(error.into())
        }
    }
}

/// connect(2).
pub(in crate::call) fn connect(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len, ..] = call.args;
    let open = call.moving(fd)?;
    let socket = of(&open)?;
    let (family, name) = address(call, at, len)?;
    if family == AF_UNSPEC && socket.kind == Type::Datagram {
        socket.set_peer(None)?;
        return Ok(0);
    }
    if family != AF_UNIX || name.len() as u64 + FAMILY > ADDRESS {
        return fail(EINVAL);
    }
    let to = find(call, socket.kind, &name)?;
    if socket.kind == Type::Datagram {
        socket.set_peer(Some(&to))?;
        return Ok(0);
    }
    let pid = call.process().pid;
    match socket.connect(&to, pid)? {
        Some(()) => {}
        None if open.is_nonblocking() => return fail(EAGAIN),
        None => {
            let micros = socket.options.timeout(true);
            let attempt = || socket.connect(&to, pid);
            wait(call, (fd, &open), &to.changed, micros, attempt)?;
        }
    }
    Ok(0)
}

/// getsockname(2).
pub(in crate::call) fn getsockname(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len_at, ..] = call.args;
    let open = call.open(fd)?;
    tell_name(call, of(&open)?.name().as_ref(), at, len_at, FAMILY as u32)?;
    Ok(0)
}

/// getpeername(2).
pub(in crate::call) fn getpeername(call: &mut Call<'_>) -> Outcome {
    let [fd, at, len_at, ..] = call.args;
    let open = call.open(fd)?;
    let (name, _) = of(&open)?.peer_name()?;
    tell_name(call, name.as_ref(), at, len_at, FAMILY as u32)?;
    Ok(0)
}

/// shutdown(2).
pub(in crate::call) fn shutdown(call: &mut Call<'_>) -> Outcome {
    let [fd, how, ..] = call.args;
    let open = call.open(fd)?;
    let socket = of(&open)?;
    if how > 2 {
        return fail(EINVAL);
    }
    socket.shut_down(how != 1, how != 0);
    Ok(0)
}

/// The target that a send names: none of a connected stream.
fn target(
    call: &Call<'_>,
    socket: &Socket,
    at: u64,
    len: u64,
) -> Result<Option<Arc<Socket>>, Errno> {
    if at == 0 || len == 0 {
        return Ok(None);
    }
    if socket.kind == Type::Stream {
        address(call, at, len)?;
        return Err(Errno(if socket.peer_name().is_ok() { EISCONN } else { EOPNOTSUPP }));
    }
    let name = name(call, at, len)?;
    // As in Linux, the peer of a socket of packets gets them whatever the name.
    match socket.kind {
        Type::Datagram => match find(call, socket.kind, &name)? {
            to if to.kind == Type::Datagram => Ok(Some(to)),
            _ => Err(Errno(EPROTOTYPE)),
        },
        _ => Ok(None),
    }
}

/// A value that a call cannot read or write.
const BAD: Errno = Errno(EFAULT);
