//! Files for the host (`--out`): all that is below the folder [`FOLDER`] when the last program has
//! ended, sent by the channel as a cpio archive of the format "newc".
//!
//! No program runs any more, so the tree stays as it is meanwhile. A folder comes before its
//! entries. Contents are read and sent in pieces; a hole is sent as zeros. A hard link to a file
//! that was sent has no contents, and the number of the same inode. The walk keeps a folder and a
//! name for each level, and no list of a folder. If something cannot be sent, the archive has no
//! end, by which the host sees it.

use crate::channel::{self, MessageKind};
use crate::errno::Errno;
use crate::file::inode::{Inode, InodeKind};
use crate::file::{self, tree};
use crate::lock::lock;
use crate::println;
use crate::user::copy::PATH_MAX;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::S_IFDIR;

/// The folder, in the root.
const FOLDER: &str = "out";
/// The bytes of a piece.
const PIECE: usize = 60 << 10;

/// Makes the folder, before the first program.
///
/// # Errors
/// ENOSPC: no memory. EEXIST: the archive has something else there.
pub(crate) fn start() -> Result<(), Errno> {
    file::add(format!("/{FOLDER}").as_bytes(), S_IFDIR | 0o755, b"")
}

/// A folder of the walk: its length of the path, and the name at which the walk is.
struct Level {
    folder: Arc<Inode>,
    path: usize,
    name: Option<Vec<u8>>,
}

/// Sends the archive. Call it when the last program has ended.
///
/// # Errors
/// The cause, for people. The archive has no end then.
pub(crate) fn send() -> Result<(), String> {
    let top = tree::root().child(FOLDER.as_bytes()).ok().flatten();
    let top = top.filter(|top| matches!(top.kind, InodeKind::Folder(_)));
    let top = top.ok_or_else(|| format!("/{FOLDER} is no folder any more"))?;
    let mut pieces = Pieces::new()?;
    let mut path = Vec::new();
    let mut levels = Vec::new();
    levels.push(Level { folder: top, path: 0, name: None });
    while let Some(level) = levels.last_mut() {
        path.truncate(level.path);
        let Some((name, node)) = level.next() else {
            levels.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        level.name = Some(name);
        let shown = || String::from_utf8_lossy(&path).into_owned();
        if path.len() >= PATH_MAX {
            return Err(format!("a path below /{FOLDER} has more than {PATH_MAX} bytes"));
        }
        match &node.kind {
            InodeKind::Folder(_) => {
                pieces.entry(&path, node.mode(), 0, None);
                levels.try_reserve(1).map_err(|_| NO_MEMORY)?;
                levels.push(Level { path: path.len(), folder: node, name: None });
            }
            InodeKind::Link(target) => {
                pieces.entry(&path, node.mode(), target.len() as u32, None);
                pieces.data(target);
            }
            InodeKind::File(memory) => {
                // Relaxed: no program runs any more, and this CPU alone walks. A file of several
                // links has none after it was sent, which says so at the next one. Nothing else
                // asks for the number of links again.
                let links = node.links.load(Ordering::Relaxed);
                let number = u32::try_from(node.number).ok().filter(|_| links != 1);
                if links == 0 && number.is_some() {
                    pieces.entry(&path, node.mode(), 0, number);
                    continue;
                }
                let size = u32::try_from(memory.size());
                let size = size.map_err(|_| format!("/{FOLDER}/{} has 4 GiB or more", shown()))?;
                pieces.entry(&path, node.mode(), size, number);
                if number.is_some() {
                    node.links.store(0, Ordering::Relaxed);
                }
                pieces.contents(size, |at, into| memory.read(at, into));
            }
            _ => println!("left out, because it is no file, folder or link: /{FOLDER}/{}", shown()),
        }
    }
    pieces.entry(b"TRAILER!!!", 0, 0, None);
    pieces.flush();
    Ok(())
}

const NO_MEMORY: &str = "no memory for the walk: give the machine more (--memory)";

impl Level {
    /// The entry after the current name.
    fn next(&self) -> Option<(Vec<u8>, Arc<Inode>)> {
        let InodeKind::Folder(folder) = &self.folder.kind else { return None };
        let folder = lock(folder);
        let after = self.name.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let (name, entry) = folder.entries.range::<[u8], _>((after, Bound::Unbounded)).next()?;
        Some((name.clone(), Arc::clone(&entry.node)))
    }
}

/// The archive on its way.
struct Pieces {
    bytes: Vec<u8>,
    /// The bytes of the archive so far, by which its padding goes.
    sent: u64,
}

impl Pieces {
    fn new() -> Result<Pieces, String> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(PIECE).map_err(|_| NO_MEMORY)?;
        Ok(Pieces { bytes, sent: 0 })
    }

    /// Begins an entry. Its contents must follow. `inode` is the number of a file of several links.
    fn entry(&mut self, path: &[u8], mode: u32, size: u32, inode: Option<u32>) {
        self.pad();
        let path_len = path.len() as u32 + 1;
        // The user, the group, how many links exactly, the time and devices are not told.
        let (number, links) = inode.map_or((0, 1), |number| (number, 2));
        let numbers = [number, mode, 0, 0, links, 0, size, 0, 0, 0, 0, path_len, 0];
        self.data(b"070701");
        for number in numbers {
            let mut digits = [0; 8];
            for (place, digit) in digits.iter_mut().rev().enumerate() {
                *digit = b"0123456789abcdef"[(number >> (4 * place) & 15) as usize];
            }
            self.data(&digits);
        }
        self.data(path);
        self.data(&[0]);
        self.pad();
    }

    fn pad(&mut self) {
        let rest = self.sent.next_multiple_of(4) - self.sent;
        self.data(&[0; 3][..rest as usize]);
    }

    fn data(&mut self, mut bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.bytes.len() == PIECE {
                self.flush();
            }
            let (now, rest) = bytes.split_at(bytes.len().min(PIECE - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            bytes = rest;
        }
    }

    /// Adds the contents of a file; `read` fills a buffer with the bytes from a place on.
    fn contents(&mut self, size: u32, read: impl Fn(u64, &mut [u8]) -> usize) {
        self.flush();
        self.sent += u64::from(size);
        let mut at = 0;
        while at < size {
            self.bytes.resize(PIECE.min((size - at) as usize), 0);
            let count = read(at.into(), &mut self.bytes);
            // The size is fixed, so nothing is missing.
            self.bytes[count..].fill(0);
            at += self.bytes.len() as u32;
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.bytes.is_empty() {
            channel::send(MessageKind::Archive, &self.bytes);
            self.bytes.clear();
        }
    }
}
