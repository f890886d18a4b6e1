//! capget(2) and capset(2): a program has all capabilities, and may give up CAP_IPC_LOCK alone, by
//! which RLIMIT_MEMLOCK does not bind it. Giving up others has no effect. A new program has all.

use super::{Call, Outcome, fail};
use crate::errno::Errno;
use linux_raw_sys::errno::{EINVAL, EPERM, ESRCH};

/// The versions of the structures, with the pieces of 32 capabilities that each has.
const VERSIONS: [(u32, u64); 3] = [(0x2008_0522, 2), (0x2007_1026, 2), (0x1998_0330, 1)];
/// The capabilities of Linux 6.18.
const ALL: u64 = (1 << 41) - 1;
/// CAP_IPC_LOCK.
const IPC_LOCK: u64 = 1 << 14;

/// Reads a header. Returns the number of pieces; none for a version that is not known, after it has
/// written one that is.
fn header(call: &Call<'_>, at: u64) -> Result<(Option<u64>, u32), Errno> {
    let [version, pid]: [u32; 2] = call.user().read(at)?;
    let known = VERSIONS.iter().find(|(known, _)| *known == version).map(|(_, pieces)| *pieces);
    if known.is_none() {
        call.user().write(at, &VERSIONS[0].0)?;
    }
    Ok((known, pid))
}

/// capget(2).
pub(super) fn capget(call: &mut Call<'_>) -> Outcome {
    let [at, data, ..] = call.args;
    let (Some(pieces), pid) = header(call, at)? else {
        // A program asks for the version so.
        return if data == 0 { Ok(0) } else { fail(EINVAL) };
    };
    if data == 0 {
        return Ok(0);
    }
    if (pid as i32) < 0 {
        return fail(EINVAL);
    }
    if pid != 0 && crate::task::process::thread(pid).is_none() {
        return fail(ESRCH);
    }
    let has = if call.space().limits().may_lock { ALL } else { ALL & !IPC_LOCK };
    for piece in 0..pieces {
        let part = |all: u64| (all >> (32 * piece)) as u32;
        // The effective, the permitted and the inheritable set.
        call.user().write(data + 12 * piece, &[part(has), part(ALL), 0])?;
    }
    Ok(0)
}

/// capset(2).
pub(super) fn capset(call: &mut Call<'_>) -> Outcome {
    let [at, data, ..] = call.args;
    let (Some(_), pid) = header(call, at)? else { return fail(EINVAL) };
    if pid != 0 && pid != call.thread.tid() {
        return fail(EPERM);
    }
    let [effective, ..]: [u32; 3] = call.user().read(data)?;
    let may_lock = u64::from(effective) & IPC_LOCK != 0;
    let limits = call.space().limits();
    call.space().set_limits(mm::Limits { may_lock, ..limits });
    Ok(0)
}
