//! Calls on folders, links and names.

use super::{Call, HERE, Outcome, check_flags, follow_flag};
use crate::call::fail;
use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::pipe::Pipe;
use crate::file::tree::{self, Existing};
use crate::lock::lock;
use crate::path::Found;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::errno::{EEXIST, EFAULT, EINVAL, ENOENT, ENOMEM, ENOTDIR, EPERM, ERANGE};
use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT,
    S_IFREG, S_IFSOCK,
};

/// A name that is to be made, which must not be there.
fn new_name(call: &Call<'_>, folder: u64, path: u64) -> Result<Found, Errno> {
    let found = call.walk_to_name(folder, path)?;
    if found.node.is_some() { Err(Errno(EEXIST)) } else { Ok(found) }
}

/// mkdir(2).
pub(in crate::call) fn mkdir(call: &mut Call<'_>) -> Outcome {
    let [path, mode, ..] = call.args;
    make_folder(call, HERE, path, mode)
}

/// mkdirat(2).
pub(in crate::call) fn mkdirat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, mode, ..] = call.args;
    make_folder(call, folder, path, mode)
}

fn make_folder(call: &Call<'_>, folder: u64, path: u64, mode: u64) -> Outcome {
    let found = new_name(call, folder, path)?;
    let node = call.owned(Inode::folder(&found.parent, mode as u32 & 0o1777 & !call.umask())?);
    tree::insert(&found.parent, &found.name, &node)?;
    Ok(0)
}

/// mknod(2) and mknodat(2): regular files and pipes.
pub(in crate::call) fn mknodat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, mode, ..] = call.args;
    match mode as u32 & S_IFMT {
        0 | S_IFREG | S_IFIFO => {}
        // There are no others.
        S_IFDIR | S_IFCHR | S_IFBLK | S_IFSOCK => return fail(EPERM),
        _ => return fail(EINVAL),
    }
    let found = new_name(call, folder, path)?;
    if found.folder {
        return fail(ENOENT);
    }
    let bits = mode as u32 & 0o7777 & !call.umask();
    let node = match mode as u32 & S_IFMT {
        S_IFIFO => Inode::new(InodeKind::Pipe(Pipe::new()?), bits)?,
        _ => Inode::file(&found.parent.shown_path(&found.name)?, bits)?,
    };
    let node = call.owned(node);
    tree::insert(&found.parent, &found.name, &node)?;
    Ok(0)
}

/// mknod(2).
pub(in crate::call) fn mknod(call: &mut Call<'_>) -> Outcome {
    let [path, mode, ..] = call.args;
    call.args = [HERE, path, mode, 0, 0, 0];
    mknodat(call)
}

/// unlink(2).
pub(in crate::call) fn unlink(call: &mut Call<'_>) -> Outcome {
    tree::remove(&call.walk_to_name(HERE, call.args[0])?, false)?;
    Ok(0)
}

/// unlinkat(2).
pub(in crate::call) fn unlinkat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, flags, ..] = call.args;
    check_flags(flags, AT_REMOVEDIR)?;
    let found = call.walk_to_name(folder, path)?;
    tree::remove(&found, flags & u64::from(AT_REMOVEDIR) != 0)?;
    Ok(0)
}

/// rmdir(2).
pub(in crate::call) fn rmdir(call: &mut Call<'_>) -> Outcome {
    tree::remove(&call.walk_to_name(HERE, call.args[0])?, true)?;
    Ok(0)
}

/// rename(2).
pub(in crate::call) fn rename(call: &mut Call<'_>) -> Outcome {
    let [from, to, ..] = call.args;
    call.args = [HERE, from, HERE, to, 0, 0];
    renameat2(call)
}

/// renameat(2).
pub(in crate::call) fn renameat(call: &mut Call<'_>) -> Outcome {
    call.args[4] = 0;
    renameat2(call)
}

/// renameat2(2).
pub(in crate::call) fn renameat2(call: &mut Call<'_>) -> Outcome {
    let [from_folder, from, to_folder, to, flags, _] = call.args;
    let existing = match flags as u32 {
        0 => Existing::Replace,
        1 => Existing::Refuse,
        2 => Existing::Exchange,
        _ => return fail(EINVAL),
    };
    let from = call.walk_to_name(from_folder, from)?;
    let to = call.walk_to_name(to_folder, to)?;
    tree::rename(&from, &to, existing)?;
    Ok(0)
}

/// link(2).
pub(in crate::call) fn link(call: &mut Call<'_>) -> Outcome {
    let [from, to, ..] = call.args;
    call.args = [HERE, from, HERE, to, 0, 0];
    linkat(call)
}

/// linkat(2).
pub(in crate::call) fn linkat(call: &mut Call<'_>) -> Outcome {
    let [from_folder, from, to_folder, to, flags, _] = call.args;
    check_flags(flags, AT_EMPTY_PATH | AT_SYMLINK_FOLLOW)?;
    let no_follow = if follow_flag(flags) { 0 } else { u64::from(super::AT_SYMLINK_NOFOLLOW) };
    let node = call.find(from_folder, from, flags & u64::from(AT_EMPTY_PATH) | no_follow)?;
    let found = new_name(call, to_folder, to)?;
    if found.folder {
        return fail(ENOENT);
    }
    tree::link(&found.parent, &found.name, &node)?;
    Ok(0)
}

