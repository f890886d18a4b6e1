//! The identity of mapped files, by their open file descriptions.
//!
//! Two maps merge only if they have the same *open* file, so every mapped file gets a number for
//! its open file description. The tracer keeps a copy of the descriptor, which shares the
//! description. With kcmp it asks the kernel whether a newly mapped file equals a known one; only
//! files with the same inode need this. A copy is closed as soon as the file is no longer mapped.
//! Otherwise a copy of a file opened for writing would make a later execve of it fail.
//!
//! Any process may rename or unlink a file at any time. So each line of a listing is checked
//! against the known names. If a name is unknown, the names of that inode are read again.

use std::{
    collections::HashMap,
    fs,
    hash::{BuildHasher, RandomState},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
};

use super::{
    image::text,
    sys::{self, Tid},
    tmpfs_huge,
};
use crate::record::{FileId, FileKind};

/// Device and inode, as in the listing.
pub(super) type Inode = ((u32, u32), u64);

/// The identity of an open file.
pub(super) enum Identity {
    /// By a copy of its descriptor, which has the same open file description.
    Copy(OwnedFd),
    /// By its inode, if a copy is not possible.
    Inode,
    /// Each map is a new file: those of execve, and the kernel's own.
    Unique,
}

struct KnownFile {
    inode: Inode,
    path: String,
    identity: Identity,
    kind: FileKind,
}

/// Every file that a followed address space maps.
pub(super) struct Files {
    last: FileId,
    known: HashMap<FileId, KnownFile>,
    inodes: HashMap<Inode, Vec<FileId>>,
    /// The number of known files for each device, inode and path of a line, by hash.
    lines: HashMap<u64, usize>,
    hasher: RandomState,
}

/// A path as in a listing, with newlines escaped.
pub(super) fn escape(path: String) -> String {
    if path.contains('\n') { path.replace('\n', "\\012") } else { path }
}

impl Files {
    pub(super) fn new() -> Self {
        Files {
            last: 0,
            known: HashMap::new(),
            inodes: HashMap::new(),
            lines: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    fn line(&self, (dev, inode): Inode, path: &str) -> u64 {
        self.hasher.hash_one((dev, inode, path))
    }

    /// The number of a known open file. At most one kcmp for each known open file of that inode.
    pub(super) fn find(&self, inode: Inode, identity: &Identity) -> Option<FileId> {
        let same = |id: &&FileId| match (identity, self.known.get(id).map(|k| &k.identity)) {
            (Identity::Copy(a), Some(Identity::Copy(b))) => {
                sys::same_file(a.as_fd(), b.as_fd()).unwrap_or(false)
            }
            (Identity::Inode, Some(Identity::Inode)) => true,
            _ => false,
        };
        self.inodes.get(&inode)?.iter().find(same).copied()
    }

    /// Numbers a new file.
    pub(super) fn admit(
        &mut self,
        inode: Inode,
        path: String,
        identity: Identity,
        kind: FileKind,
    ) -> FileId {
        self.last += 1;
        *self.lines.entry(self.line(inode, &path)).or_default() += 1;
        self.inodes.entry(inode).or_default().push(self.last);
        self.known.insert(self.last, KnownFile { inode, path, identity, kind });
        self.last
    }

    /// Whether a driver chooses the flags of this file's maps.
    pub(super) fn is_device(&self, id: FileId) -> bool {
        self.known.get(&id).is_some_and(|file| file.kind == FileKind::Device)
    }

    /// Removes a file that is no longer mapped, and closes its copy.
    pub(super) fn release(&mut self, id: FileId) {
        let Some(file) = self.known.remove(&id) else { return };
        self.forget_line(file.inode, &file.path);
        if let Some(ids) = self.inodes.get_mut(&file.inode) {
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.inodes.remove(&file.inode);
            }
        }
    }

    fn forget_line(&mut self, inode: Inode, path: &str) {
        let line = self.line(inode, path);
        if let Some(count) = self.lines.get_mut(&line) {
            *count -= 1;
            if *count == 0 {
                self.lines.remove(&line);
            }
        }
    }

    /// The files whose path has changed, according to a listing. One hash per run of lines with the
    /// same file; nothing more while every name is known. `mapped` returns the file at an address.
    pub(super) fn renamed(
        &mut self,
        listing: &str,
        mapped: &dyn Fn(usize) -> FileId,
    ) -> Vec<(FileId, String)> {
        let mut out = Vec::new();
        let mut last = (((0, 0), 0), "");
        for line in listing.lines() {
            let Some((dev, number, path)) = file_of(line) else { continue };
            if number == "0" || path.is_empty() {
                continue;
            }
            let Some((major, minor)) = dev.split_once(':') else { continue };
            let hex = |text| u32::from_str_radix(text, 16).ok();
            let (Some(major), Some(minor), Ok(number)) = (hex(major), hex(minor), number.parse())
            else {
                continue;
            };
            let inode = ((major, minor), number);
            if (inode, path) == last {
                continue;
            }
            last = (inode, path);
            if !self.is_named(inode, path) {
                let hex = |text| usize::from_str_radix(text, 16).ok();
                let at = line.split_once('-').and_then(|(start, _)| hex(start)).map_or(0, mapped);
                self.refresh(inode, path, at, &mut out);
            }
        }
        out
    }

    /// Whether a file of `inode` is known by that path. Call this before a file is admitted,
    /// because its name, once known, would hide a new name of the others.
    pub(super) fn is_named(&self, inode: Inode, path: &str) -> bool {
        !self.inodes.contains_key(&inode) || self.lines.contains_key(&self.line(inode, path))
    }

    /// Handles a line that names `inode` with a path that none of its files has. The line is that
    /// of the file `at`.
    fn refresh(&mut self, inode: Inode, listed: &str, at: FileId, out: &mut Vec<(FileId, String)>) {
        let ids = self.inodes.get(&inode).cloned().unwrap_or_default();
        for &id in &ids {
            let Some(file) = self.known.get(&id) else { continue };
            let link = match &file.identity {
                // A path of more than 4,095 bytes cannot be read there.
                Identity::Copy(copy) => {
                    fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd())).ok()
                }
                Identity::Inode | Identity::Unique => None,
            };
            let path = match link {
                Some(path) => escape(text(path.into_os_string().into_encoded_bytes())),
                None if id == at => listed.to_owned(),
                // The line belongs to another file.
                None if ids.contains(&at) => continue,
                // The line's file is unknown. If the line is of an unlinked file, it is the one
                // with that name.
                None => match listed.strip_suffix(" (deleted)") {
                    Some(before) if before != file.path => continue,
                    _ => listed.to_owned(),
                },
            };
            if path != file.path {
                let old = file.path.clone();
                self.forget_line(inode, &old);
                *self.lines.entry(self.line(inode, &path)).or_default() += 1;
                if let Some(file) = self.known.get_mut(&id) {
                    file.path.clone_from(&path);
                }
                out.push((id, path));
            }
        }
    }
}

