//! Calls that make and close descriptors.

use super::{Call, HERE, Outcome, check_flags};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::inode::{refused, truncate};
use crate::file::open::{Mode, Open};
use crate::file::{DESCRIPTORS, tree};
use crate::lock::lock;
use crate::path::Found;
use crate::space::tables;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::errno::{
    EBADF, EEXIST, EINVAL, EISDIR, ELOOP, ENODEV, ENOENT, ENOTDIR, EOPNOTSUPP,
};
use linux_raw_sys::general::{
    O_ACCMODE, O_CLOEXEC, O_CREAT, O_DIRECT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_PATH,
    O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY,
};
use mm::{Seals, Shmem};

/// The flags that a description keeps.
const KEPT: u32 = !(O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC | 0o400/* O_NOCTTY */);
/// O_TMPFILE without the bit of O_DIRECTORY.
const UNNAMED: u32 = O_TMPFILE & !O_DIRECTORY;

/// open(2).
pub(in crate::call) fn open(call: &mut Call<'_>) -> Outcome {
    let [path, flags, mode, ..] = call.args;
    open_path(call, HERE, path, flags as u32, mode as u32)
}

/// openat(2).
pub(in crate::call) fn openat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, flags, mode, ..] = call.args;
    open_path(call, folder, path, flags as u32, mode as u32)
}

/// creat(2).
pub(in crate::call) fn creat(call: &mut Call<'_>) -> Outcome {
    let [path, mode, ..] = call.args;
    open_path(call, HERE, path, O_CREAT | O_WRONLY | O_TRUNC, mode as u32)
}

