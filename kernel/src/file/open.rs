//! Open descriptions: an inode with the way in which it was opened, and a position.
//!
//! The position's lock is held while bytes go between the file and a buffer of the kernel, so that
//! two threads that read or write by one description get disjoint parts, as in Linux. Writes to an
//! inode take its `writing`, too: an append finds the end and writes there as one step.

use super::budget::Charge;
use super::deny_write::Writer;
use super::device::Device;
use super::dirents::Listing;
use super::inode::{CHANGED, Inode, InodeKind, READ, WRITTEN, refused, truncate};
use super::locks::LockScope;
use super::pipe::Pipe;
use super::pseudo::Contents;
use super::socket::Socket;
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::task::Space;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use linux_raw_sys::errno::{
    EBADF, EFBIG, EINVAL, EISDIR, ENAMETOOLONG, ENFILE, ENODEV, ENXIO, ESPIPE,
};
use linux_raw_sys::general::{O_APPEND, O_DIRECT, O_NOATIME, O_NONBLOCK};
use mm::{Backing, Shared, Shmem};
use spin::Once;
use spin::mutex::SpinMutex;

/// Flags of a description that fcntl(F_SETFL) changes.
const CHANGEABLE: u32 = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
/// The heap that a description uses, about.
const OPEN: usize = 256;
/// The largest file and position.
const MOST: u64 = i64::MAX as u64;

/// The access mode of a description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mode {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// It only names the inode (O_PATH).
    pub(crate) path: bool,
}

impl Mode {
    pub(crate) const READ: Mode = Mode { read: true, write: false, path: false };
    pub(crate) const WRITE: Mode = Mode { read: false, write: true, path: false };
    pub(crate) const READ_WRITE: Mode = Mode { read: true, write: true, path: false };
    pub(crate) const PATH: Mode = Mode { read: false, write: false, path: true };
}

/// A name in a folder.
type Location = Option<(Arc<Inode>, Vec<u8>)>;

/// An open description.
pub(crate) struct Open {
    pub(crate) node: Arc<Inode>,
    pub(crate) mode: Mode,
    /// Flags as in open(2), without the access mode: some change.
    flags: AtomicU32,
    /// The name by which it was opened, for `/proc/PID/fd`.
    location: Location,
    position: SpinMutex<u64>,
    /// The socket, of the description of one. Its inode does not lead to it.
    socket: Option<Arc<Socket>>,
    /// Of a file of `/proc`.
    contents: Option<Box<dyn Contents>>,
    /// The entries, as they were when the position was 0.
    listing: SpinMutex<Option<Arc<Listing>>>,
    backing: Once<Backing<Kernel>>,
    /// It may have locks.
    pub(crate) has_locks: AtomicBool,
    /// Of an end of a pipe with a name, whose other end was not there when it was opened: the
    /// openings of that end before.
    pub(crate) other_before: Option<u64>,
    /// An epoll may watch it.
    pub(super) is_watched: AtomicBool,
    _writer: Option<Writer>,
    _charge: Charge,
}

impl Open {
    /// Opens an inode.
    ///
    /// # Errors
    /// ENFILE: no budget. Those of `/proc`. ENXIO. ETXTBSY.
    pub(crate) fn new(
        node: Arc<Inode>,
        location: Location,
        mode: Mode,
        flags: u32,
    ) -> Result<Arc<Open>, Errno> {
        Open::with(node, location, mode, flags, None)
    }

