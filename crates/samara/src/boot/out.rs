//! Files from the machine (`--out DIR`): an archive that the kernel sends when the last program has
//! ended (`kernel/src/export.rs`), in cpio's format "newc".
//!
//! The program wrote those files, so they are hostile. The archive is collected in a temporary
//! file, up to a limit ([`spool`](super::spool)), and read to its end before anything is written.
//! Each path has plain names alone, and the folder that it is in came before it, so nothing is
//! written through a link. DIR is a new or empty folder. Links come last. One that may lead out of
//! DIR is left out: its target is absolute, or goes up more often than its folder is deep, or goes
//! up after it went down, where other links may be. Permissions are kept without the bits of
//! set-user-ID, set-group-ID and sticky. No length reserves memory, and zeros become holes.
//!
//! A hard link is an entry without contents, with the inode's number of an earlier file. It becomes
//! a hard link to that.

use super::spool::{Spool, write_with_holes};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

const MAGIC: &[u8] = b"070701";
/// The bytes of a header: the magic number and 13 numbers of eight digits.
const HEADER: usize = 110;
/// The places of the numbers that are used.
const INODE: usize = 0;
const MODE: usize = 1;
const LINKS: usize = 4;
const DATA: usize = 6;
const PATH: usize = 11;
/// The most bytes of a path and of a link's target, with a zero at the end, as in Linux.
const PATH_MAX: usize = 4096;
/// The bytes of a file that are copied at once.
const PIECE: usize = 64 << 10;
const TRAILER: &[u8] = b"TRAILER!!!";

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Folder,
    File,
    Link,
}

/// An entry, whose data begins at a place of the archive.
#[derive(Debug)]
struct ArchiveEntry {
    kind: EntryKind,
    mode: u32,
    data: u64,
    bytes: u32,
    /// Of a hard link: the path of the file that came first.
    first: Option<Rc<[u8]>>,
}

/// The destination, and the archive as far as it has come.
pub(super) struct Out {
    folder: PathBuf,
    archive: Spool,
}

impl Out {
    /// Opens the destination. Do it before the machine runs.
    ///
    /// # Errors
    /// The folder cannot be made, or has something in it.
    pub(super) fn open(folder: &Path, limit: &str) -> Result<Out, String> {
        let failed = |error| format!("--out: cannot make the folder {}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        if fs::read_dir(folder).map_err(failed)?.next().is_some() {
            return Err(format!("--out: {} is not empty: name a new folder", folder.display()));
        }
        Ok(Out { folder: folder.into(), archive: Spool::new(limit)? })
    }

    /// The end to which the pieces of the archive are appended.
    ///
    /// # Errors
    /// There are no file descriptors left.
    pub(super) fn archive(&self) -> Result<Spool, String> {
        self.archive.try_clone()
    }

    /// Writes the files, when all pieces have come. Returns the paths that are left out, each with
    /// the reason.
    ///
    /// # Errors
    /// The archive is not whole or not as it should be, and nothing was written; or a file cannot
    /// be written, and a part of them was.
    pub(super) fn write(self) -> Result<Vec<(PathBuf, String)>, String> {
        let folder = self.folder.display().to_string();
        let nothing =
            |why| format!("nothing was written to {folder}: the files of the machine {why}");
        let (file, bytes) = self.archive.finish().map_err(|error| nothing(unreadable(error)))?;
        let mut archive = BufReader::new(file);
        let entries = entries(&mut archive, bytes).map_err(nothing)?;
        write_all(&self.folder, &entries, &mut archive)
            .map_err(|why| format!("{why}; {folder} has only a part of the files"))
    }
}