fn open_path(call: &mut Call<'_>, folder: u64, path: u64, flags: u32, mode: u32) -> Outcome {
    if call.own.resume.opening.is_some() {
        return call.go_on_opening();
    }
    let has = |flag| flags & flag != 0;
    let how = match flags & O_ACCMODE {
        _ if has(O_PATH) => Mode::PATH,
        O_RDONLY => Mode::READ,
        O_WRONLY => Mode::WRITE,
        O_RDWR => Mode::READ_WRITE,
        _ => return fail(EINVAL),
    };
    if !how.path && has(O_CREAT) && has(O_DIRECTORY) {
        return fail(EINVAL);
    }
    let path = call.user().path(path)?;
    let start = call.start_of(folder, &path)?;
    let creates = has(O_CREAT) && !how.path;
    let follow = !(has(O_NOFOLLOW) || creates && has(O_EXCL));
    if has(UNNAMED) && !how.path {
        return open_unnamed(call, &start.find(&path, true)?, how, flags, mode);
    }
    let (found, node, created) = loop {
        let found = start.walk(&path, follow)?;
        if let Some(node) = found.node.clone() {
            break (found, node, false);
        }
        if !creates {
            return fail(ENOENT);
        }
        if found.folder {
            return fail(EISDIR);
        }
        let shown = found.parent.shown_path(&found.name)?;
        let node = call.owned(Inode::file(&shown, mode & 0o7777 & !call.umask())?);
        match tree::insert(&found.parent, &found.name, &node) {
            Ok(()) => break (found, node, true),
            // Another thread was faster.
            Err(Errno(EEXIST)) if !has(O_EXCL) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let location = Some((Arc::clone(&found.parent), found.name.clone()));
    if matches!(node.kind, InodeKind::Pipe(_)) && !how.path {
        check(&node, how, flags, created)?;
        let open = Open::new(node, location, how, flags & KEPT)?;
        return call.finish_open(open, flags);
    }
    let opened = check(&node, how, flags, created).and_then(|()| {
        let truncates = has(O_TRUNC) && !created && matches!(node.kind, InodeKind::File(_));
        let kept = flags & KEPT;
        let _writer = if truncates && !how.path { node.writer()? } else { None };
        let open = Open::new(Arc::clone(&node), location, how, kept)?;
        let fd = call.files()?.insert(open, has(O_CLOEXEC), 0)?;
        if truncates
            && !how.path
            && let Err(error) = truncate(&node, 0)
        {
            call.files()?.close(fd)?;
            return Err(error);
        }
        Ok(fd)
    });
    if opened.is_err() && created {
        // It was this call that made it. Another thread may have removed it.
        let _ = tree::remove(&Found { folder: false, ..found }, false);
    }
    Ok(opened?.into())
}

/// Whether an inode can be opened so.
fn check(node: &Inode, how: Mode, flags: u32, created: bool) -> Result<(), Errno> {
    let has = |flag| flags & flag != 0;
    if how.path {
        let refused = has(O_DIRECTORY) && !node.is_folder();
        return if refused { Err(Errno(ENOTDIR)) } else { Ok(()) };
    }
    let errno = match node {
        _ if created => return Ok(()),
        _ if has(O_CREAT) && has(O_EXCL) => EEXIST,
        _ if has(O_DIRECTORY) && !node.is_folder() => ENOTDIR,
        _ if node.is_link() => ELOOP,
        _ if node.is_folder() && (how.write || has(O_CREAT)) => EISDIR,
        _ => return Ok(()),
    };
    Err(Errno(errno))
}

/// Opens a file without a name (O_TMPFILE).
fn open_unnamed(call: &Call<'_>, folder: &Arc<Inode>, how: Mode, flags: u32, mode: u32) -> Outcome {
    if !how.write || flags & O_DIRECTORY == 0 {
        return fail(EINVAL);
    }
    if !folder.is_folder() {
        return fail(ENOTDIR);
    }
    if matches!(folder.kind, InodeKind::Proc(_)) {
        return fail(EOPNOTSUPP);
    }
    let shown = folder.shown_path(b"# (deleted)")?;
    let node = call.owned(Inode::file(&shown, mode & 0o7777 & !call.umask())?);
    // Relaxed: no other thread has it. With O_EXCL it cannot get a name.
    node.links.store(0, Ordering::Relaxed);
    let open = Open::new(node, None, how, flags & KEPT)?;
    Ok(call.files()?.insert(open, flags & O_CLOEXEC != 0, 0)?.into())
}

/// close(2).
pub(in crate::call) fn close(call: &mut Call<'_>) -> Outcome {
    call.files()?.close(call.args[0] as u32)?;
    Ok(0)
}

/// close_range(2).
pub(in crate::call) fn close_range(call: &mut Call<'_>) -> Outcome {
    const UNSHARE: u32 = 2;
    const MARK: u64 = 4;
    let [first, last, flags, ..] = call.args;
    check_flags(flags, UNSHARE | MARK as u32)?;
    let (first, last) = (first as u32, last as u32);
    if first > last {
        return fail(EINVAL);
    }
    if flags & u64::from(UNSHARE) != 0 {
        let copy = call.files()?.copy()?;
        let old = lock(&call.process().files).replace(copy);
        drop(old);
    }
    let files = call.files()?;
    for fd in first..=last.min(DESCRIPTORS as u32 - 1) {
        // Those that are not there are passed over.
        let _ = if flags & MARK != 0 {
            files.with_mark(fd, |mark| *mark = true)
        } else {
            files.close(fd)
        };
    }
    Ok(0)
}

/// dup(2).
pub(in crate::call) fn dup(call: &mut Call<'_>) -> Outcome {
    let open = call.any_open(call.args[0])?;
    Ok(call.files()?.insert(open, false, 0)?.into())
}

/// dup2(2).
pub(in crate::call) fn dup2(call: &mut Call<'_>) -> Outcome {
    let [old, new, ..] = call.args;
    let open = call.any_open(old)?;
    if old as u32 != new as u32 {
        call.files()?.replace(new as u32, open, false)?;
    }
    Ok(new & 0xffff_ffff)
}

/// dup3(2).
pub(in crate::call) fn dup3(call: &mut Call<'_>) -> Outcome {
    let [old, new, flags, ..] = call.args;
    check_flags(flags, O_CLOEXEC)?;
    if old as u32 == new as u32 {
        return fail(EINVAL);
    }
    if new as u32 as usize >= DESCRIPTORS {
        return fail(EBADF);
    }
    let open = call.any_open(old)?;
    call.files()?.replace(new as u32, open, flags & u64::from(O_CLOEXEC) != 0)?;
    Ok(new & 0xffff_ffff)
}

/// pipe(2).
pub(in crate::call) fn pipe(call: &mut Call<'_>) -> Outcome {
    call.args[1] = 0;
    pipe2(call)
}

/// pipe2(2).
pub(in crate::call) fn pipe2(call: &mut Call<'_>) -> Outcome {
    let [into, flags, ..] = call.args;
    check_flags(flags, O_CLOEXEC | O_NONBLOCK | O_DIRECT)?;
    let mark = flags as u32 & O_CLOEXEC != 0;
    call.insert_pair(Open::pipe(flags as u32 & O_NONBLOCK)?, mark, into)
}

impl Call<'_> {
    /// Gives two descriptions descriptors, and writes these to the program.
    pub(super) fn insert_pair(
        &self,
        [one, other]: [Arc<Open>; 2],
        mark: bool,
        into: u64,
    ) -> Outcome {
        let files = self.files()?;
        let first = files.insert(one, mark, 0)?;
        let second = files.insert(other, mark, 0);
        let written = second.and_then(|second| self.user().write(into, &[first, second]));
        if written.is_err() {
            files.close(first)?;
            if let Ok(second) = second {
                files.close(second)?;
            }
        }
        written?;
        Ok(0)
    }
}

/// A memfd of huge pages of a size that Linux has on x86-64. There are none of any size.
fn huge_memfd(call: &Call<'_>, flags: u64, close_on_exec: bool) -> Outcome {
    if !matches!(flags >> 26 & 0x3f, 0 | 21 | 30) {
        return fail(ENODEV);
    }
    let node = Inode::new(InodeKind::Huge(AtomicU64::new(0)), 0o777)?;
    // Relaxed: no other thread has it.
    node.links.store(0, Ordering::Relaxed);
    let open = Open::new(node, None, Mode::READ_WRITE, 0)?;
    Ok(call.files()?.insert(open, close_on_exec, 0)?.into())
}

/// memfd_create(2).
pub(in crate::call) fn memfd_create(call: &mut Call<'_>) -> Outcome {
    const CLOEXEC: u64 = 1;
    const ALLOW_SEALING: u64 = 2;
    const HUGETLB: u64 = 4;
    /// The logarithm of the size of huge pages.
    const SIZES: u64 = 0x3f << 26;
    const NOEXEC_SEAL: u64 = 8;
    const EXEC: u64 = 16;
    /// The longest name: NAME_MAX without the prefix "memfd:".
    const LONGEST: usize = 249;
    let [name, flags, ..] = call.args;
    let huge = flags & HUGETLB != 0;
    let sizes = if huge { SIZES } else { 0 };
    check_flags(flags, (CLOEXEC | ALLOW_SEALING | HUGETLB | NOEXEC_SEAL | EXEC | sizes) as u32)?;
    if flags & (NOEXEC_SEAL | EXEC) == NOEXEC_SEAL | EXEC {
        return fail(EINVAL);
    }
    let name = call.user().path(name).map_err(|error| match error {
        Errno(linux_raw_sys::errno::ENAMETOOLONG) => Errno(EINVAL),
        other => other,
    })?;
    if name.len() > LONGEST {
        return fail(EINVAL);
    }
    if huge {
        return huge_memfd(call, flags, flags & CLOEXEC != 0);
    }
    let name = String::from_utf8_lossy(&name);
    let memory = Shmem::memfd(tables().paging(), &name, Inode::next_number()).map_err(refused)?;
    let (mode, seals) = match flags & (ALLOW_SEALING | NOEXEC_SEAL) {
        0 => (0o777, Seals::SEAL),
        ALLOW_SEALING => (0o777, Seals::default()),
        _ => (0o666, Seals::EXEC),
    };
    memory.add_seals(seals).map_err(refused)?;
    let node = Inode::memory(memory, mode)?;
    // Relaxed: no other thread has it.
    node.links.store(0, Ordering::Relaxed);
    let open = Open::new(node, None, Mode::READ_WRITE, 0)?;
    Ok(call.files()?.insert(open, flags & CLOEXEC != 0, 0)?.into())
}

/// umask(2).
pub(in crate::call) fn umask(call: &mut Call<'_>) -> Outcome {
    let mut place = lock(&call.process().place);
    let old = core::mem::replace(&mut place.umask, call.args[0] as u32 & 0o777);
    Ok(old.into())
}
