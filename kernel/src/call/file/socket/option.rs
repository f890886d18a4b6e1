//! getsockopt(2) and setsockopt(2).

use super::{Call, Outcome, of};
use crate::call::fail;
use crate::file::socket::{Options, ROOM};
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EDOM, EINVAL, ENOPROTOOPT, EOPNOTSUPP};

const SOL_SOCKET: u64 = 1;
const REUSEADDR: u64 = 2;
const TYPE: u64 = 3;
const ERROR: u64 = 4;
const SNDBUF: u64 = 7;
const RCVBUF: u64 = 8;
const KEEPALIVE: u64 = 9;
const PASSCRED: u64 = 16;
const PEERCRED: u64 = 17;
const RCVLOWAT: u64 = 18;
const RCVTIMEO: u64 = 20;
const SNDTIMEO: u64 = 21;
const ACCEPTCONN: u64 = 30;
const PROTOCOL: u64 = 38;
const DOMAIN: u64 = 39;
const MICROS: u64 = 1_000_000;

impl Options {
    /// Microseconds after which receiving or sending gives up; 0: never.
    pub(super) fn timeout(&self, sends: bool) -> u64 {
        self.timeouts[usize::from(sends)].load(Ordering::Relaxed)
    }

    pub(super) fn credentials(&self) -> bool {
        self.credentials.load(Ordering::Relaxed) != 0
    }
}

/// getsockopt(2).
pub(in crate::call) fn getsockopt(call: &mut Call<'_>) -> Outcome {
    let [fd, level, option, at, len_at, _] = call.args;
    let open = call.open(fd)?;
    let socket = of(&open)?;
    if level != SOL_SOCKET {
        return fail(EOPNOTSUPP);
    }
    let room: u32 = call.user().read(len_at)?;
    if (room as i32) < 0 {
        return fail(EINVAL);
    }
    let mut words = [0_u32; 4];
    let mut len = 4;
    match option {
        TYPE => words[0] = socket.kind as u32,
        ERROR => words[0] = socket.take_error(),
        SNDBUF | RCVBUF => words[0] = ROOM as u32,
        PASSCRED => words[0] = socket.options.credentials().into(),
        PEERCRED => {
            // As in Linux: none of a socket that is not connected.
            words[..3].copy_from_slice(&match socket.peer_name() {
                Ok((_, of)) => [of.pid, of.user, of.group],
                Err(_) => [0, u32::MAX, u32::MAX],
            });
            len = 12;
        }
        RCVLOWAT => words[0] = 1,
        RCVTIMEO | SNDTIMEO => {
            let micros = socket.options.timeout(option == SNDTIMEO);
            let [seconds, micros] = [micros / MICROS, micros % MICROS];
            words = [seconds as u32, (seconds >> 32) as u32, micros as u32, 0];
            len = 16;
        }
        ACCEPTCONN => words[0] = socket.listens().into(),
        DOMAIN => words[0] = 1,
        REUSEADDR | KEEPALIVE | PROTOCOL => {}
        _ => return fail(ENOPROTOOPT),
    }
    let bytes = zerocopy::IntoBytes::as_bytes(&words);
    let len = room.min(len);
    call.user().write_bytes(at, &bytes[..len as usize])?;
    call.user().write(len_at, &len)?;
    Ok(0)
}

/// setsockopt(2). The sizes of buffers are fixed, and a socket of this family heeds most others
/// nowhere: they are accepted, as Linux does.
pub(in crate::call) fn setsockopt(call: &mut Call<'_>) -> Outcome {
    let [fd, level, option, at, len, _] = call.args;
    let open = call.open(fd)?;
    let socket = of(&open)?;
    if (len as u32 as i32) < 0 {
        return fail(EINVAL);
    }
    if level != SOL_SOCKET {
        return fail(EOPNOTSUPP);
    }
    if len < 4 {
        return fail(EINVAL);
    }
    let value: u32 = call.user().read(at)?;
    match option {
        PASSCRED => socket.options.credentials.store((value != 0).into(), Ordering::Relaxed),
        RCVTIMEO | SNDTIMEO => {
            if len < 16 {
                return fail(EINVAL);
            }
            let [seconds, micros]: [i64; 2] = call.user().read(at)?;
            if !(0..MICROS as i64).contains(&micros) {
                return fail(EDOM);
            }
            let time = (seconds.max(0) as u64).saturating_mul(MICROS).saturating_add(micros as u64);
            // A negative time is over at once.
            let time = if seconds < 0 { 1 } else { time.min(u64::MAX / MICROS) };
            socket.options.timeouts[usize::from(option == SNDTIMEO)].store(time, Ordering::Relaxed);
        }
        REUSEADDR | SNDBUF | RCVBUF | KEEPALIVE | RCVLOWAT => {}
        TYPE | ERROR | ACCEPTCONN | PROTOCOL | DOMAIN | PEERCRED => return fail(ENOPROTOOPT),
        _ => return fail(ENOPROTOOPT),
    }
    Ok(0)
}
