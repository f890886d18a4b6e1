//! The files of a run, as an archive that QEMU loads (`-initrd`).
//!
//! The format is cpio's "newc". The first entry is [`ARGV`], the second [`ENV`]: words that end
//! with a zero byte. The others are the root file system, a folder before its contents, in the
//! order of their paths. The kernel's reader is `kernel/src/archive.rs`.
//!
//! The archive is a temporary file without a name. So it is gone when this process and QEMU have
//! ended, however they end. It costs a copy of all files.

use cpio::newc::{Builder, trailer};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::walk::Walk;

const ARGV: &str = ".samara/argv";
const ENV: &str = ".samara/env";
/// The folder of our own entries.
pub(super) const OURS: &str = ".samara";

/// The types in `st_mode`.
const FOLDER: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

#[derive(Debug)]
pub(super) enum EntryKind {
    Folder,
    /// The file of the host with the contents.
    File(PathBuf),
    /// The target.
    Link(String),
}

#[derive(Debug)]
pub(super) struct TreeEntry {
    pub(super) kind: EntryKind,
    /// The permissions.
    pub(super) mode: u32,
}

impl TreeEntry {
    /// The entry for the host's file, folder or link at a path, or why there can be none.
    pub(super) fn of_host(at: &Path) -> io::Result<Result<TreeEntry, &'static str>> {
        let metadata = at.symlink_metadata()?;
        let kind = if metadata.is_dir() {
            EntryKind::Folder
        } else if metadata.is_symlink() {
            match fs::read_link(at)?.into_os_string().into_string() {
                Ok(target) => EntryKind::Link(target),
                Err(_) => return Ok(Err("its target is not UTF-8")),
            }
        } else if metadata.is_file() {
            EntryKind::File(at.into())
        } else {
            return Ok(Err("it is no file, folder or link"));
        };
        Ok(Ok(TreeEntry { kind, mode: metadata.permissions().mode() & 0o7777 }))
    }
}

/// The paths that are left out, each with the reason.
pub(super) type LeftOut = Vec<(PathBuf, &'static str)>;

/// A root file system: its entries by their paths, which do not begin with a slash.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, TreeEntry>);

impl Tree {
    /// Reads the folder, and all folders in it. Returns the tree, and the entries that it leaves
    /// out: sockets, pipes and devices, and names that are not UTF-8.
    ///
    /// # Errors
    /// Something cannot be read, or a name is [`OURS`].
    pub(super) fn read(root: &Path) -> Result<(Tree, LeftOut), String> {
        let mut tree = Tree::default();
        let left_out = tree.read_below(root, String::new())?;
        Ok((tree, left_out))
    }

    /// As [`read`](Self::read), into this tree below `prefix`, which is empty or ends with a slash.
    /// Entries that are there stay.
    pub(super) fn read_below(&mut self, root: &Path, prefix: String) -> Result<LeftOut, String> {
        let mut left_out = LeftOut::new();
        let mut folders = vec![(root.to_path_buf(), prefix)];
        while let Some((folder, prefix)) = folders.pop() {
            let cannot = |at: &Path, error| format!("cannot read {}: {error}", at.display());
            for item in fs::read_dir(&folder).map_err(|error| cannot(&folder, error))? {
                let at = item.map_err(|error| cannot(&folder, error))?.path();
                let Some(name) = at.file_name().and_then(|name| name.to_str()) else {
                    left_out.push((at, "its name is not UTF-8"));
                    continue;
                };
                let path = format!("{prefix}{name}");
                if path == OURS {
                    return Err(format!("the name {} is reserved: rename it", at.display()));
                }
                match TreeEntry::of_host(&at).map_err(|error| cannot(&at, error))? {
                    Ok(entry) => {
                        if matches!(entry.kind, EntryKind::Folder) {
                            folders.push((at, format!("{path}/")));
                        }
                        self.0.entry(path).or_insert(entry);
                    }
                    Err(reason) => left_out.push((at, reason)),
                }
            }
        }
        Ok(left_out)
    }

    pub(super) fn get(&self, path: &str) -> Option<&TreeEntry> {
        self.0.get(path)
    }

    pub(super) fn add(&mut self, path: &str, entry: TreeEntry) {
        self.0.insert(path.into(), entry);
    }

    /// The entries below a folder: their paths, with a slash at the beginning, and the files.
    pub(super) fn files_below(&self, folder: &str) -> Vec<(String, PathBuf)> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let below = self.0.iter().filter(|(path, _)| path.starts_with(&prefix) || *path == folder);
        below
            .filter_map(|(path, entry)| match &entry.kind {
                EntryKind::File(file) => Some((format!("/{path}"), file.clone())),
                EntryKind::Folder | EntryKind::Link(_) => None,
            })
            .collect()
    }

    /// The entry to which a path leads, with all links followed, and its own path. The links are
    /// those of the tree: none leads out of it.
    pub(super) fn resolve(&self, path: &str) -> Option<(String, &TreeEntry)> {
        let mut walk = Walk::new(path);
        while let Some(here) = walk.step() {
            if let EntryKind::Link(target) = &self.get(&here)?.kind {
                walk.follow(target)?;
            }
        }
        let end = walk.place();
        self.get(&end).map(|entry| (end, entry))
    }

    /// Writes the archive, and returns it with its bytes. `argv[0]` is the program's path in it.
    ///
    /// # Errors
    /// A file cannot be read, or is too large for the format, or there is no room for the archive.
    pub(super) fn archive(&self, argv: &[String], env: &[String]) -> Result<(File, u64), String> {
        let place = std::env::temp_dir();
        let failed = |error| {
            let cure = "TMPDIR names another place";
            format!("cannot write the archive in {}: {error}; {cure}", place.display())
        };
        let mut out = BufWriter::new(tempfile::tempfile().map_err(failed)?);
        for (path, words) in [(ARGV, argv), (ENV, env)] {
            let data: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
            write(&mut out, path, REGULAR | 0o444, &data).map_err(failed)?;
        }
        for (path, TreeEntry { kind, mode }) in &self.0 {
            match kind {
                EntryKind::Folder => write(&mut out, path, FOLDER | mode, &[]).map_err(failed)?,
                EntryKind::Link(target) => {
                    write(&mut out, path, LINK | mode, target.as_bytes()).map_err(failed)?;
                }
                EntryKind::File(at) => {
                    copy(&mut out, path, REGULAR | mode, at).map_err(|error| {
                        format!("cannot put {} into the archive: {error}", at.display())
                    })?
                }
            }
        }
        trailer(&mut out).map_err(failed)?;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok((file, bytes))
    }
}

