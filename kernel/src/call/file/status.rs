//! Calls on the attributes of a file: size, permissions, owner, times.

use super::{Call, HERE, Outcome, check_flags};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::{CHANGED, CREATED, Inode, InodeKind, READ, WRITTEN};
use crate::machine::Kernel;
use crate::stats;
use crate::time::{SECOND, real_time};
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EACCES, EFAULT, EINVAL};
use linux_raw_sys::general::{
    AT_EACCESS, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_STATX_SYNC_TYPE, AT_SYMLINK_NOFOLLOW,
};
use machine::FrameSource;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The size of blocks that is told.
const BLOCK: u64 = 4096;
/// That of `/proc`. Libraries take it for the size of their buffers, and a buffer that has a whole
/// text would hide that it is written anew.
const PROC_BLOCK: u64 = 1024;

/// `struct stat`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Stat {
    device: u64,
    inode: u64,
    links: u64,
    mode: u32,
    user: u32,
    group: u32,
    _unused: u32,
    special: u64,
    size: u64,
    block: u64,
    blocks: u64,
    /// Read, written, changed: seconds and nanoseconds.
    times: [[u64; 2]; 3],
    _rest: [u64; 3],
}

/// `struct statx`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Statx {
    mask: u32,
    block: u32,
    attributes: u64,
    links: u32,
    user: u32,
    group: u32,
    mode: u16,
    _unused: u16,
    inode: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    /// Read, created, changed, written.
    times: [[u64; 2]; 4],
    special: [u32; 2],
    device: [u32; 2],
    mount: u64,
    _rest: [u64; 13],
}

/// `struct statfs`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Statfs {
    kind: u64,
    block: u64,
    blocks: u64,
    free: u64,
    available: u64,
    files: u64,
    files_free: u64,
    id: u64,
    name: u64,
    fragment: u64,
    flags: u64,
    _rest: [u64; 4],
}

const _: () = assert!(size_of::<Stat>() == 144 && size_of::<Statx>() == 256);
const _: () = assert!(size_of::<Statfs>() == 120);

fn time(node: &Inode, which: usize) -> [u64; 2] {
    // Relaxed, here and below: numbers only.
    let nanos = node.times[which].load(Ordering::Relaxed);
    [nanos / SECOND, nanos % SECOND]
}

/// The number of a device, if it is one.
fn special(node: &Inode) -> u64 {
    if let InodeKind::Device(device) = &node.kind { device.number() } else { 0 }
}

/// The size of blocks of a file.
fn block(node: &Inode) -> u64 {
    if matches!(node.kind, InodeKind::Proc(_)) { PROC_BLOCK } else { BLOCK }
}

/// The blocks of 512 bytes in which the contents are.
fn blocks(node: &Inode) -> u64 {
    if let InodeKind::File(memory) = &node.kind { memory.size().div_ceil(BLOCK) * 8 } else { 0 }
}

fn write_stat(call: &Call<'_>, node: &Inode, into: u64) -> Outcome {
    let stat = Stat {
        device: node.device(),
        inode: node.number,
        links: node.links.load(Ordering::Relaxed).into(),
        mode: node.mode(),
        user: node.user.load(Ordering::Relaxed),
        group: node.group.load(Ordering::Relaxed),
        special: special(node),
        size: node.size(),
        block: block(node),
        blocks: blocks(node),
        times: [time(node, READ), time(node, WRITTEN), time(node, CHANGED)],
        ..Stat::new_zeroed()
    };
    call.user().write(into, &stat)?;
    Ok(0)
}

/// stat(2).
pub(in crate::call) fn stat(call: &mut Call<'_>) -> Outcome {
    let [path, into, ..] = call.args;
    write_stat(call, &*call.find(HERE, path, 0)?, into)
}

/// lstat(2).
pub(in crate::call) fn lstat(call: &mut Call<'_>) -> Outcome {
    let [path, into, ..] = call.args;
    write_stat(call, &*call.find(HERE, path, AT_SYMLINK_NOFOLLOW.into())?, into)
}

