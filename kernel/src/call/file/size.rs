//! Calls on positions and sizes.

use super::{Call, HERE, Outcome};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::{CHANGED, Inode, InodeKind, WRITTEN};
use crate::file::inode::{refused, truncate as set_size};
use crate::lock::lock;
use crate::task::signal;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{
    EBADF, EFBIG, EINTR, EINVAL, EISDIR, ENODEV, ENOSPC, ENXIO, EOPNOTSUPP, EPERM, ESPIPE,
};
use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use mm::{Object, ObjectError, Seals};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// lseek(2).
pub(in crate::call) fn lseek(call: &mut Call<'_>) -> Outcome {
    const DATA: u64 = 3;
    const HOLE: u64 = 4;
    let [fd, offset, from, ..] = call.args;
    let open = call.open(fd)?;
    if open.is_placeless() && from <= HOLE {
        return Ok(0);
    }
    if !open.is_seekable() && !open.is_placeless() {
        return fail(ESPIPE);
    }
    if !matches!(from, DATA | HOLE) {
        return Ok(open.seek(offset as i64, from)?);
    }
    // All of a file counts as data, as lseek(2) allows.
    let size = open.node.size();
    if offset >= size {
        return fail(ENXIO);
    }
    Ok(open.seek(if from == DATA { offset } else { size } as i64, 0)?)
}

/// truncate(2).
pub(in crate::call) fn truncate(call: &mut Call<'_>) -> Outcome {
    let [path, len, ..] = call.args;
    if (len as i64) < 0 {
        return fail(EINVAL);
    }
    let node = call.find(HERE, path, 0)?;
    let _writer = node.writer()?;
    set_size(&node, len)?;
    Ok(0)
}

/// ftruncate(2).
pub(in crate::call) fn ftruncate(call: &mut Call<'_>) -> Outcome {
    let [fd, len, ..] = call.args;
    if (len as i64) < 0 {
        return fail(EINVAL);
    }
    let open = call.open(fd)?;
    if let InodeKind::Huge(size) = &open.node.kind
        && open.mode.write
        && len.is_multiple_of(HUGE)
    {
        // Relaxed: only the number.
        size.store(len, Ordering::Relaxed);
        return Ok(0);
    }
    if !open.mode.write || open.memory().is_none() {
        return fail(EINVAL);
    }
    open.truncate(len)?;
    Ok(0)
}

/// fallocate(2): in whole, with FALLOC_FL_KEEP_SIZE, or to punch a hole.
pub(in crate::call) fn fallocate(call: &mut Call<'_>) -> Outcome {
    const KEEP_SIZE: u64 = 1;
    const PUNCH_HOLE: u64 = 2;
    /// The pages after which the CPU goes to other threads if the turn is over.
    const PART: u64 = 256;
    /// The largest file.
    const MOST: u64 = i64::MAX as u64;
    let [fd, mode, offset, len, ..] = call.args;
    let open = call.moving(fd)?;
    if (offset as i64) < 0 || (len as i64) <= 0 {
        return fail(EINVAL);
    }
    let mode = mode & 0xffff_ffff;
    if !matches!(mode, 0 | KEEP_SIZE) && mode != PUNCH_HOLE | KEEP_SIZE {
        return fail(EOPNOTSUPP);
    }
    if !open.mode.write {
        return fail(EBADF);
    }
    let Some(memory) = open.memory() else {
        return fail(match &*open.node {
            node if node.is_folder() => EISDIR,
            _ if open.pipe_of().is_some() => ESPIPE,
            Inode { kind: InodeKind::Huge(_), .. } if mode & PUNCH_HOLE != 0 => return Ok(0),
            Inode { kind: InodeKind::Huge(_), .. } => ENOSPC,
            _ => ENODEV,
        });
    };
    let end = offset.checked_add(len).filter(|end| *end <= MOST).ok_or(Errno(EFBIG))?;
    if mode & PUNCH_HOLE != 0 {
        memory.punch_hole(offset..end).map_err(refused)?;
        open.node.touch(&[WRITTEN, CHANGED]);
        return Ok(0);
    }
    let _writing = lock(&open.node.writing);
    let before = *call.own.resume.size.get_or_insert_with(|| memory.size());
    let grows = mode == 0 && end > before;
    if grows && memory.seals().intersects(Seals::GROW) {
        return fail(EPERM);
    }
    // A later part does not undo another call's change of the size.
    if grows && call.moved() == 0 {
        memory.set_size(end).map_err(refused)?;
    }
    // Pages beyond the end have no place in the object; those within it come in now.
    let last = end.min(memory.size()).div_ceil(PAGE);
    let first = call.moved().max(offset / PAGE);
    for page in first..last {
        let error = match memory.bring_in(page) {
            // As in Linux, any signal ends it.
            Ok(()) if signal::is_pending(call.thread) => Errno(EINTR),
            Ok(()) if page % PART != 0 => continue,
            Ok(()) => {
                call.goes_on(page + 1, [(fd, &open)])?;
                continue;
            }
            Err(ObjectError::BeyondEnd) => break,
            Err(error) => refused(error),
        };
        // Unless another call has changed it meanwhile.
        if grows && memory.size() == end {
            let _ = memory.set_size(before);
        }
        return Err(error.into());
    }
    open.node.touch(&[CHANGED]);
    Ok(0)
}

/// fsync(2) and fdatasync(2): memory is all there is.
pub(in crate::call) fn fsync(call: &mut Call<'_>) -> Outcome {
    let open = call.open(call.args[0])?;
    if open.memory().is_some() || open.node.is_folder() { Ok(0) } else { fail(EINVAL) }
}

/// sync(2).
pub(in crate::call) fn sync(_: &mut Call<'_>) -> Outcome {
    Ok(0)
}

/// syncfs(2).
pub(in crate::call) fn syncfs(call: &mut Call<'_>) -> Outcome {
    call.open(call.args[0])?;
    Ok(0)
}

/// sync_file_range(2): memory is all there is.
pub(in crate::call) fn sync_file_range(call: &mut Call<'_>) -> Outcome {
    const FLAGS: u32 = 7;
    let [fd, offset, len, flags, ..] = call.args;
    let open = call.open(fd)?;
    let end = (offset as i64).checked_add(len as i64).filter(|end| *end >= offset as i64);
    if flags as u32 & !FLAGS != 0 || (offset as i64) < 0 || end.is_none() {
        return fail(EINVAL);
    }
    match open.node.mode() & S_IFMT {
        S_IFREG | S_IFDIR | S_IFLNK => Ok(0),
        _ => fail(ESPIPE),
    }
}

/// fadvise64(2): advice on memory is not needed.
pub(in crate::call) fn fadvise64(call: &mut Call<'_>) -> Outcome {
    let [fd, _, len, advice, ..] = call.args;
    let open = call.open(fd)?;
    if open.pipe_of().is_some() {
        return fail(ESPIPE);
    }
    if (len as i64) < 0 || advice > 5 {
        return fail(EINVAL);
    }
    Ok(0)
}