/// symlink(2).
pub(in crate::call) fn symlink(call: &mut Call<'_>) -> Outcome {
    let [target, path, ..] = call.args;
    call.args = [target, HERE, path, 0, 0, 0];
    symlinkat(call)
}

/// symlinkat(2).
pub(in crate::call) fn symlinkat(call: &mut Call<'_>) -> Outcome {
    let [target, folder, path, ..] = call.args;
    let target = call.user().path(target)?;
    if target.is_empty() {
        return fail(ENOENT);
    }
    let found = new_name(call, folder, path)?;
    if found.folder {
        return fail(ENOENT);
    }
    let node = call.owned(Inode::new(InodeKind::Link(target), 0o777)?);
    tree::insert(&found.parent, &found.name, &node)?;
    Ok(0)
}

/// readlink(2).
pub(in crate::call) fn readlink(call: &mut Call<'_>) -> Outcome {
    let [path, into, len, ..] = call.args;
    read_link(call, HERE, path, into, len)
}

/// readlinkat(2).
pub(in crate::call) fn readlinkat(call: &mut Call<'_>) -> Outcome {
    let [folder, path, into, len, ..] = call.args;
    read_link(call, folder, path, into, len)
}

fn read_link(call: &Call<'_>, folder: u64, path: u64, into: u64, len: u64) -> Outcome {
    if len as i32 <= 0 {
        return fail(EINVAL);
    }
    // An empty path means the descriptor, which was opened with O_PATH.
    let flags = u64::from(AT_EMPTY_PATH | super::AT_SYMLINK_NOFOLLOW);
    let node = if path == 0 { return fail(EFAULT) } else { call.find(folder, path, flags)? };
    let target = match &node.kind {
        InodeKind::Link(target) => target.clone(),
        InodeKind::Proc(entry) if node.is_link() => entry.link_text(call.process().pid)?,
        _ => return fail(EINVAL),
    };
    let count = target.len().min(len as i32 as usize);
    call.user().write_bytes(into, &target[..count])?;
    Ok(count as u64)
}

/// chdir(2).
pub(in crate::call) fn chdir(call: &mut Call<'_>) -> Outcome {
    let node = call.find(HERE, call.args[0], 0)?;
    change_to(call, node)
}

/// fchdir(2).
pub(in crate::call) fn fchdir(call: &mut Call<'_>) -> Outcome {
    let node = Arc::clone(&call.any_open(call.args[0])?.node);
    change_to(call, node)
}

fn change_to(call: &Call<'_>, node: Arc<Inode>) -> Outcome {
    if !node.is_folder() {
        return fail(ENOTDIR);
    }
    let old = lock(&call.process().place).folder.replace(node);
    drop(old);
    Ok(0)
}

/// getcwd(2).
pub(in crate::call) fn getcwd(call: &mut Call<'_>) -> Outcome {
    let [into, len, ..] = call.args;
    let folder = lock(&call.process().place).folder();
    let mut path = folder.path(None)?;
    path.push(0);
    if path.len() as u64 > len {
        return fail(ERANGE);
    }
    call.user().write_bytes(into, &path)?;
    Ok(path.len() as u64)
}

/// getdents64(2).
pub(in crate::call) fn getdents64(call: &mut Call<'_>) -> Outcome {
    /// Bytes before the name: inode, position, length, type.
    const HEAD: usize = 19;
    /// The most bytes of a call.
    const MOST: usize = 32 << 10;
    let [fd, into, len, ..] = call.args;
    let open = call.open(fd)?;
    if !open.node.is_folder() {
        return fail(ENOTDIR);
    }
    let (listing, position) = open.listing()?;
    let room = (len as u32 as usize).min(MOST);
    let mut bytes: Vec<u8> = Vec::new();
    let mut next = position;
    for (name, inode, kind) in listing.entries.iter().skip(position as usize) {
        let size = (HEAD + name.len() + 1).next_multiple_of(8);
        if bytes.len() + size > room {
            break;
        }
        bytes.try_reserve(size).map_err(|_| Errno(ENOMEM))?;
        next += 1;
        let end = bytes.len() + size;
        bytes.extend_from_slice(&inode.to_le_bytes());
        bytes.extend_from_slice(&next.to_le_bytes());
        bytes.extend_from_slice(&(size as u16).to_le_bytes());
        bytes.push(*kind);
        bytes.extend_from_slice(name);
        bytes.resize(end, 0);
    }
    if bytes.is_empty() && next < listing.entries.len() as u64 {
        return fail(EINVAL);
    }
    call.user().write_bytes(into, &bytes)?;
    open.seek(next as i64, 0)?;
    Ok(bytes.len() as u64)
}