/// Device, inode and path of a listing's line: `start-end perms offset major:minor inode path`.
fn file_of(line: &str) -> Option<(&str, &str, &str)> {
    // The fields before these have at least this length, and a shorter line is invalid.
    const ADDRESSES: usize = "00000000-00000000".len();
    const BETWEEN: usize = " rwxp 00000000".len();
    let space = |from: usize| {
        line.as_bytes().get(from..)?.iter().position(|&byte| byte == b' ').map(|at| from + at)
    };
    let offset = space(ADDRESSES)? + BETWEEN;
    let dev = space(offset)? + 1;
    let inode = space(dev)? + 1;
    let end = space(inode)?;
    Some((
        line.get(dev..inode - 1)?,
        line.get(inode..end)?,
        line.get(end..)?.trim_start_matches(' '),
    ))
}

/// The kind of an open file of `tid`; `None` if unknown. `shared`: it is for a MAP_SHARED map. Also
/// returns whether it is open for writing, and whether its mount forbids execution.
pub(super) fn examine(tid: Tid, copy: &OwnedFd, shared: bool) -> Option<(FileKind, bool, bool)> {
    // Magic numbers of file systems, as in statfs.
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const BCACHEFS: i64 = 0xca45_1a4e;
    const FUSE: i64 = 0x6573_5546;
    const EROFS: i64 = 0xe0f5_e1e2;
    const TMPFS: i64 = 0x0102_1994;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const ANON_INODE: i64 = 0x0904_1934;
    const SECRETMEM: i64 = 0x5345_434d;
    const PROC: i64 = 0x9fa0;
    const SYSFS: i64 = 0x6265_6572;
    const DEV_ZERO: u64 = libc::makedev(1, 5);
    let meta = fs::metadata(format!("/proc/self/fd/{}", copy.as_raw_fd())).ok()?;
    let (magic, noexec) = sys::file_system(copy.as_fd()).ok()?;
    let writable = sys::is_writable(copy.as_fd()).ok()?;
    let kind = match magic {
        // A writable shared map of /dev/zero is a new anonymous file each time.
        _ if meta.rdev() == DEV_ZERO && meta.file_type().is_char_device() && shared && writable => {
            FileKind::ShmAnon
        }
        _ if meta.file_type().is_char_device() => FileKind::Device,
        ANON_INODE | SECRETMEM | PROC | SYSFS => FileKind::Device,
        _ if !meta.is_file() => FileKind::Device,
        // The file systems whose files have thp_get_unmapped_area.
        EXT | XFS | BTRFS | BCACHEFS | FUSE | EROFS => FileKind::RegularThp,
        TMPFS if tmpfs_huge::in_tmpfs(tid, meta.dev()) => FileKind::ShmemThp,
        TMPFS => FileKind::Shmem,
        HUGETLBFS => FileKind::Huge,
        _ => FileKind::Regular,
    };
    Some((kind, writable, noexec))
}

/// The kind of the file at a path, if there is no descriptor. Opens the file for reading.
pub(super) fn examine_path(tid: Tid, path: &str, shared: bool) -> Option<(FileKind, bool, bool)> {
    examine(tid, &OwnedFd::from(fs::File::open(path).ok()?), shared)
}