fn write(out: &mut impl Write, path: &str, mode: u32, data: &[u8]) -> io::Result<()> {
    let bytes = u32::try_from(data.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut entry = Builder::new(path).mode(mode).write(out, bytes);
    entry.write_all(data)?;
    entry.finish().map(drop)
}

fn copy(out: &mut impl Write, path: &str, mode: u32, from: &Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    // The format has 32 bits for it.
    let bytes = u32::try_from(from.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut entry = Builder::new(path).mode(mode).write(out, bytes);
    let copied = io::copy(&mut from, &mut entry)?;
    if copied != u64::from(bytes) {
        return Err(io::Error::other("it became shorter meanwhile"));
    }
    entry.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(target: &str) -> TreeEntry {
        TreeEntry { kind: EntryKind::Link(target.into()), mode: 0o777 }
    }

    #[test]
    fn links_lead_to_entries_of_the_tree() {
        let mut tree = Tree::default();
        let folder = || TreeEntry { kind: EntryKind::Folder, mode: 0o755 };
        for path in ["bin", "usr", "usr/bin"] {
            tree.add(path, folder());
        }
        tree.add(
            "usr/bin/box",
            TreeEntry { kind: EntryKind::File("/host/box".into()), mode: 0o755 },
        );
        tree.add("bin/ls", link("../usr/bin/box"));
        tree.add("bin/sh", link("/usr/bin/box"));
        tree.add("b", link("usr/bin"));
        tree.add("out", link("../../../../usr/bin/box"));
        tree.add("loop", link("loop"));
        tree.add("gone", link("/etc/gone"));
        for path in ["bin/ls", "/bin/sh", "b/box", "./b/../../bin/ls", "out", "usr/bin/box"] {
            let found = tree.resolve(path);
            let file = found.filter(|(_, entry)| matches!(entry.kind, EntryKind::File(_)));
            assert_eq!(file.map(|(at, _)| at).as_deref(), Some("usr/bin/box"), "{path}");
        }
        for path in ["loop", "gone", "bin/box", "box"] {
            assert!(tree.resolve(path).is_none(), "{path}");
        }
        assert!(matches!(tree.resolve("usr/bin").unwrap().1.kind, EntryKind::Folder));
    }

    #[test]
    fn names_that_are_not_utf_8_are_left_out() {
        use std::ffi::OsStr;
        use std::os::unix::{ffi::OsStrExt, fs::symlink};
        let root = std::env::temp_dir().join(format!("samara-names-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let bad = OsStr::from_bytes(b"a\xffb");
        fs::write(root.join(bad), "").unwrap();
        fs::write(root.join("good"), "").unwrap();
        symlink(bad, root.join("link")).unwrap();
        let (tree, mut left_out) = Tree::read(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        left_out.sort();
        let names = [
            (root.join(bad), "its name is not UTF-8"),
            (root.join("link"), "its target is not UTF-8"),
        ];
        assert_eq!(left_out, names);
        assert!(tree.get("good").is_some() && tree.0.len() == 1);
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let mut tree = Tree::default();
        tree.add("a", TreeEntry { kind: EntryKind::File("/nowhere/a".into()), mode: 0o644 });
        let error = tree.archive(&["/a".into()], &[]).unwrap_err();
        assert!(error.contains("cannot put /nowhere/a into the archive"), "{error}");
    }
}
