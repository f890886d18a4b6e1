//! Calls on the users and groups of a process. `task/credentials.rs` has the rules.

use super::{Call, Outcome, fail};
use crate::lock::lock;
use crate::task::credentials::{EFFECTIVE, IdKind, Identity};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EINVAL, ENOMEM, EPERM};

/// The most other groups.
const MOST: u64 = 65536;

/// Real and effective number of the user or group.
pub(super) fn get(call: &mut Call<'_>, which: IdKind, place: usize) -> Outcome {
    Ok(lock(&call.process().identity).of(which)[place].into())
}

/// getresuid(2), getresgid(2).
pub(super) fn get_three(call: &mut Call<'_>, which: IdKind) -> Outcome {
    let numbers = *lock(&call.process().identity).of(which);
    for (at, number) in call.args.iter().zip(&numbers[..3]) {
        call.user().write(*at, number)?;
    }
    Ok(0)
}

/// Changes the identity. A program that is root no more is bound by RLIMIT_MEMLOCK.
fn change(
    call: &Call<'_>,
    change: impl FnOnce(&mut Identity) -> Result<u32, crate::errno::Errno>,
) -> Outcome {
    let mut identity = lock(&call.process().identity);
    let before = identity.user[EFFECTIVE];
    let result = change(&mut identity)?;
    let after = identity.user[EFFECTIVE];
    drop(identity);
    if (before == 0) != (after == 0) {
        let limits = call.space().limits();
        call.space().set_limits(mm::Limits { may_lock: after == 0, ..limits });
    }
    Ok(result.into())
}

/// setuid(2), setgid(2).
pub(super) fn set(call: &mut Call<'_>, which: IdKind) -> Outcome {
    let new = call.args[0] as u32;
    if new == u32::MAX {
        return fail(EINVAL);
    }
    change(call, |identity| identity.set(which, new).map(|()| 0))
}

/// setreuid(2), setregid(2).
pub(super) fn set_two(call: &mut Call<'_>, which: IdKind) -> Outcome {
    let [real, effective, ..] = call.args.map(|new| new as u32);
    change(call, |identity| identity.set_two(which, real, effective).map(|()| 0))
}

/// setresuid(2), setresgid(2).
pub(super) fn set_three(call: &mut Call<'_>, which: IdKind) -> Outcome {
    let [real, effective, saved, ..] = call.args.map(|new| new as u32);
    change(call, |identity| identity.set_three(which, [real, effective, saved]).map(|()| 0))
}

/// setfsuid(2), setfsgid(2).
pub(super) fn set_of_files(call: &mut Call<'_>, which: IdKind) -> Outcome {
    let new = call.args[0] as u32;
    change(call, |identity| Ok(identity.set_of_files(which, new)))
}

/// getgroups(2).
pub(super) fn getgroups(call: &mut Call<'_>) -> Outcome {
    let [most, into, ..] = call.args;
    let groups = Arc::clone(&lock(&call.process().identity).groups);
    match most as i32 {
        ..0 => return fail(EINVAL),
        0 => {}
        most if (most as usize) < groups.len() => return fail(EINVAL),
        _ => call.user().write_bytes(into, zerocopy::IntoBytes::as_bytes(&groups[..]))?,
    }
    Ok(groups.len() as u64)
}

/// setgroups(2).
pub(super) fn setgroups(call: &mut Call<'_>) -> Outcome {
    let [count, from, ..] = call.args;
    if !lock(&call.process().identity).may_change() {
        return fail(EPERM);
    }
    if count > MOST {
        return fail(EINVAL);
    }
    let mut groups = Vec::new();
    groups.try_reserve_exact(count as usize).map_err(|_| crate::errno::Errno(ENOMEM))?;
    for place in 0..count {
        let group: u32 = call.user().read(from.wrapping_add(4 * place))?;
        if group == u32::MAX {
            return fail(EINVAL);
        }
        groups.push(group);
    }
    groups.sort_unstable();
    let new = Arc::new(groups);
    let before = core::mem::replace(&mut lock(&call.process().identity).groups, new);
    drop(before);
    Ok(0)
}