/// fstat(2).
pub(in crate::call) fn fstat(call: &mut Call<'_>) -> Outcome {
    let [fd, into, ..] = call.args;
    write_stat(call, &call.any_open(fd)?.node, into)
}

/// newfstatat(2).
pub(in crate::call) fn newfstatat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, into, flags, ..] = call.args;
    let known = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE;
    check_flags(flags, known)?;
    write_stat(call, &*call.find_for_stat(folder, path, flags)?, into)
}

/// statx(2).
pub(in crate::call) fn statx(call: &mut Call<'_>) -> Outcome {
    /// STATX_BASIC_STATS and STATX_BTIME.
    const FILLED: u32 = 0xfff;
    const RESERVED: u64 = 1 << 31;
    let [folder, path, flags, mask, into, _] = call.args;
    let known = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE;
    check_flags(flags, known)?;
    if mask & RESERVED != 0 || flags as u32 & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE {
        return fail(EINVAL);
    }
    let node = call.find_for_stat(folder, path, flags)?;
    let split = |number: u64| [(number >> 8) as u32, number as u32 & 0xff];
    let statx = Statx {
        mask: FILLED,
        block: block(&node) as u32,
        links: node.links.load(Ordering::Relaxed),
        user: node.user.load(Ordering::Relaxed),
        group: node.group.load(Ordering::Relaxed),
        mode: node.mode() as u16,
        inode: node.number,
        size: node.size(),
        blocks: blocks(&node),
        times: [READ, CREATED, CHANGED, WRITTEN].map(|which| time(&node, which)),
        special: split(special(&node)),
        device: split(node.device()),
        ..Statx::new_zeroed()
    };
    call.user().write(into, &statx)?;
    Ok(0)
}

fn write_statfs(call: &Call<'_>, node: &Inode, into: u64) -> Outcome {
    const TMPFS: u64 = 0x0102_1994;
    const PROC: u64 = 0x9fa0;
    let free = Kernel.free_frames() as u64;
    let is_proc = matches!(node.kind, InodeKind::Proc(_));
    let of_memory = |number| if is_proc { 0 } else { number };
    let statfs = Statfs {
        kind: if is_proc { PROC } else { TMPFS },
        block: BLOCK,
        blocks: of_memory(stats::frames_at_start()),
        free: of_memory(free),
        available: of_memory(free),
        name: crate::path::NAME_MAX as u64,
        fragment: BLOCK,
        ..Statfs::new_zeroed()
    };
    call.user().write(into, &statfs)?;
    Ok(0)
}

/// statfs(2).
pub(in crate::call) fn statfs(call: &mut Call<'_>) -> Outcome {
    let [path, into, ..] = call.args;
    write_statfs(call, &*call.find(HERE, path, 0)?, into)
}

/// fstatfs(2).
pub(in crate::call) fn fstatfs(call: &mut Call<'_>) -> Outcome {
    let [fd, into, ..] = call.args;
    write_statfs(call, &call.any_open(fd)?.node, into)
}

/// access(2).
pub(in crate::call) fn access(call: &mut Call<'_>) -> Outcome {
    let [path, mode, ..] = call.args;
    call.args = [HERE, path, mode, 0, 0, 0];
    faccessat2(call)
}

/// faccessat(2), which has no flags.
pub(in crate::call) fn faccessat(call: &mut Call<'_>) -> Outcome {
    call.args[3] = 0;
    faccessat2(call)
}

/// faccessat2(2). All programs are root: only the right to execute may be missing.
pub(in crate::call) fn faccessat2(call: &mut Call<'_>) -> Outcome {
    const EXECUTE: u64 = 1;
    let [folder, path, mode, flags, ..] = call.args;
    check_flags(mode, 7)?;
    check_flags(flags, AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    let node = call.find(folder, path, flags)?;
    let executable = node.is_folder() || node.mode() & 0o111 != 0;
    if mode & EXECUTE != 0 && !executable { fail(EACCES) } else { Ok(0) }
}

/// chmod(2).
pub(in crate::call) fn chmod(call: &mut Call<'_>) -> Outcome {
    let [path, mode, ..] = call.args;
    call.find(HERE, path, 0)?.set_mode(mode as u32)?;
    Ok(0)
}

/// fchmod(2).
pub(in crate::call) fn fchmod(call: &mut Call<'_>) -> Outcome {
    let [fd, mode, ..] = call.args;
    call.open(fd)?.node.set_mode(mode as u32)?;
    Ok(0)
}

/// fchmodat(2).
pub(in crate::call) fn fchmodat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, mode, ..] = call.args;
    call.find(folder, path, 0)?.set_mode(mode as u32)?;
    Ok(0)
}