/// Writes all entries, and returns the paths that are left out, each with the reason.
///
/// # Errors
/// The path that cannot be written.
fn write_all(
    folder: &Path,
    entries: &BTreeMap<Vec<u8>, ArchiveEntry>,
    archive: &mut BufReader<File>,
) -> Result<Vec<(PathBuf, String)>, String> {
    let place = |path: &[u8]| folder.join(OsStr::from_bytes(path));
    let failed = |at: &Path, error| format!("cannot write {}: {error}", at.display());
    for (path, entry) in entries {
        let at = place(path);
        let written = match entry.kind {
            EntryKind::Folder => fs::create_dir(&at),
            EntryKind::File if entry.first.is_none() => file(&at, entry, archive),
            EntryKind::File | EntryKind::Link => continue,
        };
        written.map_err(|error| failed(&at, error))?;
    }
    for (path, entry) in entries {
        let Some(first) = &entry.first else { continue };
        let at = place(path);
        fs::hard_link(place(first), &at).map_err(|error| failed(&at, error))?;
    }
    let mut left_out = Vec::new();
    for (path, entry) in entries.iter().filter(|(_, entry)| entry.kind == EntryKind::Link) {
        let at = place(path);
        let target = target(entry, archive).map_err(|error| failed(&at, error))?;
        if leads_out(path, target.as_bytes()) {
            let target = Path::new(&target).display();
            left_out.push((at, format!("its target may be outside: {target}")));
            continue;
        }
        symlink(target, &at).map_err(|error| failed(&at, error))?;
    }
    // Folders last and from within: one may not be writable.
    for (path, entry) in entries.iter().rev().filter(|(_, one)| one.kind == EntryKind::Folder) {
        let at = place(path);
        fs::set_permissions(&at, Permissions::from_mode(entry.mode & 0o777))
            .map_err(|error| failed(&at, error))?;
    }
    Ok(left_out)
}

fn unreadable(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "are not complete: see above what the kernel said".into(),
        _ => format!("cannot be read again: {error}"),
    }
}

