//! `/proc`: folders, links and texts that are made when a program looks.
//!
//! A [`ProcEntry`] says what a name means; nothing of it is kept. A text is written when its file
//! is opened, and anew when it is read from the beginning, so a program that reads it in parts sees
//! one state. The listings of VMAs ([`Listing`]) are written part by part. Files whose text has no
//! bound (`pagemap`, `mem`) are read through the address space. No description keeps that alive.

mod listing;
mod process;
mod system;

pub(crate) use system::RELEASE;

use super::budget::Charge;
use super::dirents::AddEntry;
use super::inode::Inode;
use super::pseudo::{Contents, PseudoEntry, Target};
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::process as processes;
use crate::task::program::{Name, shown};
use crate::task::{Process, Space, Thread};
use crate::text::{read_text, text};
use crate::user::HOLE;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::{EINVAL, EIO, ENFILE, ENOENT, ENOTDIR, EROFS, ESRCH};
use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFREG};
use listing::Listing;
use process::ProcessFile;
use spin::mutex::SpinMutex;

/// The bytes of an entry of `pagemap`.
const ENTRY: u64 = 8;

/// An entry of `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcEntry {
    Root,
    /// `self`
    Own,
    /// `mounts`
    Mounts,
    /// `PID`
    Process(u32),
    /// `PID/task`
    Tasks(u32),
    /// `PID/task/TID`
    Task(u32, u32),
    /// `PID/fd`
    Descriptors(u32),
    /// `PID/fd/N`
    Descriptor(u32, u32),
    /// `PID/NAME`, or of a thread `PID/task/TID/NAME`
    Of(u32, Option<u32>, ProcessFile),
    /// A folder of the system: its path.
    Folder(&'static str),
    /// A file of the system: its place in the table.
    System(usize),
}

/// A text that was written.
pub(crate) struct Written {
    text: Vec<u8>,
    _charge: Charge,
}

/// The contents of an open file of `/proc`.
pub(crate) enum Content {
    /// The text of an entry, and the entry, which writes it anew.
    Text(ProcEntry, SpinMutex<Written>),
    Vmas(Listing),
    /// The name of a thread.
    Name(Weak<Thread>),
    PageMap(Weak<Space>),
    Memory(Weak<Space>),
    ClearRefs(Weak<Space>),
    OomScoreAdj(Weak<Process>),
}

/// The process with this number.
fn find(pid: u32) -> Result<Arc<Process>, Errno> {
    processes::process(pid).ok_or(Errno(ESRCH))
}

/// A number, as names have it.
fn number(name: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(name).ok()?;
    let plain = !text.starts_with('0') || text == "0";
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    text.parse().ok().filter(|_| plain)
}

impl ProcEntry {
    /// Its inode.
    pub(crate) fn node(self) -> Arc<Inode> {
        let (number, mode) = match self {
            ProcEntry::Root => (1, 0o555),
            ProcEntry::Own => (2, 0o777),
            ProcEntry::Mounts => (3, 0o777),
            ProcEntry::Folder(path) => (0x100 + path.len() as u64, 0o555),
            ProcEntry::System(place) => (0x200 + place as u64, 0o444),
            ProcEntry::Process(pid) => (u64::from(pid) << 24, 0o555),
            ProcEntry::Tasks(pid) => (u64::from(pid) << 24 | 1, 0o555),
            ProcEntry::Descriptors(pid) => (u64::from(pid) << 24 | 2, 0o500),
            ProcEntry::Of(pid, None, what) => {
                (u64::from(pid) << 24 | (16 + what as u64), what.mode())
            }
            ProcEntry::Of(_, Some(tid), what) => {
                (1 << 61 | u64::from(tid) << 24 | (16 + what as u64), what.mode())
            }
            ProcEntry::Descriptor(pid, fd) => {
                (u64::from(pid) << 24 | 1 << 16 | u64::from(fd), 0o700)
            }
            ProcEntry::Task(pid, tid) => (u64::from(pid) << 24 | 1 << 60 | u64::from(tid), 0o555),
        };
        Inode::proc(Box::new(self), number, mode)
    }

