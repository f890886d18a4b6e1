//! Files: a tree of inodes in memory, open descriptions, and the descriptors of processes.
//!
//! Contents of regular files are objects of `mm`, so reads, writes and maps of a file are one
//! memory. All programs are root: permissions are kept and shown, and only the right to execute is
//! looked at.
//!
//! | module | contents |
//! |---|---|
//! | `inode` | inodes |
//! | `tree` | changes of folders: create, remove, rename, link |
//! | `open` | open descriptions: reads, writes, positions, maps |
//! | `deny_write` | files that are executed and not written, or the reverse |
//! | `device` | devices |
//! | `ready` | changes of the readiness of files |
//! | `poll` | the readiness of open descriptions; entries of poll and select |
//! | `pipe` | pipes |
//! | `pidfd` | descriptors of processes |
//! | `epoll` | sets of files that are watched |
//! | `eventfd`, `timerfd` | counters and timers with a descriptor |
//! | `socket` | sockets of the family AF_UNIX |
//! | `dirents` | the entries of a folder |
//! | `locks` | advisory locks |
//! | `userfaultfd` | userfaultfd |
//! | `userfault_events` | its events: forks, moves and unmappings of which a monitor reads |
//! | `pseudo` | files that are made when a program looks |
//! | `proc` | `/proc` |
//! | `sysfs` | the settings of huge pages under `/sys` |
//! | `initial_tree` | the tree at the start: `/dev`, `/sys`, the archive |
//! | `budget` | the heap that all these may use |
//!
//! # Locks
//! In this order: `tree` (one for all changes of folders); an open description's position; an
//! inode's `writing`; then one of: a folder, a pipe, a list of locks, a table of descriptors, those
//! of sockets (`socket`). The last kind is held for moments only. None is held while a program's
//! memory is copied, because a copy may fault, and a fault may wait. Nothing is dropped with one
//! held that may close a file.
//!
//! A file tells of a change with none of these held. Then, in this order: the lock of nested
//! epolls; the watchers of a file; the items of an epoll that watches it, or the watchers of that
//! epoll, and so on. The look at the readiness of a file happens with none of them held.

mod budget;
pub(crate) mod deny_write;
pub(crate) mod device;
mod dirents;
pub(crate) mod epoll;
pub(crate) mod eventfd;
mod initial_tree;
pub(crate) mod inode;
pub(crate) mod locks;
pub(crate) mod open;
pub(crate) mod pidfd;
pub(crate) mod pipe;
pub(crate) mod poll;
pub(crate) mod proc;
pub(crate) mod pseudo;
pub(crate) mod ready;
pub(crate) mod socket;
pub(crate) mod sysfs;
pub(crate) mod timerfd;
pub(crate) mod tree;
pub(crate) mod userfault_events;
pub(crate) mod userfaultfd;

use crate::errno::Errno;
use crate::input;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::path::{Place, Start};
use alloc::sync::Arc;
use alloc::vec::Vec;
use deny_write::Image;
use inode::InodeKind;
use linux_raw_sys::errno::{EACCES, EBADF, EMFILE, ENOENT, ENOMEM};
use locks::LockScope;
use mm::{Shared, Shmem};
use open::{Mode, Open};
use spin::mutex::SpinMutex;

pub(crate) use initial_tree::{add, start};

/// The most descriptors of a process (RLIMIT_NOFILE).
pub(crate) const DESCRIPTORS: usize = 1024;

#[derive(Clone)]
struct Descriptor {
    open: Arc<Open>,
    close_on_exec: bool,
}

/// The descriptors of a process. Threads share them.
#[derive(Default)]
pub(crate) struct Files(SpinMutex<Vec<Option<Descriptor>>>);

impl Files {
    /// Standard input, output and error.
    ///
    /// # Errors
    /// ENOENT: the tree was not made. ENOMEM.
    pub(crate) fn standard() -> Result<Arc<Files>, Errno> {
        let files = Files::default();
        let folder = tree::root().child(b"dev")?.ok_or(Errno(ENOENT))?;
        let [reader, writer] = Open::pipe(0)?;
        if let Some(pipe) = writer.pipe_of() {
            // It writes on when `writer` has ended.
            pipe.open(false, true);
            input::start(Arc::clone(pipe));
        }
        files.insert(reader, false, 0)?;
        for name in ["console", "stderr"] {
            let node = folder.child(name.as_bytes())?.ok_or(Errno(ENOENT))?;
            let location = Some((Arc::clone(&folder), name.as_bytes().to_vec()));
            let open = Open::new(node, location, Mode::READ_WRITE, 0)?;
            files.insert(open, false, 0)?;
        }
        Ok(Arc::new(files))
    }

