//! Calls on files.
//!
//! | module | contents |
//! |---|---|
//! | `open` | open, close, descriptors, pipes, memfd_create |
//! | `control` | fcntl, flock, ioctl |
//! | `transfer` | the forms of read and write; vmsplice |
//! | `copy` | sendfile, copy_file_range |
//! | `iovec` | the parts of memory that these name |
//! | `size` | lseek, truncate, fallocate |
//! | `names` | folders, links, names |
//! | `status` | stat, access, permissions, times |
//! | `fifo` | the opening of pipes that have a name |
//! | `pidfd` | descriptors of processes |
//! | `poll` | poll, select |
//! | `epoll`, `eventfd`, `timerfd` | the calls of this name |
//! | `socket` | sockets |
//! | `restart` | calls that are made again, with the files that they began with |

mod buffer;
pub(super) mod control;
pub(super) mod copy;
pub(super) mod epoll;
pub(super) mod eventfd;
mod fifo;
mod iovec;
pub(super) mod names;
pub(super) mod open;
pub(super) mod pidfd;
pub(in crate::call) mod poll;
mod restart;
pub(super) mod size;
pub(super) mod socket;
pub(super) mod status;
pub(super) mod timerfd;
pub(super) mod transfer;
pub(super) mod userfaultfd;
pub(super) mod xattr;

use super::{Call, Outcome};
use crate::errno::Errno;
use crate::file::Files;
use crate::file::inode::{Inode, InodeKind};
use crate::file::open::{Mode, Open};
use crate::lock::lock;
use crate::machine::Kernel;
use crate::path::{Found, Start};
use crate::task::credentials::OF_FILES;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EACCES, EBADF, EINVAL, ENOENT, ENOMEM, ENOTDIR};
use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, O_CLOEXEC,
};
use mm::MapFlags;

/// The folder in which calls without a descriptor begin.
const HERE: u64 = AT_FDCWD as u64;

impl Call<'_> {
    fn files(&self) -> Result<Arc<Files>, Errno> {
        self.process().files().ok_or(Errno(EBADF))
    }

    /// The open description of a descriptor, also one that only names (O_PATH).
    fn any_open(&self, fd: u64) -> Result<Arc<Open>, Errno> {
        self.files()?.get(fd as u32)
    }

    /// The open description of a descriptor.
    fn open(&self, fd: u64) -> Result<Arc<Open>, Errno> {
        let open = self.any_open(fd)?;
        if open.mode.path { Err(Errno(EBADF)) } else { Ok(open) }
    }

    /// A descriptor of a new inode without a name.
    fn descriptor(&self, kind: InodeKind, mode: Mode, flags: u32) -> Result<u32, Errno> {
        let open = Open::new(Inode::new(kind, 0o600)?, None, mode, flags & !O_CLOEXEC)?;
        self.files()?.insert(open, flags & O_CLOEXEC != 0, 0)
    }

    /// The start of the walk along a path.
    fn path_start(&self, folder: u64, path: &[u8]) -> Result<Start, Errno> {
        let pid = self.process().pid;
        if folder as u32 == HERE as u32 || path.starts_with(b"/") {
            let folder = lock(&self.process().place).folder();
            return Ok(Start { folder, pid });
        }
        let node = Arc::clone(&self.any_open(folder)?.node);
        if !node.is_folder() {
            return Err(Errno(ENOTDIR));
        }
        Ok(Start { folder: node, pid })
    }

    /// As [`path_start`](Self::path_start); an empty path is an error, whatever the folder is.
    fn start_of(&self, folder: u64, path: &[u8]) -> Result<Start, Errno> {
        if path.is_empty() {
            return Err(Errno(ENOENT));
        }
        self.path_start(folder, path)
    }

    /// Walks to the name at the end of the path at an address.
    fn walk_to_name(&self, folder: u64, path: u64) -> Result<Found, Errno> {
        let path = self.user().path(path)?;
        self.start_of(folder, &path)?.walk_to_name(&path)
    }

    /// The inode of a path, or of the descriptor itself if the path is empty and `flags` allow it.
    fn find(&self, folder: u64, path: u64, flags: u64) -> Result<Arc<Inode>, Errno> {
        let follow = flags & u64::from(AT_SYMLINK_NOFOLLOW) == 0;
        let path = self.user().path(path)?;
        if flags & u64::from(AT_EMPTY_PATH) != 0 && path.is_empty() {
            return self.inode_of(folder);
        }
        self.start_of(folder, &path)?.find(&path, follow)
    }

    /// As `find`, for newfstatat and statx: there a null pointer is an empty path, since Linux
    /// 6.11.
    fn find_for_stat(&self, folder: u64, path: u64, flags: u64) -> Result<Arc<Inode>, Errno> {
        if flags & u64::from(AT_EMPTY_PATH) != 0 && path == 0 {
            return self.inode_of(folder);
        }
        self.find(folder, path, flags)
    }

    /// The inode of a descriptor, or of the working directory.
    fn inode_of(&self, folder: u64) -> Result<Arc<Inode>, Errno> {
        if folder as u32 == HERE as u32 {
            return Ok(lock(&self.process().place).folder());
        }
        Ok(Arc::clone(&self.any_open(folder)?.node))
    }

    /// A new inode, which belongs to the user and the group of the process.
    fn owned(&self, node: Arc<Inode>) -> Arc<Inode> {
        let identity = lock(&self.process().identity);
        // Relaxed: numbers only.
        node.user.store(identity.user[OF_FILES], Ordering::Relaxed);
        node.group.store(identity.group[OF_FILES], Ordering::Relaxed);
        drop(identity);
        node
    }

    fn umask(&self) -> u32 {
        lock(&self.process().place).umask
    }
}

/// Fails with EINVAL if `flags` has others than `known`.
fn check_flags(flags: u64, known: u32) -> Result<(), Errno> {
    if flags as u32 & !known == 0 { Ok(()) } else { Err(Errno(EINVAL)) }
}

/// The flags of calls on paths, as [`Call::find`] takes them, of a call that by default does not
/// follow links.
fn follow_flag(flags: u64) -> bool {
    flags & u64::from(AT_SYMLINK_FOLLOW) != 0
}

/// The memory that mmap(2) maps of a descriptor: `None` for /dev/zero, which maps anonymous memory.
///
/// # Errors
/// EBADF; EACCES: it was not opened for that. ENODEV: it cannot be mapped. ENOMEM: there are no
/// huge pages for it.
pub(super) fn backing(
    call: &Call<'_>,
    fd: u64,
    prot: u32,
    flags: MapFlags,
) -> Result<Option<mm::Backing<Kernel>>, Errno> {
    const WRITE: u32 = 2;
    let open = call.open(fd)?;
    // MAP_SHARED_VALIDATE has the bit, too.
    let shared = flags.contains(MapFlags::SHARED);
    if !open.mode.read || shared && prot & WRITE != 0 && !open.mode.write {
        return Err(Errno(EACCES));
    }
    if matches!(open.node.kind, InodeKind::Huge(_)) {
        return Err(Errno(ENOMEM));
    }
    let backing = open.backing()?;
    open.mapped();
    Ok(backing)
}