    /// The contents for a new description: a text is written now. None for a folder.
    fn contents(self, writes: bool) -> Result<Option<Content>, Errno> {
        match self {
            ProcEntry::System(_) if writes => Err(Errno(EROFS)),
            ProcEntry::System(place) => {
                Content::of(self, text(|out| system::write(place, out))?).map(Some)
            }
            ProcEntry::Of(pid, tid, what) => what.open(&find(pid)?, tid).map(Some),
            _ => Ok(None),
        }
    }
}

impl PseudoEntry for ProcEntry {
    fn file_type(&self) -> u32 {
        match *self {
            ProcEntry::Own | ProcEntry::Mounts | ProcEntry::Descriptor(..) => S_IFLNK,
            ProcEntry::Of(.., what) if what.is_link() => S_IFLNK,
            ProcEntry::Of(..) | ProcEntry::System(_) => S_IFREG,
            _ => S_IFDIR,
        }
    }

    fn name(&self) -> Vec<u8> {
        match *self {
            ProcEntry::Root => b"proc".into(),
            ProcEntry::Own => b"self".into(),
            ProcEntry::Mounts => b"mounts".into(),
            ProcEntry::Process(number)
            | ProcEntry::Task(_, number)
            | ProcEntry::Descriptor(_, number) => format!("{number}").into(),
            ProcEntry::Tasks(_) => b"task".into(),
            ProcEntry::Descriptors(_) => b"fd".into(),
            ProcEntry::Of(.., what) => what.name().into(),
            ProcEntry::Folder(path) => last(path).into(),
            ProcEntry::System(place) => last(system::path(place)).into(),
        }
    }

    fn parent(&self) -> Result<Arc<Inode>, Errno> {
        let parent = match *self {
            ProcEntry::Root => return Ok(Arc::clone(super::tree::root())),
            ProcEntry::Own | ProcEntry::Mounts | ProcEntry::Process(_) => ProcEntry::Root,
            ProcEntry::Tasks(pid) | ProcEntry::Descriptors(pid) | ProcEntry::Of(pid, None, _) => {
                ProcEntry::Process(pid)
            }
            ProcEntry::Of(pid, Some(tid), _) => ProcEntry::Task(pid, tid),
            ProcEntry::Task(pid, _) => ProcEntry::Tasks(pid),
            ProcEntry::Descriptor(pid, _) => ProcEntry::Descriptors(pid),
            ProcEntry::Folder(path) => above(path),
            ProcEntry::System(place) => above(system::path(place)),
        };
        Ok(parent.node())
    }

    fn child(&self, name: &[u8]) -> Result<Option<Arc<Inode>>, Errno> {
        let child = match *self {
            ProcEntry::Root => match (name, number(name)) {
                (b"self", _) => Some(ProcEntry::Own),
                (b"mounts", _) => Some(ProcEntry::Mounts),
                (_, Some(pid)) => processes::process(pid).map(|_| ProcEntry::Process(pid)),
                _ => system::child("", name),
            },
            ProcEntry::Folder(path) => system::child(path, name),
            ProcEntry::Process(pid) if processes::process(pid).is_none() => None,
            ProcEntry::Process(pid) => match name {
                b"task" => Some(ProcEntry::Tasks(pid)),
                b"fd" => Some(ProcEntry::Descriptors(pid)),
                _ => ProcessFile::find(name).map(|what| ProcEntry::Of(pid, None, what)),
            },
            ProcEntry::Task(pid, tid) => {
                ProcessFile::find(name).map(|what| ProcEntry::Of(pid, Some(tid), what))
            }
            ProcEntry::Tasks(pid) => number(name).and_then(|tid| {
                let thread = processes::thread(tid)?;
                (thread.process.pid == pid).then_some(ProcEntry::Task(pid, tid))
            }),
            ProcEntry::Descriptors(pid) => number(name).and_then(|fd| {
                processes::process(pid)?
                    .files()?
                    .get(fd)
                    .ok()
                    .map(|_| ProcEntry::Descriptor(pid, fd))
            }),
            _ => return Err(Errno(ENOTDIR)),
        };
        Ok(child.map(ProcEntry::node))
    }