/// The kind of a file that execve has mapped for `tid`: its program, or the interpreter at `path`.
/// Where its maps are placed depends on it, also if the program moves them or maps the file itself.
/// `None` if it cannot be opened.
pub(super) fn kind_of_program(tid: Tid, inode: Inode, path: &str) -> Option<FileKind> {
    let places = [format!("/proc/{tid}/exe"), format!("/proc/{tid}/root{path}")];
    let mut files = places.iter().filter_map(|place| fs::File::open(place).ok().map(OwnedFd::from));
    let file = files.find(|file| inode_of(file) == Some(inode))?;
    examine(tid, &file, false).map(|(kind, ..)| kind)
}

/// Device and inode of an open file, as in stat.
pub(super) fn inode_of(copy: &OwnedFd) -> Option<Inode> {
    let meta = fs::metadata(format!("/proc/self/fd/{}", copy.as_raw_fd())).ok()?;
    Some(((libc::major(meta.dev()), libc::minor(meta.dev())), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "7f0000000000-7f0000001000 r--p 00000000 fe:00 42                         ";

    #[test]
    fn a_rename_is_seen_in_the_listing() {
        let mut files = Files::new();
        let inode = ((0xfe, 0), 42);
        let id = files.admit(inode, "/a b".into(), Identity::Unique, FileKind::Exec);
        assert_eq!(files.renamed(&format!("{LINE}/a b\n"), &|_| 0), []);
        let gone = "/a b (deleted)".to_owned();
        assert_eq!(
            files.renamed(&format!("{LINE}{gone}\n{LINE}{gone}\n"), &|_| 0),
            [(id, gone.clone())]
        );
        assert_eq!(files.renamed(&format!("{LINE}{gone}\n"), &|_| 0), []);
        // The old name is unknown again, so a file that gets it back is noticed.
        assert_eq!(files.renamed(&format!("{LINE}/a b\n"), &|_| 0), [(id, "/a b".into())]);
        files.release(id);
        assert_eq!(files.find(inode, &Identity::Unique), None);
        assert!(files.lines.is_empty() && files.inodes.is_empty());
    }

    #[test]
    fn a_second_open_does_not_hide_the_new_name_of_the_first() {
        let mut files = Files::new();
        let inode = ((0xfe, 0), 42);
        let first = files.admit(inode, "/a".into(), Identity::Unique, FileKind::Regular);
        // The file is unlinked, then mapped through another descriptor, before any listing.
        let gone = "/a (deleted)".to_owned();
        assert!(!files.is_named(inode, &gone) && files.is_named(inode, "/a"));
        let renamed = files.renamed(&format!("{LINE}{gone}\n"), &|_| 0);
        files.admit(inode, gone.clone(), Identity::Unique, FileKind::Regular);
        assert_eq!(renamed, [(first, gone.clone())]);
        assert_eq!(files.renamed(&format!("{LINE}{gone}\n"), &|_| 0), []);
    }

    #[test]
    fn a_line_names_the_file_at_its_address() {
        let mut files = Files::new();
        let inode = ((0xfe, 0), 42);
        let first = files.admit(inode, "/a".into(), Identity::Unique, FileKind::Exec);
        let second = files.admit(inode, "/b".into(), Identity::Unique, FileKind::Exec);
        // The file is renamed and unlinked between two listings, so no name leads back to the old
        // one.
        let gone = "/c (deleted)".to_owned();
        let at = |addr| if addr == 0x7f00_0000_0000 { second } else { first };
        assert_eq!(files.renamed(&format!("{LINE}{gone}\n"), &at), [(second, gone)]);
    }

    #[test]
    fn one_description_is_told_from_two_opens() {
        let path = std::env::current_exe().unwrap();
        let open = || OwnedFd::from(fs::File::open(&path).unwrap());
        let (a, b) = (open(), open());
        let again = a.try_clone().unwrap();
        if sys::same_file(a.as_fd(), again.as_fd()).is_err() {
            return; // a kernel without kcmp: the tracer uses inodes there
        }
        let mut files = Files::new();
        let inode = ((1, 2), 3);
        let id = files.admit(inode, "/x".into(), Identity::Copy(a), FileKind::Regular);
        assert_eq!(files.find(inode, &Identity::Copy(again)), Some(id));
        assert_eq!(files.find(inode, &Identity::Copy(b)), None);
    }

    #[test]
    fn files_are_examined() {
        let own = std::process::id() as Tid;
        let dev =
            |path| OwnedFd::from(fs::OpenOptions::new().read(true).write(true).open(path).unwrap());
        let zero = dev("/dev/zero");
        assert_eq!(examine(own, &zero, false).unwrap().0, FileKind::Device);
        assert_eq!(
            examine(own, &zero, true).unwrap(),
            (FileKind::ShmAnon, true, examine(own, &zero, true).unwrap().2)
        );
        let read_only = OwnedFd::from(fs::File::open("/dev/zero").unwrap());
        assert_eq!(examine(own, &read_only, true).unwrap().0, FileKind::Device);
        let exe = OwnedFd::from(fs::File::open(std::env::current_exe().unwrap()).unwrap());
        assert!(!examine(own, &exe, false).unwrap().1);
    }
}