    /// The descriptors of a forked child.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn copy(&self) -> Result<Arc<Files>, Errno> {
        let mut copy = Vec::new();
        loop {
            let len = lock(&self.0).len();
            copy.try_reserve(len).map_err(|_| Errno(ENOMEM))?;
            let slots = lock(&self.0);
            if slots.len() <= copy.capacity() {
                copy.extend_from_slice(&slots);
                return Ok(Arc::new(Files(SpinMutex::new(copy))));
            }
        }
    }

    /// Closes those that a new program does not get.
    pub(crate) fn exec(&self) {
        for fd in 0..DESCRIPTORS as u32 {
            let closes = |slot: &Descriptor| slot.close_on_exec;
            if lock(&self.0).get(fd as usize).is_some_and(|slot| slot.as_ref().is_some_and(closes))
            {
                // It is there, unless a thread that ends has closed it just now.
                let _ = self.close(fd);
            }
        }
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn get(&self, fd: u32) -> Result<Arc<Open>, Errno> {
        let slots = lock(&self.0);
        let slot = slots.get(fd as usize).and_then(Option::as_ref).ok_or(Errno(EBADF))?;
        Ok(Arc::clone(&slot.open))
    }

    /// Gives an open description the least free descriptor from `from` on.
    ///
    /// # Errors
    /// EMFILE, ENOMEM: nothing has changed.
    pub(crate) fn insert(
        &self,
        open: Arc<Open>,
        close_on_exec: bool,
        from: u32,
    ) -> Result<u32, Errno> {
        let mut slots = lock(&self.0);
        let from = from as usize;
        let free = slots.iter().skip(from).position(Option::is_none);
        let fd = free.map_or(slots.len().max(from), |place| place + from);
        grow(&mut slots, fd, EMFILE)?;
        slots[fd] = Some(Descriptor { open, close_on_exec });
        Ok(fd as u32)
    }

    /// Gives an open description this descriptor, in the place of another.
    ///
    /// # Errors
    /// EBADF: beyond the limit. ENOMEM. Nothing has changed.
    pub(crate) fn replace(
        &self,
        fd: u32,
        open: Arc<Open>,
        close_on_exec: bool,
    ) -> Result<(), Errno> {
        let old = {
            let mut slots = lock(&self.0);
            grow(&mut slots, fd as usize, EBADF)?;
            slots[fd as usize].replace(Descriptor { open, close_on_exec })
        };
        if let Some(old) = old {
            self.closed(&old.open);
        }
        Ok(())
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn close(&self, fd: u32) -> Result<(), Errno> {
        let slot = lock(&self.0).get_mut(fd as usize).and_then(Option::take);
        self.closed(&slot.ok_or(Errno(EBADF))?.open);
        Ok(())
    }

    /// The descriptors in use, in order.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn used(&self) -> Result<Vec<u32>, Errno> {
        let mut used = Vec::new();
        used.try_reserve(DESCRIPTORS).map_err(|_| Errno(ENOMEM))?;
        let slots = lock(&self.0);
        used.extend((0..).zip(&*slots).filter(|(_, slot)| slot.is_some()).map(|(fd, _)| fd));
        Ok(used)
    }

    /// Calls `with` with the mark "close on exec" of a descriptor.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn with_mark<T>(
        &self,
        fd: u32,
        with: impl FnOnce(&mut bool) -> T,
    ) -> Result<T, Errno> {
        let mut slots = lock(&self.0);
        let slot = slots.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno(EBADF))?;
        Ok(with(&mut slot.close_on_exec))
    }

    /// The owner of the locks that this table has.
    pub(crate) fn owner(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// A descriptor was closed: POSIX wants that the locks on the file go, whatever other
    /// descriptors of it there are.
    fn closed(&self, open: &Open) {
        // The whole range goes, so no lock becomes two.
        let _ = open.node.locks.release(LockScope::Ranges, self.owner(), 0..u64::MAX);
    }
}

/// Makes room for a descriptor.
fn grow(slots: &mut Vec<Option<Descriptor>>, fd: usize, beyond: u32) -> Result<(), Errno> {
    if fd >= DESCRIPTORS {
        return Err(Errno(beyond));
    }
    if fd >= slots.len() {
        let more = fd + 1 - slots.len();
        slots.try_reserve(more).map_err(|_| Errno(ENOMEM))?;
        slots.resize(fd + 1, None);
    }
    Ok(())
}

impl Drop for Files {
    fn drop(&mut self) {
        for slot in core::mem::take(self.0.get_mut()).iter().flatten() {
            self.closed(&slot.open);
        }
    }
}

/// A program file, for execve(2).
pub(crate) struct Executable {
    pub(crate) memory: Shared<Shmem<Kernel>>,
    /// From the root; empty for a file without a name, which `/proc` leads to.
    pub(crate) path: Vec<u8>,
    /// Keeps writers out.
    pub(crate) image: Image,
}

/// The program file of this path.
///
/// # Errors
/// Those of a walk; EACCES: it is no regular file, or no right to execute it is set. ETXTBSY.
pub(crate) fn program(path: &[u8], place: &Place, pid: u32) -> Result<Executable, Errno> {
    let start = Start { folder: place.folder(), pid };
    let found = start.walk(path, true)?;
    let node = found.node.ok_or(Errno(ENOENT))?;
    match (&node.kind, &node.users) {
        (InodeKind::File(memory), Some(users)) if node.mode() & 0o111 != 0 => {
            let path = found.parent.path(Some(&found.name)).unwrap_or_default();
            let memory = memory.clone();
            Ok(Executable { memory, path, image: Image::new(users)? })
        }
        _ => Err(Errno(EACCES)),
    }
}