    fn list(&self, add: &mut AddEntry<'_>) -> Result<(), Errno> {
        let mut add = |entry: ProcEntry| {
            let node = entry.node();
            add(&entry.name(), node.number, node.entry_type())
        };
        match *self {
            ProcEntry::Root => {
                [ProcEntry::Own, ProcEntry::Mounts].into_iter().try_for_each(&mut add)?;
                system::children("").try_for_each(&mut add)?;
                let all = processes::all();
                all.iter().try_for_each(|process| add(ProcEntry::Process(process.pid)))
            }
            ProcEntry::Folder(path) => system::children(path).try_for_each(add),
            ProcEntry::Process(pid) => {
                find(pid)?;
                [ProcEntry::Tasks(pid), ProcEntry::Descriptors(pid)]
                    .into_iter()
                    .try_for_each(&mut add)?;
                ProcessFile::all().try_for_each(|what| add(ProcEntry::Of(pid, None, what)))
            }
            ProcEntry::Task(pid, tid) => {
                ProcessFile::all().try_for_each(|what| add(ProcEntry::Of(pid, Some(tid), what)))
            }
            ProcEntry::Tasks(pid) => {
                let threads = lock(&find(pid)?.threads).clone();
                threads.iter().try_for_each(|thread| add(ProcEntry::Task(pid, thread.tid())))
            }
            ProcEntry::Descriptors(pid) => match find(pid)?.files() {
                Some(files) => {
                    files.used()?.into_iter().try_for_each(|fd| add(ProcEntry::Descriptor(pid, fd)))
                }
                None => Ok(()),
            },
            _ => Err(Errno(ENOTDIR)),
        }
    }

    fn target(&self, own: u32) -> Result<Target, Errno> {
        let gone = Errno(ENOENT);
        match *self {
            ProcEntry::Own => Ok(Target::Path(format!("{own}").into())),
            ProcEntry::Mounts => Ok(Target::Path(b"self/mounts".into())),
            ProcEntry::Descriptor(pid, fd) => {
                let files = find(pid)?.files().ok_or(gone)?;
                Ok(Target::Inode(Arc::clone(&files.get(fd).map_err(|_| gone)?.node)))
            }
            ProcEntry::Of(pid, _, what) => what.target(&*find(pid)?),
            _ => Err(gone),
        }
    }

    fn link_text(&self, own: u32) -> Result<Vec<u8>, Errno> {
        match (*self, self.target(own)?) {
            (_, Target::Path(path)) => Ok(path),
            (ProcEntry::Descriptor(pid, fd), _) => {
                let files = find(pid)?.files().ok_or(Errno(ENOENT))?;
                files.get(fd).map_err(|_| Errno(ENOENT))?.path()
            }
            (_, Target::Inode(node)) => node.path(None),
        }
    }

    fn open(&self, writes: bool) -> Result<Option<Box<dyn Contents>>, Errno> {
        Ok(self.contents(writes)?.map(|contents| Box::new(contents) as _))
    }
}

/// The last name of a path.
fn last(path: &str) -> &[u8] {
    path.rsplit('/').next().unwrap_or_default().as_bytes()
}

/// The folder of a path of the system.
fn above(path: &'static str) -> ProcEntry {
    path.rsplit_once('/').map_or(ProcEntry::Root, |(folder, _)| ProcEntry::Folder(folder))
}

impl Content {
    /// A text that was written now.
    ///
    /// # Errors
    /// ENFILE: no budget.
    fn of(entry: ProcEntry, text: Vec<u8>) -> Result<Content, Errno> {
        let charge = Charge::new(text.len()).map_err(|_| Errno(ENFILE))?;
        Ok(Content::Text(entry, SpinMutex::new(Written { text, _charge: charge })))
    }
}