fn change_owner(node: &Inode, user: u64, group: u64) -> Outcome {
    const KEEP: u32 = u32::MAX;
    for (place, new) in [(&node.user, user as u32), (&node.group, group as u32)] {
        if new != KEEP {
            place.store(new, Ordering::Relaxed);
        }
    }
    node.touch(&[CHANGED]);
    Ok(0)
}

/// chown(2).
pub(in crate::call) fn chown(call: &mut Call<'_>) -> Outcome {
    let [path, user, group, ..] = call.args;
    change_owner(&*call.find(HERE, path, 0)?, user, group)
}

/// lchown(2).
pub(in crate::call) fn lchown(call: &mut Call<'_>) -> Outcome {
    let [path, user, group, ..] = call.args;
    change_owner(&*call.find(HERE, path, AT_SYMLINK_NOFOLLOW.into())?, user, group)
}

/// fchown(2).
pub(in crate::call) fn fchown(call: &mut Call<'_>) -> Outcome {
    let [fd, user, group, ..] = call.args;
    change_owner(&call.open(fd)?.node, user, group)
}

/// fchownat(2).
pub(in crate::call) fn fchownat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, user, group, flags, _] = call.args;
    check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    change_owner(&*call.find(folder, path, flags)?, user, group)
}

/// utimensat(2).
pub(in crate::call) fn utimensat(call: &mut Call<'_>) -> Outcome {
    const NOW: u64 = 0x3fff_ffff;
    const OMIT: u64 = 0x3fff_fffe;
    let [folder, path, times, flags, ..] = call.args;
    check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
    let now = real_time();
    let mut new = [Some(now); 2];
    if times != 0 {
        let times: [[u64; 2]; 2] = call.user().read(times)?;
        for (new, [seconds, nanos]) in new.iter_mut().zip(times) {
            *new = match nanos {
                NOW => Some(now),
                OMIT => None,
                _ if nanos >= SECOND => return fail(EINVAL),
                // Times before 1970 become 1970.
                _ => Some((seconds as i64).max(0) as u64)
                    .map(|seconds| seconds.saturating_mul(SECOND).saturating_add(nanos)),
            };
        }
    }
    // Without a path it is the descriptor itself, and not the working directory.
    let node = match path {
        0 if folder as u32 == HERE as u32 => return fail(EFAULT),
        0 => call.open(folder)?.node.clone(),
        _ => call.find(folder, path, flags)?,
    };
    for (which, new) in [READ, WRITTEN].into_iter().zip(new) {
        if let Some(new) = new {
            node.times[which].store(new, Ordering::Relaxed);
        }
    }
    node.touch(&[CHANGED]);
    Ok(0)
}

/// utimes(2).
pub(in crate::call) fn utimes(call: &mut Call<'_>) -> Outcome {
    let [path, times, ..] = call.args;
    let mut new = [real_time(); 2];
    if times != 0 {
        let times: [[u64; 2]; 2] = call.user().read(times)?;
        for (new, [seconds, micros]) in new.iter_mut().zip(times) {
            if micros >= 1_000_000 {
                return Err(Errno(EINVAL).into());
            }
            *new = seconds.saturating_mul(SECOND).saturating_add(micros * 1000);
        }
    }
    let node = call.find(HERE, path, 0)?;
    for (which, new) in [READ, WRITTEN].into_iter().zip(new) {
        node.times[which].store(new, Ordering::Relaxed);
    }
    node.touch(&[CHANGED]);
    Ok(0)
}