    /// As [`new`](Self::new), with the socket if it is one.
    pub(super) fn with(
        node: Arc<Inode>,
        location: Location,
        mode: Mode,
        flags: u32,
        socket: Option<Arc<Socket>>,
    ) -> Result<Arc<Open>, Errno> {
        let contents = match &node.kind {
            _ if mode.path => None,
            InodeKind::Proc(entry) => entry.open(mode.write)?,
            InodeKind::Link(_) => return Err(Errno(ENXIO)),
            // By `/proc/PID/fd`.
            InodeKind::Event(_)
            | InodeKind::Timer(_)
            | InodeKind::Epoll(_)
            | InodeKind::Socket
            | InodeKind::Process(_)
                if location.is_some() =>
            {
                return Err(Errno(ENXIO));
            }
            _ => None,
        };
        let charge = Charge::new(OPEN).map_err(|_| Errno(ENFILE))?;
        // As in Linux, the description that memfd_create returns does not count.
        let counts = mode.write && location.is_some();
        let writer = if counts { node.writer()? } else { None };
        let mut other_before = None;
        if let (InodeKind::Pipe(pipe), false) = (&node.kind, mode.path) {
            // One with a name that has no reader.
            let waits_not = location.is_some() && flags & O_NONBLOCK != 0 && !mode.read;
            if waits_not && !pipe.ready().readers {
                return Err(Errno(ENXIO));
            }
            let before = pipe.open(mode.read, mode.write);
            other_before = before.filter(|_| location.is_some());
        }
        Ok(Arc::new(Open {
            other_before,
            node,
            mode,
            flags: AtomicU32::new(flags),
            location,
            position: SpinMutex::new(0),
            socket,
            contents,
            listing: SpinMutex::new(None),
            backing: Once::new(),
            has_locks: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            _writer: writer,
            _charge: charge,
        }))
    }

    /// The two ends of a new pipe.
    ///
    /// # Errors
    /// ENFILE, ENOMEM.
    pub(crate) fn pipe(flags: u32) -> Result<[Arc<Open>; 2], Errno> {
        let node = Inode::new(InodeKind::Pipe(Pipe::new()?), 0o600).map_err(|_| Errno(ENFILE))?;
        let end = |mode| Open::new(Arc::clone(&node), None, mode, flags);
        Ok([end(Mode::READ)?, end(Mode::WRITE)?])
    }

    pub(crate) fn flags(&self) -> u32 {
        // Relaxed: only the number.
        self.flags.load(Ordering::Relaxed)
    }

    pub(crate) fn set_flags(&self, flags: u32) {
        let kept = self.flags() & !CHANGEABLE;
        self.flags.store(kept | flags & CHANGEABLE, Ordering::Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.flags() & O_NONBLOCK != 0
    }

    /// The pipe, if it is one.
    pub(crate) fn pipe_of(&self) -> Option<&Arc<Pipe>> {
        if let InodeKind::Pipe(pipe) = &self.node.kind { Some(pipe) } else { None }
    }

    /// The socket, if it is one.
    pub(crate) fn socket(&self) -> Option<&Arc<Socket>> {
        self.socket.as_ref()
    }

    /// The memory of a regular file.
    pub(crate) fn memory(&self) -> Option<&Shared<Shmem<Kernel>>> {
        if let InodeKind::File(memory) = &self.node.kind { Some(memory) } else { None }
    }

    /// Whether it has a position that can be set.
    pub(crate) fn is_seekable(&self) -> bool {
        !matches!(
            self.node.kind,
            InodeKind::Pipe(_)
                | InodeKind::Monitor(_)
                | InodeKind::Event(_)
                | InodeKind::Timer(_)
                | InodeKind::Epoll(_)
                | InodeKind::Socket
                | InodeKind::Process(_)
                | InodeKind::Device(Device::Console | Device::Errors)
                | InodeKind::Link(_)
        )
    }

    /// Whether it is one of those whose position is always 0.
    pub(crate) fn is_placeless(&self) -> bool {
        matches!(self.node.kind, InodeKind::Event(_) | InodeKind::Timer(_) | InodeKind::Epoll(_))
    }

    /// The path, for `/proc/PID/fd`.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub(crate) fn path(&self) -> Result<Vec<u8>, Errno> {
        let known = |path: Result<Vec<u8>, Errno>, otherwise: &[u8]| match path {
            Err(Errno(ENAMETOOLONG)) => path,
            path => Ok(path.unwrap_or_else(|_| otherwise.into())),
        };
        Ok(match (&self.location, &self.node.kind) {
            (_, InodeKind::Folder(_)) => known(self.node.path(None), b"(deleted)")?,
            (Some((folder, name)), _) => {
                let mut path = known(folder.path(Some(name)), b"")?;
                let there = folder.child(name).ok().flatten();
                let same = |there: &Arc<Inode>| there.number == self.node.number;
                if !there.as_ref().is_some_and(same) {
                    path.extend_from_slice(b" (deleted)");
                }
                path
            }
            (None, InodeKind::Pipe(_)) => alloc::format!("pipe:[{}]", self.node.number).into(),
            (None, InodeKind::Monitor(_)) => b"anon_inode:[userfaultfd]".into(),
            (None, InodeKind::Event(_)) => b"anon_inode:[eventfd]".into(),
            (None, InodeKind::Timer(_)) => b"anon_inode:[timerfd]".into(),
            (None, InodeKind::Socket) => alloc::format!("socket:[{}]", self.node.number).into(),
            (None, InodeKind::Epoll(_)) => b"anon_inode:[eventpoll]".into(),
            (None, InodeKind::Process(_)) => b"anon_inode:[pidfd]".into(),
            (None, InodeKind::File(memory)) => {
                let mut path = alloc::string::String::new();
                // Writing to a string does not fail.
                let _ = mm::Object::write_path(&**memory, &mut path);
                path.into()
            }
            (None, _) => alloc::format!("anon_inode:[{}]", self.node.number).into(),
        })
    }