impl Contents for Content {
    /// Reads bytes at a place.
    ///
    /// # Errors
    /// EINVAL: no whole entries of `pagemap`. EIO: no memory is there.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Content::ClearRefs(_) => Err(Errno(EINVAL)),
            Content::Text(entry, written) => {
                // As in Linux, the text is that of the first read, not of the opening.
                if at == 0
                    && let Some(Content::Text(_, new)) = entry.contents(false)?
                {
                    let new = new.into_inner();
                    let old = core::mem::replace(&mut *lock(written), new);
                    // Freed without the lock.
                    drop(old);
                }
                Ok(read_text(&lock(written).text, at, into))
            }
            Content::Vmas(listing) => listing.read(at, into),
            Content::Name(thread) => {
                let thread = thread.upgrade().ok_or(Errno(ESRCH))?;
                let name = *lock(thread.name());
                let line = format!("{}\n", shown(&name));
                Ok(read_text(line.as_bytes(), at, into))
            }
            Content::OomScoreAdj(process) => {
                let process = process.upgrade().ok_or(Errno(ESRCH))?;
                // Relaxed: only the number.
                let line = format!("{}\n", process.oom_score_adj.load(Ordering::Relaxed));
                Ok(read_text(line.as_bytes(), at, into))
            }
            Content::PageMap(space) => {
                if !at.is_multiple_of(ENTRY) || !(into.len() as u64).is_multiple_of(ENTRY) {
                    return Err(Errno(EINVAL));
                }
                let Some(space) = space.upgrade() else { return Ok(0) };
                let entries = (HOLE >> 12).saturating_sub(at / ENTRY);
                let count = entries.min(into.len() as u64 / ENTRY) as usize;
                let mut part = [0; 64];
                for (place, into) in into[..8 * count].chunks_mut(8 * part.len()).enumerate() {
                    let first = at / ENTRY + (place * part.len()) as u64;
                    let part = &mut part[..into.len() / 8];
                    space.pagemap((first << 12) as usize, part);
                    for (entry, into) in part.iter().zip(into.chunks_mut(8)) {
                        into.copy_from_slice(&entry.to_le_bytes());
                    }
                }
                Ok(8 * count)
            }
            Content::Memory(space) => {
                let Some(space) = space.upgrade() else { return Ok(0) };
                let len = into.len();
                at_address(at, |at| space.peek(at, into), len)
            }
        }
    }

    /// Writes bytes at a place.
    ///
    /// # Errors
    /// EINVAL, EIO.
    fn write(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        match self {
            Content::Memory(space) => {
                let Some(space) = space.upgrade() else { return Ok(0) };
                at_address(at, |at| space.poke(at, from), from.len())
            }
            Content::Name(thread) => {
                let thread = thread.upgrade().ok_or(Errno(ESRCH))?;
                let mut name = Name::default();
                let shown = from.iter().take(name.len() - 1).take_while(|byte| **byte != 0);
                name.iter_mut().zip(shown).for_each(|(into, byte)| *into = *byte);
                *lock(thread.name()) = name;
                Ok(from.len())
            }
            Content::OomScoreAdj(process) => {
                let process = process.upgrade().ok_or(Errno(ESRCH))?;
                let text = core::str::from_utf8(from.trim_ascii()).map_err(|_| Errno(EINVAL))?;
                let points = text.parse().map_err(|_| Errno(EINVAL))?;
                if !(-1000..=1000).contains(&points) {
                    return Err(Errno(EINVAL));
                }
                // Relaxed: only the number.
                process.oom_score_adj.store(points, Ordering::Relaxed);
                Ok(from.len())
            }
            Content::ClearRefs(space) => {
                let Some(space) = space.upgrade() else { return Err(Errno(ESRCH)) };
                match from.trim_ascii() {
                    b"1" | b"2" | b"3" => space.clear_referenced()?,
                    b"4" => space.clear_soft_dirty()?,
                    // The peak of resident memory is not counted.
                    b"5" => {}
                    _ => return Err(Errno(EINVAL)),
                }
                Ok(from.len())
            }
            _ => Err(Errno(EINVAL)),
        }
    }

    fn pagemap(&self) -> Option<Arc<Space>> {
        if let Content::PageMap(space) = self { space.upgrade() } else { None }
    }
}

/// Copies at an address. If an error comes after some bytes, the result is their count.
fn at_address(
    at: u64,
    copy: impl FnOnce(usize) -> Result<(), mm::CopyError>,
    len: usize,
) -> Result<usize, Errno> {
    if at >= HOLE {
        return Err(Errno(EIO));
    }
    match copy(at as usize) {
        Ok(()) => Ok(len),
        Err(error) if error.copied > 0 => Ok(error.copied),
        Err(_) => Err(Errno(EIO)),
    }
}
