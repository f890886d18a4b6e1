//! Inodes: folders, regular files, links, devices, pipes, and the entries of `/proc`.
//!
//! A folder holds its entries, and leads to its parent by a weak pointer, so no cycle keeps a tree
//! alive. A folder that was removed is empty and stays so: [`Folder::removed`] is set with its lock
//! held, and each insertion looks at it with the same lock.

use super::budget::Charge;
use super::deny_write::{Users, Writer};
use super::device::Device;
use super::dirents::AddEntry;
use super::epoll::Epoll;
use super::eventfd::EventFd;
use super::locks::FileLocks;
use super::pidfd::PidFd;
use super::pipe::Pipe;
use super::pseudo::{Contents, PseudoEntry};
use super::timerfd::TimerFd;
use super::userfaultfd::Monitor;
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::space::tables;
use crate::time;
use crate::user::copy::PATH_MAX;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::errno::{
    EFBIG, EINVAL, EISDIR, ENAMETOOLONG, ENOENT, ENOMEM, ENOSPC, ENOTDIR, EPERM,
};
use linux_raw_sys::general::{S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use mm::{Object, ObjectError, Seals, Shared, Shmem, ShmemKind};
use spin::mutex::SpinMutex;

/// The device of the files in memory, as the listings of maps show it: major and minor number.
const MEMORY: (u32, u32) = (0, 1);
/// The device of `/proc`.
const PROC: u64 = 22;
/// The heap that an inode uses, about.
const NODE: usize = 448;
/// The heap that an entry of a folder uses besides its name, about.
const ENTRY: usize = 96;
/// The text that listings of maps show instead of a path that is too long, as Linux's `perf` does.
const TOO_LONG: &[u8] = b"//toolong";

/// The kind of an inode, with its contents.
pub(crate) enum InodeKind {
    Folder(SpinMutex<Folder>),
    File(Shared<Shmem<Kernel>>),
    Link(Vec<u8>),
    Device(Device),
    Pipe(Arc<Pipe>),
    /// A memfd of huge pages, of which there are none: it has a size, and cannot be mapped.
    Huge(AtomicU64),
    /// A userfaultfd.
    Monitor(Arc<Monitor>),
    Event(Arc<EventFd>),
    Timer(Arc<TimerFd>),
    Epoll(Arc<Epoll>),
    /// A socket, which its description has, or the name of one.
    Socket,
    Process(PidFd),
    /// A setting under `/sys`.
    Setting(&'static dyn Contents),
    /// An entry of `/proc`; its inode is made anew at each look.
    Proc(Box<dyn PseudoEntry>),
}

/// The inode to which a name in a folder leads.
pub(crate) struct FolderEntry {
    pub(crate) node: Arc<Inode>,
    _charge: Charge,
}

impl FolderEntry {
    /// # Errors
    /// ENOSPC: the budget of the heap is used up.
    pub(super) fn new(name: &[u8], node: &Arc<Inode>) -> Result<FolderEntry, Errno> {
        Ok(FolderEntry { node: Arc::clone(node), _charge: Charge::new(ENTRY + name.len())? })
    }
}

/// The contents of a folder.
#[derive(Default)]
pub(crate) struct Folder {
    pub(crate) entries: BTreeMap<Vec<u8>, FolderEntry>,
    /// The parent; none for the root. A folder that was removed keeps it.
    pub(crate) parent: Weak<Inode>,
    /// It is in no folder any more, so nothing may be added.
    pub(crate) removed: bool,
}

/// An inode.
pub(crate) struct Inode {
    pub(crate) number: u64,
    pub(crate) kind: InodeKind,
    /// The permissions, without the type.
    mode: AtomicU32,
    pub(crate) user: AtomicU32,
    pub(crate) group: AtomicU32,
    /// The folders' entries that lead to it.
    pub(crate) links: AtomicU32,
    /// Nanoseconds since 1970: last read, last write, last change of the inode, creation.
    pub(crate) times: [AtomicU64; 4],
    pub(crate) locks: FileLocks,
    /// Of a regular file.
    pub(super) users: Option<Arc<Users>>,
    /// Serializes writes, as far as they depend on the size.
    pub(crate) writing: SpinMutex<()>,
    _charge: Option<Charge>,
}

/// Places in [`Inode::times`].
pub(crate) const READ: usize = 0;
pub(crate) const WRITTEN: usize = 1;
pub(crate) const CHANGED: usize = 2;
pub(crate) const CREATED: usize = 3;

static NUMBER: AtomicU64 = AtomicU64::new(1);

/// A number for an inode.
fn number() -> u64 {
    // Relaxed: only the number.
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

impl Inode {
    fn make(number: u64, kind: InodeKind, mode: u32, charge: Option<Charge>) -> Arc<Inode> {
        let now = time::real_time();
        let users = matches!(kind, InodeKind::File(_)).then(Arc::default);
        let links = if matches!(kind, InodeKind::Folder(_)) { 2 } else { 1 };
        Arc::new(Inode {
            number,
            kind,
            mode: AtomicU32::new(mode & 0o7777),
            user: AtomicU32::new(0),
            group: AtomicU32::new(0),
            links: AtomicU32::new(links),
            times: [const { AtomicU64::new(0) }; 4].map(|_: AtomicU64| AtomicU64::new(now)),
            locks: FileLocks::default(),
            users,
            writing: SpinMutex::new(()),
            _charge: charge,
        })
    }

    /// # Errors
    /// ENOSPC: the budget of the heap is used up.
    pub(crate) fn new(kind: InodeKind, mode: u32) -> Result<Arc<Inode>, Errno> {
        let more = if let InodeKind::Link(target) = &kind { target.len() } else { 0 };
        let charge = Charge::new(NODE + more)?;
        Ok(Inode::make(number(), kind, mode, Some(charge)))
    }

    /// An empty folder.
    pub(crate) fn folder(parent: &Arc<Inode>, mode: u32) -> Result<Arc<Inode>, Errno> {
        let folder = Folder { parent: Arc::downgrade(parent), ..Folder::default() };
        Inode::new(InodeKind::Folder(SpinMutex::new(folder)), mode)
    }

    /// The folder at the top.
    pub(super) fn root() -> Result<Arc<Inode>, Errno> {
        Inode::new(InodeKind::Folder(SpinMutex::default()), 0o755)
    }

    /// An empty file that listings of maps show by `path`.
    pub(crate) fn file(path: &[u8], mode: u32) -> Result<Arc<Inode>, Errno> {
        let charge = Charge::new(NODE + path.len())?;
        let number = number();
        let path = String::from_utf8_lossy(path).into_owned();
        let kind = ShmemKind { path, inode: number, device: MEMORY, segment: false };
        let memory = Shmem::try_new(tables().paging(), kind).map_err(refused)?;
        // As in Linux, only memfd_create makes files that can be sealed.
        memory.add_seals(Seals::SEAL).map_err(refused)?;
        Ok(Inode::make(number, InodeKind::File(memory), mode, Some(charge)))
    }

    /// A number for the inode of an object that is made next.
    pub(crate) fn next_number() -> u64 {
        number()
    }

    /// A file of this memory, which has its number.
    pub(crate) fn memory(memory: Shared<Shmem<Kernel>>, mode: u32) -> Result<Arc<Inode>, Errno> {
        let charge = Charge::new(NODE)?;
        let number = Object::info(&*memory).inode;
        Ok(Inode::make(number, InodeKind::File(memory), mode, Some(charge)))
    }

    /// The inode of an entry of `/proc`.
    pub(super) fn proc(entry: Box<dyn PseudoEntry>, number: u64, mode: u32) -> Arc<Inode> {
        Inode::make(number, InodeKind::Proc(entry), mode, None)
    }

    /// The type and the permissions, as in `st_mode`.
    pub(crate) fn mode(&self) -> u32 {
        let kind = match &self.kind {
            InodeKind::Folder(_) => S_IFDIR,
            InodeKind::File(_) | InodeKind::Huge(_) | InodeKind::Setting(_) => S_IFREG,
            InodeKind::Link(_) => S_IFLNK,
            InodeKind::Device(_) => S_IFCHR,
            InodeKind::Pipe(_) => S_IFIFO,
            InodeKind::Monitor(_)
            | InodeKind::Event(_)
            | InodeKind::Timer(_)
            | InodeKind::Epoll(_)
            | InodeKind::Process(_) => 0,
            InodeKind::Socket => S_IFSOCK,
            InodeKind::Proc(entry) => entry.file_type(),
        };
        // Relaxed: only the number; so for all metadata.
        kind | self.mode.load(Ordering::Relaxed)
    }

    /// # Errors
    /// EPERM: a seal of a memfd keeps the permissions to execute.
    pub(crate) fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        if let InodeKind::File(memory) = &self.kind
            && memory.seals().intersects(Seals::EXEC)
            && (self.mode() ^ mode) & 0o111 != 0
        {
            return Err(Errno(EPERM));
        }
        self.mode.store(mode & 0o7777, Ordering::Relaxed);
        self.touch(&[CHANGED]);
        Ok(())
    }

    /// Sets these times to now.
    pub(crate) fn touch(&self, which: &[usize]) {
        let now = time::real_time();
        which.iter().for_each(|one| self.times[*one].store(now, Ordering::Relaxed));
    }

    /// A user that writes, if it is a regular file: others are not counted.
    ///
    /// # Errors
    /// ETXTBSY: a program executes it.
    pub(crate) fn writer(&self) -> Result<Option<Writer>, Errno> {
        self.users.as_ref().map(Writer::new).transpose()
    }

    /// The type, as in directory entries.
    pub(crate) fn entry_type(&self) -> u8 {
        (self.mode() >> 12 & 15) as u8
    }

    pub(crate) fn is_folder(&self) -> bool {
        self.mode() & S_IFMT == S_IFDIR
    }

    pub(crate) fn is_link(&self) -> bool {
        self.mode() & S_IFMT == S_IFLNK
    }

    /// The number of the device that it is on.
    pub(crate) fn device(&self) -> u64 {
        match self.kind {
            InodeKind::Proc(_) => PROC,
            _ => u64::from(MEMORY.0) << 8 | u64::from(MEMORY.1),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.kind {
            InodeKind::File(memory) => memory.size(),
            // Relaxed: only the number.
            InodeKind::Huge(size) => size.load(Ordering::Relaxed),
            InodeKind::Link(target) => target.len() as u64,
            InodeKind::Folder(folder) => 40 + 20 * lock(folder).entries.len() as u64,
            _ => 0,
        }
    }

    /// Its entry with this name, which is neither `.` nor `..`.
    ///
    /// # Errors
    /// ENOTDIR.
    pub(crate) fn child(&self, name: &[u8]) -> Result<Option<Arc<Inode>>, Errno> {
        match &self.kind {
            InodeKind::Folder(folder) => {
                Ok(lock(folder).entries.get(name).map(|entry| Arc::clone(&entry.node)))
            }
            InodeKind::Proc(entry) => entry.child(name),
            _ => Err(Errno(ENOTDIR)),
        }
    }

    /// Calls `add` with the name, the number and the type of each entry of a folder.
    ///
    /// # Errors
    /// ENOTDIR; ENOENT: it was removed. Those of `add`.
    pub(super) fn list(self: &Arc<Self>, add: &mut AddEntry<'_>) -> Result<(), Errno> {
        const FOLDER: u8 = 4;
        let parent = self.parent().map_err(|error| match error {
            Errno(ENOTDIR) => error,
            _ => Errno(ENOENT),
        })?;
        add(b".", self.number, FOLDER)?;
        add(b"..", parent.number, FOLDER)?;
        match &self.kind {
            InodeKind::Folder(folder) => {
                // The budget bounds the entries of all folders, so this lock is held for a bounded
                // time.
                let folder = lock(folder);
                let mut entries = folder.entries.iter();
                entries.try_for_each(|(name, FolderEntry { node, .. })| {
                    add(name, node.number, node.entry_type())
                })
            }
            InodeKind::Proc(entry) => entry.list(add),
            _ => Err(Errno(ENOTDIR)),
        }
    }

    /// Its parent; for the root itself.
    pub(crate) fn parent(self: &Arc<Self>) -> Result<Arc<Inode>, Errno> {
        match &self.kind {
            InodeKind::Folder(folder) => {
                let folder = lock(folder);
                match folder.parent.upgrade() {
                    Some(parent) => Ok(parent),
                    None if folder.removed => Err(Errno(ENOENT)),
                    None => Ok(Arc::clone(self)),
                }
            }
            InodeKind::Proc(entry) => entry.parent(),
            _ => Err(Errno(ENOTDIR)),
        }
    }

    /// The path of a folder, or of an entry `name` in it.
    ///
    /// # Errors
    /// ENOENT: it is in no folder any more. ENAMETOOLONG: programs nest folders as deep as they
    /// like. ENOMEM.
    pub(crate) fn path(self: &Arc<Self>, name: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let mut room = PATH_MAX;
        let mut names: Vec<Vec<u8>> = name.map(|name| name.to_vec()).into_iter().collect();
        let mut here = Arc::clone(self);
        loop {
            let parent = here.parent()?;
            if Arc::ptr_eq(&parent, &here) {
                break;
            }
            names.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
            let name = parent.name_of(&here).ok_or(Errno(ENOENT))?;
            room = room.checked_sub(name.len() + 1).ok_or(Errno(ENAMETOOLONG))?;
            names.push(name);
            here = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.try_reserve(name.len() + 1).map_err(|_| Errno(ENOMEM))?;
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    /// The path by which listings of maps show a new file `name` in this folder.
    ///
    /// # Errors
    /// Those of [`path`](Self::path), but for a path that is too long.
    pub(crate) fn shown_path(self: &Arc<Self>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match self.path(Some(name)) {
            Err(Errno(ENAMETOOLONG)) => Ok(TOO_LONG.into()),
            path => path,
        }
    }

    /// The name of an entry.
    fn name_of(&self, child: &Arc<Inode>) -> Option<Vec<u8>> {
        match (&self.kind, &child.kind) {
            (_, InodeKind::Proc(entry)) => Some(entry.name()),
            (InodeKind::Folder(folder), _) => {
                let folder = lock(folder);
                let mut entries = folder.entries.iter();
                let found = entries.find(|(_, entry)| Arc::ptr_eq(&entry.node, child));
                found.map(|(name, _)| name.clone())
            }
            _ => None,
        }
    }
}

/// The errno for a file's object.
pub(crate) fn refused(error: ObjectError) -> Errno {
    match error {
        ObjectError::OutOfMemory(_)
        | ObjectError::HeapExhausted
        | ObjectError::GroupLimit
        | ObjectError::Overcommit => Errno(ENOSPC),
        ObjectError::Sealed => Errno(EPERM),
        ObjectError::BeyondEnd => Errno(EFBIG),
        other => mm::Error::Object(other).into(),
    }
}

/// Sets the size of a regular file.
///
/// # Errors
/// EISDIR, EINVAL: none. EPERM, EFBIG.
pub(crate) fn truncate(node: &Inode, bytes: u64) -> Result<(), Errno> {
    match &node.kind {
        InodeKind::File(memory) => {
            let _writing = lock(&node.writing);
            memory.set_size(bytes).map_err(refused)?;
            node.touch(&[WRITTEN, CHANGED]);
            Ok(())
        }
        InodeKind::Folder(_) => Err(Errno(EISDIR)),
        _ => Err(Errno(EINVAL)),
    }
}