/// The entries of an archive by their paths: a folder comes before its contents.
///
/// # Errors
/// Why it cannot be read, for a sentence that begins with its name.
fn entries(
    archive: &mut BufReader<File>,
    bytes: u64,
) -> Result<BTreeMap<Vec<u8>, ArchiveEntry>, String> {
    let failed = unreadable;
    let mut entries = BTreeMap::new();
    let mut linked: HashMap<u32, Rc<[u8]>> = HashMap::new();
    let mut at = 0_u64;
    loop {
        let mut header = [0; HEADER];
        archive.read_exact(&mut header).map_err(failed)?;
        let number = |place: usize| {
            let digits = &header[MAGIC.len() + 8 * place..][..8];
            digits
                .iter()
                .try_fold(0, |number, digit| Some(number << 4 | char::from(*digit).to_digit(16)?))
        };
        let numbers = [INODE, MODE, LINKS, DATA, PATH].map(number);
        let ([Some(inode), Some(mode), Some(links), Some(data), Some(path_len)], true) =
            (numbers, header.starts_with(MAGIC))
        else {
            return Err("are no archive of the format newc".into());
        };
        let path_len = path_len as usize;
        if !(2..=PATH_MAX).contains(&path_len) {
            return Err(format!("have a path of {path_len} bytes"));
        }
        let mut path = vec![0; path_len];
        archive.read_exact(&mut path).map_err(failed)?;
        path.pop();
        if path == TRAILER {
            return Ok(entries);
        }
        let start = (at + HEADER as u64 + path_len as u64).next_multiple_of(4);
        at = (start + u64::from(data)).next_multiple_of(4);
        if at > bytes {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        archive.seek(SeekFrom::Start(at)).map_err(failed)?;
        let shown = Path::new(OsStr::from_bytes(&path)).display();
        let kind = match mode & 0o170_000 {
            0o040_000 => EntryKind::Folder,
            0o100_000 => EntryKind::File,
            0o120_000 if (1..PATH_MAX).contains(&(data as usize)) => EntryKind::Link,
            _ => return Err(format!("have neither file, folder nor link at {shown}")),
        };
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let parent = path.len() - name.len();
        let in_folder = parent == 0
            || entries
                .get(&path[..parent - 1])
                .is_some_and(|parent: &ArchiveEntry| parent.kind == EntryKind::Folder);
        if matches!(name, b"" | b"." | b"..") || path.contains(&0) || !in_folder {
            return Err(format!("have the path {shown}, which may lead out"));
        }
        let mut first = None;
        if kind == EntryKind::File && links > 1 {
            first = linked.get(&inode).cloned();
            if first.is_some() && data > 0 {
                return Err(format!("have contents in a hard link, {shown}"));
            }
            linked.entry(inode).or_insert_with(|| path.as_slice().into());
        }
        let entry = ArchiveEntry { kind, mode, data: start, bytes: data, first };
        if entries.insert(path.clone(), entry).is_some() {
            return Err(format!("have the path {shown} twice"));
        }
    }
}

/// Writes a new file.
fn file(at: &Path, entry: &ArchiveEntry, archive: &mut BufReader<File>) -> io::Result<()> {
    let mut file = File::create_new(at)?;
    archive.seek(SeekFrom::Start(entry.data))?;
    let mut left = entry.bytes as usize;
    let mut piece = vec![0; left.min(PIECE)];
    while left > 0 {
        let now = &mut piece[..left.min(PIECE)];
        archive.read_exact(now)?;
        write_with_holes(&mut file, now)?;
        left -= now.len();
    }
    file.set_len(entry.bytes.into())?;
    file.set_permissions(Permissions::from_mode(entry.mode & 0o777))
}

/// The target of a link.
fn target(entry: &ArchiveEntry, archive: &mut BufReader<File>) -> io::Result<OsString> {
    archive.seek(SeekFrom::Start(entry.data))?;
    // It is shorter than a page.
    let mut target = vec![0; entry.bytes as usize];
    archive.read_exact(&mut target)?;
    Ok(OsString::from_vec(target))
}

/// Whether the target of a link at a path may be outside of the folder. Its own folders are no
/// links, so going up from there is as it looks; below a name of the target there may be links.
fn leads_out(path: &[u8], target: &[u8]) -> bool {
    let mut depth = path.iter().filter(|byte| **byte == b'/').count();
    let mut down = false;
    target.starts_with(b"/")
        || target.contains(&0)
        || target.split(|byte| *byte == b'/').any(|word| match word {
            b"" | b"." => false,
            b".." if down || depth == 0 => true,
            b".." => {
                depth -= 1;
                false
            }
            _ => {
                down = true;
                false
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// An archive of entries: path, mode, data. Without `TRAILER` it has no end.
    fn archive(entries: &[(&str, u32, &str)]) -> Vec<u8> {
        let numbered = |(path, mode, data): &(_, _, _)| (*path, *mode, *data, 0);
        linked(&entries.iter().map(numbered).collect::<Vec<_>>())
    }

    /// The same with the number of the inode, which is 0 if it has one link.
    fn linked(entries: &[(&str, u32, &str, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (path, mode, data, inode) in entries {
            let (links, path_len) = (1 + u32::from(*inode > 0), path.len() as u32 + 1);
            let data_len = data.len() as u32;
            let numbers = [*inode, *mode, 0, 0, links, 0, data_len, 0, 0, 0, 0, path_len, 0];
            bytes.extend_from_slice(MAGIC);
            numbers.iter().for_each(|number| bytes.extend(format!("{number:08x}").bytes()));
            bytes.extend(path.bytes().chain([0]));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(data.bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    const END: (&str, u32, &str) = ("TRAILER!!!", 0, "");

    fn written(entries: &[u8]) -> (tempfile::TempDir, Result<Vec<(PathBuf, String)>, String>) {
        let folder = tempfile::tempdir().unwrap();
        let out = Out::open(&folder.path().join("out"), "4G").unwrap();
        out.archive().unwrap().append(entries).unwrap();
        (folder, out.write())
    }

    #[test]
    fn files_folders_and_links_arrive() {
        let (folder, left_out) = written(&archive(&[
            ("a", 0o040_555, ""),
            ("a/b", 0o104_640, "text"),
            ("a/up", 0o120_777, "../c"),
            ("c", 0o100_600, ""),
            ("down", 0o120_777, "a/./b"),
            END,
        ]));
        assert_eq!(left_out, Ok(Vec::new()));
        let at = |path: &str| folder.path().join("out").join(path);
        let mode = |path: &str| fs::metadata(at(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(fs::read(at("down")).unwrap(), b"text");
        assert_eq!(fs::read_link(at("a/up")).unwrap(), Path::new("../c"));
        assert_eq!((mode("a"), mode("a/b"), mode("c")), (0o555, 0o640, 0o600));
        fs::set_permissions(at("a"), Permissions::from_mode(0o755)).unwrap();
        let full = Out::open(&folder.path().join("out"), "4G").err().unwrap();
        assert!(full.contains("not empty"), "{full}");
    }

    #[test]
    fn hard_links_and_holes_stay_such() {
        let (zeros, end) = ("\0".repeat(1 << 20), ("TRAILER!!!", 0, "", 0));
        // In the order of the bytes, "a-b" comes before "a/b".
        let (folder, left_out) = written(&linked(&[
            ("a", 0o040_755, "", 0),
            ("a/b", 0o100_644, &zeros, 7),
            ("a-b", 0o100_644, "", 7),
            ("c", 0o100_644, "", 7),
            ("d", 0o100_644, "", 8),
            end,
        ]));
        assert_eq!(left_out, Ok(Vec::new()));
        let found = |path: &str| fs::metadata(folder.path().join("out").join(path)).unwrap();
        let first = found("a/b");
        assert_eq!((first.nlink(), first.len()), (3, 1 << 20));
        assert!(first.blocks() * 512 < 64 << 10, "{}", first.blocks());
        assert_eq!((found("a-b").ino(), found("c").ino()), (first.ino(), first.ino()));
        assert_eq!((found("d").nlink(), found("d").len()), (1, 0));

        let file = |path, data| (path, 0o100_644, data, 7);
        let (folder, wrong) = written(&linked(&[file("a", "x"), file("b", "y"), end]));
        let wrong = wrong.unwrap_err();
        assert!(wrong.contains("contents in a hard link, b"), "{wrong}");
        assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 0);
    }

    #[test]
    fn a_part_of_the_files_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("out");
        let out = Out::open(&at, "4G").unwrap();
        let files = [("a", 0o100_644, "x"), ("b", 0o100_644, "y"), END];
        out.archive().unwrap().append(&archive(&files)).unwrap();
        fs::write(at.join("b"), "").unwrap();
        let wrong = out.write().unwrap_err();
        assert!(wrong.contains("out/b: ") && wrong.contains("only a part"), "{wrong}");
    }

    #[test]
    fn nothing_leads_out() {
        for path in
            ["/a", "../a", "..", ".", "", "a", "d/../a", "d//a", "d/", "l/a", "f/a", "gone/a"]
        {
            let first = [("a", 0o100_600, ""), ("d", 0o040_755, ""), ("f", 0o100_600, "")];
            let link = ("l", 0o120_777, "d");
            let (folder, wrong) =
                written(&archive(&[&first[..], &[link, (path, 0o100_600, "x"), END]].concat()));
            let wrong = wrong.unwrap_err();
            assert!(wrong.contains("nothing was written"), "{path}: {wrong}");
            assert_eq!(fs::read_dir(folder.path().join("out")).unwrap().count(), 0, "{path}");
        }
        for (path, target, out) in [
            ("d/l", "/etc/passwd", true),
            ("l", "..", true),
            ("d/l", "../../a", true),
            ("d/l", "../d/../a", true),
            ("d/l", "../a/.", false),
            ("d/e/l", "../gone/..", true),
            ("d/e/l", "../../l", false),
            ("l", "d/gone", false),
        ] {
            let all =
                [("d", 0o040_755, ""), ("d/e", 0o040_755, ""), (path, 0o120_777, target), END];
            let (folder, left_out) = written(&archive(&all));
            assert_eq!(left_out.unwrap().len(), usize::from(out), "{target}");
            let there = folder.path().join("out").join(path).symlink_metadata().is_ok();
            assert_eq!(there, !out, "{target}");
        }
    }

    #[test]
    fn an_archive_that_is_cut_or_damaged_writes_nothing_or_only_below() {
        let whole = archive(&[("d", 0o040_755, ""), ("d/f", 0o100_644, "text"), END]);
        for end in 0..whole.len() - 4 {
            let (_folder, cut) = written(&whole[..end]);
            assert!(cut.unwrap_err().contains("not complete"), "{end}");
        }
        for at in 0..whole.len() {
            for value in [0, b'/', b'.', b'7', b'f', 255] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let (folder, _) = written(&damaged);
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            }
        }
    }
}