    /// The memory that a map of it shows: `None` for /dev/zero, which maps anonymous memory. The
    /// caller has checked the rights.
    ///
    /// # Errors
    /// ENODEV: it cannot be mapped. ENOMEM.
    pub(crate) fn backing(&self) -> Result<Option<Backing<Kernel>>, Errno> {
        match &self.node.kind {
            InodeKind::File(memory) => {
                let open = || Backing::open(memory.clone(), self.mode.write);
                self.backing.try_call_once(open).cloned().map(Some).map_err(refused)
            }
            InodeKind::Device(Device::Zero) => Ok(None),
            _ => Err(Errno(ENODEV)),
        }
    }

    /// The space that it shows as `pagemap`.
    pub(crate) fn pagemap(&self) -> Option<Arc<Space>> {
        self.contents.as_ref()?.pagemap()
    }

    /// A program maps it: POSIX lets that count as a read.
    pub(crate) fn mapped(&self) {
        if self.memory().is_some() && self.flags() & O_NOATIME == 0 {
            self.node.touch(&[READ]);
        }
    }

    /// Reads bytes at a place, but from a pipe: up to the end.
    ///
    /// # Errors
    /// EISDIR, EINVAL.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        match &self.node.kind {
            InodeKind::File(memory) => {
                let count = memory.read(at, into);
                if self.flags() & O_NOATIME == 0 {
                    self.node.touch(&[READ]);
                }
                Ok(count)
            }
            InodeKind::Setting(setting) => setting.read(at, into),
            InodeKind::Huge(_) => Ok(0),
            InodeKind::Device(device) => device.read(into),
            InodeKind::Proc(_) => self.contents.as_ref().ok_or(Errno(EISDIR))?.read(at, into),
            InodeKind::Folder(_) => Err(Errno(EISDIR)),
            _ => Err(Errno(EINVAL)),
        }
    }

    /// Reads bytes at the position, and moves it.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut position = lock(&self.position);
        let count = self.read_at(*position, into)?;
        if self.is_seekable() {
            *position += count as u64;
        }
        Ok(count)
    }

    /// Gives back bytes that were read and could not be delivered.
    pub(crate) fn unread(&self, count: usize) {
        let mut position = lock(&self.position);
        *position = position.saturating_sub(count as u64);
    }

    /// Writes bytes at a place, but to a pipe. Returns how many.
    ///
    /// # Errors
    /// EPERM: a seal. EFBIG, ENOSPC: none was written.
    pub(crate) fn write_at(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        match &self.node.kind {
            InodeKind::File(memory) => {
                let _writing = lock(&self.node.writing);
                self.write_memory(memory, at, from)
            }
            InodeKind::Device(device) => device.write(from),
            InodeKind::Setting(setting) => setting.write(at, from),
            InodeKind::Proc(_) => self.contents.as_ref().ok_or(Errno(EINVAL))?.write(at, from),
            InodeKind::Folder(_) => Err(Errno(EISDIR)),
            _ => Err(Errno(EINVAL)),
        }
    }

    /// Writes bytes at the position, or at the end, and moves the position.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub(crate) fn write(&self, from: &[u8]) -> Result<usize, Errno> {
        let mut position = lock(&self.position);
        let count = match self.memory() {
            Some(memory) if self.flags() & O_APPEND != 0 => {
                let _writing = lock(&self.node.writing);
                *position = memory.size();
                self.write_memory(memory, *position, from)?
            }
            _ => self.write_at(*position, from)?,
        };
        if self.is_seekable() {
            *position += count as u64;
        }
        Ok(count)
    }

    /// Writes to the memory of a file, with `writing` held. If memory runs out after some bytes,
    /// these stay written, and the result is their count.
    fn write_memory(&self, memory: &Shmem<Kernel>, at: u64, from: &[u8]) -> Result<usize, Errno> {
        let room = MOST.checked_sub(at).filter(|room| *room > 0).ok_or(Errno(EFBIG))?;
        let from = &from[..from.len().min(room as usize)];
        let done = memory.write(at, from).map_err(refused)?;
        self.node.touch(&[WRITTEN, CHANGED]);
        Ok(done)
    }

    /// Sets the size: ftruncate(2).
    ///
    /// # Errors
    /// EINVAL: no regular file. EPERM, EFBIG.
    pub(crate) fn truncate(&self, bytes: u64) -> Result<(), Errno> {
        truncate(&self.node, bytes)
    }

    /// Moves the position: lseek(2) with SEEK_SET, SEEK_CUR or SEEK_END.
    ///
    /// # Errors
    /// EINVAL.
    pub(crate) fn seek(&self, offset: i64, from: u64) -> Result<u64, Errno> {
        let mut position = lock(&self.position);
        let base = match from {
            // Devices have no places.
            0..=2 if matches!(self.node.kind, InodeKind::Device(_)) => return Ok(0),
            0 => 0,
            1 => *position,
            2 => match self.node.kind {
                InodeKind::File(_) | InodeKind::Huge(_) => self.node.size(),
                _ => 0,
            },
            _ => return Err(Errno(EINVAL)),
        };
        let new = base.checked_add_signed(offset).filter(|new| *new <= MOST);
        *position = new.ok_or(Errno(EINVAL))?;
        Ok(*position)
    }

    /// The entries of a folder, and the position among them.
    ///
    /// # Errors
    /// ENOTDIR; ENOENT: it was removed. ENOMEM.
    pub(crate) fn listing(&self) -> Result<(Arc<Listing>, u64), Errno> {
        let position = *lock(&self.position);
        let known = lock(&self.listing).clone();
        match known {
            Some(known) if position > 0 => Ok((known, position)),
            _ => {
                let listing = Arc::new(Listing::new(|add| self.node.list(add))?);
                let old = lock(&self.listing).replace(Arc::clone(&listing));
                drop(old);
                self.node.touch(&[READ]);
                Ok((listing, position))
            }
        }
    }

    /// The owner of locks that belong to the description.
    pub(crate) fn owner(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// # Errors
    /// ESPIPE: it has no places.
    pub(crate) fn check_place(&self, place: Option<u64>) -> Result<(), Errno> {
        if place.is_some() && !self.is_seekable() { Err(Errno(ESPIPE)) } else { Ok(()) }
    }

    /// # Errors
    /// EBADF: it was opened for something else. EINVAL: such a file is never read.
    pub(crate) fn check_read(&self) -> Result<(), Errno> {
        match self.node.kind {
            _ if !self.mode.read => Err(Errno(EBADF)),
            InodeKind::Epoll(_) | InodeKind::Process(_) => Err(Errno(EINVAL)),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// As above, for writes.
    pub(crate) fn check_write(&self) -> Result<(), Errno> {
        match self.node.kind {
            _ if !self.mode.write => Err(Errno(EBADF)),
            InodeKind::Epoll(_)
            | InodeKind::Timer(_)
            | InodeKind::Monitor(_)
            | InodeKind::Process(_) => Err(Errno(EINVAL)),
            _ => Ok(()),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.unwatch();
        if let (InodeKind::Epoll(epoll), false) = (&self.node.kind, self.mode.path) {
            epoll.close();
        }
        if let Some(socket) = &self.socket {
            socket.close();
        }
        if let (InodeKind::Pipe(pipe), false) = (&self.node.kind, self.mode.path) {
            pipe.close(self.mode.read, self.mode.write);
        }
        if *self.has_locks.get_mut() {
            for of in [LockScope::Ranges, LockScope::Whole] {
                // The whole range goes, so no lock becomes two.
                let _ = self.node.locks.release(of, self.owner(), 0..u64::MAX);
            }
        }
    }
}
